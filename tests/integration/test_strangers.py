"""Whoever has not said who it is, at the door of a real broker: it costs next to nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

import dynatops
from broker_agent.runtime.streams import METHOD as LINK_METHOD
from dynatops.client.connection import METHOD as CLIENT_METHOD
from dynatops.v1.client_pb2 import ClientFrame, ClientMessage, ErrorCode, Hello, ServerFrame
from tests.integration.test_runtime import running
from tests.support.waiting import until

# Nobody's hello is as long.
TOO_MUCH = b"\x0a\x00" * 40_000
# The latter if the stream was ended before all was sent.
NOT_UNPACKED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
INSPECTION_METHOD = "/dynatops.v1.Inspection/ListTopics"


@asynccontextmanager
async def stranger(
    address: str, method: str, *, compression: grpc.Compression | None = None
) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address, compression=compression) as channel:
        yield channel.stream_stream(method)()


@pytest.mark.parametrize("method", [CLIENT_METHOD, LINK_METHOD, INSPECTION_METHOD])
def test_nothing_is_unpacked(method: str) -> None:
    async def scenario() -> None:
        async with (
            running() as agent,
            stranger(agent.address, method, compression=grpc.Compression.Gzip) as call,
        ):
            with contextlib.suppress(grpc.RpcError):
                await call.write(TOO_MUCH)
            assert await call.code() in NOT_UNPACKED

    asyncio.run(scenario())


def test_a_client_that_says_too_much_first_is_told_and_ended() -> None:
    async def scenario() -> None:
        async with running() as agent, stranger(agent.address, CLIENT_METHOD) as call:
            await call.write(TOO_MUCH)
            (message,) = ServerFrame.FromString(await call.read()).messages
            assert message.goodbye.code == ErrorCode.ERROR_CODE_PROTOCOL
            assert message.goodbye.message == (
                "the first frame has 80,000 bytes; the limit is 65,536"
            )
            assert await call.read() is grpc.aio.EOF

    asyncio.run(scenario())


def test_so_is_one_that_was_let_in() -> None:
    async def scenario() -> None:
        async with running() as agent, stranger(agent.address, CLIENT_METHOD) as call:
            hello = ClientFrame(messages=[ClientMessage(hello=Hello(protocol=1))])
            await call.write(hello.SerializeToString())
            await call.read()
            await call.write(TOO_MUCH)
            (message,) = ServerFrame.FromString(await call.read()).messages
            assert message.goodbye.message == "a frame has 40,000 messages; the limit is 16,384"

    asyncio.run(scenario())


def test_a_broker_that_says_too_much_first_is_none() -> None:
    async def scenario() -> None:
        async with running() as agent, stranger(agent.address, LINK_METHOD) as call:
            await call.write(b"\x12\x00" * 40_000)
            assert await call.read() is grpc.aio.EOF
            assert agent.links.counters.links_refused == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("method", [CLIENT_METHOD, LINK_METHOD])
def test_the_silent_make_room(method: str) -> None:
    """One place, and three streams that would have it, and say nothing."""

    async def scenario() -> None:
        async with (
            running(runtime={"unnamed_bytes_max": 1}) as agent,
            AsyncExitStack() as stack,
        ):
            for _ in range(3):
                await stack.enter_async_context(stranger(agent.address, method))

            def lost() -> int:
                of_links = agent.links.counters.links_lost_their_place
                return agent.core.counters.first_reads_lost + of_links

            await until(lambda: lost() > 0)
            async with dynatops.connect(agent.address) as client:
                await client.publish("t", b"x")

    asyncio.run(scenario())
