"""Sessions that want only some events of a topic: those that meet one of their filters.

A few filters are asked one by one, once for all sessions that have the same. Many lie in an index,
so that what an event takes depends on who wants it, and hardly on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Attributes, Filter, FilterIndex

# Filters of which an event must meet one.
Condition = tuple[Filter, ...]
# With more filters than these there is an index.
_FEW = 8


class SessionConditions:
    __slots__ = ("_count", "_index", "_is_shared", "filters")

    def __init__(self, shared: FilterIndex[Session] | None = None) -> None:
        """`shared`: an index that somebody else keeps, with these sessions' filters in it."""
        self.filters: dict[Session, Condition] = {}
        self._index = shared
        self._is_shared = shared is not None
        # Of filters.
        self._count = 0

    def __len__(self) -> int:
        return len(self.filters)

    def put(self, session: Session, filters: Iterable[Filter]) -> None:
        """Each with a condition, and a pattern that matches the topic."""
        before = self.filters.get(session, ())
        condition = self.filters[session] = tuple(filters)
        self._index_anew(session, before, condition)
        if self._index is None and self._count > _FEW:
            self._count, self._index = 0, FilterIndex()
            for one, of_one in self.filters.items():
                self._index_anew(one, (), of_one)

    def drop(self, session: Session) -> None:
        self._index_anew(session, self.filters.pop(session, ()), ())

    def _index_anew(self, session: Session, before: Condition, after: Condition) -> None:
        self._count += len(after) - len(before)
        index = self._index
        if index is None or self._is_shared:
            return
        new = set(after)
        for wanted in set(before) - new:
            index.remove(wanted, session)
        for wanted in new.difference(before):
            index.add(wanted, session)

    def places(self, topic: str, events: Sequence[Attributes]) -> Mapping[Session, Sequence[int]]:
        """Which of these events each session wants, of those that want any."""
        index = self._index
        if index is None or self._count <= _FEW:
            return self._asked_one_by_one(events)
        found: dict[Session, list[int]] = {}
        known = index.of_topic(topic)
        for place, attributes in enumerate(events):
            for session in index.match_known(known, attributes):
                found.setdefault(session, []).append(place)
        return found

    def _asked_one_by_one(self, events: Sequence[Attributes]) -> dict[Session, list[int]]:
        found: dict[Session, list[int]] = {}
        answers: dict[Condition, list[int]] = {}
        for session, condition in self.filters.items():
            places = answers.get(condition)
            if places is None:
                places = answers[condition] = [
                    place
                    for place, attributes in enumerate(events)
                    if any(f.predicate is None or f.predicate.holds(attributes) for f in condition)
                ]
            if places:
                found[session] = places
        return found
