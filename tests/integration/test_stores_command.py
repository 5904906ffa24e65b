"""`dynatops stores known` at brokers that run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.support.agent_trees import tree_of
from tests.support.commands import run
from tests.support.waiting import until


def test_what_a_broker_knows_of_stores(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tree_of(tmp_path, 2) as tree:
            leaf = tree.addresses["leaf1"]
            shown = await asyncio.to_thread(run, "stores", "known", leaf)
            assert shown.stdout.splitlines() == [f"no stores are known at {leaf}"]
            for pattern in ("quake/#", "news"):
                tree.running["leaf2"].core.storing.past.table.keep(pattern)
            tree.running["hub"].core.storing.past.table.keep("news")
            status = tree.running["leaf1"].core.status
            await until(lambda: status().known_units == 2)
            shown = await asyncio.to_thread(run, "stores", "known", leaf, "--topic", "quake/ca")
            assert shown.returncode == 0, shown.stderr
            assert shown.stdout.splitlines() == [
                "topics   hops  by way of  stores  and farther",
                "-------  ----  ---------  ------  -----------",
                "quake/#     2  hub        leaf2   -",
            ]
            shown = await asyncio.to_thread(run, "stores", "known", tree.addresses["hub"], "--json")
            news = {"topics": "news", "hops": 0, "nearest": [[]], "farther": [["leaf2"]]}
            quake = {"topics": "quake/#", "hops": 1, "nearest": [["leaf2"]], "farther": []}
            assert json.loads(shown.stdout) == [news, quake]
            wrong = await asyncio.to_thread(run, "stores", "known", leaf, "--topic", "quake#")
            assert wrong.returncode == 2
            assert "--topic: filter 'quake#'" in wrong.stderr

    asyncio.run(scenario())
