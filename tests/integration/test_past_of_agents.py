"""The past of topics, asked of brokers that run: out of the logs of stores, hop by hop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import dynatops
from tests.support.agent_trees import Tree
from tests.support.histories import past_at
from tests.support.waiting import until


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
    await until(lambda: tree.running["leaf1"].core.status().known_units == 1)
    async with dynatops.connect(tree.addresses["leaf1"], stay=True) as client:
        for number in range(20):
            await client.publish("quake/ca", b"%d" % number)
    counters = tree.running["leaf2"].counters
    await until(lambda: counters.stored_events == 20)
    expected = [b"%d" % number for number in range(20)]
    for address in tree.addresses.values():
        assert await past_at(address, "quake/ca") == expected
    assert await past_at(tree.addresses["leaf1"], "quake/+", last=5) == expected[15:]
