"""Sessions that must go on elsewhere: brokers that are killed, brokers that send clients away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import dynatops
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.core.selection.summaries import Neighbour
from broker_agent.runtime.agent import Agent
from dynatops.local.cluster import LocalCluster, ProcessCluster
from overlay.base.identifiers import key_of
from tests.support.ports import free_addresses
from tests.support.selecting import told
from tests.support.waiting import until
from tests.support.witness import Listener, Published, Wanted, Witness

HEAL_S = 30.0
TOPICS = [f"quake/{i}" for i in range(8)]

# (patterns, condition, what of all events that asks for)
FILTERS: list[tuple[list[str], str, Wanted]] = [
    (["quake/#"], "", lambda published: True),
    (["#"], "even == true", lambda published: published.number % 2 == 0),
    (["+/1", "quake/2"], 'by == "one"', lambda p: p.topic[-1] in "12" and p.by == "one"),
    (TOPICS[:4], "", lambda published: published.topic in TOPICS[:4]),
]


@asynccontextmanager
async def listening(address: str, keep_s: int) -> AsyncIterator[list[Listener]]:
    """A client with each of the filters."""
    async with AsyncExitStack() as stack:
        listeners = []
        for i, (patterns, where, _) in enumerate(FILTERS):
            connecting = dynatops.connect(address, client_id=f"ear-{i}", keep_s=keep_s, stay=True)
            client = await stack.enter_async_context(connecting)
            listener = Listener(await client.subscribe(*patterns, where=where))
            stack.push_async_callback(listener.stop)
            listeners.append(listener)
        yield listeners


def pairs(listeners: list[Listener]) -> list[tuple[Listener, Wanted]]:
    return [(listener, wanted) for listener, (_, _, wanted) in zip(listeners, FILTERS, strict=True)]


async def check_that_all_came(witness: Witness, listeners: list[Listener]) -> None:
    def all_came() -> bool:
        return not any(witness.missing(who.heard, wanted) for who, wanted in pairs(listeners))

    await until(all_came, HEAL_S, "every acknowledged event has come")
    for listener, wanted in pairs(listeners):
        witness.check(listener.heard, wanted)
        assert listener.events.missed == 0


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("keep_s", [0, 60])
def test_a_broker_is_killed_with_publishers_and_subscribers(keep_s: int) -> None:
    async def scenario() -> None:
        async with ProcessCluster(4) as cluster, AsyncExitStack() as stack:
            victim = cluster.brokers[2]
            publishers = {
                name: await stack.enter_async_context(dynatops.connect(address, stay=True))
                for name, address in (("one", victim.address), ("two", cluster.addresses[0]))
            }
            witness = Witness(publishers, TOPICS)
            listeners = await stack.enter_async_context(listening(victim.address, keep_s))
            async with witness.publishing():
                await until(lambda: len(witness.acknowledged) > 300)
                victim.kill()
                await until(lambda: publishers["one"].broker not in ("", "b2"), HEAL_S)
                before = len(witness.acknowledged)
                await until(lambda: len(witness.acknowledged) > before + 500, HEAL_S)
            await check_that_all_came(witness, listeners)

    asyncio.run(scenario())


# ---- broker selection ----------------------------------------------------------------------------

# Only likeness counts, and whoever was moved once stays.
QUICK = SelectionSettings(
    update_period_s=0.1, early_period_s=0.05, min_stay_s=600.0, load_weight=0.0
)
COMMON = "common"
KINDS = {"a": [f"a/{i}" for i in range(10)], "b": [f"b/{i}" for i in range(10)]}


def place_of(kind: str) -> str:
    return "b0" if kind == "a" else "b1"


def other(kind: str) -> str:
    return "b" if kind == "a" else "a"


@asynccontextmanager
async def two_kinds_of_brokers() -> AsyncIterator[LocalCluster]:
    """At b0 somebody follows all of kind a, at b1 all of kind b, and both know of each other."""
    async with LocalCluster(2, selection=QUICK) as cluster, AsyncExitStack() as stack:
        for address, topics in zip(cluster.addresses, KINDS.values(), strict=True):
            client = await stack.enter_async_context(dynatops.connect(address, stay=True))
            await client.subscribe(*topics)
        theirs = [[key_of(topic) for topic in KINDS[kind]] for kind in ("b", "a")]

        def know_each_other() -> bool:
            return all(
                [neighbour.share_of(keys) for neighbour in neighbours_of(agent)] == [1.0]
                for agent, keys in zip(cluster.agents, theirs, strict=True)
            )

        await until(know_each_other)
        yield cluster


def neighbours_of(agent: Agent) -> list[Neighbour]:
    return list(agent.core.cluster.selection.neighbours.fresh(agent.core.now_s))


def redirects(cluster: LocalCluster) -> int:
    counters = [agent.core.cluster.selection.counters for agent in cluster.agents]
    return sum(c.redirects_similarity for c in counters)


def test_who_comes_goes_where_others_are_like_it() -> None:
    async def scenario() -> None:
        async with two_kinds_of_brokers() as cluster, AsyncExitStack() as stack:
            for address in cluster.addresses:
                for kind in KINDS:
                    client = await stack.enter_async_context(dynatops.connect(address))
                    events = await client.subscribe(*KINDS[kind][:5])
                    assert client.broker == place_of(kind)
                    await client.publish(KINDS[kind][0], b"x")
                    assert (await events.__anext__()).payload == b"x"
            assert redirects(cluster) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("keep_s", [0, 60])
def test_who_changes_moves_and_misses_nothing(keep_s: int) -> None:
    async def scenario() -> None:
        async with two_kinds_of_brokers() as cluster, AsyncExitStack() as stack:
            publishers = {
                name: await stack.enter_async_context(dynatops.connect(address, stay=True))
                for name, address in zip(("one", "two"), cluster.addresses, strict=True)
            }
            witness = Witness(publishers, [COMMON, "a/0", "b/0"])
            kinds = ["a", "b"] * 3
            users: list[tuple[dynatops.Client, Listener]] = []
            for i, kind in enumerate(kinds):
                address = cluster.addresses["ab".index(kind)]
                connecting = dynatops.connect(address, client_id=f"user-{i}", keep_s=keep_s)
                client = await stack.enter_async_context(connecting)
                listener = Listener(await client.subscribe(COMMON, *KINDS[kind]))
                stack.push_async_callback(listener.stop)
                users.append((client, listener))
            async with witness.publishing():
                for _ in range(2):
                    acknowledged = len(witness.acknowledged)
                    await until(lambda at=acknowledged: len(witness.acknowledged) > at + 100)
                    kinds = [other(kind) for kind in kinds]
                    for (_, listener), kind in zip(users, kinds, strict=True):
                        await listener.events.change(add=KINDS[kind], drop=KINDS[other(kind)])
            # All moved when they first changed, and none so soon again.
            assert redirects(cluster) == 6
            for (client, listener), kind in zip(users, kinds, strict=True):
                assert client.broker == place_of(other(kind))
                await check_common(witness, listener)
            # Nothing is kept where they were: there are two residents, two publishers and they.
            await until(lambda: sum(len(a.core.registry) for a in cluster.agents) == 2 + 2 + 6)

    asyncio.run(scenario())


async def check_common(witness: Witness, listener: Listener) -> None:
    def on_common(published: Published) -> bool:
        return published.topic == COMMON

    await until(lambda: not witness.missing(listener.heard, on_common))
    witness.check([e for e in listener.heard if e.topic == COMMON], on_common)
    # Of the others it had some for a while.
    witness.check_order(listener.heard)
    assert listener.events.missed == 0


def test_who_wants_to_stay_is_not_moved() -> None:
    async def scenario() -> None:
        async with (
            two_kinds_of_brokers() as cluster,
            dynatops.connect(cluster.addresses[1], stay=True) as client,
            client.subscribe(*KINDS["a"]) as events,
        ):
            assert client.broker == "b1"
            await client.publish("a/3", b"x")
            assert (await events.__anext__()).payload == b"x"
            assert redirects(cluster) == 0

    asyncio.run(scenario())


def test_who_is_sent_to_a_dead_broker_comes_back_and_lost_nothing() -> None:
    """Somebody says so, though nobody has noticed yet: to the application nothing happened."""

    async def scenario() -> None:
        told_of: list[tuple[str, str]] = []
        (dead,) = free_addresses(1)
        async with LocalCluster(1) as cluster:
            selection = cluster.agents[0].core.cluster.selection
            keys = [key_of(topic) for topic in KINDS["a"]]
            selection.on_summary(told("b1", keys, address=dead), cluster.agents[0].core.now_s)
            async with dynatops.connect(
                cluster.addresses, on_connection=lambda *word: told_of.append(word)
            ) as client:
                events = await client.subscribe(*KINDS["a"])
                await client.publish(KINDS["a"][0], b"x")
                assert (await events.__anext__()).payload == b"x"
                assert client.broker == "b0"
                assert selection.counters.redirects_similarity == 1
                # A change of mind leads nowhere either.
                await events.change(add=["another"])
                assert selection.counters.redirects_similarity == 1
        assert told_of == []

    asyncio.run(scenario())
