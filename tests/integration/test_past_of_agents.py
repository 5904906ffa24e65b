"""The past of topics, asked of brokers that run: out of the logs of stores, hop by hop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import dynatops
from broker_agent.core.stores.past_requests import PastArrived, PastEnded
from broker_agent.runtime.agent import Agent
from dynatops.kit.filters import Filter
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import PastRange, Run
from tests.support.agent_trees import Tree
from tests.support.waiting import until


async def _past(agent: Agent, pattern: str, wanted: PastRange) -> list[bytes]:
    """As a client of this broker would be told of it."""
    past = agent.core.storing.past
    now_s = asyncio.get_running_loop().time()
    past.requests.ask(Filter.parse(pattern), wanted, 1 << 20, now_s)
    payloads: list[bytes] = []
    ended: list[PastEnded] = []

    def is_done() -> bool:
        for news in past.take_news():
            if isinstance(news, PastArrived):
                runs = [run for run in news.portions if isinstance(run, Run)]
                payloads.extend(e.payload for run in runs for e in events_of(run) or ())
            else:
                ended.append(news)
        return bool(ended)

    await until(is_done)
    assert not ended[0].error, ended
    return payloads


def test_what_was_stored_is_had_from_other_brokers(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = Tree(tmp_path, 2)
        try:
            await _ask_everywhere(tree, tmp_path)
        finally:
            await asyncio.gather(*(agent.kill() for agent in tree.running.values()))

    asyncio.run(scenario())


async def _ask_everywhere(tree: Tree, tmp_path: Path) -> None:
    kept = {"keep": ["quake/#"], "dir": str(tmp_path / "store")}
    await tree.start("hub")
    await tree.start("leaf2", store=kept)
    await tree.start("leaf1")
    leaf1 = tree.running["leaf1"]
    await until(lambda: leaf1.core.status().known_units == 1)
    async with dynatops.connect(tree.addresses["leaf1"], stay=True) as client:
        for number in range(20):
            await client.publish("quake/ca", b"%d" % number)
    store = tree.running["leaf2"].counters
    await until(lambda: store.stored_events == 20)
    expected = [b"%d" % number for number in range(20)]
    assert await _past(leaf1, "quake/ca", PastRange()) == expected
    assert await _past(leaf1, "quake/+", PastRange(last=5)) == expected[15:]
    assert await _past(tree.running["leaf2"], "quake/ca", PastRange()) == expected
