"""What the HTTP side wants from a manager, whatever drives it.

It is given values (`status.py`), of which each resource makes what it answers: what one more
resource shows needs nothing here, if it is in a status. The live model and all commands are asked
of the leader only; plans, placement, policy and audit come from the store, so that every manager
answers them. Methods raise what `reconfig_manager.model.refusals` has, and what is below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dynatops.kit.observing.metrics import Family
from dynatops.kit.security.tokens import Role
from reconfig_manager.model.network import Model
from reconfig_manager.model.plan import Placement, Plan
from reconfig_manager.model.policy import Policy, VersionedPolicy
from reconfig_manager.model.refusals import RefusalError
from reconfig_manager.ports import AuditEntry, Page
from reconfig_manager.rest.bodies import ProposalBody, StoreProposalBody
from reconfig_manager.rest.broadcast import Watcher
from reconfig_manager.status import JobStatus, LeaderStatus, ManagerStatus, TopicsStatus

Answer = TypeVar("Answer")


class UnknownTopicError(RefusalError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"nobody publishes on {topic!r} or subscribes to it")
        self.topic = topic


class UnknownCursorError(RefusalError):
    """No page begins there."""

    def __init__(self) -> None:
        super().__init__("no page begins at this cursor; begin again without one")


class KeyReusedError(RefusalError):
    """An idempotency key came a second time, with another request."""

    def __init__(self, plan_id: str) -> None:
        super().__init__(f"this Idempotency-Key was used for another request: plan {plan_id}")
        self.plan_id = plan_id


class ConflictingOptionsError(RefusalError):
    """What was asked for does not go with what the policy says about the rest."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class PageRequest:
    limit: int
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class LeadershipView:
    """Who leads, as far as this manager knows."""

    # Whether it is this manager.
    here: bool
    # Of the leader's HTTP side; empty if nobody leads, or it is not known.
    url: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that was refused before the manager heard of it."""

    action: str
    subject: str = ""
    reason: str = ""


class Facade(Protocol):
    # ---- the live model, at the leader: others raise NotLeading ----------------------------------

    def leader(self) -> LeaderStatus: ...

    def topics(self, leader: LeaderStatus) -> TopicsStatus:
        """Some seconds old at most: it takes long to put together."""
        ...

    def subscribers(self, topic: str) -> frozenset[str]:
        """Brokers in the topic's tree for their own sake."""
        ...

    def model(self) -> Model:
        """What would be planned from now. Raises ModelTooThin."""
        ...

    async def computed(self, work: Callable[[], Answer]) -> Answer:
        """What takes long on large networks: run beside the event loop, one at a time."""
        ...

    async def computed_lately(self, prepare: Callable[[Facade], Callable[[], Answer]]) -> Answer:
        """Likewise, of what `prepare` takes from the manager when its turn has come; or what was
        answered some seconds ago, under the same leader and policy."""
        ...

    def watch(self, last_id: str, caller: str) -> Watcher:
        """Events from now on, or after `last_id`. Raises CallerWatchesTooMuchError and
        TooManyWatchersError."""
        ...

    # ---- what is stored, at every manager --------------------------------------------------------

    async def stored_placement(self) -> Placement: ...

    async def plans(self, page: PageRequest) -> Page[Plan]:
        """The newest first. Raises UnknownCursorError."""
        ...

    async def plan(self, plan_id: str) -> Plan: ...

    async def policy(self) -> VersionedPolicy: ...

    async def audit(self, page: PageRequest) -> Page[AuditEntry]:
        """The newest first. Raises UnknownCursorError."""
        ...

    # ---- commands, at the leader -----------------------------------------------------------------

    async def propose(self, caller: Caller, body: ProposalBody, key: str) -> Plan:
        """The plan, being computed; with an idempotency key that was there, the one of then."""
        ...

    async def propose_stores(self, caller: Caller, body: StoreProposalBody, key: str) -> Plan:
        """Likewise, of what stores keep."""
        ...

    async def approve(self, caller: Caller, plan_id: str, reason: str) -> Plan: ...

    async def cancel(self, caller: Caller, plan_id: str, reason: str) -> Plan: ...

    async def set_policy(
        self, caller: Caller, policy: Policy, version: int | None, reason: str
    ) -> VersionedPolicy:
        """Raises StalePolicy unless `version` is the present one; None: whatever it is."""
        ...

    async def refused(self, caller: Caller, command: Command, outcome: str, detail: str) -> None:
        """Into the audit log. What the methods above refuse is there already."""
        ...

    # ---- this manager ----------------------------------------------------------------------------

    def status(self) -> ManagerStatus: ...

    async def leadership(self) -> LeadershipView: ...

    def late(self) -> str:
        """Why this process is not well; empty if it is."""
        ...

    async def unready(self) -> dict[str, str]:
        """What keeps this manager from its work, by part; empty if nothing does."""
        ...

    def jobs(self) -> tuple[JobStatus, ...] | None:
        """Jobs of analytics, some seconds old; None if this manager has nowhere to look."""
        ...

    async def metrics(self) -> list[Family]: ...
