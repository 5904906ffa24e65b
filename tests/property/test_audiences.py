"""Which sessions want an event, against a lookup that remembers nothing."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.routing.forwarding.audiences import Audience, Audiences
from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Attributes, Filter

LEVELS = ("", "a", "b", "$x")
TOPICS = [*LEVELS[1:], *(f"{one}/{two}" for one in LEVELS for two in LEVELS), "a/b/a", "b//a"]
EXACT = [topic for topic in TOPICS if not topic.startswith("$")]
PATTERNS = [*EXACT, "#", "+", "a/#", "+/b", "a/+", "+/+", "a/b/#", "+/#", "/#", "b/+/a"]
WHERES = ("", "v > 1", "v > 2", "v < 1", "not has v")

EVENTS: list[Attributes] = [{"v": 0}, {"v": 2}, {"v": 3}, {}]
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(PATTERNS),
        st.sampled_from(WHERES),
        st.lists(st.sampled_from(TOPICS), max_size=4),
    ),
    max_size=60,
)


def change(audiences: Audiences, session: Session, wanted: Filter) -> None:
    """What was there goes, and what was not comes."""
    pattern = wanted.pattern
    before = session.filters.get(pattern, ())
    after = tuple(f for f in before if f != wanted) if wanted in before else (*before, wanted)
    if after:
        session.filters[pattern] = after
    else:
        del session.filters[pattern]
    if wanted not in before:
        audiences.add(session, wanted)
    else:
        audiences.remove(session, wanted)


def wanted_places(audience: Audience, topic: str) -> dict[str, Sequence[int]]:
    found = audience.conditions.places(topic, EVENTS)
    return {s.session_id: found[s] for s in audience.conditions.filters if s in found}


def expected_places(sessions: list[Session], topic: str) -> dict[str, list[int]]:
    """Of sessions that want some events only."""
    expected = {}
    for session in sessions:
        filters = session.filters_on(topic)
        places = [n for n, v in enumerate(EVENTS) if any(f.matches(topic, v) for f in filters)]
        if places and all(f.predicate is not None for f in filters):
            expected[session.session_id] = places
    return expected


def spelt_out(audience: Audience) -> dict[str, object]:
    return {
        session.session_id: sorted(map(str, audience.conditions.filters.get(session, ())))
        for session in sorted(audience.members, key=lambda each: each.session_id)
    }


@settings(max_examples=200, deadline=None)
@given(changes=CHANGES, remembered=st.sampled_from([3, 100]))
def test_nothing_that_is_remembered_is_outdated(
    changes: list[tuple[int, str, str, list[str]]], remembered: int
) -> None:
    counters = BrokerCounters()
    audiences = Audiences(remembered, counters)
    sessions = [Session(f"s{i}", f"s{i}", 0, CoreSettings()) for i in range(4)]
    for which, pattern, where, topics in changes:
        change(audiences, sessions[which], Filter.parse(pattern, where))
        for topic in topics:
            fresh = Audiences(1, counters)
            for session in sessions:
                for held in [f for filters in session.filters.values() for f in filters]:
                    fresh.add(session, held)
            audience = audiences.of(topic)
            assert spelt_out(audience) == spelt_out(fresh.of(topic))
            assert wanted_places(audience, topic) == expected_places(sessions, topic)


def test_what_does_not_match_is_remembered() -> None:
    audiences = Audiences(100, BrokerCounters())
    session = Session("", "", 0, CoreSettings())
    kept = {topic: audiences.of(topic) for topic in ("b/a", "b/c", "a", "$x/y")}
    gone = {topic: audiences.of(topic) for topic in ("a/b", "a/c/d")}
    wanted = Filter.parse("a/+/#")
    session.filters["a/+/#"] = (wanted,)
    audiences.add(session, wanted)
    assert all(audiences.of(topic) is found for topic, found in kept.items())
    assert all(audiences.of(topic) is not found for topic, found in gone.items())
