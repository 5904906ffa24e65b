"""Two living brokers of one name: the second is refused; one that died is in nobody's way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import dynatops
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.process_settings import BrokerSettings, RuntimeSettings
from broker_agent.runtime.agent import Agent, JoinError
from broker_agent.runtime.peers import namesakes
from broker_agent.runtime.peers.links import LinkHost, Links
from dynatops.local.cluster import LocalCluster
from overlay.base.membership import Status
from tests.support.waiting import until


def second(name: str, *join: str) -> Agent:
    values = {"broker_id": name, "listen": "127.0.0.1:0", "join": join}
    return Agent(BrokerSettings.model_validate(values))


@asynccontextmanager
async def joined(name: str, *join: str) -> AsyncIterator[Agent]:
    agent = second(name, *join)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.kill()


def named(cluster: LocalCluster, name: str) -> Agent:
    return next(agent for agent in cluster.agents if agent.broker_id == name)


def places(cluster: LocalCluster) -> list[int]:
    return [ring_of(agent.core).node.me.node_id for agent in cluster.agents]


def test_brokers_of_a_cluster_are_in_the_order_of_their_names() -> None:
    """Whatever the order that they were let in: asking takes one longer than another."""

    async def scenario() -> None:
        async with LocalCluster(6) as cluster:
            assert [agent.broker_id for agent in cluster.agents] == [f"b{i}" for i in range(6)]

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", ["b1", "b2"])
def test_the_second_is_refused_and_told_why(seed: str, caplog: pytest.LogCaptureFixture) -> None:
    """By the one that has its name, or as another has seen that."""

    async def scenario() -> None:
        async with LocalCluster(3) as cluster:
            first, before = named(cluster, "b1"), places(cluster)
            with pytest.raises(JoinError) as raised:
                await second("b1", named(cluster, seed).address).start()
            assert f"a broker named b1 is alive at {first.address}: end that one" in str(raised)
            assert "--broker-id" in str(raised)
            assert places(cluster) == before
            async with dynatops.connect(first.address, stay=True) as client:
                await client.publish("still", b"serving")

    asyncio.run(scenario())
    assert "a second broker named b1, at 127.0.0.1:" in caplog.text
    assert "another broker named b1 has joined" not in caplog.text


def test_who_crashed_comes_back_elsewhere() -> None:
    async def scenario() -> None:
        async with LocalCluster(3) as cluster:
            first = named(cluster, "b1")
            await first.kill()
            others = [named(cluster, name).address for name in ("b0", "b2")]
            async with joined("b1", *others) as again:
                assert again.address != first.address
                assert ring_of(again.core).node.ring.status is Status.MEMBER
                assert ring_of(again.core).node.me.node_id == ring_of(first.core).node.me.node_id

    asyncio.run(scenario())


def test_who_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namesakes, "ASK_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        async with LocalCluster(3) as cluster:
            first = named(cluster, "b1")
            host, _, port = first.address.rpartition(":")
            await first.kill()
            # The system takes connections; nobody answers.
            with socket.create_server((host, int(port))):
                async with joined("b1", named(cluster, "b0").address) as again:
                    assert ring_of(again.core).node.ring.status is Status.MEMBER

    asyncio.run(scenario())


def test_who_leaves_refuses_nobody() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster:
            (first,) = cluster.agents
            host = LinkHost("b0", "127.0.0.1:1", lambda frame: None, lambda address: None)
            links = Links(host, RuntimeSettings())
            assert "is alive" in await namesakes.living_namesake(links, [first.address])
            first.is_stopping = True
            assert await namesakes.living_namesake(links, [first.address]) == ""
            await links.close()

    asyncio.run(scenario())


def test_asking_opens_no_link() -> None:
    async def scenario() -> None:
        async with LocalCluster(2) as cluster:
            asked = cluster.agents[0]
            opened = asked.links.counters.links_opened
            assert await namesakes.living_namesake(cluster.agents[1].links, [asked.address]) == ""
            assert asked.links.counters.links_opened == opened
            assert asked.links.counters.links_broken == 0

    asyncio.run(scenario())


def test_who_is_pushed_aside_all_the_same_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a large ring nobody asked may have seen it."""

    async def nobody_knows(links: object, seeds: object) -> str:
        return ""

    monkeypatch.setattr("broker_agent.runtime.agent.living_namesake", nobody_knows)

    async def scenario() -> None:
        async with LocalCluster(3) as cluster, joined("b1", named(cluster, "b0").address) as other:
            said = f"another broker named b1 has joined, at {other.address}"
            await until(lambda: said in caplog.text)

    asyncio.run(scenario())
