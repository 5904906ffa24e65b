"""Registered brokers, as the leader knows them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import Field

from reconfig_manager.rest.problems import problems, redirect
from reconfig_manager.rest.requests import (
    PAGED,
    Leading,
    Manager,
    PageOf,
    Viewing,
    page_of_names,
    paged,
)
from reconfig_manager.rest.views import PageView, RestView
from reconfig_manager.status import MemberStatus

router = APIRouter(tags=["network"], dependencies=[Viewing, Leading])


class BrokerView(RestView):
    broker_id: str
    address: str
    node: str
    incarnation: int
    epoch: int
    labels: dict[str, str]
    attached: bool = Field(description="Its stream to the manager is open.")
    silent_s: float | None = Field(description="Since its last report; null before the first.")
    sessions: int
    topics: int = Field(description="Topics that it subscribes to.")
    subscriptions: int = Field(description="Of its clients.")
    frozen_by: str = Field(description="The plan that holds it, or nothing.")


@router.get("/brokers", responses={**PAGED, **problems(), **redirect()})
async def list_brokers(
    request: Request, response: Response, manager: Manager, page: PageOf
) -> PageView[BrokerView]:
    """Registered brokers, by name."""
    leader = manager.leader()
    brokers = {broker.broker_id: broker for broker in leader.brokers}
    found = page_of_names(list(brokers), page)
    return paged(request, response, found, lambda name: _broker_view(brokers[name], leader.at_s))


def _broker_view(broker: MemberStatus, now_s: float) -> BrokerView:
    return BrokerView(
        broker_id=broker.broker_id,
        address=broker.placed.address,
        node=broker.placed.node,
        incarnation=broker.placed.incarnation,
        epoch=broker.epoch,
        labels=dict(broker.labels),
        attached=broker.attached,
        silent_s=max(0.0, now_s - broker.heard_s) if broker.heard_s is not None else None,
        sessions=broker.sessions,
        topics=broker.topics,
        subscriptions=broker.subscriptions,
        frozen_by=broker.frozen_by,
    )
