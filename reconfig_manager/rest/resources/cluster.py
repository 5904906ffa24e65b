"""The network at a glance, as the leader knows it."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from dynatops.version import VERSION
from reconfig_manager.model.plan import Phase, Plan, PlanState
from reconfig_manager.model.policy import Mode
from reconfig_manager.rest.problems import problems, redirect
from reconfig_manager.rest.requests import Leading, Manager, Viewing
from reconfig_manager.rest.views import RestView
from reconfig_manager.status import LeaderStatus, TopicsStatus

router = APIRouter(tags=["network"], dependencies=[Viewing, Leading])


class ModelView(RestView):
    """Whether enough is known to plan."""

    ready: bool
    # Why not.
    problem: str
    completeness: float = Field(description="Share of brokers heard of lately.")
    periods: int


class ExecutingView(RestView):
    plan_id: str
    phase: Phase | None
    since_s: float


class ClusterView(RestView):
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


@router.get("/cluster", responses={**problems(), **redirect()})
async def get_cluster(manager: Manager) -> ClusterView:
    """The network at a glance: who leads, how many brokers, whether something is going on."""
    leader = manager.leader()
    return _cluster_view(leader, manager.topics(leader))


def _cluster_view(leader: LeaderStatus, topics: TopicsStatus) -> ClusterView:
    return ClusterView(
        version=VERSION,
        manager=leader.manager,
        fence=leader.fence,
        epoch=leader.placement.epoch,
        mode=leader.rules.mode,
        brokers=len(leader.brokers),
        brokers_attached=sum(broker.attached for broker in leader.brokers),
        topics=len(topics.names),
        subscriptions=sum(topics.subscribers.values()),
        sessions=sum(broker.sessions for broker in leader.brokers),
        events_per_s=sum(topics.rates.values()),
        model=ModelView(
            ready=not topics.model_problem,
            problem=topics.model_problem,
            completeness=topics.completeness,
            periods=topics.periods,
        ),
        executing=_executing(leader.executing),
        proposals=leader.open_proposals,
    )


def _executing(plan: Plan | None) -> ExecutingView | None:
    if plan is None or plan.execution is None or plan.state is not PlanState.EXECUTING:
        return None
    return ExecutingView(plan_id=plan.id, phase=plan.phase, since_s=plan.execution.started_s)
