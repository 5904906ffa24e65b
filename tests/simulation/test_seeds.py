"""Whole runs: loss, reordering, crashes, restarts, partitions, joins, departures; and a verdict.

`dynatops simulate --seeds 500` runs more of the same.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulator.ring.ring_faults import STRIKES
from simulator.run import simulate
from simulator.scenario import WEIGHTS, scenario_of


@pytest.mark.parametrize("seed", range(50))
def test_eight_brokers(seed: int) -> None:
    verdict = simulate(seed, brokers=8, minutes=2)
    assert verdict.ok, f"{verdict.violations}\n{verdict.command}"
    assert verdict.delivered > 100


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("brokers", [1, 2, 3])
def test_tiny_rings(brokers: int, seed: int) -> None:
    verdict = simulate(seed, brokers, minutes=1.5)
    assert verdict.ok, f"{verdict.violations}\n{verdict.command}"


@pytest.mark.parametrize("seed", range(3))
def test_twenty_brokers(seed: int) -> None:
    verdict = simulate(seed, brokers=20, minutes=2)
    assert verdict.ok, f"{verdict.violations}\n{verdict.command}"


def test_the_seeds_cover_every_fault() -> None:
    planned = {f.fault for seed in range(40) for f in scenario_of(seed, 8, 2).faults}
    assert planned == {*WEIGHTS, *STRIKES}
    weathers = [scenario_of(seed, 8, 2).weather for seed in range(40)]
    assert any(weather.loss for weather in weathers)
    assert any(weather.duplication for weather in weathers)
    assert any(weather.reordering for weather in weathers)


def test_the_same_seed_is_the_same_run() -> None:
    assert simulate(7, 6, 1) == simulate(7, 6, 1)
    assert simulate(7, 6, 1).trace != simulate(8, 6, 1).trace


def test_what_a_verdict_says_to_run_again_is_the_same_scenario() -> None:
    """The command reads a number of minutes, and a test may say a whole one."""
    assert scenario_of(7, 6, 2).faults == scenario_of(7, 6, 2.0).faults


def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    program = "from simulator.run import simulate; print(simulate(7, 6, 1).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert traces == {simulate(7, 6, 1).trace + "\n"}
