"""Stores in the simulator: no violation, and the checkers find the faults that are planted."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from broker_agent.core.sessions.content import Content
from broker_agent.core.stores import stored_publications
from broker_agent.core.stores.intake import Had, StoreIntake
from broker_agent.core.stores.log.log_rows import LogRow
from simulator.eventlog.log_disk import SimulatedLogDisk
from simulator.run import simulate

ROUTINGS = ("rendezvous", "forwarding")
LOST = "acknowledged as stored"


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("seed", [101, 104])
def test_no_violation(routing: str, seed: int) -> None:
    verdict = simulate(seed, 8, 2.0, routing=routing, stores=True)
    assert verdict.violations == ()
    assert verdict.counted["stored"] > 100


def test_a_seed_is_the_same_each_time() -> None:
    first, second = (simulate(102, 4, 1.5, stores=True) for _ in range(2))
    assert first == second


def _finds(what: str, routing: str, seeds: Iterable[int]) -> bool:
    return any(
        what in violation
        for seed in seeds
        for violation in simulate(seed, 8, 2.0, routing=routing, stores=True).violations
    )


def test_found_that_nothing_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedLogDisk, "sync", lambda self, name: None)
    assert _finds(LOST, "rendezvous", range(100, 110))


def test_found_that_nobody_waits_for_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_publications._Topic, "stores_with", lambda self, unstored: 2)
    assert _finds(LOST, "rendezvous", range(100, 110))


def test_found_that_some_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of = StoreIntake.rows_of

    def fewer(
        self: StoreIntake, contents: Iterable[Content], now_us: int
    ) -> tuple[list[LogRow], list[Had]]:
        rows, had = rows_of(self, contents, now_us)
        return rows[::2], had

    monkeypatch.setattr(StoreIntake, "rows_of", fewer)
    assert _finds(LOST, "rendezvous", range(100, 104))
