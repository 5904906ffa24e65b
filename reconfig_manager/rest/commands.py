"""Commands: each attempt is in the audit log, the refused ones too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from dynatops.kit.strict_json import JsonError, parse_json
from reconfig_manager.model.refusals import StoreError
from reconfig_manager.rest.access import caller_of
from reconfig_manager.rest.bodies import REASON_MAX
from reconfig_manager.rest.facade import Command
from reconfig_manager.rest.problems import ProblemError, refusal_of
from reconfig_manager.rest.requests import facade_of

JSON_TYPE = "application/json"
_TYPE_SHOWN = 60

log = logging.getLogger(__name__)


class CommandRoute(APIRoute):
    """Writes down what is refused here; what the manager refuses it writes down itself."""

    # What the audit log calls what its endpoints do, by their names.
    actions: Mapping[str, str] = MappingProxyType({})
    # What they are done to; empty: the plan of the path, if there is one.
    subject = ""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        action = self.actions[self.name]

        async def audited(request: Request) -> Response:
            try:
                await _check_body(request)
                return await handle(request)
            except (ProblemError, RequestValidationError, HTTPException) as error:
                subject = self.subject or request.path_params.get("plan_id", "")
                reason = _reason(await request.body())
                command = Command(action, subject[:200], reason)
                await _write_down(request, command, refusal_of(error))
                raise

        return audited


def command_router(given: Mapping[str, str], subject: str = "") -> APIRouter:
    """For the endpoints with these names, and what the audit log calls what they do."""
    attributes = {"actions": MappingProxyType(dict(given)), "subject": subject}
    kind = type("CommandRoute", (CommandRoute,), attributes)
    return APIRouter(route_class=kind, tags=["commands"])


async def _write_down(request: Request, command: Command, problem: ProblemError) -> None:
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
