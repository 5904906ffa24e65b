"""Stores as processes that are killed, all at once: what was acknowledged as stored is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from broker_agent.core.stores.log.recovery import segment_name
from tests.support.store_processes import StoredPublisher, StoreProcesses, store_processes
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

TOPICS = ("quake/ca", "quake/nv", "news/eu")


@contextlib.asynccontextmanager
async def publishing(
    processes: StoreProcesses, publishers: Sequence[StoredPublisher]
) -> AsyncIterator[None]:
    addresses = list(processes.addresses.values())
    tasks = [
        asyncio.create_task(publisher.run(addresses[at % len(addresses) :] + addresses))
        for at, publisher in enumerate(publishers)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def more_stored(publishers: Sequence[StoredPublisher], events: int) -> None:
    before = [len(publisher.stored) for publisher in publishers]

    def are_done() -> bool:
        after = [len(publisher.stored) for publisher in publishers]
        return all(now >= then + events for now, then in zip(after, before, strict=True))

    await until(are_done, 90.0, f"{events} more events stored of each publisher")


def check(processes: StoreProcesses, publishers: Sequence[StoredPublisher]) -> None:
    """All that was acknowledged is on two disks at least, and nothing else than was published."""
    found = [processes.on_disk(name) for name in processes.addresses]
    for publisher in publishers:
        for payload in publisher.stored:
            assert sum(payload in on_disk for on_disk in found) >= 2, payload
    names = tuple(publisher.name.encode() for publisher in publishers)
    for on_disk in found:
        for payload in on_disk:
            assert payload.startswith(names), payload
            assert payload.endswith(b"." * 80), payload


@pytest.mark.timeout(300)
@pytest.mark.parametrize("in_tree", [False, True], ids=["ring", "tree"])
def test_all_are_killed_at_once_again_and_again(tmp_path: Path, *, in_tree: bool) -> None:
    async def scenario() -> None:
        publishers = [StoredPublisher(f"pub-{topic}", topic) for topic in TOPICS]
        async with store_processes(tmp_path, 3, in_tree=in_tree) as processes:
            async with publishing(processes, publishers):
                for _ in range(2):
                    await more_stored(publishers, 50)
                    await processes.kill()
                    await processes.start()
                await more_stored(publishers, 50)
                await processes.kill()
            check(processes, publishers)

    asyncio.run(scenario())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("in_tree", [False, True], ids=["ring", "tree"])
def test_a_flipped_bit_is_told_and_mended(tmp_path: Path, *, in_tree: bool) -> None:
    async def scenario() -> None:
        publishers = [StoredPublisher(f"pub-{topic}", topic) for topic in TOPICS]
        async with store_processes(tmp_path, 3, in_tree=in_tree) as processes:
            folder = processes.log_folder("b1")
            async with publishing(processes, publishers):
                await more_stored(publishers, 50)
                await processes.kill("b1")
                before = [payload for each in publishers for payload in each.stored]
                segment = folder / segment_name(1)
                raw = bytearray(segment.read_bytes())
                payload = next(payload for payload in before if payload in raw)
                raw[raw.index(payload)] ^= 0x10
                segment.write_bytes(raw)
                await processes.start("b1")
                assert "log_damaged" in processes.running["b1"].said
                await more_stored(publishers, 50)

                def is_there_again() -> bool:
                    return any(payload in path.read_bytes() for path in folder.glob("*.segment"))

                await until(is_there_again, 90.0, "another store gives what was damaged")
                await processes.kill()
            check(processes, publishers)
            assert processes.on_disk("b1").keys() >= set(before)

    asyncio.run(scenario())


@pytest.mark.timeout(300)
def test_a_full_disk_is_said_to_publishers_and_the_rest_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        publisher = StoredPublisher("pub", TOPICS[0])
        few = ("eventlog.log_bytes_max=200000", "core.stored_deadline_s=3")
        async with store_processes(tmp_path, 2, *few, in_tree=False) as processes:
            async with publishing(processes, [publisher]):
                await until(lambda: bool(publisher.refused), 90.0, "a publisher is refused")
            assert publisher.stored
            assert "not on the disks of 2 stores" in publisher.refused[0]
            await processes.kill()
            check(processes, [publisher])

    asyncio.run(scenario())
