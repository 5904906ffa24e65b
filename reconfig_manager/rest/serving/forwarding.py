"""A manager that follows asks the one that leads, on a client's behalf.

For clients that can reach managers by one address only: through an ingress, or a load balancer, a
redirect would lead them where they cannot go. One request is one connection, closed at its end, so
that streams of events need nothing more. The client says who it is by its own token, which the
leader looks at. A manager that is asked by another, and does not lead, says so: nothing goes round
in circles.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import cast
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import StreamingResponse

from reconfig_manager.model.refusals import NotLeading
from reconfig_manager.rest.rest_settings import RestSettings

# Says that a manager asks.
MARK = "dynatops-forwarded"
_CONNECT_S = 5.0
_ANSWER_S = 60.0
_HEADERS_MAX = 100
_CHUNK = 1 << 16
_PASSED_ON = (
    "accept", "authorization", "content-type", "idempotency-key", "if-match", "if-none-match",
    "last-event-id",
)  # fmt: skip
# They are about the connection to the leader.
_LEFT_OUT = frozenset({"connection", "date", "keep-alive", "server", "transfer-encoding"})


async def forwarded(request: Request, url: str, settings: RestSettings) -> StreamingResponse:
    """The leader's answer. Raises NotLeading if there is none."""
    if MARK in request.headers:
        raise NotLeading
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await _connected(url, settings)
        writer.write(_written(request, url))
        async with asyncio.timeout(_ANSWER_S):
            status, headers = await _head(reader)
    except (OSError, TimeoutError, ValueError, EOFError):
        if writer is not None:
            writer.close()
        # The leader went, or goes: the next one will be known in a moment.
        raise NotLeading from None
    return StreamingResponse(_rest(reader, writer), status, headers)


async def _connected(
    url: str, settings: RestSettings
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme != "https":
        return await asyncio.open_connection(parts.hostname, parts.port or 80)
    context = ssl.create_default_context(cafile=settings.leader_ca or None)
    name = settings.leader_name or parts.hostname
    return await asyncio.open_connection(
        parts.hostname, parts.port or 443, ssl=context, server_hostname=name
    )


def _written(request: Request, url: str) -> bytes:
    """The request, as HTTP/1.0: its answer ends with the connection, and is not in pieces."""
    parts = urlsplit(url)
    body = cast("bytes", request.scope["state"]["body"])
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    lines = [f"{request.method} {target} HTTP/1.0", f"Host: {parts.netloc}", f"{MARK}: 1"]
    for name in _PASSED_ON:
        lines += [f"{name}: {value}" for value in request.headers.getlist(name)]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    status = int((await reader.readline()).split()[1])
    headers: dict[str, str] = {}
    for _ in range(_HEADERS_MAX):
        line = (await reader.readline()).decode("latin-1").strip()
        if not line:
            return status, headers
        name, _, value = line.partition(":")
        if name.lower() not in _LEFT_OUT:
            headers[name.lower()] = value.strip()
    raise ValueError("an answer with so many headers is none of a manager's")


async def _rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
    try:
        while chunk := await reader.read(_CHUNK):
            yield chunk
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
