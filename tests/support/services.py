"""A manager's service with a store of its own, and hands that reach its doors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from dynatops.v1.manager_pb2 import (
    AgentFrame,
    ManagerFrame,
    Registration,
)
from dynatops.v1.overlay_pb2 import NodeRef
from reconfig_manager.service.agents import METHOD
from reconfig_manager.service.manager_service import ManagerService
from reconfig_manager.store.embedded import EmbeddedServer
from tests.support.manager_store import storing
from tests.support.waiting import until

TERMINAL = ("COMMITTED", "ROLLED_BACK", "REJECTED", "EXPIRED", "CANCELLED")
Scenario = Callable[[EmbeddedServer], Awaitable[None]]


def run(folder: Path, scenario: Scenario) -> None:
    async def all_of_it() -> None:
        async with storing(folder) as (server, _):
            await scenario(server)

    asyncio.run(all_of_it())


async def ask(service: ManagerService, path: str, body: object = None) -> Any:
    """Over HTTP, as people do."""

    def request() -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        question = urllib.request.Request(service.http_url + path, data, headers)  # noqa: S310
        with urllib.request.urlopen(question, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    return await asyncio.to_thread(request)


async def attached(service: ManagerService) -> int:
    if not service.leads:
        return 0
    return sum(member.attached for member in service.driver.manager.leader_state.members)


async def all_attached(service: ManagerService, brokers: int) -> None:
    async def there() -> bool:
        return await attached(service) == brokers

    await until(there)


@asynccontextmanager
async def call(
    service: ManagerService, *frames: bytes
) -> AsyncIterator[grpc.aio.StreamStreamCall[bytes, bytes]]:
    """A stream as anybody might open it."""
    async with grpc.aio.insecure_channel(service.address) as channel:
        stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
        for frame in frames:
            await stream.write(frame)
        yield stream
        stream.cancel()


async def last_words(stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> str:
    """Why the manager ended it; frames before that are taken, as gRPC wants."""
    with contextlib.suppress(grpc.RpcError):
        while await stream.read() is not grpc.aio.EOF:
            pass
    return str(await stream.details())


async def is_attended(stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> bool:
    raw = await stream.read()
    return isinstance(raw, bytes) and ManagerFrame.FromString(raw).HasField("attended")


def registration(name: str = "b1", **values: Any) -> bytes:
    node = NodeRef(node_id=7, broker_id=name, address="h:1", incarnation=1)
    given: dict[str, Any] = {"protocol_min": 1, "protocol_max": 1, "node": node, **values}
    return AgentFrame(registration=Registration(**given)).SerializeToString()
