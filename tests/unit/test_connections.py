"""A client's connection on a gRPC stream that takes its time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc

from broker_agent.core.base.effects import ConnectionId, Wake
from broker_agent.runtime.connections import ClientConnection
from dynatops.kit.serving.first_reads import FirstReads


class SlowStream:
    """A server's end of a stream; a write takes until the network has room."""

    def __init__(self) -> None:
        self.client_closes = asyncio.Event()
        self.room = asyncio.Event()
        self.is_writing = asyncio.Event()
        self.written: list[bytes] = []

    async def read(self) -> object:
        await self.client_closes.wait()
        return grpc.aio.EOF

    async def write(self, output: bytes) -> None:
        self.is_writing.set()
        await self.room.wait()
        self.written.append(output)


def test_a_stream_is_not_ended_in_the_middle_of_a_write() -> None:
    async def scenario() -> None:
        stream = SlowStream()
        connection = ClientConnection(cast("grpc.aio.ServicerContext[Any, Any]", stream))
        first_reads = FirstReads(1, 1, lambda: None)
        serving = asyncio.create_task(
            connection.serve(lambda raw: None, lambda: b"output", first_reads)
        )
        connection.perform(Wake(ConnectionId("c")))
        await stream.is_writing.wait()
        stream.client_closes.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not serving.done()
        stream.room.set()
        await serving
        # What comes after is for nobody.
        assert stream.written == [b"output"]

    asyncio.run(scenario())
