"""Rounds in one process: failures are told, signals stop them, results are those of single runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.continuous import FAILURES_MAX, StopSignal, run_rounds
from dynatops.lake.fields import PUBLICATIONS
from tests.support.running_analytics import Running, close
from tests.support.spark_frames import START_S, at, write_file


class Clock:
    """Time that passes only where it is told to."""

    def __init__(self, rounds: int) -> None:
        self.now_s = 0.0
        self.waited: list[float] = []
        self._rounds = rounds

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self.now_s += max(0.0, seconds)
        return len(self.waited) >= self._rounds


def play(outcomes: list[bool], took_s: float = 0.0) -> tuple[bool, list[float], list[str]]:
    clock, said = Clock(len(outcomes)), list[str]()
    following = iter(outcomes)

    def run_round() -> bool:
        clock.now_s += took_s
        return next(following)

    is_well = run_rounds(
        run_round, every_s=60.0, wait=clock.wait, say=said.append, now_s=lambda: clock.now_s
    )
    return is_well, clock.waited, said


def test_rounds_begin_in_even_steps() -> None:
    assert play([True, True], took_s=20.0) == (True, [40.0, 40.0], [])
    assert play([True, True], took_s=70.0) == (True, [-10.0, -10.0], [])


def test_failures_are_told_and_bounded() -> None:
    is_well, waited, said = play([False, True, False])
    assert (is_well, len(waited)) == (False, 3)
    assert said == ["round failed, 1 of 5 in a row; next one in 60 s"] * 2
    is_well, waited, said = play([True, *[False] * FAILURES_MAX, True])
    assert (is_well, len(waited)) == (False, FAILURES_MAX)
    assert said[-1] == "5 rounds in a row have failed: giving up"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_waiting_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop.wait(0.0)
        os.kill(os.getpid(), number)
        assert stop.wait(3_600.0)
        # A second one does what it always does.
        assert signal.getsignal(number) is before
    assert signal.getsignal(number) is before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_same_results_as_separate_runs(spark: SparkSession, tmp_path: Path) -> None:
    running, whole = Running(spark, tmp_path), Running(spark, tmp_path, name="whole")

    def more(number: int) -> None:
        rows = [
            (at(START_S + number * 600 + i), 1.0, f"b{i % 3}", f"t{i % 50}", i % 9 + 1, 9)
            for i in range(600)
        ]
        write_file(running.lake, PUBLICATIONS, f"b-1-{number}", rows)

    more(0)
    command = [
        *(sys.executable, "-m", "analytics.main", "run", "rates", "--continuous", "--every", "0.5"),
        *("--lake", str(running.lake), "--output", str(running.output), "--master", "local[1]"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: Iterator[str] = iter(process.stdout)
    try:
        assert "600 rows in" in next(lines)
        whole.run("rates")
        more(1)
        assert "600 rows in" in next(line for line in lines if "nothing new" not in line)
        whole.run("rates")
        # Without its lake a round fails; the next one finds it again.
        running.lake.rename(tmp_path / "away")
        assert "failed" in next(line for line in lines if "nothing new" not in line)
        (tmp_path / "away").rename(running.lake)
        assert "nothing new" in next(line for line in lines if "failed" not in line)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    assert "round failed, 1 of 5 in a row" in said
    assert close(running.results("rates"), whole.results("rates"))
