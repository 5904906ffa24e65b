"""The commands as a person types them: output, exit codes, messages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from dynatops.cli.main import main
from dynatops.version import VERSION, build_kind
from tests.support.commands import COMMAND, Cluster, run, run_json

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]


class TestLooking:
    def test_brokers(self, cluster: Cluster) -> None:
        reports = run_json("brokers")
        assert {r["broker_id"] for r in reports} == {f"b{i}" for i in range(5)}
        assert all(r["status"] == "member" and r["ready"] for r in reports)
        assert all(r["version"] == VERSION for r in reports)
        assert "stamped_events" in reports[0]["counters"]
        table = run("brokers").stdout.splitlines()
        assert len(table) == 2 + 5
        assert "member" in table[2]

    def test_topics(self, listener: subprocess.Popen[str]) -> None:
        run("pub", "quake/ca", "x")
        (topic,) = [t for t in run_json("topics") if t["topic"] == "quake/ca"]
        assert topic["subscribing_brokers"] == 1
        assert topic["published"] >= 1
        assert "quake/ca" in run("topics").stdout

    def test_tree(self, listener: subprocess.Popen[str]) -> None:
        document = run_json("tree", "quake/ca")
        nodes = list(_walk(document["tree"]))
        assert [n["broker_id"] for n in nodes if n["subscribes"]] == ["b3"]
        assert document["tree"]["rendezvous_point"]
        picture = run("tree", "quake/ca").stdout
        assert "1 subscribing broker" in picture
        assert "◆ rendezvous point" in picture
        for node in nodes:
            assert node["broker_id"] in picture

    def test_a_tree_that_nobody_is_in(self, cluster: Cluster) -> None:
        outcome = run("tree", "silence")
        assert outcome.returncode == 0
        assert "nobody subscribes" in outcome.stdout

    def test_ring(self, cluster: Cluster) -> None:
        ring = run_json("ring")
        assert ring["problems"] == []
        ids = [node["node_id"] for node in ring["nodes"]]
        assert ids == sorted(ids)
        outcome = run("ring")
        assert outcome.returncode == 0
        shares = [float(s) for s in re.findall(r"([\d.]+)%", outcome.stdout)]
        assert sum(shares) == pytest.approx(100, abs=0.5)


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node["children"]:
        yield from _walk(child)


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["pub", "x", "y", "--nonsense"], "unrecognized arguments: --nonsense"),
            (["nonsense"], "invalid choice"),
            ([], "required: COMMAND"),
            (["up", "--brokers", "0"], "0 is not above zero"),
            (["up", "--brokers", "many"], "'many' is no number"),
            (["up", "--brokers", "9999"], "at most 500"),
            (["up", "--port", "70000"], "ports end at 65535"),
            (["pub", "x", "--count", "3"], "--count goes with a payload"),
            (["pub", "x", "y", "--attribute", "price"], "'price': write NAME=VALUE"),
            (["pub", "x", "y", "--attribute", "`=1"], "has a backquote"),
            (["pub", "x", "y", "--attribute", f"n={1 << 64}"], "beyond 64 bits"),
            (["sub", "x", "--where", "price = 5"], "character 7\n  price = 5\n        ^\n"),
            (["sub", "a/#/b"], "filter 'a/#/b' has '#' in level 2"),
            (["sub", "x", "--keep", "5"], "go with --client-id"),
            (["sub", "x", "--client-id", "me", "--keep", "0"], "0 is not above zero"),
            (["sessions", "me", "--prefix", "m"], "--prefix is for lists"),
            (["simulate", "--minutes", "0.1"], "at least 1"),
            (["simulate", "--seeds", "2", "--trace", "x"], "one seed"),
            (["simulate", "--quiet", "--reconfigure"], "--quiet goes with one seed"),
            (["broker", "--listen", "here"], "write host:port"),
            (["broker", "--listen", "0.0.0.0:7400"], "--insecure"),
            (["broker", "--set", "overlay.nonsense=1"], "there is no setting overlay.nonsense; "),
            (["broker", "--set", "runtime.tick=1"], "runtime.tick; did you mean runtime.tick_s?"),
            (["manager", "--set", "leadership.ttl=6"], "did you mean leadership.ttl_s?"),
            (
                ["manager", "--set", "store.ttl_s=6"],
                "did you mean leadership.ttl_s or advice.ttl_s?",
            ),
            (["manager", "--set", "leadrship.ttl_s=6"], "leadrship; did you mean leadership?"),
            (["manager", "--set", "manager.execution.gon_s=6"], "manager.execution.gone_s"),
            (["broker", "--set", "nonsense.x=1"], "no group 'nonsense'"),
            (["broker", "--set", "x"], "write GROUP.NAME=VALUE"),
            (["broker", "--set", "overlay.lease_s=0.1"], "lease_s must be longer"),
            (["broker", "--join", "somewhere:0"], "port 0"),
        ],
    )
    def test_exit_with_2_and_say_what_is_wrong(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
        assert code == 2
        errors = capsys.readouterr().err
        assert message in errors
        assert "Traceback" not in errors

    def test_a_topic_that_is_none(self, cluster: Cluster) -> None:
        for topic in ("", "x" * 1_025, "a/+/b"):
            outcome = run("pub", topic, "x")
            assert outcome.returncode == 2
            assert outcome.stderr.startswith("dynatops: topic ")

    @pytest.mark.parametrize(
        "command",
        [
            ["pub", "x", "y"],
            ["sub", "x"],
            ["brokers"],
            ["topics"],
            ["tree", "x"],
            ["ring"],
            ["sessions"],
            ["sessions", "me"],
        ],
    )
    def test_nobody_there_exits_with_1(self, command: list[str]) -> None:
        outcome = run(*command, "--broker", "127.0.0.1:1")
        assert outcome.returncode == 1
        assert outcome.stderr.startswith("dynatops: cannot connect to 127.0.0.1:1: ")
        assert len(outcome.stderr.splitlines()) == 1
        assert outcome.stderr.count("127.0.0.1:1") == 1

    def test_a_port_in_use(self, cluster: Cluster) -> None:
        address = cluster.addresses[0]
        for command in (
            ["broker", "--listen", address],
            ["up", "--port", address.split(":")[1], "--brokers", "1"],
        ):
            outcome = run(*command)
            assert outcome.returncode == 1
            assert "the port is in use" in outcome.stderr

    def test_a_seed_that_nobody_answers_at(self) -> None:
        outcome = run(
            "broker", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1",
            "--set", "runtime.join_timeout_s=0.5",
        )  # fmt: skip
        assert outcome.returncode == 1
        assert "no broker at 127.0.0.1:1 let" in outcome.stderr


class TestOthers:
    def test_every_command_helps(self, capsys: pytest.CaptureFixture[str]) -> None:
        commands = [
            ["demo"], ["up"], ["broker"], ["pub"], ["sub"], ["brokers"], ["topics"], ["tree"],
            ["ring"], ["sessions"], ["simulate"], ["settings"], ["solve"], ["instance"],
            ["compare"],
            *(["bench", kind] for kind in ("pubsub", "fanout", "latency", "churn")),
        ]  # fmt: skip
        for command in commands:
            with pytest.raises(SystemExit) as stop:
                main([*command, "--help"])
            assert stop.value.code == 0
            assert "--json" in capsys.readouterr().out

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["--version"])
        assert capsys.readouterr().out == f"dynatops {VERSION} ({build_kind()})\n"

    def test_settings_all_have_a_meaning(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["settings", "--json"]) == 0
        settings = json.loads(capsys.readouterr().out)
        assert len(settings) > 40
        assert all(len(setting["meaning"]) > 10 for setting in settings)
        assert main(["settings"]) == 0
        assert "overlay.silence_s = 3.0" in capsys.readouterr().out

    def test_simulate(self, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
        trace = tmp_path / "trace.txt"
        arguments = ["simulate", "--seed", "3", "--brokers", "4", "--minutes", "1"]
        assert main([*arguments, "--trace", str(trace)]) == 0
        assert "no violation" in capsys.readouterr().out
        assert "joining" in trace.read_text() or "starts" in trace.read_text()
        assert main([*arguments, "--json"]) == 0
        (verdict,) = json.loads(capsys.readouterr().out)
        assert verdict["ok"]
        assert verdict["command"] == "dynatops simulate --seed 3 --brokers 4 --minutes 1"

    def test_simulate_a_quiet_network(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["simulate", "--quiet", "--brokers", "6"]
        assert main(arguments) == 0
        said = capsys.readouterr().out
        assert "6 brokers, nothing breaks" in said
        assert all(word in said for word in ("joining", "rest", "trees", "plan", "stabilise"))
        assert main([*arguments, "--json"]) == 0
        growth = json.loads(capsys.readouterr().out)
        assert [phase["name"] for phase in growth["phases"]] == ["joining", "rest", "trees", "plan"]

    def test_a_violation_is_printed_with_what_reproduces_it(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = "simulator.ring.simulated_ring.check_rest"
        monkeypatch.setattr(wrong, lambda brokers: ["something is wrong"])
        assert main(["simulate", "--seed", "3", "--brokers", "4", "--minutes", "1"]) == 1
        out = capsys.readouterr().out
        assert "something is wrong" in out
        assert "dynatops simulate --seed 3 --brokers 4 --minutes 1 --trace trace.txt" in out

    def test_demo(self) -> None:
        result = run_json("demo", "--brokers", "6", "--seconds", "3")
        assert result["lost"] == result["duplicated"] == result["reordered"] == 0
        assert result["delivered"] == result["expected"] > 500
        assert result["ready_s"] < 5
        assert {
            "topics",
            "published",
            "tree_messages",
            "relay_messages",
            "p50_ms",
            "p99_ms",
        } <= set(result)

    def test_demo_draws(self) -> None:
        out = run("demo", "--brokers", "4", "--seconds", "2").stdout
        assert "Every event arrived once, in order." in out
        assert "└──" in out

    @pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
    def test_up_in_processes(self, signal_: signal.Signals) -> None:
        running = Cluster("--brokers", "3", "--processes")
        assert len(run_json("ring", "--broker", running.addresses[1])["nodes"]) == 3
        assert running.stop(signal_) == 0
        assert run("ring", "--broker", running.addresses[1]).returncode == 1

    def test_output_that_nobody_reads_is_no_error(self, cluster: Cluster) -> None:
        process = subprocess.Popen(
            [*COMMAND, "settings"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait()
        process.stderr.close()

    def test_commands_start_quickly(self) -> None:
        """Help does not load what it does not need."""
        heavy = ("grpc", "numpy", "pydantic")
        program = f"""
import sys
from dynatops.cli.main import _parser
_parser()
print([name for name in {heavy} if name in sys.modules])"""
        outcome = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert outcome.stdout == "[]\n"


def test_asyncio_debug_finds_nothing() -> None:
    """A demo in asyncio's debug mode: no task forgotten, no exception unseen."""
    outcome = subprocess.run(
        [*COMMAND, "demo", "--brokers", "3", "--seconds", "1", "--json"],
        env={**os.environ, "PYTHONASYNCIODEBUG": "1", "PYTHONWARNINGS": "error"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert outcome.returncode == 0
    worries = [line for line in outcome.stderr.splitlines() if "took" not in line]
    assert worries == []
