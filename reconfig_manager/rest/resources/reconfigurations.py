"""Plans: read at every manager, proposed, approved and cancelled at the leader."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Self

from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from dynatops.kit.security.tokens import Role
from reconfig_manager.model.plan import Origin, Phase, Plan, PlanKind, PlanState
from reconfig_manager.model.store_plan import StorePart
from reconfig_manager.rest.bodies import CommandBody, ProposalBody
from reconfig_manager.rest.commands import command_router
from reconfig_manager.rest.problems import problems, redirect, takes
from reconfig_manager.rest.requests import (
    PAGED,
    TAGGED,
    IfNoneMatch,
    Manager,
    Operator,
    PageOf,
    Viewing,
    paged,
    tag_of,
    tagged,
)
from reconfig_manager.rest.views import PageView, RestView

reads = APIRouter(tags=["plans"], dependencies=[Viewing])
commands = command_router(
    {
        "propose_reconfiguration": "propose",
        "approve_reconfiguration": "approve",
        "cancel_reconfiguration": "cancel",
    }
)

# ---- views ---------------------------------------------------------------------------------------


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
    if plan.is_beyond_cancelling:
        return ()
    if plan.is_computing:
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


class PlanSummary(RestView):
    id: str
    version: int
    state: PlanState
    phase: Phase | None = Field(description="Of a plan of brokers.")
    origin: Origin
    created_s: float
    changed_s: float
    actor: str
    reason: str
    execute: bool
    algorithm: str
    moves: int = Field(description="Brokers that move, or replicas of topics that come and go.")
    kind: PlanKind = Field(description="What is planned: where brokers are, or what stores keep.")
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
        shared = {name: getattr(plan, name) for name in _SHARED}
        if plan.stores is not None:
            return cls._of_stores(plan, plan.stores, shared)
        return cls(
            **shared,
            algorithm=plan.options.algorithm,
            kind=plan.kind,
            moves=plan.moves_count,
            cost_before=found.cost_before.total if found else None,
            cost_after=found.cost_after.total if found else None,
            benefit=found.benefit if found else None,
            moving_cost=found.moving_cost if found else None,
            accept=found.accept if found else None,
            measured_benefit=plan.measurement.measured_benefit if plan.measurement else None,
        )

    @classmethod
    def _of_stores(cls, plan: Plan, part: StorePart, shared: dict[str, Any]) -> Self:
        """Costs are requests x hops in a second, benefits events x hops."""
        found = part.prediction
        return cls(
            **shared,
            algorithm=part.options.planner,
            kind=plan.kind,
            moves=plan.moves_count,
            cost_before=found.traffic_before if found else None,
            cost_after=found.traffic_after if found else None,
            benefit=found.benefit if found else None,
            moving_cost=found.transfer if found else None,
            accept=found.accept if found else None,
            measured_benefit=None,
        )


_SHARED = tuple(
    name for name in PlanSummary.model_fields if name in Plan.model_fields and name != "moves"
)


# ---- reads ---------------------------------------------------------------------------------------


@reads.get("/reconfigurations", responses={**PAGED, **problems(404)})
async def list_reconfigurations(
    request: Request, response: Response, manager: Manager, page: PageOf
) -> PageView[PlanSummary]:
    """Plans, the newest first."""
    return paged(request, response, await manager.plans(page), PlanSummary.of)


@reads.get(
    "/reconfigurations/{plan_id}",
    response_model=PlanView,
    responses={**TAGGED, **problems(404)},
)
async def get_reconfiguration(
    response: Response, manager: Manager, plan_id: str, if_none_match: IfNoneMatch = ""
) -> PlanView | Response:
    """A plan in full: moves, costs, decision, journal, and what was measured."""
    plan = await manager.plan(plan_id)
    return tagged(response, if_none_match, plan.version, PlanView.of(plan))


IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        max_length=200,
        pattern="^[!-~]*$",
        description="A request that comes twice with the same key is carried out once.",
    ),
]

# ---- commands ------------------------------------------------------------------------------------

_LOCATION = {"Location": {"schema": {"type": "string"}, "description": "Of the plan, to follow."}}
ACCEPTED: dict[int | str, dict[str, Any]] = {202: {"headers": _LOCATION}}


def follow_plan(request: Request, response: Response, plan: Plan) -> PlanView:
    path = request.app.url_path_for("get_reconfiguration", plan_id=plan.id)
    response.headers["Location"] = str(path)
    response.headers["ETag"] = tag_of(plan.version)
    if not plan.state.over:
        response.headers["Retry-After"] = "1"
    return PlanView.of(plan)


@commands.post(
    "/reconfigurations",
    status_code=202,
    openapi_extra=takes(Role.OPERATOR),
    responses={**ACCEPTED, **problems(400, 403, 408, 409, 413, 415), **redirect()},
)
async def propose_reconfiguration(
    request: Request,
    response: Response,
    caller: Operator,
    manager: Manager,
    body: ProposalBody,
    idempotency_key: IdempotencyKey = "",
) -> PlanView:
    """Look for a better placement: a dry run, unless `execute` is true."""
    plan = await manager.propose(caller, body, idempotency_key)
    return follow_plan(request, response, plan)


@commands.post(
    "/reconfigurations/{plan_id}/approve",
    status_code=202,
    openapi_extra=takes(Role.OPERATOR),
    responses={**ACCEPTED, **problems(400, 403, 404, 408, 409, 413, 415), **redirect()},
)
async def approve_reconfiguration(
    request: Request,
    response: Response,
    caller: Operator,
    manager: Manager,
    plan_id: str,
    body: CommandBody,
) -> PlanView:
    """Execute a proposed plan."""
    return follow_plan(request, response, await manager.approve(caller, plan_id, body.reason))


@commands.post(
    "/reconfigurations/{plan_id}/cancel",
    status_code=202,
    openapi_extra=takes(Role.OPERATOR),
    responses={**ACCEPTED, **problems(400, 403, 404, 408, 409, 413, 415), **redirect()},
)
async def cancel_reconfiguration(
    request: Request,
    response: Response,
    caller: Operator,
    manager: Manager,
    plan_id: str,
    body: CommandBody,
) -> PlanView:
    """Drop a plan; one that is being executed is rolled back, until its commit point."""
    return follow_plan(request, response, await manager.cancel(caller, plan_id, body.reason))


router = APIRouter()
router.include_router(reads)
router.include_router(commands)
