"""Topics and their trees, as the leader knows them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from reconfig_manager.rest.problems import problems, redirect
from reconfig_manager.rest.requests import PAGED, Leading, Manager, PageOf, Viewing, paged
from reconfig_manager.rest.views import PageView, TopicView, TreeView

router = APIRouter(tags=["network"], dependencies=[Viewing, Leading])


@router.get("/topics", responses={**PAGED, **problems(), **redirect()})
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


@router.get("/topics/{topic:path}/tree", responses={**problems(404), **redirect()})
async def get_tree(
    manager: Manager,
    topic: Annotated[str, Path(description="May contain `/`.")],
) -> TreeView:
    """How events of a topic travel."""
    return await manager.tree(topic)
