"""The audit log, from every manager."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from reconfig_manager.ports import AuditEntry
from reconfig_manager.rest.problems import problems
from reconfig_manager.rest.requests import PAGED, Manager, PageOf, Viewing, paged
from reconfig_manager.rest.views import PageView

router = APIRouter(tags=["plans"], dependencies=[Viewing])


@router.get("/audit", responses={**PAGED, **problems(404)})
async def list_audit(
    request: Request, response: Response, manager: Manager, page: PageOf
) -> PageView[AuditEntry]:
    """Every command, also those refused, the newest first."""
    return paged(request, response, await manager.audit(page), lambda entry: entry)
