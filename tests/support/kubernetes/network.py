"""Where pods and services are on this machine: loopback addresses, and names.

There is no DNS: names in arguments and environment are replaced by addresses. A service's address
is that of a proxy which, like Kubernetes' own, leads each connection to a pod that is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator

_TAKEN = itertools.count()
_CHUNK = 1 << 16

# (address, port) of the pods that a connection may go to now.
Backends = Callable[[], list[tuple[str, int]]]


class Addresses:
    """Of one cluster: its own piece of 127.0.0.0/8, so that ports need not differ."""

    def __init__(self) -> None:
        number = next(_TAKEN)
        self._net = f"127.{16 + os.getpid() % 200}.{os.getpid() // 200 % 200 + number}"
        self._hosts: Iterator[int] = iter(range(1, 255))
        self._names: dict[str, str] = {}

    def new(self) -> str:
        return f"{self._net}.{next(self._hosts)}"

    def name(self, address: str, *names: str) -> None:
        for name in names:
            self._names[name] = address

    def knows(self, name: str) -> bool:
        return name in self._names

    def names(self) -> list[str]:
        return sorted(self._names)

    def of(self, name: str) -> str:
        return self._names[name]

    def resolved(self, text: str) -> str:
        """With addresses in place of names, the longest first."""
        if not self._names:
            return text
        names = sorted(self._names, key=len, reverse=True)
        pattern = "|".join(re.escape(name) for name in names)
        return re.sub(
            rf"(?<![\w.-])(?:{pattern})(?![\w-]|\.\w)",
            lambda found: self._names[found.group()],
            text,
        )


class ServiceProxy:
    def __init__(self, address: str, port: int, backends: Backends) -> None:
        self.address = address
        # With 0, any: known once it has started.
        self.port = port
        self._backends = backends
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.address, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            backends = self._backends()
            if not backends:
                return
            host, port = backends[next(self._turn) % len(backends)]
            inside = await asyncio.open_connection(host, port)
            await asyncio.gather(_copy(reader, inside[1]), _copy(inside[0], writer))
        except OSError:
            # The pod refused, or went: so does the connection.
            pass
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError):
            writer.close()
