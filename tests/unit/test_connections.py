"""A client's connection on a wire that takes its time."""

from __future__ import annotations

import asyncio

from broker_agent.core.base.effects import ConnectionId, Wake
from broker_agent.runtime.connections import ClientConnection
from dynatops.kit.serving.first_reads import FirstReads


class SlowWire:
    """A broker's end of a wire; a write takes until the network has room."""

    host = "a host"

    def __init__(self) -> None:
        self.client_closes = asyncio.Event()
        self.room = asyncio.Event()
        self.is_writing = asyncio.Event()
        self.written: list[bytes] = []

    async def read(self) -> bytes | None:
        await self.client_closes.wait()
        return None

    async def write(self, output: bytes) -> None:
        self.is_writing.set()
        await self.room.wait()
        self.written.append(output)

    async def close(self, reason: str) -> None:
        raise AssertionError("whoever serves the connection closes it")


def test_a_wire_is_not_ended_in_the_middle_of_a_write() -> None:
    async def scenario() -> None:
        wire = SlowWire()
        connection = ClientConnection(wire)
        first_reads = FirstReads(1, 1, lambda: None)
        serving = asyncio.create_task(
            connection.serve(lambda raw: None, lambda: b"output", first_reads)
        )
        connection.perform(Wake(ConnectionId("c")))
        await wire.is_writing.wait()
        wire.client_closes.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not serving.done()
        wire.room.set()
        await serving
        # What comes after is for nobody.
        assert wire.written == [b"output"]

    asyncio.run(scenario())
