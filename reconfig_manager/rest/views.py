"""What is answered: shapes of the JSON that people and programs read.

Times are seconds since 1970, UTC; nodes are 16 hexadecimal digits; costs are in messages for
T_free.
"""

from __future__ import annotations

import enum
from typing import Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from reconfig_manager.model.plan import (
    CostFigures,
    ModelFacts,
    Origin,
    Phase,
    PlacedNode,
    Plan,
    PlanState,
)
from reconfig_manager.model.policy import Mode, Policy
from reconfig_manager.ports import AuditEntry

Item = TypeVar("Item")


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class PageView(_View, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = Field(description="Where the next page begins; null at the end.")


class ModelView(_View):
    """Whether enough is known to plan."""

    ready: bool
    # Why not.
    problem: str
    completeness: float = Field(description="Share of brokers heard of lately.")
    periods: int


class ExecutingView(_View):
    plan_id: str
    phase: Phase | None
    since_s: float


class ClusterView(_View):
    version: str
    manager: str
    fence: int = Field(description="The leader's number; brokers obey no lower one.")
    epoch: int = Field(description="Of the present placement.")
    mode: Mode
    brokers: int
    brokers_attached: int
    topics: int
    subscriptions: int = Field(description="Pairs of a broker and a topic that it subscribes to.")
    sessions: int
    events_per_s: float
    model: ModelView
    executing: ExecutingView | None
    proposals: int = Field(description="Plans that wait for approval.")


class BrokerView(_View):
    broker_id: str
    address: str
    node: str
    incarnation: int
    epoch: int
    labels: dict[str, str]
    attached: bool = Field(description="Its stream to the manager is open.")
    silent_s: float | None = Field(description="Since its last report; null before the first.")
    sessions: int
    topics: int = Field(description="Topics that it subscribes to.")
    subscriptions: int = Field(description="Of its clients.")
    frozen_by: str = Field(description="The plan that holds it, or nothing.")


class TopicView(_View):
    topic: str
    rendezvous_point: str = Field(description="The broker at the root of the topic's tree.")
    node: str
    events_per_s: float
    requests_per_s: float
    subscribing_brokers: int


class TreeNodeView(_View):
    broker_id: str
    node: str
    parent: str | None = Field(description="The broker above; null for the rendezvous point.")
    hops: int
    subscribes: bool
    relay: bool


class TreeView(_View):
    """By the geometry of the ring as the manager knows it; brokers may be in between."""

    topic: str
    events_per_s: float
    subscribing_brokers: int
    relays: int
    depth: int
    # Parents come before their children.
    nodes: list[TreeNodeView]


class PlacementView(_View):
    live: bool = Field(
        description="As brokers say; otherwise as the last plan left it, without later brokers."
    )
    epoch: int
    plan_id: str = Field(description="The plan that led there; empty before the first.")
    committed_s: float
    hosts: list[PlacedNode]


class ConstantsView(_View):
    """Of the moving cost, eq. 11: a|V| + b log2(V)^2 moved + c|P| log2(V) moved."""

    a: float
    b: float
    c: float
    plans: int = Field(description="Executed plans that they were calibrated by.")


class CostView(_View):
    t_free_s: float
    delay_weight: float
    cost: CostFigures
    relays_per_event: float
    threshold: float = Field(description="What the cost must exceed for planning to begin.")
    reconfigurable: bool
    moving_cost_max: float = Field(description="Bound on the messages if every broker moved.")
    constants: ConstantsView
    model: ModelFacts


# ---- plans ---------------------------------------------------------------------------------------


class Action(enum.StrEnum):
    APPROVE = "approve"
    CANCEL = "cancel"


# What may be commanded in which state.
ACTIONS: dict[PlanState, tuple[Action, ...]] = {
    PlanState.PROPOSED: (Action.APPROVE, Action.CANCEL),
    PlanState.APPROVED: (Action.CANCEL,),
    PlanState.EXECUTING: (Action.CANCEL,),
}


def actions_of(plan: Plan) -> tuple[Action, ...]:
    if plan.phase is not None and (plan.phase.committed or plan.phase is Phase.ROLLING_BACK):
        return ()
    if plan.state is PlanState.PROPOSED and plan.prediction is None:
        return (Action.CANCEL,)
    return ACTIONS.get(plan.state, ())


class PlanView(Plan):
    """A plan, and what may be done with it now."""

    actions: tuple[Action, ...]

    @classmethod
    def of(cls, plan: Plan) -> PlanView:
        # Field by field: parts are values, and need not be checked again.
        fields = {name: getattr(plan, name) for name in Plan.model_fields}
        return cls.model_construct(**fields, actions=actions_of(plan))


class PlanSummary(_View):
    id: str
    version: int
    state: PlanState
    phase: Phase | None
    origin: Origin
    created_s: float
    changed_s: float
    actor: str
    reason: str
    execute: bool
    algorithm: str
    moves: int
    cost_before: float | None
    cost_after: float | None
    benefit: float | None
    moving_cost: float | None
    accept: bool | None
    measured_benefit: float | None
    note: str
    flags: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        found = plan.prediction
        return cls(
            **{name: getattr(plan, name) for name in _SHARED},
            algorithm=plan.options.algorithm,
            moves=len(plan.moves),
            cost_before=found.cost_before.total if found else None,
            cost_after=found.cost_after.total if found else None,
            benefit=found.benefit if found else None,
            moving_cost=found.moving_cost if found else None,
            accept=found.accept if found else None,
            measured_benefit=plan.measurement.measured_benefit if plan.measurement else None,
        )


_SHARED = tuple(
    name for name in PlanSummary.model_fields if name in Plan.model_fields and name != "moves"
)


class PolicyView(_View):
    policy: Policy
    version: int


class HealthView(_View):
    status: str = "ok"


class ReadyView(_View):
    status: str = "ready"
    leads: bool


AuditPage = PageView[AuditEntry]
