"""The benchmarks: small ones, against brokers of their own and against brokers that run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import data_plane, data_plane_clients, data_plane_systems
from dynatops.cli.main import main
from dynatops.local.bench.fanout import FanoutPlan, _publish
from dynatops.local.bench.processes import BenchWorker, percentile, thinned
from dynatops.local.bench.pubsub import PubSubPlan, _batches

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    assert main(["bench", *arguments, "--json"]) == 0
    result: dict[str, float] = json.loads(capsys.readouterr().out)
    return result


def test_pubsub(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(capsys, "pubsub", "--events", "20000", "--brokers", "2", "--ack", "rp")
    assert result["missed"] == 0
    assert result["events_per_s"] > 0
    assert 0 < result["p50_ms"] <= result["p99_ms"] <= result["max_ms"]
    assert 0 < result["broker_cpu_us_per_event"] < 10_000


def test_pubsub_over_many_topics(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(capsys, "pubsub", "--events", "5300", "--topics", "700")
    assert result["topics"] == 700
    assert result["missed"] == 0
    assert result["events_per_s"] > 0
    assert result["broker_cpu_us_per_event"] > 1


@pytest.mark.parametrize("ack", ["none", "replicated"])
def test_topics(ack: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(
        capsys, "topics", "--topics", "40", "--users", "3", "--follow", "7", "--brokers", "2",
        "--events", "300", "--ack", ack, "--window", "50",
    )  # fmt: skip
    # 300 = 7 * 40 + 20: who follows one of the first 20 hears it once more.
    assert 3 * 7 * 7 <= result["deliveries"] <= 3 * 7 * 8
    assert result["missed"] == 0
    assert result["events_per_s"] > 0
    assert ("ack_p99_ms" in result) == (ack != "none")
    for whose in ("broker", "publisher"):
        assert result[f"{whose}_cpu_us_per_event"] >= 0


def test_topics_by_a_wildcard(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(capsys, "topics", "--topics", "50", "--events", "2000")
    assert result["deliveries"] == 2_000
    assert result["missed"] == 0


def test_latency_over_many_topics(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(
        capsys, "latency", "--rate", "500", "--seconds", "0.5", "--brokers", "2", "--topics", "30"
    )
    assert result["topics"] == 30
    assert result["missed"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("pubsub", "--events", "5000", "--ack", "replicated"),
        ("topics", "--topics", "40", "--events", "400"),
        ("latency", "--rate", "500", "--seconds", "0.5"),
        ("fanout", "--sessions", "6", "--events", "200"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_in_a_tree(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    result: dict[str, Any] = bench(capsys, *arguments, "--routing", "forwarding", "--brokers", "3")
    assert result["missed"] == 0
    assert result["brokers"] == 3
    assert result["routing"] == "forwarding"
    assert result["tree"] == "a hub with 2 leaves; between leaves events pass the hub"
    if arguments[0] == "latency":
        assert result["hops"] == 2


@pytest.mark.parametrize("options", [("--window", "3"), ("--window-bytes", "1000")])
def test_small_windows(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(capsys, "pubsub", "--events", "500", "--bytes", "400", *options)
    assert result["missed"] == 0


def test_a_missed_event_fails_it(running_tight: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue of ten events at the broker, and a window of many more."""
    arguments = ["bench", "pubsub", "--events", "20000", "--broker", running_tight, "--json"]
    assert main(arguments) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["missed"] > 0
    assert main(arguments[:-1]) == 1
    assert "were missed" in capsys.readouterr().err


@pytest.mark.parametrize(("events", "topics"), [(1_200, 1), (1_200, 3), (1_300, 700), (5, 10)])
def test_events_are_spread_evenly(events: int, topics: int) -> None:
    plan = PubSubPlan(events, 100, 1, "none", 20_000, topics=topics)
    counts: Counter[str] = Counter()
    for batch in _batches(plan):
        assert batch.sent == counts.total()
        for topic, size in batch.runs:
            counts[topic] += size
    assert counts.total() == events
    assert len(counts) == min(topics, events)
    assert counts.keys() <= set(plan.topic_names())
    assert max(counts.values()) - min(counts.values()) <= 500 // topics + 1


