"""`GET /v1/events`: what happens, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from reconfig_manager.rest.access import watching_caller
from reconfig_manager.rest.broadcast import WatchedEvent, Watcher
from reconfig_manager.rest.problems import problems, redirect
from reconfig_manager.rest.requests import Leading, Manager, Viewing, settings_of
from reconfig_manager.rest.rest_settings import RestSettings

_RETRY_MS = 2_000
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "For Last-Event-ID."},
        "event": {"type": "string", "description": "plan, broker, policy, leader, check, ..."},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "`type`, as `event`, and what belongs to it.",
        },
    },
}

router = APIRouter(tags=["network"], dependencies=[Viewing, Leading])


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events until the stream is closed by either side.",
            "content": {"text/event-stream": {"schema": _EVENT}},
        },
        **problems(429),
        **redirect(),
    },
)
async def watch_events(
    request: Request,
    manager: Manager,
    last_event_id: Annotated[
        str,
        Header(
            alias="Last-Event-ID",
            max_length=200,
            description="Go on after this one.",
        ),
    ] = "",
) -> StreamingResponse:
    """Changes of plans, brokers, policy and leadership while they happen.

    A stream that begins with `reset` has missed something: read the present state. One that ends
    with `overflow` was too slow, with `ended` belongs to a manager that leads no longer.
    """
    watcher = manager.watch(last_event_id, watching_caller(request))
    return _EventStream(watcher, settings_of(request))


class _EventStream(StreamingResponse):
    """However it ends, the watcher makes room."""

    media_type = "text/event-stream"

    def __init__(self, watcher: Watcher, settings: RestSettings) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_stream(watcher, settings), headers=headers)
        self._watcher = watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._watcher:
            await super().__call__(scope, receive, send)


async def _stream(watcher: Watcher, settings: RestSettings) -> AsyncIterator[str]:
    clock = asyncio.get_running_loop().time
    end_s = clock() + settings.watch_max_s
    yield f"retry: {_RETRY_MS}\n\n"
    while (left_s := end_s - clock()) > 0 and not watcher.over:
        event = await watcher.next(min(settings.keepalive_s, left_s))
        yield ": still here\n\n" if event is None else _written(event)


def _written(event: WatchedEvent) -> str:
    number = f"id: {event.id}\n" if event.id else ""
    # The data is JSON on one line.
    return f"{number}event: {event.kind}\ndata: {event.data}\n\n"
