"""A client on a wire of another kind than gRPC's: to the broker it is a client as any other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

import dynatops
from broker_agent.core.base.effects import BrokerEffect, ConnectionId
from broker_agent.core.broker import Broker
from broker_agent.doors import frames
from broker_agent.runtime.agent import Agent
from broker_agent.runtime.connections import ClientGoneError
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Filter,
    Hello,
    ServerFrame,
    ServerMessage,
    Subscribe,
)
from tests.support.security import running
from tests.support.waiting import until


class MemoryWire:
    """Both ends of one."""

    def __init__(self) -> None:
        self.host = "memory"
        self.said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.heard: list[ServerMessage] = []
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.is_gone = False
        self.closed: list[str] = []

    async def read(self) -> bytes | None:
        return await self.said.get()

    async def write(self, output: bytes) -> None:
        await self.has_room.wait()
        if self.is_gone:
            raise ClientGoneError
        self.heard += ServerFrame.FromString(output).messages

    async def close(self, reason: str) -> None:
        self.closed.append(reason)

    def say(self, *messages: ClientMessage) -> None:
        self.said.put_nowait(ClientFrame(messages=messages).SerializeToString())

    def kinds(self) -> list[str]:
        return [str(message.WhichOneof("body")) for message in self.heard]


HELLO = ClientMessage(hello=Hello(protocol=1, client_id="ann"))
SUBSCRIBE = ClientMessage(subscribe=Subscribe(request=1, filters=[Filter(pattern="a")]))


def served(scenario: Callable[[Agent, MemoryWire, asyncio.Task[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running("b0") as agent:
            wire = MemoryWire()
            serving = asyncio.create_task(agent.serve_client(wire, frames))
            wire.say(HELLO, SUBSCRIBE)
            await until(lambda: "subscribed" in wire.kinds())
            await scenario(agent, wire, serving)
            await serving

    asyncio.run(run())


def test_it_comes_hears_and_goes() -> None:
    async def scenario(agent: Agent, wire: MemoryWire, _: asyncio.Task[None]) -> None:
        async with dynatops.connect(agent.address) as client:
            await client.publish("a", b"hello")
        await until(lambda: "run" in wire.kinds())
        wire.said.put_nowait(None)
        await until(lambda: wire.closed == [""])

    served(scenario)


def test_one_that_vanishes_is_no_failure() -> None:
    async def scenario(agent: Agent, wire: MemoryWire, _: asyncio.Task[None]) -> None:
        wire.is_gone = True
        async with dynatops.connect(agent.address) as client:
            await client.publish("a", b"hello")
        await until(lambda: wire.closed == [""])
        assert agent.counters.inputs_failed == 0

    served(scenario)


def test_a_broker_that_leaves_waits_for_it_too() -> None:
    async def scenario(agent: Agent, wire: MemoryWire, serving: asyncio.Task[None]) -> None:
        wire.has_room.clear()
        stopping = asyncio.create_task(agent.stop())
        await until(lambda: agent.is_stopping and agent.core.status().is_leaving)
        assert not stopping.done()
        wire.has_room.set()
        await serving
        assert wire.kinds()[-1] == "goodbye"
        await stopping

    served(scenario)


def test_where_the_broker_fails_on_it_the_wire_is_closed_as_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Broker | ConnectionId | bytes | float) -> list[BrokerEffect]:
        raise RuntimeError("a bug")

    async def scenario(agent: Agent, wire: MemoryWire, _: asyncio.Task[None]) -> None:
        monkeypatch.setattr(agent.core, "on_client_frame", fail)
        wire.say(SUBSCRIBE)
        await until(lambda: wire.closed == ["the broker failed on what was said"])
        assert agent.counters.inputs_failed == 1
        assert agent.supervisor.failed is None

    served(scenario)


def test_a_grpc_client_learns_that_the_broker_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[BrokerEffect]:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        async with running("b0") as agent, grpc.aio.insecure_channel(agent.address) as channel:
            monkeypatch.setattr(agent.core, "on_client_frame", fail)
            call: Any = channel.stream_stream("/dynatops.v1.PubSub/Connect")()
            await call.write(ClientFrame(messages=[HELLO]).SerializeToString())
            assert await call.code() == grpc.StatusCode.INTERNAL
            assert await call.details() == "the broker failed on what was said"
            # The broker has forgotten it, and goes on.
            await until(lambda: agent.core.status().unnamed_connections == 0)

    asyncio.run(scenario())
