"""What endpoints have in common: who asks, who leads, pages, tags."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from dynatops.kit.security.tokens import Role
from reconfig_manager.model.refusals import NotLeading
from reconfig_manager.ports import Page
from reconfig_manager.rest.access import caller_of, check_role
from reconfig_manager.rest.facade import Caller, Facade, PageRequest
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.rest.views import PageView

# Of what was wrong with parameters.
_NAME_SHOWN = 60
_PROBLEMS_MAX = 10
PAGE_ITEMS = 50
PAGE_MAX = 500
View = TypeVar("View", bound=BaseModel)
Item = TypeVar("Item")


class ElsewhereError(Exception):
    """Another manager leads."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


def paths_of(router: APIRouter) -> list[str]:
    return [route.path for route in router.routes if isinstance(route, APIRoute)]


def facade_of(request: Request) -> Facade:
    facade: Facade = request.app.state.facade
    return facade


def settings_of(request: Request) -> RestSettings:
    settings = request.app.state.settings
    assert isinstance(settings, RestSettings)
    return settings


async def leading(request: Request) -> None:
    """Raises ElsewhereError, or NotLeading if nobody does."""
    leadership = await facade_of(request).leadership()
    if leadership.here:
        return
    if not leadership.url:
        raise NotLeading
    url = request.url
    path = request.scope.get("raw_path", url.path.encode()).decode("ascii", "replace")
    query = f"?{url.query}" if url.query else ""
    raise ElsewhereError(f"{leadership.url}{path.partition('?')[0]}{query}")


def known_parameters(request: Request) -> None:
    """A query parameter that an endpoint does not have is a mistake, and not nothing. Raises
    RequestValidationError."""
    known = set(_parameters(request.scope["route"].dependant))
    seen: set[str] = set()
    problems: list[dict[str, Any]] = []
    for name, _ in request.query_params.multi_items():
        if name not in known:
            takes = ", ".join(sorted(known))
            message = (
                f"no such parameter; there are: {takes}" if known else "there are no parameters"
            )
            problems.append({"loc": ("query", name[:_NAME_SHOWN]), "msg": message})
        elif name in seen:
            problems.append({"loc": ("query", name), "msg": "given twice"})
        seen.add(name)
    if problems:
        raise RequestValidationError(problems[:_PROBLEMS_MAX])


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for part in dependant.dependencies:
        yield from _parameters(part)


def _commander(role: Role) -> Callable[[Request], Coroutine[Any, Any, Caller]]:
    """Who may, at the manager that leads."""

    async def check(request: Request) -> Caller:
        caller = caller_of(request)
        check_role(caller, role)
        await leading(request)
        return caller

    return check


def _viewer(request: Request) -> None:
    check_role(caller_of(request), Role.VIEWER)


Manager = Annotated[Facade, Depends(facade_of)]
Operator = Annotated[Caller, Depends(_commander(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(_commander(Role.ADMIN))]
Leading = Depends(leading)
Viewing = Depends(_viewer)


# ---- what answers have in common, for `responses=` -----------------------------------------------

TAGGED: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"schema": {"type": "string"}, "description": "For If-None-Match."}}},
    304: {"description": "As it was."},
}
PAGED: dict[int | str, dict[str, Any]] = {
    200: {
        "headers": {
            "Link": {"schema": {"type": "string"}, "description": 'The next page, rel="next".'}
        }
    }
}


# ---- pages ---------------------------------------------------------------------------------------


def _page(
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX, description="Items on a page.")] = PAGE_ITEMS,
    cursor: Annotated[
        str,
        Query(
            max_length=4_096,
            pattern="^([0-9a-f][0-9a-f])*$",
            description="`next_cursor` of the page before.",
        ),
    ] = "",
) -> PageRequest:
    decoded = bytes.fromhex(cursor).decode("utf-8", "replace") if cursor else None
    return PageRequest(limit, decoded)


PageOf = Annotated[PageRequest, Depends(_page)]


def page_of_names(names: Sequence[str], page: PageRequest) -> Page[str]:
    """Of all names, in their order; a cursor is the last name before the page."""
    first = 0 if page.cursor is None else bisect_right(names, page.cursor)
    chosen = names[first : first + page.limit]
    more = first + page.limit < len(names)
    return Page(chosen, chosen[-1] if more and chosen else None)


def paged(
    request: Request, response: Response, page: Page[Item], show: Callable[[Item], View]
) -> PageView[View]:
    cursor = page.next_cursor.encode().hex() if page.next_cursor is not None else None
    if cursor is not None:
        following = request.url.include_query_params(cursor=cursor)
        response.headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return PageView(items=[show(item) for item in page.items], next_cursor=cursor)


# ---- tags ----------------------------------------------------------------------------------------

IfNoneMatch = Annotated[
    str,
    Header(
        alias="If-None-Match",
        max_length=1_000,
        description="ETag of what is known; answered 304 if it is the same.",
    ),
]


def tag_of(version: object) -> str:
    return f'"{version}"'


def unchanged(if_none_match: str, tag: str) -> Response | None:
    """304, if that is the answer."""
    known = [entry.strip().removeprefix("W/") for entry in if_none_match.split(",")]
    if tag not in known and "*" not in known:
        return None
    return Response(status_code=304, headers={"ETag": tag})


def tagged(response: Response, if_none_match: str, version: object, view: View) -> View | Response:
    tag = tag_of(version)
    response.headers["ETag"] = tag
    response.headers["Cache-Control"] = "no-cache"
    return unchanged(if_none_match, tag) or view
