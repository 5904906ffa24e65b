"""Brokers that a plan left behind: each is told the outcome, step by step, once it is there again.

A broker that uses a node which the newest placement gives to another (it was away past the commit
point, or its process was restarted) restores, repairs and finishes. A broker frozen by a plan that
is over learns how it ended. A broker that does not answer is repeated to for some time, then left:
it thaws by itself, and is checked again when it registers again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dynatops.v1.manager_pb2 import (
    RCFG_FINISH,
    RCFG_ROLL_BACK,
    RCFG_TREE_REPAIR,
    RCFG_TREE_RESTORE,
    STEP_PROBLEM_IN_USE,
    STEP_PROBLEM_NOT_FROZEN,
    STEP_PROBLEM_STALE,
    STEP_PROBLEM_UNSPECIFIED,
    Step,
    StepKind,
    StepReply,
)
from reconfig_manager.model.core_settings import ExecutionSettings
from reconfig_manager.model.plan import PlacedNode, Placement
from reconfig_manager.monitor.members import Member, Members
from reconfig_manager.ports import AgentId, SendStep

FORWARD = (RCFG_TREE_RESTORE, RCFG_TREE_REPAIR, RCFG_FINISH)
BACK = (RCFG_ROLL_BACK,)
_FINE = frozenset({STEP_PROBLEM_UNSPECIFIED, STEP_PROBLEM_STALE, STEP_PROBLEM_NOT_FROZEN})


@dataclass(slots=True)
class _CatchUp:
    incarnation: int
    plan_id: str
    epoch: int
    steps: Sequence[StepKind.ValueType]
    moved: tuple[PlacedNode, ...]
    started_s: float
    done: int = 0
    sent_s: float = field(default=float("-inf"))


class CatchingUp:
    def __init__(self, settings: ExecutionSettings, fence: int, members: Members) -> None:
        self._settings = settings
        self._fence = fence
        self._members = members
        self._catch_ups: dict[str, _CatchUp] = {}
        # A broker has obeyed a leader with this fence.
        self.outranked_by = 0

    @property
    def busy_with(self) -> list[str]:
        return sorted(self._catch_ups)

    def check_member(
        self,
        member: Member,
        placement: Placement,
        now_s: float,
        *,
        epoch_of_frozen: int = 0,
        straggler: bool = False,
    ) -> list[SendStep]:
        """It registered, or is a straggler of the newest placement: what is there to tell it?

        `epoch_of_frozen` is that of the plan that it says it is frozen by, 0 if it is unknown.
        """
        catch_up = self._catch_up_for(member, placement, epoch_of_frozen, straggler, now_s)
        running = self._catch_ups.get(member.broker_id)
        if running is not None:
            about = catch_up or running
            same = (running.incarnation, running.plan_id) == (member.incarnation, about.plan_id)
            # Restored, it says that it uses the placement; it has yet to repair and to finish.
            if same and running.plan_id == placement.plan_id:
                return []
            if same and catch_up is not None:
                return self._send(member, now_s)
            del self._catch_ups[member.broker_id]
        if catch_up is None:
            return []
        self._catch_ups[member.broker_id] = catch_up
        return self._send(member, now_s)

    def _catch_up_for(
        self,
        member: Member,
        placement: Placement,
        epoch_of_frozen: int,
        straggler: bool,
        now_s: float,
    ) -> _CatchUp | None:
        if member.frozen_by and member.frozen_by != placement.plan_id:
            epoch = epoch_of_frozen or member.epoch + 1
            return _CatchUp(member.incarnation, member.frozen_by, epoch, BACK, (), now_s)
        behind = straggler or is_left_behind(member, placement, self._members)
        if not member.frozen_by and not behind:
            return None
        steps: Sequence[StepKind.ValueType] = FORWARD
        if member.broker_id not in {placed.broker_id for placed in placement.moved}:
            steps = (RCFG_TREE_RESTORE, RCFG_FINISH)
        moved = news_for(member, placement)
        return _CatchUp(member.incarnation, placement.plan_id, placement.epoch, steps, moved, now_s)

    def reply(
        self, agent: AgentId, reply: StepReply, placement: Placement, now_s: float
    ) -> list[SendStep]:
        catch_up = self._catch_ups.get(agent.broker_id)
        member = self._members.by_agent(agent)
        if catch_up is None or member is None or reply.kind != catch_up.steps[catch_up.done]:
            return []
        if (reply.plan, reply.epoch) != (catch_up.plan_id, catch_up.epoch):
            return []
        if reply.problem == STEP_PROBLEM_STALE and reply.fence > self._fence:
            self.outranked_by = max(self.outranked_by, reply.fence)
            return []
        # In use: it has no reason to be undone, and none to be frozen.
        if reply.problem not in _FINE and reply.problem != STEP_PROBLEM_IN_USE:
            return []
        if reply.kind == RCFG_TREE_RESTORE:
            node_id = assigned_to(member, placement)
            self._members.moved_to(member.broker_id, node_id, catch_up.epoch)
        catch_up.done += 1
        catch_up.sent_s = float("-inf")
        if catch_up.done == len(catch_up.steps):
            member.frozen_by = ""
            del self._catch_ups[agent.broker_id]
            return []
        return self._send(member, now_s)

    def tick(self, now_s: float) -> list[SendStep]:
        sending: list[SendStep] = []
        for broker_id in self.busy_with:
            catch_up = self._catch_ups[broker_id]
            member = self._members.get(broker_id)
            over = now_s >= catch_up.started_s + self._settings.complete_timeout_s
            if member is None or member.incarnation != catch_up.incarnation or over:
                del self._catch_ups[broker_id]
            elif now_s >= catch_up.sent_s + self._settings.resend_s:
                sending += self._send(member, now_s)
        return sending

    def _send(self, member: Member, now_s: float) -> list[SendStep]:
        catch_up = self._catch_ups[member.broker_id]
        if not member.attached:
            return []
        catch_up.sent_s = now_s
        kind = catch_up.steps[catch_up.done]
        step = Step(fence=self._fence, plan=catch_up.plan_id, epoch=catch_up.epoch, kind=kind)
        if kind == RCFG_TREE_RESTORE:
            step.moved.extend(placed.ref(catch_up.epoch) for placed in catch_up.moved)
        self._members.note_told(member.broker_id)
        return [SendStep(member.agent, step)]


def is_left_behind(member: Member, placement: Placement, members: Members) -> bool:
    """It does not know of the newest placement, and uses a node that this gives to another.

    A broker that was in the plan gave its node away. A process that came later may have taken the
    node since, unless its host is there.
    """
    if member.epoch >= placement.epoch:
        return False
    node = member.placed.node
    heir = next((placed for placed in placement.hosts if placed.node == node), None)
    if heir is None or heir.broker_id == member.broker_id:
        return False
    mine = next((p for p in placement.hosts if p.broker_id == member.broker_id), None)
    if mine is not None and mine.incarnation == member.incarnation:
        return True
    other = members.get(heir.broker_id)
    return other is not None and other.node_id == member.node_id


def assigned_to(member: Member, placement: Placement) -> int:
    for placed in placement.hosts:
        if placed.broker_id == member.broker_id:
            return int(placed.node, 16)
    return member.node_id


def news_for(member: Member, placement: Placement) -> tuple[PlacedNode, ...]:
    """What the newest plan moved; and, should it have missed older ones, its node and its heir."""
    known = {placed.node for placed in placement.moved}
    more = [
        placed
        for placed in placement.hosts
        if placed.node not in known
        and (placed.broker_id == member.broker_id or placed.node == member.placed.node)
    ]
    return (*placement.moved, *more)
