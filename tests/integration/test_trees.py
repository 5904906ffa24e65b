"""Brokers in a tree, with real links: what goes along it, and comes back when brokers do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

import dynatops
from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent, StartError
from dynatops.client.inspection import Inspector
from tests.support.agent_trees import TIMEOUT_S, Tree, nothing_more, payloads, tree_of


def numbered(numbers: Sequence[int]) -> list[bytes]:
    return [str(number).encode() for number in numbers]


def test_events_go_where_somebody_wants_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            tree_of(tmp_path) as tree,
            dynatops.connect(tree.addresses["leaf1"]) as reader,
            dynatops.connect(tree.addresses["leaf2"]) as other,
            dynatops.connect(tree.addresses["leaf3"]) as publisher,
            reader.subscribe("quake/#", where="size > 4") as strong,
            other.subscribe("quake/ca") as all_of_ca,
        ):
            for size in range(1, 9):
                await publisher.publish("quake/ca", str(size).encode(), attributes={"size": size})
            assert await payloads(strong, 4) == numbered(range(5, 9))
            assert await payloads(all_of_ca, 8) == numbered(range(1, 9))
            assert await nothing_more(strong)
            async with Inspector([tree.addresses["leaf3"]]) as inspector:
                reports = await inspector.brokers()
                drawn = await inspector.tree("quake/ca")
            assert [report.broker_id for report in reports] == list(tree.addresses)
            assert {link.state for report in reports for link in report.forwarder.links} == {"live"}
            subscribing = {node.node.broker_id for node in drawn.walk() if node.subscribes}
            assert subscribing == {"leaf1", "leaf2"}

    asyncio.run(scenario())


def test_what_is_published_while_the_hub_is_gone_arrives_once_it_is_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            tree_of(tmp_path) as tree,
            dynatops.connect(tree.addresses["leaf1"]) as reader,
            dynatops.connect(tree.addresses["leaf2"]) as publisher,
            reader.subscribe("quake/+") as events,
        ):
            await publisher.publish("quake/ca", b"1")
            await tree.kill("hub")
            waiting = [
                asyncio.create_task(publisher.publish("quake/ca", payload))
                for payload in numbered(range(2, 6))
            ]
            await publisher.publish("quake/nv", b"6", ack="rp")
            # On two brokers it can only be with the hub.
            assert not any(task.done() for task in waiting)
            await tree.start("hub")
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.gather(*waiting)
            found = await payloads(events, 6)
            assert [f for f in found if f != b"6"] == numbered(range(1, 6))
            assert sorted(found) == numbered(range(1, 7))
            assert await nothing_more(events)

    asyncio.run(scenario())


def test_what_was_acknowledged_survives_its_origin(tmp_path: Path) -> None:
    """Its subscriber's broker was gone; the hub has it, and gives it back."""

    async def scenario() -> None:
        async with (
            tree_of(tmp_path, 2) as tree,
            dynatops.connect(tree.addresses["leaf1"], stay=True) as reader,
            reader.subscribe("quake/ca") as events,
        ):
            await tree.kill("leaf1")
            async with dynatops.connect(tree.addresses["leaf2"], stay=True) as publisher:
                for payload in numbered(range(1, 4)):
                    await publisher.publish("quake/ca", payload)
                await tree.kill("leaf2")
                await tree.start("leaf2")
                await tree.start("leaf1")
                assert await payloads(events, 3) == numbered(range(1, 4))
                await publisher.publish("quake/ca", b"4")
                assert await payloads(events, 1) == [b"4"]

    asyncio.run(scenario())


def test_a_client_goes_on_at_another_broker_where_it_stood(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tree_of(tmp_path) as tree:
            places = [tree.addresses["leaf1"], tree.addresses["leaf2"]]
            async with (
                dynatops.connect(places) as reader,
                dynatops.connect(tree.addresses["leaf3"]) as publisher,
                reader.subscribe("quake/#") as events,
            ):
                at = next(n for n, agent in tree.running.items() if len(agent.core.registry) == 1)
                await publisher.publish("quake/ca", b"1")
                assert await payloads(events, 1) == [b"1"]
                await tree.kill(at)
                for payload in numbered(range(2, 6)):
                    await publisher.publish("quake/ca", payload)
                assert await payloads(events, 4) == numbered(range(2, 6))
                assert await nothing_more(events)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "listen", "text", "said"),
    [
        ("stranger", "", None, "has no broker 'stranger': give this one a name of those"),
        ("hub", "127.0.0.1:0", None, "change one of them (--listen, --advertise)"),
        ("hub", "", "brokers: [", "it is neither YAML nor JSON"),
        ("hub", "", "brokers: {hub: a:1, b: a:2}", "no links lead from 'b' to hub"),
    ],
)
def test_what_is_wrong_with_a_topology_is_said(
    tmp_path: Path, name: str, listen: str, text: str | None, said: str
) -> None:
    async def scenario() -> None:
        tree = Tree(tmp_path, 1)
        if text is not None:
            tree.file.write_text(text)
        settings = BrokerSettings(
            broker_id=name, listen=listen or tree.addresses["hub"], topology=str(tree.file)
        )
        agent = Agent(settings)
        with pytest.raises(StartError) as raised:
            await agent.start()
        assert said in str(raised.value)

    asyncio.run(scenario())
