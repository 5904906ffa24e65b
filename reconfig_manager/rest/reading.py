"""Endpoints that change nothing."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse

from dynatops.kit.observing.metrics import CONTENT_TYPE, families, render
from reconfig_manager.ports import AuditEntry
from reconfig_manager.rest.admission import TRAFFIC, CallerTraffic
from reconfig_manager.rest.problems import ProblemError, problems, redirect
from reconfig_manager.rest.requests import (
    IfNoneMatch,
    Leading,
    Manager,
    PageOf,
    Viewing,
    paged,
    tagged,
)
from reconfig_manager.rest.views import (
    BrokerView,
    ClusterView,
    CostView,
    HealthView,
    PageView,
    PlacementView,
    PlanSummary,
    PlanView,
    PolicyView,
    ReadyView,
    TopicView,
    TreeView,
)

_TAG = {"ETag": {"schema": {"type": "string"}, "description": "For If-None-Match."}}
_TAGGED: dict[int | str, dict[str, Any]] = {
    200: {"headers": _TAG},
    304: {"description": "As it was."},
}
_NEXT = {"Link": {"schema": {"type": "string"}, "description": 'The next page, rel="next".'}}
_OPEN = {"x-role": "none"}
_PAGED: dict[int | str, dict[str, Any]] = {200: {"headers": _NEXT}}

network = APIRouter(tags=["network"], dependencies=[Viewing, Leading])
stored = APIRouter(tags=["plans"], dependencies=[Viewing])
process = APIRouter(tags=["manager"])
figures = APIRouter(tags=["manager"])

# ---- the network, as the leader knows it ---------------------------------------------------------


@network.get("/cluster", responses={**problems(), **redirect()})
async def get_cluster(manager: Manager) -> ClusterView:
    """The network at a glance: who leads, how many brokers, whether something is going on."""
    return await manager.cluster()


@network.get("/brokers", responses={**_PAGED, **problems(), **redirect()})
async def list_brokers(
    request: Request, response: Response, manager: Manager, page: PageOf
) -> PageView[BrokerView]:
    """Registered brokers, by name."""
    found = await manager.brokers(page)
    return paged(request, response, found, lambda broker: broker)


@network.get("/topics", responses={**_PAGED, **problems(), **redirect()})
async def list_topics(
    request: Request,
    response: Response,
    manager: Manager,
    page: PageOf,
    prefix: Annotated[
        str, Query(max_length=1_024, description="Only topics whose names begin so.")
    ] = "",
) -> PageView[TopicView]:
    """Topics with subscribers, publications or requests, by name."""
    found = await manager.topics(page, prefix)
    return paged(request, response, found, lambda topic: topic)


@network.get("/topics/{topic:path}/tree", responses={**problems(404), **redirect()})
async def get_tree(
    manager: Manager,
    topic: Annotated[str, Path(description="May contain `/`.")],
) -> TreeView:
    """How events of a topic travel."""
    return await manager.tree(topic)


@network.get("/cost", responses={**problems(409), **redirect()})
async def get_cost(manager: Manager) -> CostView:
    """What the present placement costs in T_free, and whether that is worth planning."""
    return await manager.cost()


# ---- what is stored ------------------------------------------------------------------------------


@stored.get("/placement", response_model=PlacementView, responses={**_TAGGED, **problems()})
async def get_placement(
    response: Response, manager: Manager, if_none_match: IfNoneMatch = ""
) -> PlacementView | Response:
    """Which broker hosts which node."""
    placement = await manager.placement()
    text = placement.model_dump_json()
    version = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]
    return tagged(response, if_none_match, version, placement)


@stored.get("/reconfigurations", responses={**_PAGED, **problems(404)})
async def list_reconfigurations(
    request: Request, response: Response, manager: Manager, page: PageOf
) -> PageView[PlanSummary]:
    """Plans, the newest first."""
    return paged(request, response, await manager.plans(page), PlanSummary.of)


@stored.get(
    "/reconfigurations/{plan_id}",
    response_model=PlanView,
    responses={**_TAGGED, **problems(404)},
)
async def get_reconfiguration(
    response: Response, manager: Manager, plan_id: str, if_none_match: IfNoneMatch = ""
) -> PlanView | Response:
    """A plan in full: moves, costs, decision, journal, and what was measured."""
    plan = await manager.plan(plan_id)
    return tagged(response, if_none_match, plan.version, PlanView.of(plan))


@stored.get("/policy", response_model=PolicyView, responses={**_TAGGED, **problems()})
async def get_policy(
    response: Response, manager: Manager, if_none_match: IfNoneMatch = ""
) -> PolicyView | Response:
    """When and how the manager reconfigures."""
    found = await manager.policy()
    view = PolicyView(policy=found.policy, version=found.version)
    return tagged(response, if_none_match, found.version, view)


@stored.get("/audit", responses={**_PAGED, **problems(404)})
async def list_audit(
    request: Request, response: Response, manager: Manager, page: PageOf
) -> PageView[AuditEntry]:
    """Every command, also those refused, the newest first."""
    return paged(request, response, await manager.audit(page), lambda entry: entry)


# ---- this manager --------------------------------------------------------------------------------


@process.get("/healthz", openapi_extra=_OPEN, responses=problems())
async def get_health(manager: Manager) -> HealthView:
    """Whether the process answers, and looks at the time as often as it should."""
    if late := manager.late():
        raise ProblemError(503, late, "late")
    return HealthView()


@process.get("/readyz", openapi_extra=_OPEN, responses=problems())
async def get_readiness(manager: Manager) -> ReadyView:
    """Whether this manager can do its work: lead, or follow one that does."""
    missing = await manager.unready()
    if missing:
        detail = "; ".join(f"{part}: {text}" for part, text in missing.items())
        raise ProblemError(503, detail, "not_ready", checks=missing)
    return ReadyView(leads=(await manager.leadership()).here)


@figures.get(
    "/metrics",
    dependencies=[Viewing],
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(),
    },
)
async def get_metrics(request: Request, manager: Manager) -> Response:
    """Figures in Prometheus' text format."""
    traffic: CallerTraffic = request.app.state.traffic
    found = [*await manager.metrics(), *families(TRAFFIC, traffic)]
    return Response(render(found), media_type=CONTENT_TYPE)
