"""Stores: who keeps which topics, as the leader knows it, and proposals of what each should keep.

A proposal is a plan like those of brokers: it is read, approved and cancelled where they are.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import Field

from dynatops.kit.security.tokens import Role
from reconfig_manager.monitor.stores import KnownStore
from reconfig_manager.rest.bodies import StoreProposalBody
from reconfig_manager.rest.commands import command_router
from reconfig_manager.rest.problems import problems, redirect, takes
from reconfig_manager.rest.requests import (
    PAGED,
    Leading,
    Manager,
    Operator,
    PageOf,
    Viewing,
    page_of_names,
    paged,
)
from reconfig_manager.rest.resources.reconfigurations import (
    ACCEPTED,
    IdempotencyKey,
    PlanView,
    follow_plan,
)
from reconfig_manager.rest.views import PageView, RestView

reads = APIRouter(tags=["network"], dependencies=[Viewing, Leading])
commands = command_router({"propose_stores": "propose_stores"})


class KeptView(RestView):
    topics: str = Field(description="A topic, or a pattern of topics.")
    ready: bool = Field(description="It is advertised: it has what it lacked, and serves it.")
    events: int = Field(description="Stored, about; 0 of a pattern.")


class StoreView(RestView):
    broker_id: str
    capacity: int = Field(description="Topics that it may be told to keep; 0: its settings say.")
    epoch: int = Field(description="Of what it was told last; 0: it was told nothing.")
    failure: str = Field(description="Why it cannot store anything, or nothing.")
    silent_s: float
    keeps: list[KeptView]


@reads.get("/stores", responses={**PAGED, **problems(), **redirect()})
async def list_stores(
    request: Request, response: Response, manager: Manager, page: PageOf
) -> PageView[StoreView]:
    """Brokers that are stores, or may be told to be one, by name."""
    leader = manager.leader()
    stores = {broker.broker_id: broker.store for broker in leader.brokers if broker.store}
    found = page_of_names(list(stores), page)
    return paged(
        request, response, found, lambda name: _store_view(name, stores[name], leader.at_s)
    )


def _store_view(broker_id: str, store: KnownStore, now_s: float) -> StoreView:
    return StoreView(
        broker_id=broker_id,
        capacity=store.capacity,
        epoch=store.epoch,
        failure=store.failure,
        silent_s=max(0.0, now_s - store.at_s),
        keeps=[
            KeptView(topics=pattern, ready=kept.ready, events=kept.events)
            for pattern, kept in sorted(store.keeps.items())
        ],
    )


@commands.post(
    "/stores/plans",
    status_code=202,
    openapi_extra=takes(Role.OPERATOR),
    responses={**ACCEPTED, **problems(400, 403, 408, 409, 413, 415), **redirect()},
)
async def propose_stores(
    request: Request,
    response: Response,
    caller: Operator,
    manager: Manager,
    body: StoreProposalBody,
    idempotency_key: IdempotencyKey = "",
) -> PlanView:
    """Look for what each store had better keep: a dry run, unless `execute` is true."""
    plan = await manager.propose_stores(caller, body, idempotency_key)
    return follow_plan(request, response, plan)


router = APIRouter()
router.include_router(reads)
router.include_router(commands)
