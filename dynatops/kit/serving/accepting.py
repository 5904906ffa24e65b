"""Connections of an HTTP server that anyone may open some to: there is always room for one more.

    table = ConnectionTable(connections_max=256, timeout_s=5.0)
    acceptor = Acceptor(listening, table, serve)      # `await serve(socket, connection)` for each
    acceptor.start()

A connection is *asking* until it has said all of what it wants. Rules:

- One that asks for longer than `timeout_s`, in all, is closed: byte by byte is no way to stay.
- When the table is full, or the process has no descriptor left, the oldest that asks is closed, of
  the address that has most of those. So whoever says at once what it wants is heard, however many
  others say nothing; and nobody needs to start anything again.
- One that is no longer asking is never closed for another. Its server keeps these below the size of
  the table, and bounds how long an answer may take.

All of one event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

CROWDED = "crowded"
SLOW = "slow"
_ACCEPTED_AT_ONCE = 64
# No descriptor, and none that could be had by closing something here.
_PAUSE_S = 0.5
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger(__name__)


class AcceptedConnection:
    """One of a table."""

    def __init__(self, table: ConnectionTable, address: str, close: Callable[[], object]) -> None:
        self.address = address
        self._table = table
        self._close = close
        self._deadline: asyncio.TimerHandle | None = None

    def close_by(self, close: Callable[[], object]) -> None:
        """How it is closed from now on."""
        self._close = close

    def ask(self) -> None:
        """A request is to come, whole, within the time for it."""
        self._cancel_deadline()
        if self not in self._table:
            return
        self._table.add_asking(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._table.timeout_s, self.close, SLOW)

    def answer(self) -> None:
        """The request is there."""
        self._table.remove_asking(self)
        self._cancel_deadline()

    def close(self, reason: str) -> None:
        """Counted by the reason."""
        self.count(reason)
        self.leave()
        self._close()

    def count(self, reason: str) -> None:
        """Why the server ends it."""
        self._table.closed[reason] += 1

    def leave(self) -> None:
        """It has ended, whatever the reason."""
        self.answer()
        self._table.remove(self)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class ConnectionTable:
    def __init__(self, connections_max: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        # By reason: those that did not end by themselves.
        self.closed: Counter[str] = Counter()
        self._connections_max = connections_max
        self._connections: set[AcceptedConnection] = set()
        # By address, the oldest first.
        self._asking: dict[str, dict[AcceptedConnection, None]] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def __contains__(self, connection: AcceptedConnection) -> bool:
        return connection in self._connections

    def add(self, address: str, close: Callable[[], object]) -> AcceptedConnection:
        if len(self._connections) >= self._connections_max:
            self.make_room()
        connection = AcceptedConnection(self, address, close)
        self._connections.add(connection)
        connection.ask()
        return connection

    def make_room(self) -> bool:
        """Close the oldest one that asks, where most do; False if none does."""
        crowd = max(self._asking.values(), key=len, default=None)
        if crowd is None:
            return False
        next(iter(crowd)).close(CROWDED)
        return True

    def close_all(self) -> None:
        """The server ends."""
        for connection in list(self._connections):
            connection.leave()

    def add_asking(self, connection: AcceptedConnection) -> None:
        self.remove_asking(connection)
        self._asking.setdefault(connection.address, {})[connection] = None

    def remove_asking(self, connection: AcceptedConnection) -> None:
        crowd = self._asking.get(connection.address)
        if crowd is not None:
            crowd.pop(connection, None)
            if not crowd:
                del self._asking[connection.address]

    def remove(self, connection: AcceptedConnection) -> None:
        self._connections.discard(connection)


Serve = Callable[[socket.socket, AcceptedConnection], Coroutine[Any, Any, None]]


class Acceptor:
    """What `serve` raises of OSError is the other side's doing, and ends its connection only. Its
    task is cancelled to close that, unless `close_by` says otherwise."""

    def __init__(self, listening: socket.socket, table: ConnectionTable, serve: Serve) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._table = table
        self._serve = serve
        self._tasks: set[asyncio.Future[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._accept_waiting)

    def close(self) -> None:
        """Accept nothing more; what is being served goes on."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()

    async def wait_closed(self) -> None:
        """End what is being served still."""
        self._table.close_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept_waiting(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._on_exhausted(error)
                return
            accepted.setblocking(False)
            # A Unix socket's peers have no address.
            address = str(peer[0]) if isinstance(peer, tuple) else ""
            self._begin(accepted, address)

    def _begin(self, accepted: socket.socket, address: str) -> None:
        connection = self._table.add(address, accepted.close)
        task = asyncio.get_running_loop().create_task(self._serve(accepted, connection))
        connection.close_by(task.cancel)
        self._tasks.add(task)

        def settle(task: asyncio.Future[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is None and not task.cancelled():
                return
            connection.leave()
            # Perhaps it was cancelled before it began: nobody else has the socket then.
            accepted.close()
            if isinstance(error, OSError):
                log.debug("a connection from %s ended: %r", address, error)
            elif error is not None:
                log.error("a connection from %s could not be served", address, exc_info=error)

        task.add_done_callback(settle)

    def _on_exhausted(self, error: OSError) -> None:
        if error.errno not in _EXHAUSTED:
            raise error
        if self._table.make_room():
            # Closed in the loop's next turn, when this is called again.
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        self._pause = loop.call_later(_PAUSE_S, self.start)
