"""The placement that is in use, from every manager."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Self

from fastapi import APIRouter, Response
from pydantic import Field

from reconfig_manager.model.plan import PlacedNode, Placement
from reconfig_manager.rest.facade import Facade
from reconfig_manager.rest.problems import problems
from reconfig_manager.rest.requests import TAGGED, IfNoneMatch, Manager, Viewing, tagged
from reconfig_manager.rest.views import RestView

router = APIRouter(tags=["plans"], dependencies=[Viewing])


class PlacementView(RestView):
    live: bool = Field(
        description="As brokers say; otherwise as the last plan left it, without later brokers."
    )
    epoch: int
    plan_id: str = Field(description="The plan that led there; empty before the first.")
    committed_s: float
    hosts: list[PlacedNode]

    @classmethod
    def of(cls, placement: Placement, hosts: Iterable[PlacedNode], *, live: bool) -> Self:
        return cls(
            live=live,
            epoch=placement.epoch,
            plan_id=placement.plan_id,
            committed_s=placement.committed_s,
            hosts=list(hosts),
        )


@router.get("/placement", response_model=PlacementView, responses={**TAGGED, **problems()})
async def get_placement(
    response: Response, manager: Manager, if_none_match: IfNoneMatch = ""
) -> PlacementView | Response:
    """Which broker hosts which node."""
    view = await _placement_view(manager)
    text = view.model_dump_json()
    version = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]
    return tagged(response, if_none_match, version, view)


async def _placement_view(manager: Facade) -> PlacementView:
    leader = manager.status().leader
    if leader is None:
        stored = await manager.stored_placement()
        return PlacementView.of(stored, stored.hosts, live=False)
    placed = (broker.placed for broker in leader.brokers)
    return PlacementView.of(leader.placement, placed, live=True)
