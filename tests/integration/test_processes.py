"""Broker processes that are really killed, under load."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

import dynatops
from dynatops.client.errors import DynatopsError
from dynatops.client.inspection import Inspector, ring_problems
from dynatops.local.cluster import BrokerProcess, ProcessCluster
from overlay.base.identifiers import key_of
from overlay.placement.geometry import RingGeometry
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

TOPICS = [f"quake/{i}" for i in range(12)]
HEAL_S = 10.0


class Load:
    """Somebody publishes all the time; everybody of `listeners` writes down what comes."""

    def __init__(self, addresses: list[str], listeners: int) -> None:
        self.addresses = addresses
        self.heard: list[set[bytes]] = [set() for _ in range(listeners)]
        self.refused = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        async with contextlib.AsyncExitStack() as stack:
            tasks: list[asyncio.Task[None]] = []
            for i, heard in enumerate(self.heard):
                client = await stack.enter_async_context(dynatops.connect(self.addresses[i]))
                events = await client.subscribe(*TOPICS)
                tasks.append(asyncio.create_task(self._listen(events, heard)))
            publisher = await stack.enter_async_context(dynatops.connect(self.addresses))
            tasks.append(asyncio.create_task(self._publish(publisher)))
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, events: dynatops.Subscription, heard: set[bytes]) -> None:
        async for event in events:
            heard.add(event.payload)

    async def _publish(self, client: dynatops.Client) -> None:
        number = 0
        while True:
            number += 1
            try:
                payload = b"load %d" % number
                await client.publish(TOPICS[number % len(TOPICS)], payload, timeout_s=5.0)
            except DynatopsError:
                self.refused += 1
            await asyncio.sleep(0.002)


async def is_whole(cluster: ProcessCluster) -> bool:
    """The ring is what the positions say, and every tree is the union of its routes."""
    living = [broker for broker in cluster.brokers if broker.process.returncode is None]
    try:
        async with Inspector([broker.address for broker in living]) as inspector:
            reports = await inspector.brokers()
            if len(reports) != len(living) or ring_problems(reports):
                return False
            geometry = RingGeometry(report.nodes[0].node.node_id for report in reports)
            return all([await is_grown(inspector, geometry, topic) for topic in TOPICS])
    except DynatopsError:
        return False


async def is_grown(inspector: Inspector, geometry: RingGeometry, topic: str) -> bool:
    tree = await inspector.tree(topic)
    members = [geometry.index_of(n.node.node_id) for n in tree.walk() if n.subscribes]
    shape = geometry.tree(geometry.successor_of(key_of(topic)), members)
    return {geometry.index_of(node.node.node_id) for node in tree.walk()} == shape.nodes


async def check_that_all_arrives(load: Load, mark: bytes) -> None:
    """Events published now reach every listener."""
    async with dynatops.connect(load.addresses) as client:
        payloads = {b"%s %s %d" % (mark, topic.encode(), i) for topic in TOPICS for i in range(20)}
        for payload in sorted(payloads):
            await client.publish(payload.split()[1].decode(), payload)
    await until(lambda: all(payloads <= heard for heard in load.heard), what=f"all of {mark!r}")


@pytest.mark.timeout(180)
def test_three_of_eight_are_killed_and_two_join() -> None:
    async def scenario() -> None:
        async with ProcessCluster(8) as cluster:
            # Listeners and publisher live with brokers that will survive.
            victims = cluster.brokers[5:]
            load = Load(cluster.addresses[:5], listeners=5)
            async with load.running():
                await until(lambda: is_whole(cluster), HEAL_S, "the first ring")
                for i, victim in enumerate(victims):
                    victim.kill()
                    await victim.process.wait()
                    await until(lambda: is_whole(cluster), HEAL_S, f"after kill {i}")
                    await check_that_all_arrives(load, b"killed-%d" % i)
                for i in range(2):
                    await cluster.add(f"new{i}")
                    await until(lambda: is_whole(cluster), HEAL_S, f"after join {i}")
                    await check_that_all_arrives(load, b"joined-%d" % i)
                assert load.refused == 0

    asyncio.run(scenario())


@pytest.mark.timeout(120)
def test_clients_of_a_killed_broker_go_on_elsewhere_where_they_stood() -> None:
    async def scenario() -> None:
        gaps: list[dynatops.Gap] = []
        async with ProcessCluster(3) as cluster:
            async with (
                dynatops.connect(cluster.addresses[0]) as survivor,
                dynatops.connect(cluster.addresses[2]) as orphan,
                orphan.subscribe("quake/ca", on_gap=gaps.append) as events,
            ):
                assert orphan.broker == "b2"
                await survivor.publish("quake/ca", b"before")
                assert (await events.__anext__()).payload == b"before"
                cluster.brokers[2].kill()
                await survivor.publish("quake/ca", b"meanwhile")
                await until(lambda: orphan.broker in ("b0", "b1"))
                await survivor.publish("quake/ca", b"after")
                heard = [(await events.__anext__()).payload for _ in range(2)]
                assert heard == [b"meanwhile", b"after"]
        assert gaps == []

    asyncio.run(scenario())


@pytest.mark.timeout(120)
def test_sigterm_hands_over_and_loses_nothing() -> None:
    async def scenario() -> None:
        async with ProcessCluster(4) as cluster:
            load = Load(cluster.addresses[:3], listeners=3)
            async with load.running():
                await until(lambda: is_whole(cluster), HEAL_S)
                assert await cluster.brokers[3].stop() == 0
                await until(lambda: is_whole(cluster), HEAL_S)
                await check_that_all_arrives(load, b"left")
                assert load.refused == 0

    asyncio.run(scenario())


@pytest.mark.timeout(120)
def test_a_killed_broker_comes_back_under_its_name() -> None:
    async def scenario() -> None:
        async with ProcessCluster(4) as cluster:
            load = Load(cluster.addresses[:3], listeners=3)
            async with load.running():
                await until(lambda: is_whole(cluster), HEAL_S)
                cluster.brokers[3].kill()
                await cluster.brokers[3].process.wait()
                again = await BrokerProcess.start("b3", join=cluster.addresses[:1])
                cluster.brokers.append(again)
                await until(lambda: is_whole(cluster), HEAL_S)
                await check_that_all_arrives(load, b"back")

    asyncio.run(scenario())


@pytest.mark.timeout(120)
def test_a_broker_stopped_for_a_while_is_forgiven() -> None:
    """SIGSTOP: the others take it for dead; when it goes on, the ring is whole again."""

    async def scenario() -> None:
        async with ProcessCluster(4) as cluster:
            load = Load(cluster.addresses[:3], listeners=3)
            async with load.running():
                await until(lambda: is_whole(cluster), HEAL_S)
                process = cluster.brokers[3].process
                process.send_signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(5.0)
                finally:
                    process.send_signal(signal.SIGCONT)
                await until(lambda: is_whole(cluster), HEAL_S)
                await check_that_all_arrives(load, b"woken")

    asyncio.run(scenario())
