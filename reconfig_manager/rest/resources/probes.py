"""Probes: asked by what watches over the process, without a token."""

from __future__ import annotations

from fastapi import APIRouter

from reconfig_manager.rest.problems import ProblemError, problems
from reconfig_manager.rest.requests import Manager
from reconfig_manager.rest.views import RestView

_OPEN = {"x-role": "none"}

router = APIRouter(tags=["manager"])


class HealthView(RestView):
    status: str = "ok"


class ReadyView(RestView):
    status: str = "ready"
    leads: bool


@router.get("/healthz", openapi_extra=_OPEN, responses=problems())
async def get_health(manager: Manager) -> HealthView:
    """Whether the process answers, and looks at the time as often as it should."""
    if late := manager.late():
        raise ProblemError(503, late, "late")
    return HealthView()


@router.get("/readyz", openapi_extra=_OPEN, responses=problems())
async def get_readiness(manager: Manager) -> ReadyView:
    """Whether this manager can do its work: lead, or follow one that does."""
    missing = await manager.unready()
    if missing:
        detail = "; ".join(f"{part}: {text}" for part, text in missing.items())
        raise ProblemError(503, detail, "not_ready", checks=missing)
    return ReadyView(leads=(await manager.leadership()).here)
