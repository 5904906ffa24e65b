"""The placement that is in use, from every manager."""

from __future__ import annotations

import hashlib

from fastapi import APIRouter, Response

from reconfig_manager.rest.problems import problems
from reconfig_manager.rest.requests import TAGGED, IfNoneMatch, Manager, Viewing, tagged
from reconfig_manager.rest.views import PlacementView

router = APIRouter(tags=["plans"], dependencies=[Viewing])


@router.get("/placement", response_model=PlacementView, responses={**TAGGED, **problems()})
async def get_placement(
    response: Response, manager: Manager, if_none_match: IfNoneMatch = ""
) -> PlacementView | Response:
    """Which broker hosts which node."""
    placement = await manager.placement()
    text = placement.model_dump_json()
    version = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]
    return tagged(response, if_none_match, version, placement)
