"""Another topology for brokers that run: by command, under load, after restarts."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

import dynatops
from broker_agent.runtime.agent import StartError
from dynatops.client.errors import AccessError
from dynatops.client.tree_administration import CommandRefusedError, TreeAdministrator
from dynatops.kit.observing.log_lines import VALUES_OF_RECORD
from overlay.forwarding.topology import Topology
from tests.support.agent_trees import TIMEOUT_S, Tree, nothing_more, tree_of
from tests.support.commands import run
from tests.support.ports import free_addresses
from tests.support.security import running, table
from tests.support.waiting import until

LEAVES = [("hub", "leaf1"), ("hub", "leaf2"), ("hub", "leaf3")]


async def dynatops_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, *arguments)


def text_of(file: Path) -> str:
    return Topology.from_mapping(yaml.safe_load(file.read_text())).to_text()


async def change(tree: Tree, file: Path, at: str = "hub", token: str = "") -> None:
    async with TreeAdministrator([tree.addresses[at]], token=token) as brokers:
        await brokers.change_topology(tree.addresses[at], text_of(file))


def version_at(tree: Tree, name: str) -> int:
    report = tree.running[name].core.describe()
    return report.forwarder.topology_version


def test_a_leaf_goes_to_a_new_hub_under_load(tmp_path: Path) -> None:
    """Every event once, in the order of its publisher, and everything that was acknowledged."""

    async def scenario() -> None:
        async with tree_of(tmp_path) as tree:
            stop = asyncio.Event()
            got: dict[str, list[int]] = {"leaf1": [], "leaf2": [], "hub": []}
            sent = dict.fromkeys(got, 0)

            async def publish(name: str) -> None:
                async with dynatops.connect(tree.addresses[name], stay=True) as client:
                    while not stop.is_set():
                        payload = str(sent[name]).encode()
                        await client.publish(f"quake/{name}", payload)
                        sent[name] += 1

            async def read(events: dynatops.Subscription) -> None:
                async for event in events:
                    got[event.topic.removeprefix("quake/")].append(int(event.payload))

            async with (
                dynatops.connect(tree.addresses["leaf3"], stay=True) as reader,
                reader.subscribe("quake/#") as events,
            ):
                reading = asyncio.create_task(read(events))
                publishing = [asyncio.create_task(publish(name)) for name in got]
                await until(lambda: all(len(some) > 20 for some in got.values()), TIMEOUT_S)
                new = {**tree.addresses, "hub2": free_addresses(1)[0]}
                tree.addresses = new
                links = [("hub", "hub2"), *LEAVES[:2], ("hub2", "leaf3")]
                file = tree.write(tmp_path / "new.yaml", 2, links)
                applying = asyncio.create_task(
                    dynatops_command("topology", "apply", str(file), "--broker", new["hub"])
                )
                await tree.start("hub2", file)
                outcome = await applying
                assert outcome.returncode == 0, outcome.stderr
                before = {name: len(some) for name, some in got.items()}
                await until(
                    lambda: all(len(got[name]) > before[name] + 20 for name in got), TIMEOUT_S
                )
                stop.set()
                await asyncio.gather(*publishing)
                await until(lambda: {n: len(some) for n, some in got.items()} == sent, TIMEOUT_S)
                assert got == {name: list(range(count)) for name, count in sent.items()}
                assert events.missed == 0
                reading.cancel()
            again = await dynatops_command("topology", "apply", str(file), "--broker", new["leaf3"])
            assert again.returncode == 0, again.stdout + again.stderr
            assert "leaf3 has it already\n5 of 5 brokers have it" in again.stdout
            shown = await dynatops_command("topology", "show", "--broker", new["leaf1"])
            assert shown.stdout.splitlines() == [
                "a tree of 5 brokers, peer, version 2, with covering",
                f"hub  {new['hub']}",
                f"├── hub2  {new['hub2']}",
                f"│   └── leaf3  {new['leaf3']}",
                f"├── leaf1  {new['leaf1']}",
                f"└── leaf2  {new['leaf2']}",
                "4 of 4 links up",
            ]

    asyncio.run(scenario())


def test_what_is_refused_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tree_of(tmp_path, 2) as tree:
            hub = tree.addresses["hub"]
            chain = [("hub", "leaf1"), ("leaf1", "leaf2")]
            file = tree.write(tmp_path / "chain.yaml", 1, chain)
            apply = ("topology", "apply", str(file), "--broker", hub)
            same = await dynatops_command(*apply)
            assert same.returncode == 1
            assert "has another topology of version 1, and the file is version 1" in same.stderr
            assert "give yours version 2" in same.stderr
            with pytest.raises(CommandRefusedError, match="hub has another topology of version 1"):
                await change(tree, file)
            newer = tree.write(tmp_path / "newer.yaml", 5, chain)
            dry = await dynatops_command(
                "topology", "apply", str(newer), "--broker", hub, "--dry-run"
            )
            assert dry.returncode == 0, dry.stderr
            assert dry.stdout.splitlines() == [
                "version 5, in place of 1:",
                "  ~ leaf2 goes from hub to leaf1",
                "  + link leaf1-leaf2",
                "  - link hub-leaf2",
                "hub would take it; nothing has been changed",
            ]
            assert version_at(tree, "hub") == 1
            # Another operator was quicker, elsewhere.
            await change(tree, newer, at="leaf2")
            with pytest.raises(CommandRefusedError, match="leaf2 has version 5, which is newer"):
                await change(tree, tree.write(tmp_path / "4.yaml", 4, chain), at="leaf2")
            alone = tree.write(tmp_path / "alone.yaml", 6, [], {"hub": hub})
            with pytest.raises(CommandRefusedError, match="leaf2 is not in it: tell a broker that"):
                await change(tree, alone, at="leaf2")
            moved = tree.write(
                tmp_path / "moved.yaml", 7, chain, {**tree.addresses, "leaf2": "127.0.0.1:1"}
            )
            with pytest.raises(CommandRefusedError, match=r"it has leaf2 at 127\.0\.0\.1:1, and"):
                await change(tree, moved, at="leaf2")
            (tmp_path / "bad.yaml").write_text("brokers: {a: h:1}\nlinks: [[a, b]]\n")
            bad = await dynatops_command("topology", "apply", str(tmp_path / "bad.yaml"))
            assert (bad.returncode, bad.stdout) == (1, "")
            assert "bad.yaml: link 1: there is no broker 'b'" in bad.stderr

    asyncio.run(scenario())


def test_one_version_two_topologies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both operators were let through: who waits is told, and a newer one settles it."""

    async def scenario() -> None:
        async with tree_of(tmp_path, 2) as tree:
            one = tree.write(tmp_path / "one.yaml", 2, [("hub", "leaf1"), ("leaf1", "leaf2")])
            other = tree.write(tmp_path / "other.yaml", 2, [("hub", "leaf2"), ("leaf1", "leaf2")])
            tree.running["hub"].links.closed = True
            await change(tree, one, at="leaf1")
            await change(tree, other, at="hub")
            tree.running["hub"].links.closed = False
            apply = ("topology", "apply", str(one), "--broker", tree.addresses["leaf1"])
            outcome = await dynatops_command(*apply, "--timeout", "1")
            assert outcome.returncode == 1
            assert "has another topology of version 2, and the file is version 2" in outcome.stderr
            await until(lambda: "topology_contested" in caplog.text)
            file = tree.write(tmp_path / "third.yaml", 3, [("hub", "leaf1"), ("leaf1", "leaf2")])
            settled = await dynatops_command(
                "topology", "apply", str(file), "--broker", tree.addresses["hub"], "--json"
            )
            assert settled.returncode == 0, settled.stdout
            document = json.loads(settled.stdout)
            assert (document["done"], document["before"], document["behind"]) == (True, 2, {})

    caplog.set_level(logging.WARNING)
    asyncio.run(scenario())


