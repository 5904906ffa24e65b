"""What the present placement costs, as the leader knows it."""

from __future__ import annotations

from fastapi import APIRouter

from reconfig_manager.rest.problems import problems, redirect
from reconfig_manager.rest.requests import Leading, Manager, Viewing
from reconfig_manager.rest.views import CostView

router = APIRouter(tags=["network"], dependencies=[Viewing, Leading])


@router.get("/cost", responses={**problems(409), **redirect()})
async def get_cost(manager: Manager) -> CostView:
    """What the present placement costs in T_free, and whether that is worth planning."""
    return await manager.cost()
