"""Kept sessions with more waiting in them than is ever under way to a client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import dynatops
from tests.support.security import running
from tests.support.waiting import until
from tests.support.wires import Wire

TOPIC = "quake/ca"
TIMEOUT_S = 40.0


def kept(address: str, **options: Any) -> Any:
    return dynatops.connect(address, client_id="ann", keep_s=60, stay=True, **options)


async def leave_behind(address: str, *topics: str, events: int, size: int) -> None:
    """A session that wants the topics, and so many events in it."""
    client = await kept(address)
    for topic in topics:
        await client.subscribe(topic)
    await client.close()
    async with dynatops.connect(address) as publisher:
        for first in range(0, events, 500):
            for topic in topics:
                payloads = [b"%08d" % i + bytes(size - 8) for i in range(first, first + 500)]
                await publisher.publish_many(topic, payloads)


async def read(events: dynatops.Subscription, count: int) -> list[int]:
    async with asyncio.timeout(TIMEOUT_S):
        return [int((await events.__anext__()).payload[:8]) for _ in range(count)]


class TestMoreThanAWindow:
    def test_it_is_resumed_and_read_in_order(self, tmp_path: Path) -> None:
        """6 MiB of events of 1 KiB; the broker is started again in between, too."""

        async def scenario() -> None:
            folder = str(tmp_path)
            async with running(data_dir=folder) as agent:
                await leave_behind(agent.address, TOPIC, events=6_000, size=1_024)
            async with running(data_dir=folder) as agent:
                client = await kept(agent.address)
                gaps: list[dynatops.Gap] = []
                async with asyncio.timeout(10.0):
                    events = await client.subscribe(TOPIC, on_gap=gaps.append)
                assert await read(events, 6_000) == list(range(6_000))
                # It was the only broker: what nobody had been sent by then cannot be known.
                assert all(gap.count == 0 for gap in gaps)
                await client.close()

        asyncio.run(scenario())

    def test_several_filters_are_taken_up_one_after_the_other(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                await leave_behind(agent.address, "a", "b", events=3_000, size=1_024)
                client = await kept(agent.address)
                async with asyncio.timeout(10.0):
                    first = await client.subscribe("a")
                    third = await client.subscribe("c")
                    second = await client.subscribe("b")
                assert await read(first, 3_000) == list(range(3_000))
                assert await read(second, 3_000) == list(range(3_000))
                async with asyncio.timeout(10.0):
                    await client.publish("c", b"%08d" % 7)
                assert await read(third, 1) == [7]
                await client.close()

        asyncio.run(scenario())

    def test_as_many_events_as_a_queue_holds(self) -> None:
        """Small ones: the client's own bound is reached before any window is."""

        async def scenario() -> None:
            async with running() as agent:
                await leave_behind(agent.address, TOPIC, events=52_000, size=8)
                client = await kept(agent.address)
                async with asyncio.timeout(10.0):
                    events = await client.subscribe(TOPIC)
                assert (await read(events, 49_500))[:3] == [0, 1, 2]
                await client.close()

        asyncio.run(scenario())

    def test_a_reader_that_rests_is_told_that_it_has_published(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                await leave_behind(agent.address, TOPIC, events=6_000, size=1_024)
                client = await kept(agent.address)
                events = await client.subscribe(TOPIC)
                async with asyncio.timeout(10.0):
                    await client.publish("other", b"x")
                assert await read(events, 6_000) == list(range(6_000))
                await client.close()

        asyncio.run(scenario())


class TestGivingUpWaiting:
    def test_a_filter_not_confirmed_in_time_is_kept(self) -> None:
        """The first try comes to nothing; the second has everything."""

        async def scenario() -> None:
            async with running() as agent, Wire(agent.address) as wire:
                await leave_behind(agent.address, TOPIC, events=500, size=100)
                client = await kept(wire.address)
                wire.cut()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await client.subscribe(TOPIC)
                wire.mend()
                assert [str(f) for f in client.resumed] == [TOPIC]
                async with asyncio.timeout(10.0):
                    events = await client.subscribe(TOPIC)
                assert await read(events, 500) == list(range(500))
                await client.close()
                session = agent.core.registry.clients["ann"]
                assert list(session.filters) == [TOPIC]

        asyncio.run(scenario())

    def test_unclaimed_filters_outlive_a_lost_connection(self) -> None:
        async def scenario() -> None:
            async with running() as agent, Wire(agent.address) as wire:
                await leave_behind(agent.address, "a", "b", events=500, size=100)
                client = await kept(wire.address)
                first = await client.subscribe("a")
                wire.cut()
                await until(lambda: client.broker == "")
                wire.mend()
                async with asyncio.timeout(10.0):
                    await client.flush()
                    second = await client.subscribe("b")
                assert await read(first, 500) == list(range(500))
                assert await read(second, 500) == list(range(500))
                await client.close()

        asyncio.run(scenario())
