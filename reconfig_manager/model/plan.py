"""A plan: a new placement of brokers on nodes, or of topics on stores (`store_plan.py`), what it
would gain and cost, and what became of it.

    PROPOSED --> APPROVED --> EXECUTING --> COMMITTED
       |            |             |
       |            |             +-------> ROLLED_BACK
       +------------+--> CANCELLED, EXPIRED
       +--> REJECTED

PROPOSED, without a prediction: it is being computed. REJECTED: the decision, or the solver, said
no. EXPIRED: too old, or brokers have moved since. While EXECUTING a plan has a phase:

    FREEZING --> MOVING --|--> RESTORING --> REPAIRING --> FINISHING
        |          |      ^
        +----------+--> ROLLING_BACK      commit point

`TRANSITIONS` and `PHASES` have every arrow, also those of a new leader that begins a phase again;
docs/images/plan.svg is drawn from them.

The commit point is the write of phase RESTORING together with the placement: before it a new leader
rolls back, after it goes on. `phase` keeps the last one when the plan is over. Plans are values:
`became` and `entered` give changed copies, each with a higher `version`. Times are in seconds since
1970, UTC; nodes are 16 hexadecimal digits.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from dynatops.v1.overlay_pb2 import NodeRef
from overlay.base.identifiers import show_node
from reconfig_manager.model.policy import Mode, RatesFrom, SolverOptions
from reconfig_manager.model.refusals import IllegalTransition
from reconfig_manager.model.store_plan import StorePart, StorePhase


class PlanState(enum.StrEnum):
    PROPOSED = "PROPOSED"
    APPROVED = "APPROVED"
    EXECUTING = "EXECUTING"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    REJECTED = "REJECTED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def over(self) -> bool:
        return not TRANSITIONS[self]


TRANSITIONS: Mapping[PlanState, tuple[PlanState, ...]] = MappingProxyType(
    {
        PlanState.PROPOSED: (
            PlanState.APPROVED,
            PlanState.REJECTED,
            PlanState.CANCELLED,
            PlanState.EXPIRED,
        ),
        PlanState.APPROVED: (PlanState.EXECUTING, PlanState.CANCELLED, PlanState.EXPIRED),
        PlanState.EXECUTING: (PlanState.COMMITTED, PlanState.ROLLED_BACK),
        PlanState.COMMITTED: (),
        PlanState.ROLLED_BACK: (),
        PlanState.REJECTED: (),
        PlanState.CANCELLED: (),
        PlanState.EXPIRED: (),
    }
)


class Phase(enum.StrEnum):
    FREEZING = "FREEZING"
    MOVING = "MOVING"
    RESTORING = "RESTORING"
    REPAIRING = "REPAIRING"
    FINISHING = "FINISHING"
    ROLLING_BACK = "ROLLING_BACK"

    @property
    def committed(self) -> bool:
        return self in (Phase.RESTORING, Phase.REPAIRING, Phase.FINISHING)


PHASES: Mapping[Phase | None, tuple[Phase, ...]] = MappingProxyType(
    {
        None: (Phase.FREEZING,),
        Phase.FREEZING: (Phase.MOVING, Phase.ROLLING_BACK),
        Phase.MOVING: (Phase.RESTORING, Phase.ROLLING_BACK),
        # A new leader restores again, whatever the phase that it finds.
        Phase.RESTORING: (Phase.RESTORING, Phase.REPAIRING),
        Phase.REPAIRING: (Phase.RESTORING, Phase.FINISHING),
        Phase.FINISHING: (Phase.RESTORING,),
        # Forward after all, if a broker says that the placement is in use.
        Phase.ROLLING_BACK: (Phase.ROLLING_BACK, Phase.RESTORING),
    }
)


class Origin(enum.StrEnum):
    REQUEST = "request"
    # Algorithm 3, every T_free.
    PROCESS = "process"


class _PlanPart(BaseModel):
    # What a newer manager wrote into the store is read by an older one as far as it knows it.
    model_config = ConfigDict(frozen=True, extra="ignore")


class PlacedNode(_PlanPart):
    """A node and the broker that hosts it."""

    node: str
    broker_id: str
    address: str = ""
    incarnation: int = 0

    def ref(self, epoch: int) -> NodeRef:
        return NodeRef(
            node_id=int(self.node, 16),
            broker_id=self.broker_id,
            address=self.address,
            epoch=epoch,
            incarnation=self.incarnation,
        )

    @classmethod
    def of(cls, ref: NodeRef) -> Self:
        return cls(
            node=show_node(ref.node_id),
            broker_id=ref.broker_id,
            address=ref.address,
            incarnation=ref.incarnation,
        )


class Placement(_PlanPart):
    """Which broker hosts which node since a plan was committed; later brokers are not in it."""

    epoch: int = 0
    plan_id: str = ""
    hosts: tuple[PlacedNode, ...] = ()
    # Those of `hosts` that the plan moved.
    moved: tuple[PlacedNode, ...] = ()
    committed_s: float = 0.0


class Move(_PlanPart):
    broker_id: str
    from_node: str
    to_node: str


class Base(_PlanPart):
    """What the plan was made from: it is stale once this is no more."""

    epoch: int
    # Of all brokers and their nodes.
    membership: str
    brokers: int


class ModelFacts(_PlanPart):
    """How much was known."""

    completeness: float
    brokers: int
    topics: int
    topics_published: int
    subscriptions: int
    events_per_s: float
    periods: int
    # Reports or advice, whichever it was, and how long ago advice was computed.
    rates_from: RatesFrom = RatesFrom.REPORTS
    rates_age_s: float | None = None
    delay_in: str = "hops"
    # If that is `rtt`: what one of its units is, the mean over all pairs of brokers.
    rtt_mean_ms: float | None = None
    notes: tuple[str, ...] = ()


class CostFigures(_PlanPart):
    """Messages for T_free (eq. 4, 5, 6); delays in hops or mean round trips, total with their
    weight."""

    overhead: float
    delay: float
    total: float


class Prediction(_PlanPart):
    """What the solver found, and the decision."""

    algorithm: str
    cost_before: CostFigures
    cost_after: CostFigures
    # eq. 10, 11 and what the present cost must exceed (III-D2), all in messages for T_free.
    benefit: float
    moving_cost: float
    threshold: float
    t_free_s: float
    accept: bool
    # `decision.Reason`, and the same as a sentence.
    reason: str
    explanation: str
    seconds: float = 0.0
    iterations: int = 0
    bound: float | None = None
    finished: bool = True
    # Events for T_free.
    events: float = 0.0
    # The constants of eq. 11 that were used.
    constants: tuple[float, float, float] = (0.0, 0.0, 0.0)


class StepMessages(_PlanPart):
    """What one kind of step took: those of the manager and replies; those between brokers."""

    manager: int = 0
    brokers: int = 0

    @property
    def total(self) -> int:
        return self.manager + self.brokers


class Paused(_PlanPart):
    """How long brokers were frozen."""

    brokers: int = 0
    mean_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


class JournalEntry(_PlanPart):
    phase: Phase
    at_s: float
    fence: int
    manager: str


class Participant(_PlanPart):
    broker_id: str
    incarnation: int


class CostRate(_PlanPart):
    """What brokers counted, for each event stamped."""

    events: float
    seconds: float
    relays_per_event: float
    hops_per_event: float
    # 0 where nobody measures round trips.
    way_ms_per_event: float = 0.0
    cost_per_event: float


class Execution(_PlanPart):
    """How it went."""

    epoch: int
    fence: int
    manager: str
    started_s: float
    # Every broker that is sent RCFG_INIT, and which node each mover is to host.
    participants: tuple[Participant, ...] = ()
    moved: tuple[PlacedNode, ...] = ()
    # Where the moved nodes were: what is restored by rolling back.
    former: tuple[PlacedNode, ...] = ()
    journal: tuple[JournalEntry, ...] = ()
    # By name of the step.
    messages: dict[str, StepMessages] = Field(default_factory=dict)
    paused: Paused = Paused()
    # Brokers that had not answered when the plan ended, or were gone.
    stragglers: tuple[str, ...] = ()
    # What an event cost before.
    before: CostRate | None = None
    # Why it was rolled back.
    failure: str = ""
    ended_s: float | None = None

    @property
    def messages_total(self) -> int:
        return sum(step.total for step in self.messages.values())


class Measurement(_PlanPart):
    """What was gained and spent, beside the prediction. Benefits are messages for T_free."""

    before: CostRate
    after: CostRate
    predicted_benefit: float
    measured_benefit: float
    # measured / predicted.
    benefit_ratio: float
    predicted_messages: float
    measured_messages: int
    messages_ratio: float
    at_s: float


class PlanKind(enum.StrEnum):
    PLACEMENT = "placement"
    STORES = "stores"


class Plan(_PlanPart):
    id: str
    # Grows with every write: the store keeps the highest.
    version: int = 1
    state: PlanState = PlanState.PROPOSED
    phase: Phase | None = None
    origin: Origin = Origin.REQUEST
    mode: Mode = Mode.MANUAL
    created_s: float
    changed_s: float
    expires_s: float
    # Who asked, and what for.
    actor: str = ""
    reason: str = ""
    # Approved as soon as the decision accepts it.
    execute: bool = False
    options: SolverOptions
    base: Base
    model: ModelFacts
    prediction: Prediction | None = None
    moves: tuple[Move, ...] = ()
    approved_by: str = ""
    # Why it is in its state, as a sentence.
    note: str = ""
    execution: Execution | None = None
    measurement: Measurement | None = None
    # What a person should look at: prediction_off, messages_above_bound, stragglers, ...
    flags: tuple[str, ...] = ()
    # Of a plan of stores; then there are no moves of brokers, and what they would gain.
    stores: StorePart | None = None

    @property
    def kind(self) -> PlanKind:
        return PlanKind.PLACEMENT if self.stores is None else PlanKind.STORES

    @property
    def phase_name(self) -> str:
        """Of its execution; empty if it has not begun."""
        return str((self.phase if self.stores is None else self.stores.phase) or "")

    @property
    def moves_count(self) -> int:
        """Brokers that move, or replicas of topics that come and go."""
        return len(self.moves) if self.stores is None else self.stores.moves

    @property
    def is_computing(self) -> bool:
        """A solver has not answered yet."""
        found = self.prediction if self.stores is None else self.stores.prediction
        return self.state is PlanState.PROPOSED and found is None

    @property
    def is_beyond_cancelling(self) -> bool:
        """Past its commit point, or on its way back: it cannot be cancelled any more."""
        if self.stores is not None:
            return self.stores.phase in (StorePhase.RELEASING, StorePhase.ROLLING_BACK)
        return self.phase is not None and (self.phase.committed or self.phase is Phase.ROLLING_BACK)

    def became(self, state: PlanState, now_s: float, note: str, **changes: Any) -> Plan:
        """In its next state; raises IllegalTransition."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(self.id, self.state, state, TRANSITIONS[self.state])
        return self.changed(now_s, state=state, note=note, **changes)

    def entered(self, phase: Phase, now_s: float, fence: int, manager: str) -> Plan:
        """In its next phase, with an entry in its journal; raises IllegalTransition."""
        if self.execution is None or phase not in PHASES[self.phase]:
            raise IllegalTransition(self.id, str(self.phase), phase, PHASES[self.phase])
        entry = JournalEntry(phase=phase, at_s=now_s, fence=fence, manager=manager)
        execution = self.execution.model_copy(
            update={"journal": (*self.execution.journal, entry), "fence": fence, "manager": manager}
        )
        return self.changed(now_s, phase=phase, execution=execution)

    def changed(self, now_s: float, **changes: Any) -> Plan:
        update = {**changes, "version": self.version + 1, "changed_s": now_s}
        return self.model_copy(update=update)

    @property
    def epoch(self) -> int:
        """Of the placement, or the assignment, that it leads to; 0 before it is executed."""
        if self.stores is not None:
            return self.stores.execution.epoch if self.stores.execution else 0
        return self.execution.epoch if self.execution else 0
