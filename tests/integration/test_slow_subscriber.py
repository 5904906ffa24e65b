"""Somebody stops reading for a minute, under full load."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

import dynatops
from dynatops.local.cluster import ProcessCluster
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

TOPIC = "quake/ca"
AHEAD_MAX = 20_000
# More than client, broker and connection together hold for somebody who does not read.
EVENTS_MIN = 400_000


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _stop_reading(seconds: float, memory_grows_max: int) -> None:
    async with (
        ProcessCluster(3) as cluster,
        dynatops.connect(cluster.addresses[0], stay=True) as publisher,
        dynatops.connect(cluster.addresses[1], stay=True) as quick,
        dynatops.connect(cluster.addresses[1], stay=True) as stuck,
    ):
        pids = [broker.process.pid for broker in cluster.brokers]
        told: list[dynatops.Gap] = []
        heard = await quick.subscribe(TOPIC)
        unread = await stuck.subscribe(TOPIC, on_gap=told.append)
        taken = published = 0
        moved = asyncio.Event()

        async def take() -> None:
            nonlocal taken
            async for batch in heard.batches():
                taken += len(batch)
                moved.set()

        taking = asyncio.create_task(take())
        payload = bytes(100)
        at_first = [_resident_bytes(pid) for pid in pids]
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s or published < EVENTS_MIN:
            while published - taken > AHEAD_MAX:
                moved.clear()
                await moved.wait()
            await publisher.publish_many(TOPIC, [payload] * 500, ack=dynatops.Ack.NONE)
            published += 500
            await asyncio.sleep(0)
        grown = [_resident_bytes(pid) - first for pid, first in zip(pids, at_first, strict=True)]
        async with asyncio.timeout(30.0):
            while taken < published:
                moved.clear()
                await moved.wait()
        taking.cancel()
        assert heard.missed == 0
        # It reads again: what is left, and exactly what is not.
        received = 0

        async def read() -> None:
            nonlocal received
            async for batch in unread.batches():
                received += len(batch)

        reading = asyncio.create_task(read())
        await until(lambda: received + unread.missed >= published, timeout_s=30.0)
        reading.cancel()
    assert unread.missed == sum(gap.count for gap in told) > 0
    assert all("too slow" in gap.reason for gap in told)
    assert received + unread.missed == published
    assert max(grown) < memory_grows_max, f"{[size >> 20 for size in grown]} MiB"


def test_for_a_moment() -> None:
    asyncio.run(_stop_reading(0.0, 64 << 20))


@pytest.mark.slow
def test_for_a_minute() -> None:
    asyncio.run(_stop_reading(60.0, 64 << 20))
