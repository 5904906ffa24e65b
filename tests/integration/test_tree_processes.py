"""Brokers in a tree as processes: killed, even all of them, stopped for a while, and not read from.

What is acknowledged as `replicated` is on its broker and on that one's keeper: it arrives whoever
else is killed, once, in order. What both knew alone is lost if both die, and then that is told.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

import dynatops
from dynatops.kit.filters import Filter
from tests.support.tree_processes import (
    BookedLoad,
    BookedPublisher,
    BookedReader,
    TreeProcesses,
    tree_of_processes,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

# Nobody is next to more than three others.
THIRTEEN = {
    "b0": ["b1", "b2", "b3"],
    "b1": ["b4", "b5"],
    "b2": ["b6", "b7"],
    "b3": ["b8", "b9"],
    "b4": ["b10", "b11"],
    "b6": ["b12"],
}
# A hub, a leaf that publishes, and a leaf that reads.
VICTIMS = ("b1", "b10", "b9")
TOPICS = ("quake/ca", "quake/nv", "shop/eu/a", "shop/us/b")
WANTED = [
    Filter.parse("#"),
    Filter.parse("quake/+"),
    Filter.parse("quake/#", "v > 4"),
    Filter.parse("shop/+/a"),
    Filter.parse("shop/#", "v < 3"),
]


def load_on(tree: TreeProcesses) -> BookedLoad:
    replicated, rp = dynatops.Ack.REPLICATED, dynatops.Ack.RP
    publishers = {
        name: BookedPublisher(f"at-{name}", TOPICS, rp if name == "b12" else replicated)
        for name in ("b0", "b5", "b8", "b10", "b12")
    }
    readers = {
        name: BookedReader(f"reader-{name}", WANTED[at % len(WANTED)])
        for at, name in enumerate(tree.addresses)
    }
    return BookedLoad(tree, publishers, readers)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_of_thirteen_are_killed_one_by_one_and_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tree_of_processes(tmp_path, THIRTEEN) as tree, load_on(tree).running() as load:
            await load.publishes(50)
            for victim in VICTIMS:
                await tree.kill(victim)
                await asyncio.sleep(1.0)
                await tree.start(victim)
                await load.publishes(50)
                await load.check()
                # Keepers have what they need before the next one dies.
                await tree.settle()
            await tree.kill(*VICTIMS)
            await asyncio.sleep(1.0)
            await tree.start(*VICTIMS)
            await load.publishes(50)
            await load.check()
            assert sum(publisher.refused for publisher in load.publishers) == 0
            assert {r.name: r.gaps for r in load.readers if r.gaps} == {}

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_thirteen_are_killed_at_once(tmp_path: Path) -> None:
    """Events are in memory: whatever else was lost, each reader is told that something may be."""

    async def scenario() -> None:
        async with tree_of_processes(tmp_path, THIRTEEN) as tree, load_on(tree).running() as load:
            await load.publishes(50)
            await load.check()
            assert not any(reader.gaps for reader in load.readers)
            await tree.kill(*tree.addresses)
            await tree.start(*tree.addresses)
            await tree.settle()
            for publisher in load.publishers:
                publisher.acknowledged.clear()
            await until(lambda: all(reader.gaps for reader in load.readers), 60.0, "all are told")
            # What was acknowledged from here on is there: in order, and nothing old again.
            await load.publishes(50)
            await load.check()
            assert all(gap.count == 0 for reader in load.readers for gap in reader.gaps)

    asyncio.run(scenario())


# ---- fewer ---------------------------------------------------------------------------------------

CHAIN = {"b0": ["b1"], "b1": ["b2"], "b2": ["b3"]}


@pytest.mark.timeout(300)
def test_origin_and_keeper_are_killed_at_once_and_it_is_told(tmp_path: Path) -> None:
    """What they had acknowledged had gone no farther: the next broker was gone."""

    async def scenario() -> None:
        publisher = BookedPublisher("at-b3", TOPICS[:1], dynatops.Ack.REPLICATED)
        reader = BookedReader("reader", Filter.parse("quake/#"))
        async with tree_of_processes(tmp_path, CHAIN) as tree:
            load = BookedLoad(tree, {"b3": publisher}, {"b0": reader}, roams=False)
            async with load.running():
                await load.publishes(20)
                await load.check()
                await tree.kill("b1")
                await load.publishes(20)
                load.pause()
                await tree.kill("b2", "b3")
                assert reader.lacks([publisher])
                assert reader.gaps == []
                await tree.start("b1", "b2", "b3")
                await until(lambda: bool(reader.gaps), 60.0, "the gap is told")
                publisher.acknowledged.clear()
                load.resume()
                await load.publishes(20)
                await load.check()

    asyncio.run(scenario())


@pytest.mark.timeout(300)
def test_a_hub_that_stands_still_for_a_while_is_forgiven(tmp_path: Path) -> None:
    """Longer than a link waits for a word, with publishers and readers at all brokers."""

    async def scenario() -> None:
        star = {"hub": ["leaf1", "leaf2", "leaf3"]}
        async with tree_of_processes(tmp_path, star) as tree:
            publishers = {
                name: BookedPublisher(f"at-{name}", TOPICS, dynatops.Ack.REPLICATED)
                for name in ("hub", "leaf1", "leaf2")
            }
            readers = {
                name: BookedReader(f"reader-{name}", wanted)
                for name, wanted in zip(tree.addresses, WANTED, strict=False)
            }
            load = BookedLoad(tree, publishers, readers, roams=False)
            async with load.running():
                await load.publishes(50)
                hub = tree.running["hub"].process
                hub.send_signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(8.0)
                finally:
                    hub.send_signal(signal.SIGCONT)
                await load.publishes(50)
                await load.check()
                assert [reader.gaps for reader in load.readers if reader.gaps] == []
                assert sum(publisher.refused for publisher in load.publishers) == 0

    asyncio.run(scenario())


AHEAD_MAX = 20_000
# More than its client, its broker and the connection between hold for somebody who does not read.
EVENTS_MIN = 400_000


@pytest.mark.timeout(240)
def test_a_reader_that_stops_slows_no_other_and_learns_what_it_missed(tmp_path: Path) -> None:
    async def scenario() -> None:
        # So that logs of the past stay small beside what is measured.
        small = ("forwarding.own_log_bytes_max=1048576", "forwarding.tree_log_bytes_max=4194304")
        copies = "forwarding.copies_bytes_max=1048576"
        async with (
            tree_of_processes(tmp_path, {"hub": ["leaf1", "leaf2"]}, *small, copies) as tree,
            dynatops.connect(tree.addresses["leaf1"], stay=True) as publisher,
            dynatops.connect(tree.addresses["leaf2"], stay=True) as quick,
            dynatops.connect(tree.addresses["leaf2"], stay=True) as stuck,
        ):
            told: list[dynatops.Gap] = []
            heard = await quick.subscribe(TOPICS[0])
            unread = await stuck.subscribe("quake/#", on_gap=told.append)
            taken, published, payload = 0, 0, bytes(100)
            moved = asyncio.Event()

            async def take() -> None:
                nonlocal taken
                async for batch in heard.batches():
                    taken += len(batch)
                    moved.set()

            taking = asyncio.create_task(take())
            while published < EVENTS_MIN:
                while published - taken > AHEAD_MAX:
                    moved.clear()
                    await moved.wait()
                events = [payload] * 500
                await publisher.publish_many(TOPICS[0], events, ack=dynatops.Ack.NONE)
                published += len(events)
            async with asyncio.timeout(60.0):
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
            await until(lambda: received + unread.missed >= published, timeout_s=60.0)
            reading.cancel()
        assert unread.missed == sum(gap.count for gap in told) > 0
        assert all("too slow" in gap.reason for gap in told)
        assert received + unread.missed == published

    asyncio.run(scenario())
