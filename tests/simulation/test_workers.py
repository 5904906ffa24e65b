"""Workers that die in the middle of an event; and that who watches them would see it go wrong."""

from __future__ import annotations

import pytest

from broker_agent.core.sessions import Session
from simulator.run import Run, Verdict
from simulator.scenario import scenario_of
from simulator.workers import Worker


def played(seed: int) -> tuple[Verdict, list[Worker]]:
    run = Run(scenario_of(seed, 3, 1.5))
    verdict = run.play()
    owners = [getattr(check, "__self__", None) for check in run.checks]
    return verdict, [owner for owner in owners if isinstance(owner, Worker)]


def test_they_die_and_their_work_comes_again() -> None:
    verdict, workers = played(5)
    assert verdict.ok, f"{verdict.violations}\n{verdict.command}"
    assert sum(worker.deaths for worker in workers) > 3
    handled = [h for w in workers for shift in w.shifts for h in shift.handled.values()]
    assert sum(h.deliveries > 1 for h in handled) > 5
    assert sum(h.confirmed is not None for h in handled) > 20


def test_what_brokers_forget_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_received_beyond", lambda session, message: None)
    verdict, _ = played(5)
    assert any("was done, confirmed, and came again" in text for text in verdict.violations)
    assert any("came 1 times, after" in text for text in verdict.violations)
