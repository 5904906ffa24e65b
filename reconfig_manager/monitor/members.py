"""Which brokers are registered, on which stream, and which node each hosts.

A broker is *attached* while its stream is open, and a *member* for `gone_s` longer: connections
break. It is gone after that, or when another process registers under its name. Checking secrets and
protocol versions is the driver's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from dynatops.v1.manager_pb2 import Registration
from overlay.base.identifiers import NUMBER_MAX, show_node
from reconfig_manager.model.plan import Base, PlacedNode
from reconfig_manager.ports import AgentId


@dataclass(slots=True)
class Member:
    agent: AgentId
    node_id: int
    address: str
    # The newest placement that the broker has taken part in.
    epoch: int
    frozen_by: str
    labels: dict[str, str]
    registered_s: float
    # When its stream ended.
    ended_s: float | None = None

    @property
    def broker_id(self) -> str:
        return self.agent.broker_id

    @property
    def incarnation(self) -> int:
        return self.agent.incarnation

    @property
    def attached(self) -> bool:
        return self.ended_s is None

    @property
    def placed(self) -> PlacedNode:
        return PlacedNode(
            node=show_node(self.node_id),
            broker_id=self.broker_id,
            address=self.address,
            incarnation=self.incarnation,
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """What a registration changed."""

    member: Member | None
    # Why it was not let in.
    problem: str = ""
    # A stream of the same broker that this one takes the place of.
    replaced: AgentId | None = None
    # What was said on another stream may be lost.
    on_new_stream: bool = False
    # New here, or in another process than before: whatever was known of it does not hold.
    new: bool = False


class Members:
    def __init__(self, gone_s: float, brokers_max: int) -> None:
        self._gone_s = gone_s
        self._brokers_max = brokers_max
        self._members: dict[str, Member] = {}
        self.epoch_max = 0
        # Names of those that this leader has sent a step, there or gone since.
        self._told: set[str] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """In the order of their names."""
        return (self._members[name] for name in sorted(self._members))

    def get(self, broker_id: str) -> Member | None:
        return self._members.get(broker_id)

    def by_agent(self, agent: AgentId) -> Member | None:
        """None if it is an old stream of the broker."""
        member = self._members.get(agent.broker_id)
        return member if member is not None and member.agent == agent else None

    def register(self, agent: AgentId, registration: Registration, now_s: float) -> Admission:
        before = self._members.get(agent.broker_id)
        problem = self._problem(agent, registration, before)
        if problem:
            return Admission(None, problem)
        self.epoch_max = max(self.epoch_max, registration.epoch, registration.node.epoch)
        member = Member(
            agent,
            registration.node.node_id,
            registration.node.address,
            registration.epoch,
            registration.frozen_by,
            dict(registration.labels),
            now_s,
        )
        self._members[agent.broker_id] = member
        replaced = before.agent if before and before.attached and before.agent != agent else None
        new = before is None or before.incarnation != agent.incarnation
        on_new_stream = before is None or before.agent != agent
        return Admission(member, replaced=replaced, on_new_stream=on_new_stream, new=new)

    def _problem(self, agent: AgentId, registration: Registration, before: Member | None) -> str:
        node = registration.node
        if not agent.broker_id or node.broker_id != agent.broker_id:
            return f"the node is of broker {node.broker_id!r}, the stream of {agent.broker_id!r}"
        if node.incarnation != agent.incarnation:
            return "the node is of another incarnation than the stream"
        if max(registration.epoch, registration.fence, node.epoch) > NUMBER_MAX:
            return "epoch or fence out of range"
        if before is None and len(self._members) >= self._brokers_max:
            return f"there are {self._brokers_max} brokers already (monitor.brokers_max)"
        if before is not None and before.agent > agent:
            return "a newer stream of this broker is registered"
        return ""

    def ended(self, agent: AgentId, now_s: float) -> None:
        member = self.by_agent(agent)
        if member is not None and member.attached:
            member.ended_s = now_s

    def sweep(self, now_s: float) -> list[Member]:
        """Those that are gone now."""
        gone = [
            member
            for member in self
            if member.ended_s is not None and now_s >= member.ended_s + self._gone_s
        ]
        for member in gone:
            del self._members[member.broker_id]
        return gone

    def note_told(self, broker_id: str) -> None:
        self._told.add(broker_id)

    def was_told(self, broker_id: str) -> bool:
        """Whether this leader has sent it a step: it may have obeyed this leader's fence."""
        return broker_id in self._told

    def moved_to(self, broker_id: str, node_id: int, epoch: int) -> None:
        """The broker said that it uses this node."""
        member = self._members.get(broker_id)
        if member is not None and member.epoch < epoch:
            member.node_id = node_id
            member.epoch = epoch

    # ---- the present placement -------------------------------------------------------------------

    def base(self, epoch: int) -> Base:
        text = "\n".join(f"{member.broker_id}@{show_node(member.node_id)}" for member in self)
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return Base(epoch=epoch, membership=digest, brokers=len(self))

    def unready(self) -> str:
        """Why brokers cannot be moved now; empty if they can."""
        hosts: dict[int, str] = {}
        for member in self:
            other = hosts.setdefault(member.node_id, member.broker_id)
            if other != member.broker_id:
                node = show_node(member.node_id)
                return f"{other} and {member.broker_id} both say that they host node {node}"
            if not member.attached:
                return f"{member.broker_id} is not connected"
            if member.frozen_by:
                return f"{member.broker_id} is still frozen by plan {member.frozen_by}"
        return ""
