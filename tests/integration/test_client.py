"""The client against real brokers in this process."""

from __future__ import annotations

import asyncio
import threading

import pytest

import dynatops
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent
from dynatops import Ack
from dynatops.client.subscription import QUEUE_EVENTS_MAX
from dynatops.local.cluster import LocalCluster
from dynatops.v1.overlay_pb2 import NodeRef, PeerFrame, PeerMessage, Publication, Publish
from tests.support.waiting import until

TOPIC = "quake/ca"


def broker_settings(**values: object) -> BrokerSettings:
    return BrokerSettings.model_validate({"broker_id": "b0", "listen": "127.0.0.1:0", **values})


class TestPubSub:
    def test_across_brokers_every_level(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(4) as cluster:
                async with (
                    dynatops.connect(cluster.addresses[0]) as one,
                    dynatops.connect(cluster.addresses[3]) as other,
                    other.subscribe(TOPIC, "fire") as events,
                ):
                    # STORED needs stores.
                    for ack in (Ack.NONE, Ack.RP, Ack.REPLICATED):
                        await one.publish(TOPIC, ack.name.encode(), ack=ack)
                    await one.publish("fire", b"smoke")
                    heard = [await events.__anext__() for _ in range(4)]
                    payloads = {event.payload for event in heard}
                    assert payloads == {b"NONE", b"RP", b"REPLICATED", b"smoke"}
                    seqs = [event.seq for event in heard if event.topic == TOPIC]
                    assert seqs == [1, 2, 3]

        asyncio.run(scenario())

    def test_many_events_arrive_in_order(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(3) as cluster:
                async with (
                    dynatops.connect(cluster.addresses[0]) as one,
                    dynatops.connect(cluster.addresses[2]) as other,
                    other.subscribe(TOPIC) as events,
                ):
                    payloads = [b"%d" % i for i in range(20_000)]
                    publishing = asyncio.create_task(one.publish_many(TOPIC, payloads))
                    heard: list[bytes] = []
                    async for batch in events.batches():
                        heard += [event.payload for event in batch]
                        if len(heard) >= len(payloads):
                            break
                    await publishing
                    assert heard == payloads
                    assert events.missed == 0

        asyncio.run(scenario())

    def test_events_of_many_topics_arrive_in_order(self) -> None:
        async def scenario() -> None:
            topics = [f"quake/{i}" for i in range(300)]
            pairs = [(topic, b"%d" % i) for i in range(30) for topic in topics]
            async with LocalCluster(3) as cluster:
                async with (
                    dynatops.connect(cluster.addresses[0]) as one,
                    dynatops.connect(cluster.addresses[2]) as other,
                    other.subscribe("quake/+") as events,
                ):
                    for ack in (Ack.REPLICATED, Ack.RP, Ack.NONE):
                        publishing = asyncio.create_task(one.publish_many(iter(pairs), ack=ack))
                        heard: dict[str, list[bytes]] = {topic: [] for topic in topics}
                        count = 0
                        async for batch in events.batches():
                            for topic, payload in zip(batch.topics, batch.payloads, strict=True):
                                heard[topic].append(payload)
                            count += len(batch)
                            if count >= len(pairs):
                                break
                        await publishing
                        assert heard == {topic: [b"%d" % i for i in range(30)] for topic in topics}
                    assert events.missed == 0

        asyncio.run(scenario())

    def test_two_subscriptions_of_one_client_both_hear(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
                one = await client.subscribe(TOPIC)
                other = await client.subscribe(TOPIC, "fire")
                await client.publish(TOPIC, b"x")
                assert (await one.__anext__()).payload == (await other.__anext__()).payload == b"x"
                await one.close()
                await client.publish(TOPIC, b"y")
                assert (await other.__anext__()).payload == b"y"
                with pytest.raises(StopAsyncIteration):
                    await one.__anext__()

        asyncio.run(scenario())

    def test_a_reader_that_is_closed_ends_its_loop(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
                events = await client.subscribe(TOPIC)
                reading = asyncio.create_task(_collect(events))
                await asyncio.sleep(0)
                await events.close()
                assert await reading == []

        asyncio.run(scenario())

    def test_large_payloads(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(3) as cluster:
                async with (
                    dynatops.connect(cluster.addresses[0]) as one,
                    dynatops.connect(cluster.addresses[2]) as other,
                    other.subscribe(TOPIC) as events,
                ):
                    largest = bytes(1 << 20)
                    await one.publish_many(TOPIC, [largest] * 8)
                    for _ in range(8):
                        assert (await events.__anext__()).payload == largest
                    # What comes before one that is too large has been taken.
                    with pytest.raises(dynatops.PublishError, match="1,048,577 bytes"):
                        await one.publish_many(TOPIC, [b"a", b"b", bytes((1 << 20) + 1), b"c"])
                    await one.publish(TOPIC, b"d")
                    payloads = [(await events.__anext__()).payload for _ in range(3)]
                    assert payloads == [b"a", b"b", b"d"]

        asyncio.run(scenario())


async def _collect(events: dynatops.Subscription) -> list[bytes]:
    return [event.payload async for event in events]


class TestErrors:
    def test_nobody_listens(self) -> None:
        async def scenario() -> None:
            with pytest.raises(dynatops.ConnectError, match="nobody listens there"):
                await dynatops.connect("127.0.0.1:1", timeout_s=1.0)

        asyncio.run(scenario())

    def test_no_address(self) -> None:
        with pytest.raises(dynatops.ArgumentValueError, match="no address given"):
            dynatops.connect(" , ")

    def test_what_can_be_refused_at_once_is(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
                with pytest.raises(dynatops.TopicError, match="is empty"):
                    await client.publish("", b"x")
                with pytest.raises(dynatops.FilterError, match=r"1,025 bytes; the limit is 1,024"):
                    client.subscribe("x" * 1_025)
                with pytest.raises(dynatops.TopicError, match="cannot be written as UTF-8"):
                    await client.publish("\ud800", b"x")
                with pytest.raises(dynatops.PublishError, match=r"1,048,577 bytes"):
                    await client.publish(TOPIC, bytes((1 << 20) + 1))
                with pytest.raises(dynatops.SubscribeError, match="at least one topic"):
                    client.subscribe()

        asyncio.run(scenario())

    def test_the_brokers_own_limits(self) -> None:
        async def scenario() -> None:
            agent = Agent(broker_settings(core={"filters_per_session_max": 1}))
            await agent.start()
            async with dynatops.connect(agent.address) as client:
                await client.subscribe(TOPIC)
                with pytest.raises(dynatops.SubscribeError, match="at most 1 filters"):
                    await client.subscribe("fire")
            await agent.stop()

        asyncio.run(scenario())

    def test_a_closed_client_says_so(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(1) as cluster:
                async with dynatops.connect(cluster.addresses) as client:
                    events = await client.subscribe(TOPIC)
                with pytest.raises(dynatops.ClosedError):
                    await client.publish(TOPIC, b"x")
                with pytest.raises(dynatops.ClosedError):
                    await events.__anext__()

        asyncio.run(scenario())

    def test_a_publication_nobody_acknowledges_times_out_and_may_arrive(self) -> None:
        async def scenario() -> None:
            agent = Agent(broker_settings())
            await agent.start()
            async with dynatops.connect(agent.address) as client:
                ring_of(agent.core).node.reigns.ready = False
                await agent.supervisor.stop()
                with pytest.raises(dynatops.PublishError, match="may yet arrive") as caught:
                    await client.publish(TOPIC, b"x", timeout_s=0.2)
                assert caught.value.may_arrive
                with pytest.raises(dynatops.PublishError, match="nor are 2 other topics") as caught:
                    await client.publish_many([(t, b"x") for t in "abcc"], timeout_s=0.2)
                assert (caught.value.topic, caught.value.may_arrive) == ("a", True)
                await client.close()
            await agent.kill()

        asyncio.run(scenario())


class TestSlowConsumers:
    def test_a_consumer_that_pauses_gets_everything_that_fits_and_hears_of_the_rest(self) -> None:
        async def scenario() -> None:
            gaps: list[dynatops.Gap] = []
            agent = Agent(broker_settings(core={"session_queue_events_max": 2_000}))
            await agent.start()
            total = QUEUE_EVENTS_MAX + 60_000
            async with (
                dynatops.connect(agent.address) as publisher,
                dynatops.connect(agent.address) as consumer,
                consumer.subscribe(TOPIC, on_gap=gaps.append) as events,
            ):
                for _ in range(total // 10_000):
                    await publisher.publish_many(TOPIC, [b"x" * 1_000] * 10_000, ack=Ack.RP)
                count = 0

                async def consume() -> None:
                    nonlocal count
                    async for batch in events.batches():
                        count += len(batch)

                consuming = asyncio.create_task(consume())
                await until(lambda: count + sum(gap.count for gap in gaps) >= total)
                consuming.cancel()
                assert count + events.missed == total
                assert gaps
                assert all("too slow" in gap.reason for gap in gaps)
            await agent.stop()

        asyncio.run(scenario())

    def test_or_is_disconnected_if_it_wants_that(self) -> None:
        async def scenario() -> None:
            agent = Agent(broker_settings(core={"session_queue_events_max": 100}))
            await agent.start()
            async with dynatops.connect(agent.address) as publisher:
                consumer = await dynatops.connect(agent.address, disconnect_when_slow=True)
                events = await consumer.subscribe(TOPIC)
                while consumer._engine.failure is None:
                    await publisher.publish_many(TOPIC, [b"x" * 1_000] * 5_000, ack=Ack.RP)
                with pytest.raises(dynatops.ClosedError, match="queue is full"):
                    await _collect(events)
            await agent.stop()

        asyncio.run(scenario())


class TestBrokerChanges:
    def test_goodbye_sends_clients_elsewhere(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(3) as cluster:
                async with dynatops.connect(cluster.addresses[1]) as client:
                    assert client.broker == "b1"
                    await cluster.agents[1].stop()
                    await until(lambda: client.broker in ("b0", "b2"))
                    await client.publish(TOPIC, b"still here")

        asyncio.run(scenario())

    def test_publications_under_way_survive_the_move(self) -> None:
        async def scenario() -> None:
            async with LocalCluster(3) as cluster:
                async with (
                    dynatops.connect(cluster.addresses[0]) as listener,
                    dynatops.connect(cluster.addresses[1]) as client,
                    listener.subscribe(TOPIC) as events,
                ):
                    publishing = [
                        asyncio.create_task(client.publish(TOPIC, b"%d" % i)) for i in range(500)
                    ]
                    stopping = asyncio.create_task(cluster.agents[1].stop())
                    await asyncio.gather(*publishing)
                    heard = [int((await events.__anext__()).payload) for _ in range(500)]
                    assert heard == list(range(500))
                    await stopping

        asyncio.run(scenario())


class TestSyncClient:
    def test_from_a_thread_without_a_loop(self) -> None:
        addresses: list[str] = []
        started, finished = threading.Event(), threading.Event()

        async def serve() -> None:
            async with LocalCluster(2) as cluster:
                addresses.extend(cluster.addresses)
                started.set()
                await until(finished.is_set, 20.0)

        server = threading.Thread(target=lambda: asyncio.run(serve()))
        server.start()
        try:
            started.wait()
            with dynatops.connect_sync(addresses) as client, client.subscribe(TOPIC) as events:
                client.publish(TOPIC, b"one")
                client.publish_many(TOPIC, [b"two", b"three"], ack=Ack.NONE)
                client.publish_many((TOPIC, payload) for payload in (b"four", b"five"))
                assert sorted(events.next(timeout_s=5).payload for _ in range(5)) == [
                    b"five", b"four", b"one", b"three", b"two",
                ]  # fmt: skip
                with pytest.raises(TimeoutError):
                    events.next(timeout_s=0.05)
                assert events.missed == 0
            _keep_a_session(addresses[0])
        finally:
            finished.set()
            server.join()

    def test_its_errors_are_the_same(self) -> None:
        with pytest.raises(dynatops.ConnectError):
            dynatops.connect_sync("127.0.0.1:1", timeout_s=0.5)


def _keep_a_session(address: str) -> None:
    """With conditions and attributes, from one client of a name to the next."""
    with dynatops.connect_sync(address, client_id="ann", keep_s=60, stay=True) as client:
        assert (client.client_id, client.broker) == ("ann", "b0")
        client.subscribe("quake/#", where="magnitude >= 5")
    gaps: list[dynatops.Gap] = []
    with dynatops.connect_sync(address) as publisher:
        for magnitude in (4.9, 5.1, 5.2):
            publisher.publish(TOPIC, b"%.1f" % magnitude, attributes={"magnitude": magnitude})
        publisher.publish_many("quake/new", [b"a", b"b"], attributes={"magnitude": 9})
    with dynatops.connect_sync(address, client_id="ann", keep_s=60, stay=True) as client:
        assert [str(f) for f in client.resumed] == ["quake/# where magnitude >= 5"]
        events = client.subscribe("quake/#", where="magnitude >= 5", on_gap=gaps.append)
        heard = [events.next(timeout_s=5) for _ in range(4)]
        assert [event.payload for event in heard] == [b"5.1", b"5.2", b"a", b"b"]
        assert heard[0].attributes == {"magnitude": 5.1}
        assert gaps == []
        assert client.resumed == []
    with dynatops.connect_sync(address, client_id="ann", clean=True) as client:
        assert client.resumed == []


def test_the_package_offers_what_it_says() -> None:
    for name in dynatops.__all__:
        assert getattr(dynatops, name)
    with pytest.raises(AttributeError):
        _ = dynatops.nonsense


def test_events_that_cannot_be_read_are_told_and_the_next_ones_come() -> None:
    async def scenario() -> None:
        gaps: list[dynatops.Gap] = []
        async with LocalCluster(1) as cluster:
            stranger = NodeRef(node_id=1, broker_id="x", address="127.0.0.1:1", incarnation=1)
            async with (
                dynatops.connect(cluster.addresses) as client,
                client.subscribe(TOPIC, on_gap=gaps.append) as events,
            ):
                broken = Publication(
                    topic=TOPIC, publisher=9, first_number=1, count=2, events=b"\x0a\x7f"
                )
                frame = PeerFrame(
                    sender=stranger,
                    messages=[PeerMessage(publish=Publish(publications=[broken]))],
                )
                cluster.agents[0].on_peer_frame(frame)
                await client.publish(TOPIC, b"sound")
                assert (await anext(events)).payload == b"sound"
        assert [(gap.count, gap.reason) for gap in gaps] == [(2, "the events cannot be read")]

    asyncio.run(scenario())
