"""Hostile clients take part in every run; what they would do if brokers let them is seen."""

from __future__ import annotations

from typing import Any

import pytest

from broker_agent.core.clients import publication_requests, reception
from broker_agent.core.rights.access import Access
from dynatops.v1.overlay_pb2 import SessionMoved
from simulator import hostile
from simulator.hostile import DEEDS
from simulator.network import Weather
from simulator.run import SimulatedRun, Verdict
from simulator.scenario import Scenario
from simulator.tokens import PLAIN


def calm_run(seed: int = 1) -> SimulatedRun:
    return SimulatedRun(
        Scenario(
            seed=seed,
            brokers=4,
            minutes=1.2,
            weather=Weather(),
            clients=12,
            topics=4,
            publications_per_s=10.0,
            faults=(),
        )
    )


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "PAUSE_MIN_S", 0.05)
    monkeypatch.setattr(hostile, "PAUSE_MAX_S", 0.2)


def play() -> Verdict:
    return calm_run().play()


def test_they_are_answered_and_nobody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    done = dict.fromkeys(DEEDS, 0)
    run = calm_run()
    note = run.trace.note

    def count(what: str) -> None:
        deed = what.rpartition(": ")[2]
        if deed in done:
            done[deed] += 1
        note(what)

    monkeypatch.setattr(run.trace, "note", count)
    assert run.play().violations == ()
    assert min(done.values()) > 0
    counters = [broker.core.counters.as_dict() for broker in run.world.living()]
    for name in (
        "authentication_refused",
        "frames_refused",
        "hello_timeouts",
        "publishers_not_believed",
        "session_moves_not_believed",
    ):
        assert sum(counted[name] for counted in counters) > 0, name


class TestWithoutDefence:
    def test_of_publisher_numbers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(publication_requests, "is_of", lambda publisher, claimed: True)
        violations = play().violations
        assert any("that was forged" in violation for violation in violations)

    def test_of_sessions_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def forged(**fields: Any) -> SessionMoved:
            return SessionMoved(**{**fields, "owner": PLAIN})

        monkeypatch.setattr(reception, "SessionMoved", forged)
        assert any("was cut off" in violation for violation in play().violations)

    def test_of_sessions_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        authenticate = Access.authenticate

        def trusting(self: Access, token: str, client_id: str) -> Any:
            return authenticate(self, PLAIN, client_id)

        monkeypatch.setattr(Access, "authenticate", trusting)
        monkeypatch.setattr(Access, "_is_claimed_from", lambda *_: False)
        assert any("was cut off" in violation for violation in play().violations)

    def test_of_client_ids(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Access, "_is_claimed_from", lambda *_: False)
        violations = play().violations
        assert any("is that of another token's client" in violation for violation in violations)
