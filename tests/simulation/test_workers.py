"""Workers that die in the middle of an event; and that who watches them would see it go wrong."""

from __future__ import annotations

from random import Random

import pytest

from broker_agent.core.sessions.session import Session
from dynatops.client.core.work import Work, WorkItem
from dynatops.client.events import Event
from simulator.clients import PublishedEvent
from simulator.run import SimulatedRun, Verdict
from simulator.scenario import scenario_of
from simulator.workers import Shift, Worker


def played(seed: int) -> tuple[Verdict, list[Worker]]:
    run = SimulatedRun(scenario_of(seed, 3, 1.5))
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


def test_one_gives_up_what_it_has_had_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    _, workers = played(5)
    assert [worker.buried > 3 for worker in workers] == [True, False, False]

    def counts_twice(work: Work, item: WorkItem, now_s: float) -> WorkItem:
        item.deliveries += item.deliveries < work.limits.max_deliver
        return hand_out(work, item, now_s)

    hand_out = Work._hand_out
    monkeypatch.setattr(Work, "_hand_out", counts_twice)
    verdict, _ = played(5)
    assert any("was given up after" in text for text in verdict.violations)


def test_what_brokers_forget_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_received_beyond", lambda session, message: None)
    verdict, _ = played(5)
    assert any("was done, confirmed, and came again" in text for text in verdict.violations)
    assert any("came 1 times, after" in text for text in verdict.violations)


def test_what_nobody_knows_of_any_more_may_come_once_more() -> None:
    """As often as a fault took it away before its publisher knew it to be safe."""
    run = SimulatedRun(scenario_of(5, 3, 1.5))
    worker = Worker(run, "worker0", ["t"], Random(0))
    run.world.published.append(PublishedEvent("t", 7, 1, at_s=1.0, size=0, acknowledged_s=3.0))
    run.world.taken_away += [2.0, 4.0]
    worker.shifts.append(Shift(0.0))
    run.start_broker("b0")
    worker.connect()

    def violations_after(term: int) -> int:
        """It comes to another process, under this term, and the broker hears that it is done."""
        worker._life += 1
        item = WorkItem(Event("t", b"", 0, term, 1), None, 0, 0)
        worker._keys[item] = ("t", 7, 1)
        worker._hand_out(item)
        worker._confirmed([("t", 7, 1)])
        return len(worker.violations)

    assert [violations_after(term) for term in (1, 2, 2, 3)] == [0, 0, 1, 2]
