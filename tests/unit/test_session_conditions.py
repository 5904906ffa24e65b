"""Which sessions want which events of a topic, whether their filters are asked or looked up."""

from __future__ import annotations

from random import Random
from typing import cast

import pytest

from broker_agent.core.routing.session_conditions import SessionConditions
from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Attributes, Filter

TOPIC = "plant/hall"
FILTERS = [
    Filter.parse(pattern, where)
    for pattern in ("plant/hall", "plant/+", "#")
    for where in ("v > 3", "v < 2", 'name == "a"', "not has v", "v == 1 or v == 5", "has name")
]


class Somebody:
    """Stands for a session: nothing is asked of it here."""


@pytest.mark.parametrize("sessions", [2, 12])
def test_they_are_those_that_meet_a_filter(sessions: int) -> None:
    rng = Random(sessions)
    those = [cast("Session", Somebody()) for _ in range(sessions)]
    conditions = SessionConditions()
    held: dict[Session, list[Filter]] = {}
    for _ in range(300):
        session = rng.choice(those)
        if session in held and rng.random() < 0.4:
            conditions.drop(session)
            del held[session]
        else:
            held[session] = rng.sample(FILTERS, rng.randint(1, 3))
            conditions.put(session, held[session])
        events: list[Attributes] = [
            {k: v for k, v in (("v", rng.randrange(6)), ("name", "a")) if rng.random() < 0.7}
            for _ in range(rng.randint(1, 4))
        ]
        expected = {
            session: [
                place
                for place, attributes in enumerate(events)
                if any(f.matches(TOPIC, attributes) for f in filters)
            ]
            for session, filters in held.items()
        }
        assert conditions.places(TOPIC, events) == {s: p for s, p in expected.items() if p}
        assert len(conditions) == len(held)


def test_to_drop_who_is_not_there_changes_nothing() -> None:
    conditions = SessionConditions()
    conditions.drop(cast("Session", Somebody()))
    assert not conditions
