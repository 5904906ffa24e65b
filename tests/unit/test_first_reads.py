"""Streams that nobody knows yet, and whose turn it is to be read from."""

from __future__ import annotations

import asyncio

import pytest

from dynatops.kit.serving.first_reads import FirstReads, host_of


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::/64"),
        ("ipv6:[2001:db8:1:2:3::4]:4711", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:ffff::4%5D:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:4711", "10.0.0.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::/64"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
        ("unix:", "unix:"),
    ],
)
def test_hosts(peer: str, host: str) -> None:
    assert host_of(peer) == host


class Net:
    """Streams that say something when they are told to."""

    def __init__(self, places: int) -> None:
        self.lost = 0
        self.reads = FirstReads(places * 10, 10, self._on_lost)
        self.being_read: list[str] = []
        self._said: dict[str, asyncio.Future[str]] = {}
        self.streams: dict[str, asyncio.Task[str | None]] = {}

    def _on_lost(self) -> None:
        self.lost += 1

    async def open(self, name: str, host: str = "there") -> None:
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._said[name] = said

        async def read() -> str:
            self.being_read.append(name)
            try:
                return await said
            finally:
                self.being_read.remove(name)

        self.streams[name] = asyncio.create_task(self.reads.read(host, read))
        await self.settle()

    async def say(self, name: str) -> str | None:
        self._said[name].set_result(name)
        await self.settle()
        return await self.streams[name]

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self.streams.values():
            task.cancel()
        await asyncio.gather(*self.streams.values(), return_exceptions=True)


def test_so_many_are_read_from_and_the_next_when_one_has_spoken() -> None:
    async def scenario() -> None:
        net = Net(places=2)
        for name in ("a", "b", "c"):
            await net.open(name)
        assert net.being_read == ["a", "b"]
        assert await net.say("a") == "a"
        assert net.being_read == ["b", "c"]
        await net.close()

    asyncio.run(scenario())


def test_the_newest_waits_least_and_of_hosts_the_one_that_holds_fewest() -> None:
    async def scenario() -> None:
        net = Net(places=2)
        for name in ("m0", "m1", "m2", "m3"):
            await net.open(name, "mallory")
        await net.open("ann", "elsewhere")
        await net.open("m4", "mallory")
        await net.say("m0")
        assert net.being_read == ["m1", "ann"]
        await net.say("ann")
        assert net.being_read == ["m1", "m4"]
        await net.close()

    asyncio.run(scenario())


def test_the_silent_lose_their_places_to_those_who_wait() -> None:
    async def scenario() -> None:
        net = Net(places=2)
        await net.open("silent", "mallory")
        await net.open("slow", "elsewhere")
        await net.open("too", "mallory")
        await net.open("ann", "third")
        assert await net.streams["silent"] is None
        assert await net.streams["slow"] is None
        await net.settle()
        assert net.being_read == ["ann", "too"]
        assert net.lost == 2
        assert await net.say("ann") == "ann"
        await net.close()

    asyncio.run(scenario())


def test_nobody_loses_a_place_that_nobody_wants() -> None:
    async def scenario() -> None:
        net = Net(places=1)
        await net.open("slow")
        await net.open("gone")
        net.streams["gone"].cancel()
        await asyncio.sleep(0.3)
        assert net.being_read == ["slow"]
        await net.close()

    asyncio.run(scenario())


def test_a_place_that_was_granted_to_who_has_gone_is_free() -> None:
    async def scenario() -> None:
        net = Net(places=1)
        await net.open("a")
        await net.open("b")
        net._said["a"].set_result("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        net.streams["b"].cancel()
        await net.settle()
        await net.open("c")
        assert net.being_read == ["c"]
        await net.close()

    asyncio.run(scenario())
