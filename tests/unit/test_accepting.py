"""Connections that ask: bounded in number and time, and one more always fits."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

from dynatops.kit.serving.accepting import (
    CROWDED,
    SLOW,
    AcceptedConnection,
    Acceptor,
    ConnectionTable,
)
from tests.support.waiting import until


class Closings:
    """A table, and the names of what it has closed."""

    def __init__(self, connections_max: int, timeout_s: float = 60.0) -> None:
        self.table = ConnectionTable(connections_max, timeout_s)
        self.names: list[str] = []

    def add(self, name: str, address: str = "10.0.0.1") -> AcceptedConnection:
        return self.table.add(address, lambda: self.names.append(name))


def in_a_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


def test_the_oldest_goes() -> None:
    async def test() -> None:
        home = Closings(2)
        for name in "abcd":
            home.add(name)
        assert home.names == ["a", "b"]
        assert home.table.closed == {CROWDED: 2}
        assert len(home.table) == 2
        home.table.close_all()

    in_a_loop(test)


def test_where_most_are() -> None:
    async def test() -> None:
        home = Closings(4)
        home.add("probe", "10.0.0.2")
        for name in "abcdef":
            home.add(name)
        assert home.names == ["a", "b", "c"]
        home.table.close_all()

    in_a_loop(test)


def test_one_that_is_answered_stays_until_it_asks_again() -> None:
    async def test() -> None:
        home = Closings(2)
        first = home.add("first")
        first.answer()
        for name in "ab":
            home.add(name)
        assert home.names == ["a"]
        first.ask()
        home.add("c")
        assert home.names == ["a", "b"]
        home.add("d")
        assert home.names == ["a", "b", "first"]
        home.table.close_all()

    in_a_loop(test)


def test_no_room_where_all_are_answered() -> None:
    async def test() -> None:
        home = Closings(1)
        home.add("first").answer()
        assert not home.table.make_room()
        home.table.close_all()

    in_a_loop(test)


def test_time_is_counted_from_the_beginning() -> None:
    async def test() -> None:
        home = Closings(9, timeout_s=0.02)
        home.add("answered").answer()
        home.add("gone").leave()
        home.add("silent")
        await until(lambda: bool(home.names))
        assert home.names == ["silent"]
        assert home.table.closed == {SLOW: 1}
        assert len(home.table) == 1
        home.table.close_all()

    in_a_loop(test)


class Exhausted(socket.socket):
    """Cannot accept while there are so many: as a process that has no descriptor left."""

    busy: Callable[[], bool]

    def accept(self) -> tuple[socket.socket, object]:
        if self.busy():
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_without_descriptors_somebody_goes() -> None:
    async def test() -> None:
        listening = Exhausted(socket.AF_INET)
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        table = ConnectionTable(100, 60.0)
        listening.busy = lambda: len(table) >= 2

        async def serve(accepted: socket.socket, connection: AcceptedConnection) -> None:
            loop = asyncio.get_running_loop()
            with accepted:
                await loop.sock_recv(accepted, 1)
                await loop.sock_sendall(accepted, b"heard")
            connection.leave()

        acceptor = Acceptor(listening, table, serve)
        acceptor.start()
        address = listening.getsockname()
        silent = [await asyncio.open_connection(*address[:2]) for _ in range(5)]
        reader, writer = await asyncio.open_connection(*address[:2])
        writer.write(b"x")
        async with asyncio.timeout(5):
            assert await reader.readexactly(5) == b"heard"
        assert table.closed[CROWDED] >= 4
        acceptor.close()
        await acceptor.wait_closed()
        for _, each in (*silent, (reader, writer)):
            each.transport.abort()

    in_a_loop(test)
