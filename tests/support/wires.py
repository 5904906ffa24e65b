"""A wire between a client and its broker that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Wire:
    """Passes on what goes between whoever connects to `address` and a broker, until cut."""

    def __init__(self, broker_address: str) -> None:
        self._host, _, self._port = broker_address.rpartition(":")
        self._is_cut = False
        self._ends: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def cut(self) -> None:
        """Connections end without a word; nobody gets through until mended."""
        self._is_cut = True
        for end in self._ends:
            end.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        there, to_there = await asyncio.open_connection(self._host, self._port)
        for source, sink in ((reader, to_there), (there, writer)):
            self._ends.add(sink)
            task = asyncio.create_task(self._pass_on(source, sink))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        self._ends.discard(sink)
        sink.close()
