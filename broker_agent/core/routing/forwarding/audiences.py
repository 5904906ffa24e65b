"""Which sessions here want an event, by topic: looked up once, until a filter that matches it
changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from broker_agent.core.routing.session_conditions import Condition, SessionConditions
from broker_agent.core.sessions.session import Session
from dynatops.kit.bounded import BoundedTable
from dynatops.kit.filters import Filter, FilterIndex, FilterTrie, PatternTree, is_wildcard

_EVERYTHING: Condition = (Filter.parse("#"),)


@dataclass(frozen=True, slots=True)
class Audience:
    """Of a topic. Sessions without a condition want all of its events."""

    # As `SessionDelivery` has them; nobody begins in the middle here.
    members: dict[Session, int]
    conditions: SessionConditions

    def plain(self) -> Iterable[Session]:
        """Those that get an event without attributes."""
        if not self.conditions:
            return self.members
        return [
            session
            for session in self.members
            if any(f.predicate is None or f.predicate.holds({}) for f in self._filters(session))
        ]

    def _filters(self, session: Session) -> Iterable[Filter]:
        return self.conditions.filters.get(session, _EVERYTHING)


class Audiences:
    def __init__(self, topics_max: int, counters: object) -> None:
        self._sessions: FilterTrie[Session] = FilterTrie()
        # Filters with conditions.
        self._conditional: FilterIndex[Session] = FilterIndex()
        # The topics that have been looked up, as patterns that a wildcard covers.
        self._topics: PatternTree[str] = PatternTree()
        self._by_topic: BoundedTable[str, Audience] = BoundedTable(
            topics_max,
            counters,
            "audiences_forgotten",
            on_drop=lambda topic, _: self._topics.remove(topic),
        )

    def add(self, session: Session, wanted: Filter) -> None:
        """The session has it now."""
        self._sessions.add(wanted.pattern, session)
        if wanted.predicate is not None:
            self._conditional.add(wanted, session)
        self._changed(wanted.pattern)

    def remove(self, session: Session, wanted: Filter) -> None:
        """The session, which had it, has it no more."""
        if wanted.pattern not in session.filters:
            self._sessions.remove(wanted.pattern, session)
        if wanted.predicate is not None:
            self._conditional.remove(wanted, session)
        self._changed(wanted.pattern)

    def forget(self, session: Session, filters: Collection[Filter]) -> None:
        """The session, which had these and no others, has none any more."""
        for pattern in dict.fromkeys(one.pattern for one in filters):
            self._sessions.remove(pattern, session)
            self._changed(pattern)
        for one in filters:
            if one.predicate is not None:
                self._conditional.remove(one, session)

    def _changed(self, pattern: str) -> None:
        topics = list(self._topics.covered(pattern)) if is_wildcard(pattern) else [pattern]
        for topic in topics:
            if self._by_topic.pop(topic, None) is not None:
                self._topics.remove(topic)

    def of(self, topic: str) -> Audience:
        found = self._by_topic.get(topic)
        if found is None:
            found = self._by_topic[topic] = self._find(topic)
            self._topics.put(topic, topic)
        return found

    def _find(self, topic: str) -> Audience:
        members: dict[Session, int] = dict.fromkeys(self._sessions.match(topic), 0)
        conditions = SessionConditions(self._conditional)
        for session in members:
            filters = session.filters_on(topic)
            if all(f.predicate is not None for f in filters):
                conditions.put(session, filters)
        return Audience(members, conditions)