def test_fanout(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(capsys, "fanout", "--sessions", "21", "--events", "200", "--brokers", "3")
    assert result["deliveries"] == 21 * 200
    assert result["deliveries_per_s"] > 0
    assert result["missed"] == 0


def test_latency(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(
        capsys, "latency", "--rate", "500", "--seconds", "0.5", "--brokers", "4", "--hops", "2"
    )
    assert result["hops"] == 2
    assert result["missed"] == 0
    assert 0 < result["p50_ms"] <= result["p99_ms"]
    assert 300 < result["events_per_s"] < 600


def test_churn(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(
        capsys, "churn", "--sessions", "5", "--topics", "20", "--seconds", "0.5", "--brokers", "2"
    )
    assert result["changes"] > 10
    assert result["changes_per_s"] > 0


@pytest.fixture
def running() -> Iterator[str]:
    """Addresses of brokers that somebody else started."""
    up = [sys.executable, "-m", "dynatops", "up", "--brokers", "2", "--port", "0", "--json"]
    with subprocess.Popen(up, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield ",".join(json.loads(process.stdout.readline())["addresses"])
        process.terminate()


@pytest.fixture
def running_tight() -> Iterator[str]:
    """A broker that keeps little for a subscriber."""
    broker = [
        *(sys.executable, "-m", "dynatops", "broker", "--listen", "127.0.0.1:0", "--json"),
        *("--set", "core.session_queue_events_max=10", "--set", "core.reader_patience_s=0.001"),
    ]
    with subprocess.Popen(broker, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
        process.terminate()


@pytest.mark.parametrize(
    "options",
    [
        ("pubsub", "--events", "5000"),
        ("fanout", "--sessions", "4", "--events", "50"),
        ("latency", "--rate", "200", "--seconds", "0.2"),
    ],
    ids=lambda options: options[0],
)
def test_brokers_that_run_already(
    options: tuple[str, ...], running: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = bench(capsys, *options, "--broker", running)
    assert result["brokers"] == 2
    assert result["missed"] == 0
    # Somebody else's, who may have other work, or be elsewhere.
    assert result.get("broker_cpu_us_per_event") is None


def test_subscribers_that_die_end_it(running: str) -> None:
    """While the publisher waits for them to come along."""

    class DeadWorker(BenchWorker):
        def __init__(self) -> None:
            pass

        async def line(self, timeout_s: float | None = None) -> Any:
            raise RuntimeError("a worker ended early")

    plan = FanoutPlan(sessions=2, events=5_000, payload_bytes=10, brokers=1, window=1)
    with pytest.raises(RuntimeError, match="ended early"):
        asyncio.run(asyncio.wait_for(_publish(plan, running.split(","), [DeadWorker()]), 20))


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "pubsub", "--events", "2000"]) == 0
    out = capsys.readouterr().out
    assert "pubsub: events 2000, bytes 100, brokers 1, ack none" in out
    assert "events/s" in out


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--broker", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_ours_over_a_small_grid(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    grid = ["--topics", "1,3", "--bytes", "100,16000", "--scale", "0.002", "--rounds", "1"]
    assert data_plane.main([*grid, "--systems", "dynatops", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    cells = {(cell["topics"], cell["bytes"]): cell["systems"] for cell in report["cells"]}
    assert cells.keys() == {(1, 100), (1, 16_000), (3, 100), (3, 16_000)}
    for systems in cells.values():
        told = systems["dynatops"]
        assert told["sent"] >= 1_000
        assert (told["missed"], told["stopped"], told["failed"]) == (0, [], [])
        assert told["events_per_s"] > 0
        for role in ("server", "publisher", "subscriber"):
            assert 0 <= told[f"{role}_cpu_us_per_event"] < 10_000
    # No worker was killed while it ended by itself.
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_a_run_beside_others_ends() -> None:
    """It sends no longer than it may; what was sent by then comes, and it is said."""
    run = asyncio.run(
        data_plane.measure("dynatops", data_plane.GridCell(3, 100), 10**9, Path(), limit_s=0.3)
    )
    assert 0 < run.sent == run.heard < 10**9
    assert run.events_per_s > 0
    assert (run.stopped, run.failed) == ("after 0.3 s", "")


def test_a_missed_event_beside_others_is_said(running_tight: str) -> None:
    """What does not come is waited for no longer than it may take."""

    async def measure() -> data_plane.FlowRun:
        plan = data_plane_clients.FlowPlan(1, 100, 20_000, 20_000, still_s=2.0)
        server = data_plane_systems.RunningServer(running_tight, os.getpid())
        return await data_plane.run_flow("dynatops", plan, server, Path(), limit_s=20.0)

    run = asyncio.run(measure())
    assert run.missed > 0
    assert run.heard > 0


def test_a_server_that_does_not_come_up_fails_its_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(
        data_plane_systems.SYSTEMS["dynatops"], server=lambda *_: [sys.executable, "-c", ""]
    )
    monkeypatch.setitem(data_plane_systems.SYSTEMS, "dynatops", broken)
    report = asyncio.run(data_plane.compare([data_plane.GridCell()], ["dynatops"], rounds=1))
    (told,) = report["cells"][0]["systems"].values()
    assert told["failed"] == ["the server ended at once, exit code 0"]
    assert data_plane.ours_lacks(report)


def test_beside_others() -> None:
    """What is not installed is named; what is, is measured."""
    names = list(data_plane_systems.SYSTEMS)
    report = asyncio.run(data_plane.compare([data_plane.GridCell()], names, rounds=1, scale=0.005))
    (cell,) = report["cells"]
    assert cell["systems"]["dynatops"]["events_per_s"] > 0
    assert cell["systems"].keys() | report["not_installed"].keys() == set(names)
    assert cell["dynatops_times"].keys() == cell["systems"].keys() - {"dynatops"}


def test_percentiles() -> None:
    assert percentile([], 0.5) == 0.0
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(100), 0.99) == 99
    values = list(range(10_000))
    few = thinned(values)
    assert len(few) == 1_000
    assert max(few) == max(values)
    assert percentile(few, 0.5) == pytest.approx(percentile(values, 0.5), rel=0.01)
