"""What the manager's core takes and gives, and what it wants from a store.

`Manager` (manager.py) is driven by the service in real time and by the simulator in virtual time.
It gives effects, in order; the driver carries them out and says how they ended. Seconds are since
1970, UTC, and never go back: a driver starts from the wall clock and adds what a steady one says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from dynatops.v1.manager_pb2 import Step
from reconfig_manager.model.notices import Notice
from reconfig_manager.model.plan import Placement, Plan
from reconfig_manager.model.policy import SolverOptions, VersionedPolicy
from reconfig_manager.model.store_plan import StorePlanOptions
from reconfig_manager.placement.decision import MovingCost
from reconfig_manager.placement.problem import PlacementProblem, Task
from reconfig_manager.storing.problem import StoringProblem, StoringTask


class AgentId(NamedTuple):
    """A stream of a broker; the driver numbers streams upwards."""

    broker_id: str
    incarnation: int
    stream: int


class ProposalRequest(BaseModel):
    """What a person asks for; what is not said is as the policy has it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    actor: str = "anonymous"
    reason: str = Field("", max_length=1000)
    # Approved at once if the decision accepts it; otherwise a dry run, to be approved by a person.
    execute: bool = False
    options: SolverOptions | None = None


class StoreProposalRequest(BaseModel):
    """What a person asks for: which stores had better keep which topics."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    actor: str = "anonymous"
    reason: str = Field("", max_length=1000)
    # Approved at once if the decision accepts it; otherwise a dry run, to be approved by a person.
    execute: bool = False
    options: StorePlanOptions = StorePlanOptions()


class AuditEntry(BaseModel):
    """A command, by whom and how it ended."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at_s: float
    actor: str
    # The actor's, where there are tokens.
    role: str = ""
    # propose, approve, cancel, set_policy, execute, ...
    action: str
    # A plan id, or `policy`.
    subject: str = ""
    reason: str = ""
    # accepted, or the name of the refusal's type.
    outcome: str = "accepted"
    detail: str = ""
    # Filled in by the store, ascending.
    number: int = 0


class Constants(BaseModel):
    """eq. 11's a, b, c as calibrated, and from how many plans."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    a: float = MovingCost().a
    b: float = MovingCost().b
    c: float = MovingCost().c
    plans: int = 0

    def moving(self) -> MovingCost:
        return MovingCost(self.a, self.b, self.c)


class ManagerFacts(BaseModel):
    """What managers tell each other about themselves."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    manager_id: str
    # Where it listens for brokers, and the URL of its HTTP side.
    agents: str = ""
    http: str = ""


class StoredState(BaseModel):
    """What a new leader reads."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    # Every one that is not over, and the newest of the others.
    plans: tuple[Plan, ...] = ()
    placement: Placement = Placement()
    policy: VersionedPolicy = VersionedPolicy()
    constants: Constants = Constants()
    # Publication rates as last kept, events/s by topic, and when.
    rates: dict[str, float] = Field(default_factory=dict)
    rates_at_s: float = 0.0
    # The highest epoch of any plan ever written.
    epoch: int = 0


# ---- effects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendStep:
    """To the agent's stream; if that is gone, it is dropped: steps are repeated.

    Many agents may be sent the same object: it is not to be changed.
    """

    agent: AgentId
    step: Step


@dataclass(frozen=True, slots=True)
class Solve:
    """Run `SOLVERS[algorithm](problem, task)` elsewhere, then say `solved(plan_id, ...)`."""

    plan_id: str
    problem: PlacementProblem
    task: Task
    algorithm: str


@dataclass(frozen=True, slots=True)
class PlaceTopics:
    """Run `STORE_PLANNERS[planner](problem, task)` elsewhere, then say `topics_placed`."""

    plan_id: str
    problem: StoringProblem
    task: StoringTask
    planner: str


@dataclass(frozen=True, slots=True)
class Record:
    """Write what is not None, all or nothing, fenced; then `recorded(token)`.

    If it fails, or whether it arrived is not known: `not_recorded(token)`, and the core writes it
    again, or something newer. Deposed: `depose`.
    """

    token: int
    plan: Plan | None = None
    placement: Placement | None = None
    policy: VersionedPolicy | None = None
    constants: Constants | None = None


@dataclass(frozen=True, slots=True)
class KeepRates:
    """Worth keeping for the next leader; nobody minds if it fails."""

    rates: Mapping[str, float]
    at_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the agent's stream."""

    agent: AgentId
    reason: str


@dataclass(frozen=True, slots=True)
class Notify:
    """For the event stream, the log and metrics."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Audit:
    entry: AuditEntry


@dataclass(frozen=True, slots=True)
class Outranked:
    """A broker has obeyed a higher fence, or this one from another leader: lead again with one
    above it, if nobody else leads."""

    fence: int
    # This one: the store has lost its past.
    past_lost: bool = False


ManagerEffect = (
    SendStep | Solve | PlaceTopics | Record | KeepRates | Drop | Notify | Audit | Outranked
)


Item = TypeVar("Item")

# ---- the store -----------------------------------------------------------------------------------

# Beyond it numbers in the scripts of a store's server are not exact.
FENCE_MAX = (1 << 53) - 1


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    items: Sequence[Item]
    # Where the next page begins; None at the end.
    next_cursor: str | None = None


class Store(Protocol):
    """Everything raises StoreAway if the store does not answer; what was written then may have
    arrived. Fenced writes raise Deposed if the fence is not the newest given out.
    """

    # Questions that were not answered.
    failures: int

    async def acquire(self, me: str, ttl_s: float, fence_min: int = 0) -> int | None:
        """Lead: a fence above all former and at least `fence_min`; None if another leads."""
        ...

    async def renew(self, me: str, fence: int, ttl_s: float) -> None: ...

    async def release(self, me: str, fence: int) -> None: ...

    async def leader(self) -> tuple[str, int] | None: ...

    async def announce(self, facts: ManagerFacts, ttl_s: float) -> None:
        """For `managers`, until the time is over."""
        ...

    async def managers(self) -> list[ManagerFacts]:
        """Those that live, by name."""
        ...

    async def read_state(self) -> StoredState: ...

    async def write(self, fence: int, record: Record) -> None:
        """All of the record or nothing.

        A plan whose version is not above the stored one is not written, nor the rest of its
        record, and that is no error: a write that was thought lost may have overtaken it.
        """
        ...

    async def keep_rates(self, fence: int, rates: Mapping[str, float], at_s: float) -> None: ...

    async def placement(self) -> Placement: ...

    async def policy(self) -> VersionedPolicy: ...

    async def plan(self, plan_id: str) -> Plan | None: ...

    async def plans(self, cursor: str | None, limit: int) -> Page[Plan]:
        """The newest first; a ValueError says that no page begins at the cursor."""
        ...

    async def append_audit(self, entry: AuditEntry, key: str = "", *, again: bool = False) -> None:
        """`again`: it may have arrived already, with this key; then it is not written twice."""
        ...

    async def audit(self, cursor: str | None, limit: int) -> Page[AuditEntry]:
        """The newest first; a ValueError says that no page begins at the cursor."""
        ...

    async def plan_for_key(self, key: str) -> str | None:
        """The plan that was proposed with this idempotency key."""
        ...

    async def remember_key(self, key: str, plan_id: str, ttl_s: float) -> str:
        """The plan that has the key: this one, or the one that came first."""
        ...
