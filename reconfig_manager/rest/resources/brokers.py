"""Registered brokers, as the leader knows them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from reconfig_manager.rest.problems import problems, redirect
from reconfig_manager.rest.requests import PAGED, Leading, Manager, PageOf, Viewing, paged
from reconfig_manager.rest.views import BrokerView, PageView

router = APIRouter(tags=["network"], dependencies=[Viewing, Leading])


@router.get("/brokers", responses={**PAGED, **problems(), **redirect()})
async def list_brokers(
    request: Request, response: Response, manager: Manager, page: PageOf
) -> PageView[BrokerView]:
    """Registered brokers, by name."""
    found = await manager.brokers(page)
    return paged(request, response, found, lambda broker: broker)