def test_a_restarted_broker_has_what_it_has_learnt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with tree_of(tmp_path, 2) as tree:
            folder = str(tmp_path / "data")
            await tree.kill("leaf1")
            await tree.start("leaf1", data_dir=folder)
            newer = tree.write(tmp_path / "newer.yaml", 2, [("hub", "leaf1"), ("leaf1", "leaf2")])
            await change(tree, newer)
            await until(lambda: version_at(tree, "leaf1") == 2)
            assert await tree.running["leaf1"].topology_kept() == ""
            await tree.kill("leaf1")
            # Nobody is there who could tell it.
            await tree.kill("hub")
            await tree.kill("leaf2")
            settings: Any = {"data_dir": folder, "forwarding": {"recovery_patience_s": 0.1}}
            await tree.start("leaf1", **settings)
            assert version_at(tree, "leaf1") == 2
            assert "topology version 2 is used: it was learnt from others" in caplog.text
            await tree.kill("leaf1")

            caplog.clear()
            other = tree.write(tmp_path / "other.yaml", 2, [("hub", "leaf1"), ("hub", "leaf2")])
            await tree.start("leaf1", other, **settings)
            assert (
                "has another topology of that version: a change needs a higher one" in caplog.text
            )
            await tree.kill("leaf1")

            caplog.clear()
            third = tree.write(tmp_path / "third.yaml", 3, [("hub", "leaf1"), ("hub", "leaf2")])
            await tree.start("leaf1", third, **settings)
            assert version_at(tree, "leaf1") == 3
            assert "third.yaml is newer than version 2, which was learnt before" in caplog.text
            await tree.kill("leaf1")

            (tmp_path / "data" / "topology.json").write_text("{")
            await tree.start("leaf1", **settings)
            assert version_at(tree, "leaf1") == 1
            assert "topology.json cannot be used, and counts for nothing" in caplog.text

    asyncio.run(scenario())


