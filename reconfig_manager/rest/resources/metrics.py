"""Metrics of this manager and, if it leads, of the network."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from dynatops.kit.observing.metrics import CONTENT_TYPE, families, render
from reconfig_manager.rest.problems import problems
from reconfig_manager.rest.requests import Manager, Viewing
from reconfig_manager.rest.serving.admission import TRAFFIC, CallerTraffic

router = APIRouter(tags=["manager"])


@router.get(
    "/metrics",
    dependencies=[Viewing],
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(),
    },
)
async def get_metrics(request: Request, manager: Manager) -> Response:
    """Metrics in Prometheus' text format."""
    traffic: CallerTraffic = request.app.state.traffic
    found = [*await manager.metrics(), *families(TRAFFIC, traffic)]
    return Response(render(found), media_type=CONTENT_TYPE)
