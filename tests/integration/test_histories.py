"""The past, as applications get it: from any broker, through both faces of the client, and in words
where it cannot be had."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import dynatops
from dynatops.client.aio import Client
from dynatops.local.cluster import LocalCluster
from dynatops.local.tree_cluster import LocalTree, star
from tests.support.commands import run
from tests.support.waiting import until

TIMEOUT_S = 60.0
Network = LocalCluster | LocalTree
Scenario = Callable[[Network], Awaitable[None]]


@contextlib.asynccontextmanager
async def _network(kind: str, folder: Path) -> AsyncIterator[Network]:
    """The first two brokers keep `quake/#`, and all know of them."""
    keep, data_dir = ("quake/#",), str(folder)
    with contextlib.ExitStack() as stack:
        network: Network
        if kind == "ring":
            network = LocalCluster(4, keep=keep, data_dir=data_dir)
        else:
            network = LocalTree(stack.enter_context(star(3)), keep=keep, data_dir=data_dir)
        async with network:
            agents = network.agents
            await until(lambda: all(agent.core.status().known_units for agent in agents))
            yield network


def _in_both(scenario: Scenario, folder: Path) -> None:
    async def everywhere() -> None:
        for kind in ("ring", "tree"):
            async with asyncio.timeout(TIMEOUT_S), _network(kind, folder / kind) as network:
                await scenario(network)

    asyncio.run(everywhere())


async def _stored(network: Network, events: int) -> None:
    stores = network.agents[:2]
    await until(lambda: all(a.counters.stored_events == events for a in stores))


def _numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def _payloads(events: list[dynatops.Event]) -> list[bytes]:
    return [event.payload for event in events]


def _at(network: Network, broker: int) -> contextlib.AbstractAsyncContextManager[Client]:
    return dynatops.connect(network.addresses[broker], stay=True)


def test_the_past_is_had_from_any_broker(tmp_path: Path) -> None:
    async def scenario(network: Network) -> None:
        async with _at(network, 3) as client:
            await client.publish_many("quake/ca", _numbers(1, 3_000))
            await client.publish("quake/nv", b"M4", attributes={"magnitude": 4})
            await client.publish("quake/nv", b"M6", attributes={"magnitude": 6})
            await _stored(network, 3_002)
        for broker in range(4):
            async with _at(network, broker) as client:
                await _read_all_ways(client)

    _in_both(scenario, tmp_path)


async def _read_all_ways(client: Client) -> None:
    history = client.history("quake/ca")
    assert [event.payload async for event in history] == _numbers(1, 3_000)
    assert [event async for event in client.history("quake/ca", since=history.cursor)] == []
    batches = [batch async for batch in client.history("quake/ca", since="1h").batches()]
    assert [p for batch in batches for p in batch.payloads] == _numbers(1, 3_000)
    # The last value of each topic.
    last = [event.payload async for event in client.history("quake/#", last=1)]
    assert sorted(last) == [b"3000", b"M6"]
    large = client.history("quake/#", where="magnitude > 5")
    assert [event.payload async for event in large] == [b"M6"]
    async with client.history("quake/ca") as some:
        first = [await anext(some) for _ in range(3)]
        cursor = some.cursor
    assert [event.payload for event in first] == _numbers(1, 3)
    rest = client.history("quake/ca", since=dynatops.Cursor.parse(str(cursor)))
    assert [event.payload async for event in rest] == _numbers(4, 3_000)


def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    async def scenario(network: Network) -> None:
        async with _at(network, 3) as client:
            await client.publish("quake/ca", b"one")
            await _stored(network, 1)
            (event,) = [event async for event in client.history("quake/ca")]
            future = dynatops.Cursor.parse(f'{{"quake/ca": {{"{event.term}": {event.seq + 999}}}}}')
            # Each has more to come than may be on its way.
            await client.publish_many("quake/big", [bytes(100_000)] * 20)
            await _stored(network, 21)
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(8):
                    history = await stack.enter_async_context(client.history("quake/big"))
                    await anext(history)
                await _fails(client, "overloaded", "8 histories open at most", "quake/ca")
            assert len([event async for event in client.history("quake/ca")]) == 1
            await _fails(client, "not_stored", "no store is known that keeps", "news")
            await _fails(client, "future", "is beyond", "quake/ca", since=future)

    _in_both(scenario, tmp_path)


async def _fails(
    client: Client, code: str, words: str, pattern: str, since: dynatops.Cursor | str = "all"
) -> None:
    with pytest.raises(dynatops.HistoryError) as caught:
        _ = [event async for event in client.history(pattern, since=since)]
    assert (caught.value.code, caught.value.pattern) == (code, pattern)
    assert words in str(caught.value)


def test_a_late_subscriber_gets_all_that_is_stored_and_then_what_comes(tmp_path: Path) -> None:
    async def scenario(network: Network) -> None:
        async with _at(network, 3) as publisher, _at(network, 2) as client:
            await publisher.publish_many("quake/ca", _numbers(1, 2_000))
            await publisher.publish("quake/nv", b"quiet")
            task = asyncio.create_task(_publish_on(publisher, 2_001, 3_000))
            for last in (0, 10):
                gaps: list[dynatops.Gap] = []
                subscription = client.subscribe(
                    "quake/ca", since="1h", last=last, on_gap=gaps.append
                )
                async with subscription as events:
                    had = [await anext(events)]
                    while had[-1].payload != b"3000":
                        had.append(await anext(events))
                first = int(had[0].payload)
                assert _payloads(had) == _numbers(first, 3_000)
                assert (first == 1) == (not last)
                assert gaps == []
            await task
            async with client.subscribe("quake/#", last=1) as events:
                had = [await anext(events) for _ in range(2)]
            assert sorted(_payloads(had)) == [b"3000", b"quiet"]

    _in_both(scenario, tmp_path)


async def _publish_on(publisher: Client, first: int, last: int) -> None:
    for payload in _numbers(first, last):
        await publisher.publish("quake/ca", payload, ack="rp")


def test_it_goes_on_from_a_cursor_whatever_becomes_of_its_broker(tmp_path: Path) -> None:
    async def scenario(network: Network) -> None:
        async with _at(network, 0) as publisher:
            await publisher.publish_many("quake/ca", _numbers(1, 500))
            await _stored(network, 500)
            async with dynatops.connect(network.addresses[3]) as client:
                async with client.history("quake/ca") as history:
                    for _ in range(100):
                        await anext(history)
                    cursor = history.cursor
                async with client.subscribe("quake/+", since=cursor) as events:
                    had = [await anext(events) for _ in range(50)]
                    await network.agents[3].stop()
                    await publisher.publish_many("quake/ca", _numbers(501, 600))
                    while had[-1].payload != b"600":
                        had.append(await anext(events))
                    assert _payloads(had) == _numbers(101, 600)
                    assert events.missed == 0

    _in_both(scenario, tmp_path)


def test_a_subscription_without_a_past_says_so(tmp_path: Path) -> None:
    async def scenario(network: Network) -> None:
        async with _at(network, 3) as client:
            with pytest.raises(dynatops.HistoryError) as caught:
                await client.subscribe("news", since="all")
            assert caught.value.code == "not_stored"
            async with client.subscribe("quake/ca") as events:
                await client.publish("quake/ca", b"one")
                cursor = dynatops.Cursor()
                cursor.note(await anext(events))
            # Of what it has just had the stores may know nothing yet.
            async with client.subscribe("quake/ca", since=cursor) as events:
                await client.publish("quake/ca", b"two")
                assert (await anext(events)).payload == b"two"
            (((term, seq),),) = (terms.items() for terms in cursor.places.values())
            future = dynatops.Cursor.parse(f'{{"quake/ca": {{"{term}": {seq + 9}}}}}')
            with pytest.raises(dynatops.HistoryError) as caught:
                await client.subscribe("quake/ca", since=future)
            assert caught.value.code == "future"
            with pytest.raises(dynatops.ArgumentError, match="cannot be acknowledged"):
                client.subscribe("quake/ca", since="all", ack="manual")
            # A topic of which there is nothing yet is no mistake.
            async with client.subscribe("quake/new", last=1) as events:
                await client.publish("quake/new", b"first")
                assert (await anext(events)).payload == b"first"

    _in_both(scenario, tmp_path)


def test_at_the_pace_at_which_it_was_published(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(TIMEOUT_S), _network("ring", tmp_path) as network:
            async with _at(network, 2) as client:
                for number in (1, 2, 3):
                    await client.publish("quake/ca", b"%d" % number)
                    await asyncio.sleep(0.2 * (number < 3))
                await _stored(network, 3)
                loop = asyncio.get_running_loop()
                came_s = []
                events = []
                async for event in client.history("quake/ca", pace="original"):
                    came_s.append(loop.time())
                    events.append(event)
                published_s = (events[-1].published_us - events[0].published_us) / 1e6
                assert came_s[-1] - came_s[0] >= published_s - 0.01 >= 0.39

    asyncio.run(scenario())


def test_from_the_command_line_and_without_asyncio(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(TIMEOUT_S), _network("ring", tmp_path) as network:
            await asyncio.to_thread(_type_commands, network.addresses[2], network)

    asyncio.run(scenario())


def _type_commands(address: str, network: Network) -> None:
    with dynatops.connect_sync(address, stay=True) as client:
        client.publish_many("quake/ca", _numbers(1, 5))
        counters = [agent.counters for agent in network.agents[:2]]
        asyncio.run(until(lambda: all(each.stored_events == 5 for each in counters)))
        with client.history("quake/#", last=2) as history:
            assert [event.payload for event in history] == _numbers(4, 5)
            assert "quake/ca" in str(history.cursor)
    at = ("--broker", address)
    outcome = run("history", "quake/ca", "--since", "1h", *at)
    assert outcome.stdout.splitlines() == [f"quake/ca  {n}" for n in range(1, 6)], outcome.stderr
    outcome = run("history", "quake/#", "--last", "1", "--json", *at)
    assert json.loads(outcome.stdout)["payload"] == "5"
    outcome = run("history", "news", *at)
    assert outcome.returncode == 1
    assert outcome.stderr == (
        "dynatops: the past of 'news': no store is known that keeps anything of news\n"
    )
    outcome = run("sub", "quake/ca", "--since", "1h", "--count", "5", *at)
    assert outcome.stdout.splitlines() == [f"quake/ca  {n}" for n in range(1, 6)], outcome.stderr
    outcome = run("sub", "quake/#", "--last", "1", "--count", "1", "--raw", *at)
    assert outcome.stdout == "5\n"
    outcome = run("history", "quake/ca", "--since", "yesterday", *at)
    assert outcome.returncode != 0
    assert "such as" in outcome.stderr
