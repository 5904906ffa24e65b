"""`dynatops tables` at brokers that run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import dynatops
from dynatops.client.errors import AccessError
from dynatops.client.inspection import InspectionError, Inspector
from tests.support.agent_trees import tree_of
from tests.support.commands import run
from tests.support.security import running, table
from tests.support.waiting import until


def test_the_tables_of_a_hub(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            tree_of(tmp_path, 2) as tree,
            dynatops.connect(tree.addresses["leaf1"], stay=True) as one,
            dynatops.connect(tree.addresses["leaf2"], stay=True) as other,
            one.subscribe("quake/#"),
            one.subscribe("quake/ca"),
            other.subscribe("quake/+", where="size > 4"),
        ):
            hub = tree.addresses["hub"]
            shown = await asyncio.to_thread(run, "tables", hub, "--filter", "quake/ca")
            assert shown.returncode == 0, shown.stderr
            assert shown.stdout.splitlines() == [
                f"hub at {hub}, peer, with covering",
                "only what meets quake/ca",
                "",
                "wanted here: 0 of 1 filter",
                "",
                "leaf1",
                "  wants 1 of 2 filters",
                "    quake/#    (covers it)",
                "  was told 1 of 2 filters",
                "    quake/+ where size > 4    (overlaps it)",
                "",
                "leaf2",
                "  wants 1 of 2 filters",
                "    quake/+ where size > 4    (overlaps it)",
                "  was told 1 of 2 filters",
                "    quake/#    (covers it)",
            ]
            leaf = await asyncio.to_thread(
                run, "tables", tree.addresses["leaf1"], "--filter", "quake/ca", "--json"
            )
            kept_back = json.loads(leaf.stdout)["neighbours"]["hub"]["kept_back"]
            assert kept_back["filters"] == [
                {
                    "pattern": "quake/ca",
                    "where": None,
                    "relation": "same",
                    "covered_by": {"pattern": "quake/#", "where": None},
                }
            ]
            wrong = await asyncio.to_thread(run, "tables", hub, "--filter", "quake#")
            assert wrong.returncode == 2
            assert "--filter: filter 'quake#' has '#' beside" in wrong.stderr

    asyncio.run(scenario())


def test_many_filters_hold_nobody_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tree_of(tmp_path, 1) as tree:
            async with dynatops.connect(tree.addresses["leaf1"]) as client:
                await client.subscribe(*(f"t/{i}" for i in range(100)))
                async with Inspector([tree.addresses["hub"]]) as inspector:

                    async def has_come() -> bool:
                        report = await inspector.tables(tree.addresses["hub"], limit=7)
                        (leaf,) = report.holders
                        assert len(leaf.wanted.filters) <= 7
                        return leaf.wanted.count == 101

                    await until(has_come)
                    about = await inspector.tables(tree.addresses["hub"], "t/7")
                    assert about.holders[0].wanted.chosen == 1

    asyncio.run(scenario())


def test_a_ring_has_none_and_strangers_see_none(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(table("ann", "ann-token", inspect="true") + table("bob", "bob-token"))

    async def scenario() -> None:
        async with running(security={"tokens": str(tokens)}) as agent:
            async with Inspector([agent.address], token="ann-token") as inspector:
                with pytest.raises(InspectionError, match="this broker is on a ring"):
                    await inspector.tables(agent.address)
            async with Inspector([agent.address], token="bob-token") as inspector:
                with pytest.raises(AccessError, match="no `inspect = true`"):
                    await inspector.tables(agent.address)

    asyncio.run(scenario())