def test_brokers_that_are_taken_out_send_their_clients_away(tmp_path: Path) -> None:
    """Those behind them, too; and none comes back with its old file."""

    async def scenario() -> None:
        async with tree_of(tmp_path, 3) as tree:
            chain = [("hub", "leaf1"), ("leaf1", "leaf2"), ("leaf2", "leaf3")]
            await change(tree, tree.write(tmp_path / "chain.yaml", 2, chain))
            await until(lambda: version_at(tree, "leaf3") == 2)
            places = [tree.addresses["leaf3"], tree.addresses["leaf1"]]
            async with (
                dynatops.connect(tree.addresses["hub"]) as publisher,
                dynatops.connect(places) as reader,
                reader.subscribe("quake/#") as events,
            ):
                kept = {name: tree.addresses[name] for name in ("hub", "leaf1")}
                file = tree.write(tmp_path / "small.yaml", 3, chain[:1], kept)
                await change(tree, file)
                for name in ("leaf2", "leaf3"):
                    async with asyncio.timeout(TIMEOUT_S):
                        await tree.running[name].stopped.wait()
                await publisher.publish("quake/ca", b"1")
                async with asyncio.timeout(TIMEOUT_S):
                    assert (await anext(events)).payload == b"1"
                assert await nothing_more(events)
            for name in ("leaf2", "leaf3"):
                del tree.running[name]
            with pytest.raises(StartError, match="topology version 3, which others have, has no"):
                await tree.start("leaf2")

    asyncio.run(scenario())


def test_a_broker_that_moves_to_another_address(tmp_path: Path) -> None:
    """The one at the former address goes, and its neighbours look for it at the new one."""

    async def scenario() -> None:
        async with tree_of(tmp_path, 2) as tree:
            async with dynatops.connect(tree.addresses["leaf1"], stay=True) as publisher:
                await publisher.publish("quake/ca", b"1")
            former = tree.running.pop("leaf1")
            tree.addresses["leaf1"] = free_addresses(1)[0]
            file = tree.write(tmp_path / "moved.yaml", 2, LEAVES[:2])
            await change(tree, file)
            async with asyncio.timeout(TIMEOUT_S):
                await former.stopped.wait()
            await tree.start("leaf1", file)
            async with (
                dynatops.connect(tree.addresses["leaf2"]) as reader,
                dynatops.connect(tree.addresses["leaf1"], stay=True) as publisher,
                reader.subscribe("quake/#") as events,
            ):
                await publisher.publish("quake/ca", b"2")
                async with asyncio.timeout(TIMEOUT_S):
                    assert (await anext(events)).payload == b"2"

    asyncio.run(scenario())


def test_it_is_an_administrators_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        table("ann", "ann-token", inspect="true", role='"admin"')
        + table("ops", "ops-token", inspect="true", role='"operator"')
    )

    async def scenario() -> None:
        async with tree_of(tmp_path, 1, security={"tokens": str(tokens)}) as tree:
            file = tree.write(tmp_path / "newer.yaml", 2, LEAVES[:1])
            for token, said in (
                ("", "asks for a token"),
                ("guess", "does not know the token"),
                ("ops-token", "'ops' has no `role = \"admin\"`"),
            ):
                with pytest.raises(AccessError, match=said):
                    await change(tree, file, token=token)
            assert tree.running["hub"].counters.administration_refused == 3
            apply = ("topology", "apply", str(file), "--broker", tree.addresses["hub"])
            outcome = await dynatops_command(*apply, "--token", "ann-token")
            assert outcome.returncode == 0, outcome.stderr
            assert "nothing changes but the version" in outcome.stdout
            logged = [getattr(record, VALUES_OF_RECORD, {}) for record in caplog.records]
            assert {"broker": "hub", "version": 2, "actor": "ann", "outcome": "taken"} in logged

    caplog.set_level(logging.INFO)
    asyncio.run(scenario())


def test_a_ring_has_no_topology(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running() as agent:
            for command in ("show", "apply"):
                tree = Tree(tmp_path, 1)
                file = [str(tree.file)] * (command == "apply")
                outcome = await dynatops_command(
                    "topology", command, *file, "--broker", agent.address
                )
                assert outcome.returncode == 1
                assert "is on a ring, which has no topology: try `dynatops ring`" in outcome.stderr
            async with TreeAdministrator([agent.address]) as brokers:
                with pytest.raises(CommandRefusedError, match="this broker is on a ring"):
                    await brokers.change_topology(agent.address, text_of(tree.file))

    asyncio.run(scenario())


def test_nobody_there(tmp_path: Path) -> None:
    outcome = run("topology", "show", "--broker", free_addresses(1)[0])
    assert outcome.returncode == 1
    assert grpc.StatusCode.UNAVAILABLE.name not in outcome.stderr
