"""Endpoints that change something. Each attempt is in the audit log, the refused ones too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from dynatops.kit.security.tokens import Role
from dynatops.kit.strict_json import JsonError, parse_json
from reconfig_manager.model.plan import Plan
from reconfig_manager.model.refusals import StoreError
from reconfig_manager.rest.access import caller_of
from reconfig_manager.rest.bodies import REASON_MAX, CommandBody, PolicyBody, ProposalBody
from reconfig_manager.rest.facade import Command
from reconfig_manager.rest.problems import ProblemError, problems, redirect, refusal_of, takes
from reconfig_manager.rest.requests import Admin, Manager, Operator, facade_of, tag_of
from reconfig_manager.rest.views import PlanView, PolicyView

JSON_TYPE = "application/json"
_TYPE_SHOWN = 60

log = logging.getLogger(__name__)

# Endpoints, as the audit log calls what they do.
_ACTIONS = {
    "propose_reconfiguration": "propose",
    "approve_reconfiguration": "approve",
    "cancel_reconfiguration": "cancel",
    "set_policy": "set_policy",
}


class CommandRoute(APIRoute):
    """Writes down what is refused here; what the manager refuses it writes down itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        action = _ACTIONS[self.name]

        async def audited(request: Request) -> Response:
            try:
                await _check_body(request)
                return await handle(request)
            except (ProblemError, RequestValidationError, HTTPException) as error:
                await _write_down(request, action, refusal_of(error))
                raise

        return audited


async def _write_down(request: Request, action: str, problem: ProblemError) -> None:
    subject = "policy" if action == "set_policy" else request.path_params.get("plan_id", "")
    command = Command(action, subject[:200], _reason(await request.body()))
    try:
        # As the names of the manager's own refusals.
        outcome = problem.code.title().replace("_", "")
        await facade_of(request).refused(
            caller_of(request), command, outcome, problem.detail[:REASON_MAX]
        )
    except StoreError as error:
        request.app.state.traffic.audit_failures += 1
        log.warning("a refused command could not be written to the audit log: %s", error)


async def _check_body(request: Request) -> None:
    """Before the framework reads it, which takes bytes for a text, and NaN for a number. Raises
    ProblemError."""
    raw = await request.body()
    if not raw:
        # Missing, as every field may be.
        return
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON_TYPE:
        given = f"not {media_type[:_TYPE_SHOWN]}" if media_type else "and say so"
        raise ProblemError(415, f"send JSON, {given}: Content-Type: {JSON_TYPE}")
    try:
        parse_json(raw)
    except JsonError as error:
        raise ProblemError(400, f"the body is no JSON: {error}") from None


def _reason(body: bytes) -> str:
    """What the body says, whatever else is wrong with it."""
    try:
        document = parse_json(body)
    except JsonError:
        return ""
    reason = document.get("reason") if isinstance(document, dict) else None
    if not isinstance(reason, str):
        return ""
    return reason[:REASON_MAX].encode("utf-8", "replace").decode()


commands = APIRouter(route_class=CommandRoute, tags=["commands"])

_LOCATION = {"Location": {"schema": {"type": "string"}, "description": "Of the plan, to follow."}}
_ACCEPTED: dict[int | str, dict[str, Any]] = {202: {"headers": _LOCATION}}


def _follow(request: Request, response: Response, plan: Plan) -> PlanView:
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
    responses={**_ACCEPTED, **problems(400, 403, 408, 409, 413, 415), **redirect()},
)
async def propose_reconfiguration(
    request: Request,
    response: Response,
    caller: Operator,
    manager: Manager,
    body: ProposalBody,
    idempotency_key: Annotated[
        str,
        Header(
            alias="Idempotency-Key",
            max_length=200,
            pattern="^[!-~]*$",
            description="A request that comes twice with the same key is carried out once.",
        ),
    ] = "",
) -> PlanView:
    """Look for a better placement: a dry run, unless `execute` is true."""
    plan = await manager.propose(caller, body, idempotency_key)
    return _follow(request, response, plan)


@commands.post(
    "/reconfigurations/{plan_id}/approve",
    status_code=202,
    openapi_extra=takes(Role.OPERATOR),
    responses={**_ACCEPTED, **problems(400, 403, 404, 408, 409, 413, 415), **redirect()},
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
    return _follow(request, response, await manager.approve(caller, plan_id, body.reason))


@commands.post(
    "/reconfigurations/{plan_id}/cancel",
    status_code=202,
    openapi_extra=takes(Role.OPERATOR),
    responses={**_ACCEPTED, **problems(400, 403, 404, 408, 409, 413, 415), **redirect()},
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
    return _follow(request, response, await manager.cancel(caller, plan_id, body.reason))


@commands.put(
    "/policy",
    openapi_extra=takes(Role.ADMIN),
    responses={**problems(400, 403, 408, 409, 412, 413, 415, 428), **redirect()},
)
async def set_policy(
    response: Response,
    caller: Admin,
    manager: Manager,
    body: PolicyBody,
    if_match: Annotated[
        str,
        Header(
            alias="If-Match",
            max_length=200,
            description="Required: ETag of the policy that was read; `*` for whatever it is now.",
        ),
    ] = "",
) -> PolicyView:
    """Replace the policy, if it is still the one that was read."""
    version = _version(if_match)
    changed = await manager.set_policy(caller, body.policy, version, body.reason)
    response.headers["ETag"] = tag_of(changed.version)
    return PolicyView(policy=changed.policy, version=changed.version)


def _version(if_match: str) -> int | None:
    if not if_match:
        raise ProblemError(
            428, "say which policy is to be replaced: If-Match with the ETag that GET answered"
        )
    tag = if_match.strip()
    if tag == "*":
        return None
    number = tag[1:-1]
    if tag != tag_of(number) or not (number.isascii() and number.isdigit() and len(number) < 19):
        raise ProblemError(412, f"no policy ever had the ETag {tag[:40]}: read it again")
    return int(number)
