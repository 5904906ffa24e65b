"""The manager over HTTP, put together."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from dynatops.version import VERSION
from reconfig_manager.model.refusals import NotLeading, RefusalError, StoreError
from reconfig_manager.rest.access import Tokens, bearer
from reconfig_manager.rest.facade import Facade
from reconfig_manager.rest.problems import (
    Problem,
    ProblemError,
    on_http_error,
    on_invalid,
    on_refusal,
    response_of,
)
from reconfig_manager.rest.requests import (
    ElsewhereError,
    known_parameters,
    paths_of,
    settings_of,
)
from reconfig_manager.rest.resources import OPEN_RESOURCES, RESOURCES
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.rest.serving.admission import CallerTraffic, Gatekeeper
from reconfig_manager.rest.serving.forwarding import forwarded

PREFIX = "/v1"
SCHEMA_PATH = f"{PREFIX}/openapi.json"
# Asked without a token, and answered whatever else goes on.
OPEN_PATHS = frozenset(
    [SCHEMA_PATH]
    + [f"{PREFIX}{path}" for resource in OPEN_RESOURCES for path in paths_of(resource.router)]
)
_DESCRIPTION = """\
Watches a network of brokers, finds better placements of them, and moves them there. Errors are
problems (RFC 9457) with a `code`. Lists come in pages; follow `next_cursor`. Managers that follow
redirect (307) to the leader what only that one can do."""


def create_app(facade: Facade, settings: RestSettings) -> FastAPI:
    """Raises TokensError."""
    tokens = Tokens(settings.tokens)
    app = FastAPI(
        title="DYNATOPS reconfiguration manager",
        version=VERSION,
        description=_DESCRIPTION,
        openapi_url=SCHEMA_PATH,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(known_parameters)],
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.facade = facade
    app.state.settings = settings
    app.state.tokens = tokens
    app.state.traffic = traffic = CallerTraffic()
    guarded = APIRouter(prefix=PREFIX, dependencies=[Security(bearer)])
    for resource in RESOURCES:
        guarded.include_router(resource.router)
    app.include_router(guarded)
    for resource in OPEN_RESOURCES:
        app.include_router(resource.router, prefix=PREFIX)
    app.add_middleware(
        Gatekeeper, settings=settings, tokens=tokens, traffic=traffic, open_paths=OPEN_PATHS
    )
    for kind in (RefusalError, StoreError, ProblemError):
        app.add_exception_handler(kind, on_refusal)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(ElsewhereError, _on_elsewhere)
    app.add_exception_handler(Exception, _on_bug)
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    return app


async def _on_elsewhere(request: Request, error: Exception) -> Response:
    assert isinstance(error, ElsewhereError)
    settings = settings_of(request)
    if settings.forward:
        try:
            return await forwarded(request, error.url, settings)
        except NotLeading as refusal:
            return await on_refusal(request, refusal)
    return RedirectResponse(error.url, 307, {"Cache-Control": "no-store"})


async def _on_bug(request: Request, _error: Exception) -> JSONResponse:
    """The server logs it, with its trace."""
    return response_of(request.url.path, ProblemError(500, "the manager failed; its log says more"))


def _schema(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        schemas |= problem.pop("$defs", {})
        schemas["Problem"] = problem
        if not app.state.tokens.asked_for:
            _make_tokens_optional(schema)
        app.openapi_schema = schema
    return app.openapi_schema


def _make_tokens_optional(schema: dict[str, Any]) -> None:
    """Of a manager that asks for none: one that is sent is not looked at."""
    for path in schema["paths"].values():
        for operation in path.values():
            if "security" in operation:
                operation["security"].append({})
