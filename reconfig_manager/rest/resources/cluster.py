"""The network at a glance, as the leader knows it."""

from __future__ import annotations

from fastapi import APIRouter

from reconfig_manager.rest.problems import problems, redirect
from reconfig_manager.rest.requests import Leading, Manager, Viewing
from reconfig_manager.rest.views import ClusterView

router = APIRouter(tags=["network"], dependencies=[Viewing, Leading])


@router.get("/cluster", responses={**problems(), **redirect()})
async def get_cluster(manager: Manager) -> ClusterView:
    """The network at a glance: who leads, how many brokers, whether something is going on."""
    return await manager.cluster()
