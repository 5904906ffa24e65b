"""Sessions, wildcards and conditions: the real client at real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import dynatops
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.client.engine import TELL_PERIOD_S
from dynatops.kit.filters import Value
from dynatops.local.cluster import LocalCluster
from tests.support.security import running
from tests.support.waiting import until
from tests.support.wires import Wire

TOPIC = "quake/ca"
# Nobody is sent anywhere.
SETTLED = SelectionSettings(enabled=False)
TIMEOUT_S = 20.0


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


async def take(events: dynatops.Subscription, count: int) -> list[bytes]:
    async with asyncio.timeout(TIMEOUT_S):
        return [(await events.__anext__()).payload for _ in range(count)]


async def publish_each(client: dynatops.Client, topic: str, payloads: Iterable[bytes]) -> None:
    for payload in payloads:
        await client.publish(topic, payload)


def kept(address: str | Sequence[str], **options: Any) -> Any:
    return dynatops.connect(address, **{"client_id": "ann", "keep_s": 60, **options})


class TestConnectionsThatBreak:
    @pytest.mark.parametrize("keep_s", [0, 60])
    def test_every_event_comes_once_in_order(self, keep_s: int) -> None:
        async def scenario() -> None:
            async with running() as agent, Wire(agent.address) as wire:
                async with (
                    dynatops.connect(agent.address) as publisher,
                    kept(wire.address, keep_s=keep_s) as client,
                    client.subscribe("quake/#") as events,
                ):
                    heard: list[bytes] = []
                    for round_ in range(3):
                        first = round_ * 300
                        await publish_each(publisher, TOPIC, numbers(100, first))
                        wire.cut()
                        await publish_each(publisher, TOPIC, numbers(100, first + 100))
                        wire.mend()
                        await publish_each(publisher, TOPIC, numbers(100, first + 200))
                        heard += await take(events, 300)
                    assert heard == numbers(900)
                    assert events.missed == 0
                    assert agent.core.counters.sessions_resumed == (3 if keep_s else 0)

        asyncio.run(scenario())

    def test_what_a_client_published_meanwhile_arrives_once(self) -> None:
        async def scenario() -> None:
            async with running() as agent, Wire(agent.address) as wire:
                async with (
                    kept(wire.address) as client,
                    dynatops.connect(agent.address) as listener,
                    listener.subscribe(TOPIC) as events,
                ):
                    publishing = [
                        asyncio.create_task(client.publish(TOPIC, n)) for n in numbers(500)
                    ]
                    await take_some(agent, 1)
                    wire.cut()
                    await until(lambda: client.broker == "")
                    wire.mend()
                    await asyncio.gather(*publishing)
                    assert await take(events, 500) == numbers(500)
                    await client.publish(TOPIC, b"end")
                    assert await take(events, 1) == [b"end"]

        asyncio.run(scenario())

    def test_a_busy_connection_of_a_kept_session_does_not_break(self) -> None:
        """The client tells what its application has taken while it writes other things."""

        async def scenario() -> None:
            async with running() as agent:
                async with kept(agent.address) as client, client.subscribe(TOPIC) as events:
                    loop = asyncio.get_running_loop()
                    end_s = loop.time() + 8 * TELL_PERIOD_S
                    while loop.time() < end_s:
                        await asyncio.gather(*(client.publish(TOPIC, n) for n in numbers(3)))
                        await take(events, 3)
                assert agent.core.counters.sessions_opened == 1
                assert agent.core.counters.sessions_resumed == 0

        asyncio.run(scenario())


async def take_some(agent: Any, events: int) -> None:
    """Until the broker has taken so many publications."""
    await until(lambda: agent.core.counters.published_events >= events)


class TestOneIdOneSession:
    def test_who_comes_with_the_same_id_takes_the_session_over(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                first = await kept(agent.address)
                events = await first.subscribe(TOPIC)
                second = await kept(agent.address)
                with pytest.raises(dynatops.ClosedError, match="with the client id 'ann'"):
                    await events.__anext__()
                with pytest.raises(dynatops.ClosedError, match="with the client id 'ann'"):
                    await first.publish(TOPIC, b"not any more")
                assert [str(f) for f in second.resumed] == [TOPIC]
                async with second.subscribe(TOPIC) as events:
                    await second.publish(TOPIC, b"x")
                    assert await take(events, 1) == [b"x"]
                assert agent.core.counters.sessions_taken_over == 1
                assert len(agent.core.registry) == 1
                await first.close()
                await second.close()

        asyncio.run(scenario())

    def test_clean_begins_anew(self) -> None:
        async def scenario() -> None:
            async with running() as agent, dynatops.connect(agent.address) as publisher:
                client = await kept(agent.address)
                await client.subscribe(TOPIC)
                await client.close()
                await publisher.publish(TOPIC, b"missed")
                async with kept(agent.address, clean=True) as client:
                    assert client.resumed == []
                    async with client.subscribe(TOPIC) as events:
                        await publisher.publish(TOPIC, b"new")
                        assert await take(events, 1) == [b"new"]

        asyncio.run(scenario())

    def test_clean_does_so_once_not_after_each_loss_of_the_connection(self) -> None:
        async def scenario() -> None:
            async with running() as agent, Wire(agent.address) as wire:
                async with (
                    dynatops.connect(agent.address) as publisher,
                    kept(wire.address, clean=True) as client,
                    client.subscribe(TOPIC) as events,
                ):
                    wire.cut()
                    await publish_each(publisher, TOPIC, numbers(10))
                    wire.mend()
                    assert await take(events, 10) == numbers(10)
                    assert agent.core.counters.sessions_resumed == 1

        asyncio.run(scenario())


class TestKeptSessions:
    """Of a process that ends; another one comes with its id."""

    def test_events_wait_and_are_delivered_once_asked_for(self) -> None:
        async def scenario() -> None:
            async with running() as agent, dynatops.connect(agent.address) as publisher:
                client = await kept(agent.address)
                events = await client.subscribe("quake/#", where="n < 100")
                await client.subscribe("fire")
                await publish_with(publisher, TOPIC, range(5))
                assert await take(events, 5) == numbers(5)
                await client.flush()
                await client.close()
                await publish_with(publisher, TOPIC, range(90, 110))
                await publish_with(publisher, "quake/new", [1, 200, 2])
                await publisher.publish("fire", b"smoke")
                async with kept(agent.address) as client:
                    assert sorted(map(str, client.resumed)) == ["fire", "quake/# where n < 100"]
                    events = await client.subscribe("quake/#", where="n < 100")
                    heard = await take(events, 12)
                    assert heard == [*numbers(10, 90), b"1", b"2"]
                    # Others wait for whoever asks for them.
                    assert [str(f) for f in client.resumed] == ["fire"]
                    fire = await client.subscribe("fire")
                    assert await take(fire, 1) == [b"smoke"]
                    assert client.resumed == []
                    await publish_with(publisher, TOPIC, [7])
                    assert await take(events, 1) == [b"7"]
                    assert events.missed == fire.missed == 0

        asyncio.run(scenario())

    def test_what_a_process_had_the_next_one_does_not_get(self) -> None:
        async def scenario() -> None:
            async with running() as agent, dynatops.connect(agent.address) as publisher:
                for round_ in range(5):
                    async with kept(agent.address) as client:
                        events = await client.subscribe(TOPIC)
                        await publish_each(publisher, TOPIC, numbers(3, 3 * round_))
                        assert await take(events, 3) == numbers(3, 3 * round_)

        asyncio.run(scenario())

    def test_what_came_but_was_not_taken_comes_again(self) -> None:
        async def scenario() -> None:
            async with running() as agent, dynatops.connect(agent.address) as publisher:
                async with kept(agent.address) as client:
                    events = await client.subscribe(TOPIC)
                    await publish_each(publisher, TOPIC, numbers(10))
                    assert await take(events, 4) == numbers(4)
                async with kept(agent.address) as client:
                    events = await client.subscribe(TOPIC)
                    assert await take(events, 6) == numbers(6, 4)

        asyncio.run(scenario())

    def test_what_two_filters_want_comes_to_both(self) -> None:
        async def scenario() -> None:
            gaps: list[dynatops.Gap] = []
            core = {"session_queue_events_max": 3}
            async with running(core=core) as agent, dynatops.connect(agent.address) as publisher:
                client = await kept(agent.address)
                await client.subscribe("quake/#", where="n > 0")
                await client.subscribe(TOPIC)
                # New as it is, and wanted by a wildcard, the topic is read from its start.
                session = agent.core.registry.clients[client.client_id]
                await until(
                    lambda: not list(ring_of(agent.core).subscriptions.catching_up(session))
                )
                await client.close()
                await publish_with(publisher, TOPIC, range(5))
                async with kept(agent.address) as client:
                    await client.flush()
                    some = await client.subscribe("quake/#", where="n > 0", on_gap=gaps.append)
                    every = await client.subscribe(TOPIC, on_gap=gaps.append)
                    assert await take(some, 2) == [b"1", b"2"]
                    assert await take(every, 3) == numbers(3)
                    assert [gap.count for gap in gaps] == [2, 2]

        asyncio.run(scenario())

    def test_a_session_expires(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                client = await kept(agent.address, keep_s=1)
                await client.subscribe(TOPIC)
                await client.close()
                assert len(agent.core.registry) == 1
                await until(lambda: len(agent.core.registry) == 0)
                assert agent.core.counters.sessions_expired == 1
                assert TOPIC not in ring_of(agent.core).subscriptions
                async with kept(agent.address) as client:
                    assert client.resumed == []

        asyncio.run(scenario())

    def test_the_queue_is_bounded_and_what_is_missed_is_told_exactly(self) -> None:
        async def scenario() -> None:
            gaps: list[dynatops.Gap] = []
            core = {"session_queue_events_max": 100}
            async with running(core=core) as agent, dynatops.connect(agent.address) as publisher:
                client = await kept(agent.address)
                await client.subscribe(TOPIC)
                await client.close()
                await publish_each(publisher, TOPIC, numbers(250))
                async with kept(agent.address) as client:
                    # All that waited has come before anybody asks for it.
                    await client.flush()
                    events = await client.subscribe(TOPIC, on_gap=gaps.append)
                    assert await take(events, 100) == numbers(100)
                    await publisher.publish(TOPIC, b"after")
                    assert await take(events, 1) == [b"after"]
                    assert [(gap.topic, gap.count) for gap in gaps] == [(TOPIC, 150)]
                    assert "too slow" in gaps[0].reason
                    assert events.missed == 150

        asyncio.run(scenario())

    def test_events_wait_only_so_long(self) -> None:
        async def scenario() -> None:
            gaps: list[dynatops.Gap] = []
            core = {"offline_age_max_s": 0.3}
            async with running(core=core) as agent, dynatops.connect(agent.address) as publisher:
                client = await kept(agent.address)
                await client.subscribe(TOPIC)
                await client.close()
                await publish_each(publisher, TOPIC, numbers(5))
                await until(lambda: agent.core.counters.expired_events == 5)
                async with kept(agent.address) as client:
                    # All that waited has come before anybody asks for it.
                    await client.flush()
                    events = await client.subscribe(TOPIC, on_gap=gaps.append)
                    await publisher.publish(TOPIC, b"after")
                    assert await take(events, 1) == [b"after"]
                    assert [(gap.topic, gap.count) for gap in gaps] == [(TOPIC, 5)]
                    assert "waited too long" in gaps[0].reason
                    assert events.missed == 5

        asyncio.run(scenario())

    def test_it_goes_along_to_another_broker(self) -> None:
        """The client, while it lives, knows where it stood; its old session is given up."""

        async def scenario() -> None:
            async with (
                LocalCluster(3, selection=SETTLED) as cluster,
                dynatops.connect(cluster.addresses[0]) as publisher,
                kept(cluster.addresses[2]) as client,
            ):
                events = await client.subscribe("quake/#")
                await publish_each(publisher, TOPIC, numbers(20))
                await cluster.agents[2].stop()
                await publish_each(publisher, TOPIC, numbers(20, 20))
                assert await take(events, 40) == numbers(40)
                await publish_each(publisher, "quake/new", [b"last"])
                assert await take(events, 1) == [b"last"]
                assert events.missed == 0

        asyncio.run(scenario())


async def publish_with(client: dynatops.Client, topic: str, values: Iterable[int]) -> None:
    for value in values:
        await client.publish(topic, b"%d" % value, attributes={"n": value})


class TestFilters:
    def test_the_first_event_of_a_new_topic_reaches_a_wildcard_at_another_broker(self) -> None:
        async def scenario() -> None:
            async with (
                LocalCluster(4, selection=SETTLED) as cluster,
                dynatops.connect(cluster.addresses[0]) as publisher,
                dynatops.connect(cluster.addresses[3]) as client,
                client.subscribe("#") as everything,
                client.subscribe("new/+/x") as some,
            ):
                topics = [f"new/{i}/{'xy'[i % 2]}" for i in range(50)]
                for topic in topics:
                    await publisher.publish(topic, topic.encode())
                    await publisher.publish(topic, b"second")
                heard: dict[str, list[bytes]] = {topic: [] for topic in topics}
                async with asyncio.timeout(TIMEOUT_S):
                    for _ in range(100):
                        event = await everything.__anext__()
                        heard[event.topic].append(event.payload)
                assert heard == {topic: [topic.encode(), b"second"] for topic in topics}
                assert sorted(await take(some, 50)) == sorted(
                    payload for topic in topics[::2] for payload in (topic.encode(), b"second")
                )
                await publisher.publish("end", b"end")
                assert await take(everything, 1) == [b"end"]

        asyncio.run(scenario())

    def test_conditions(self) -> None:
        async def scenario() -> None:
            offers: list[dict[str, Value]] = [
                {"brand": "IBM", "price": 1499},
                {"brand": "IBM", "price": 1500.5},
                {"brand": "Dell", "price": 900, "new": True},
                {"price": 1},
                {},
            ]
            async with (
                LocalCluster(3, selection=SETTLED) as cluster,
                dynatops.connect(cluster.addresses[0]) as publisher,
                dynatops.connect(cluster.addresses[2]) as client,
                client.subscribe("shop/#", where='brand == "IBM" and price < 1500') as cheap,
                client.subscribe("shop/pc", where="has new or price == 1") as odd,
                client.subscribe("shop/pc") as everything,
            ):
                for i, attributes in enumerate(offers):
                    await publisher.publish("shop/pc", b"%d" % i, attributes=attributes)
                await publisher.publish_many(
                    "shop/mac", numbers(3, 5), attributes={"brand": "IBM", "price": 2}
                )
                assert await take(everything, 5) == numbers(5)
                assert await take(odd, 2) == [b"2", b"3"]
                assert await take(cheap, 4) == [b"0", *numbers(3, 5)]
                assert cheap.missed == odd.missed == everything.missed == 0

        asyncio.run(scenario())

    def test_attributes_arrive_as_they_were_given(self) -> None:
        async def scenario() -> None:
            async with running() as agent, dynatops.connect(agent.address) as client:
                given: dict[str, Value] = {"text": "ä", "whole": -7, "number": 0.5, "truth": False}
                async with client.subscribe(TOPIC) as events:
                    await client.publish(TOPIC, b"x", attributes=given)
                    await client.publish(TOPIC, b"y")
                    event = await events.__anext__()
                    assert dict(event.attributes) == given
                    assert [type(v) for v in event.attributes.values()] == [str, int, float, bool]
                    assert dict((await events.__anext__()).attributes) == {}

        asyncio.run(scenario())
