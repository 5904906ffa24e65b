"""When and how the manager reconfigures: read at every manager, changed at the leader."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response

from dynatops.kit.security.tokens import Role
from reconfig_manager.model.policy import Policy
from reconfig_manager.rest.bodies import PolicyBody
from reconfig_manager.rest.commands import command_router
from reconfig_manager.rest.problems import ProblemError, problems, redirect, takes
from reconfig_manager.rest.requests import (
    TAGGED,
    Admin,
    IfNoneMatch,
    Manager,
    Viewing,
    tag_of,
    tagged,
)
from reconfig_manager.rest.views import RestView

reads = APIRouter(tags=["plans"], dependencies=[Viewing])
commands = command_router({"set_policy": "set_policy"}, subject="policy")


class PolicyView(RestView):
    policy: Policy
    version: int


@reads.get("/policy", response_model=PolicyView, responses={**TAGGED, **problems()})
async def get_policy(
    response: Response, manager: Manager, if_none_match: IfNoneMatch = ""
) -> PolicyView | Response:
    """When and how the manager reconfigures."""
    found = await manager.policy()
    view = PolicyView(policy=found.policy, version=found.version)
    return tagged(response, if_none_match, found.version, view)


@commands.put(
    "/policy",
    openapi_extra=takes(Role.ADMIN),
    responses={**problems(400, 403, 408, 409, 412, 413, 415, 428), **redirect()},
)
async def set_policy(
    response: Response,
    caller: Admin,
    manager: Manager,
    body: PolicyBody,
    if_match: Annotated[
        str,
        Header(
            alias="If-Match",
            max_length=200,
            description="Required: ETag of the policy that was read; `*` for whatever it is now.",
        ),
    ] = "",
) -> PolicyView:
    """Replace the policy, if it is still the one that was read."""
    version = _version(if_match)
    changed = await manager.set_policy(caller, body.policy, version, body.reason)
    response.headers["ETag"] = tag_of(changed.version)
    return PolicyView(policy=changed.policy, version=changed.version)


def _version(if_match: str) -> int | None:
    if not if_match:
        raise ProblemError(
            428, "say which policy is to be replaced: If-Match with the ETag that GET answered"
        )
    tag = if_match.strip()
    if tag == "*":
        return None
    number = tag[1:-1]
    if tag != tag_of(number) or not (number.isascii() and number.isdigit() and len(number) < 19):
        raise ProblemError(412, f"no policy ever had the ETag {tag[:40]}: read it again")
    return int(number)


router = APIRouter()
router.include_router(reads)
router.include_router(commands)
