"""Every error as a problem (RFC 9457), with a `code` for programs and a `detail` for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from dynatops.kit.security.tokens import Role
from reconfig_manager.model import refusals
from reconfig_manager.rest.broadcast import CallerWatchesTooMuchError, TooManyWatchersError
from reconfig_manager.rest.facade import (
    ConflictingOptionsError,
    KeyReusedError,
    UnknownCursorError,
    UnknownTopicError,
)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
_INPUT_SHOWN = 60

# Refusals: status and code. The first that fits.
REFUSALS: Sequence[tuple[type[Exception], int, str]] = (
    (refusals.UnknownPlan, 404, "unknown_plan"),
    (UnknownTopicError, 404, "unknown_topic"),
    (UnknownCursorError, 404, "unknown_cursor"),
    (refusals.StalePlan, 409, "stale_plan"),
    (refusals.Busy, 409, "busy"),
    (refusals.IllegalTransition, 409, "illegal_transition"),
    (refusals.ModelTooThin, 409, "model_too_thin"),
    (refusals.Refused, 409, "refused"),
    (ConflictingOptionsError, 409, "conflicting_options"),
    (KeyReusedError, 409, "idempotency_key_reused"),
    (refusals.StalePolicy, 412, "stale_policy"),
    (CallerWatchesTooMuchError, 429, "too_many_streams"),
    (TooManyWatchersError, 503, "too_many_watchers"),
    (refusals.NotLeading, 503, "no_leader"),
    (refusals.StoreAway, 503, "store_away"),
    (refusals.Deposed, 503, "no_leader"),
    (refusals.RefusalError, 409, "refused"),
)
CODES = {
    400: "malformed",
    401: "unauthenticated",
    403: "not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    412: "stale_policy",
    413: "too_large",
    415: "unsupported_media_type",
    421: "wrong_host",
    422: "invalid",
    428: "if_match_required",
    429: "too_many_streams",
    500: "internal_error",
    503: "unavailable",
}


class FieldProblem(BaseModel):
    location: str = Field(description="Where: body, query, header or path, and the field.")
    detail: str


class Problem(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str = Field(description="For programs; docs/manager.md lists them.")
    detail: str = Field(description="For people: what was wrong, and what to do.")
    instance: str
    errors: list[FieldProblem] | None = None


class ProblemError(Exception):
    """Answered as it says."""

    def __init__(
        self,
        status: int,
        detail: str,
        code: str = "",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or CODES[status]
        self.headers = dict(headers or {})
        self.more = more


def problem_of(error: Exception) -> ProblemError:
    """What becomes of a refusal."""
    if isinstance(error, ProblemError):
        return error
    for kind, status, code in REFUSALS:
        if isinstance(error, kind):
            headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else {}
            return ProblemError(status, _told(error, code), code, headers)
    raise error


def _told(error: Exception, code: str) -> str:
    if code == "no_leader":
        return "no manager leads just now; try again in some seconds"
    if code == "store_away":
        return "the manager's store does not answer; what was asked may have happened, or not"
    return str(error)


def document_of(path: str, problem: ProblemError) -> dict[str, Any]:
    return {
        "type": f"urn:dynatops:problem:{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        "instance": path,
        **problem.more,
    }


def response_of(path: str, problem: ProblemError) -> JSONResponse:
    headers = {"Cache-Control": "no-store", **problem.headers}
    return JSONResponse(document_of(path, problem), problem.status, headers, MEDIA_TYPE)


# ---- handlers ------------------------------------------------------------------------------------


async def on_refusal(request: Request, error: Exception) -> JSONResponse:
    return response_of(request.url.path, problem_of(error))


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Of the framework: no such path, no such method, no JSON."""
    assert isinstance(error, HTTPException)
    problem = refusal_of(error)
    if problem.status == 404:
        problem.detail = f"there is nothing at {request.url.path}"
    elif problem.status == 405:
        problem.detail = f"{request.method} is not for {request.url.path}"
        problem.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return response_of(request.url.path, problem)


async def on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return response_of(request.url.path, refusal_of(error))


def refusal_of(error: ProblemError | RequestValidationError | HTTPException) -> ProblemError:
    """What the framework found wrong, as a problem."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    detail = "the body is no JSON" if error.status_code == 400 else str(error.detail)
    code = CODES.get(error.status_code, "refused")
    return ProblemError(error.status_code, detail, code, error.headers)


def _methods(request: Request) -> set[str]:
    """Of all endpoints with this path: the framework only knows the first."""
    allowed: set[str] = set()
    for method in ("GET", "POST", "PUT"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            allowed.add(method)
    return allowed


def _invalid(error: RequestValidationError) -> ProblemError:
    errors = [
        {"location": ".".join(str(part) for part in problem["loc"]), "detail": _explain(problem)}
        for problem in error.errors()
    ]
    first = errors[0]
    detail = f"{first['location']}: {first['detail']}"
    if len(errors) > 1:
        detail += f" (and {len(errors) - 1} more)"
    return ProblemError(422, detail, errors=errors)


def _explain(problem: Mapping[str, Any]) -> str:
    text = str(problem["msg"]).removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    value = problem.get("input")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        shown = repr(value)
        return f"{text}, not {shown}" if len(shown) <= _INPUT_SHOWN else text
    return text


# ---- for the schema ------------------------------------------------------------------------------

_DESCRIPTIONS = {
    400: "The body is no JSON: NaN, Infinity and two fields of one name are none, either.",
    401: "No token, or an unknown one.",
    403: "The token's role does not allow it.",
    404: "It does not exist.",
    408: "The body did not arrive in time.",
    409: "Not as things are now; `code` says why.",
    412: "Changed since it was read.",
    413: "The body is too large.",
    415: "The body is not `application/json`.",
    421: "Without tokens, only requests to a loopback address are answered.",
    422: "The request makes no sense; `errors` says where.",
    428: "If-Match is missing.",
    429: "The token, or without tokens the address, has as many streams as it may.",
    503: "No leader, no store, or too many watchers; see Retry-After.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For `responses=`: these, and those that every request may meet."""
    return {
        status: {
            "description": _DESCRIPTIONS[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({401, 421, 422, 503, *statuses})
    }


def redirect() -> dict[int | str, dict[str, Any]]:
    """What a manager that follows answers."""
    location = {"schema": {"type": "string"}, "description": "The same at the leader."}
    return {307: {"description": "Ask the leader.", "headers": {"Location": location}}}


def takes(role: Role) -> dict[str, Any]:
    """For `openapi_extra=`: what a token must be for it."""
    return {"x-role": role.value}
