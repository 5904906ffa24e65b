"""When sessions are told how far streams are that had nothing for them.

A client's place in a stream moves with the events that it gets. One that wants little would come
back with a place from long ago: brokers would look through all that they keep, and where that does
not reach so far, a gap would be told that is none. So each session is told, in its turn, once in a
while, what has moved since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker_agent.core.sessions.session import Session

PLACES_TOLD_S = 60.0


class PlaceTelling:
    def __init__(self) -> None:
        # Who is next, and when: all wait equally long.
        self._due_s: dict[Session, float] = {}
        self._told: dict[Session, Mapping[int, int]] = {}

    def begin(self, session: Session, now_s: float) -> None:
        self._due_s.setdefault(session, now_s + PLACES_TOLD_S)

    def forget(self, session: Session) -> None:
        self._due_s.pop(session, None)
        self._told.pop(session, None)

    def due(self, now_s: float) -> Iterator[Session]:
        """Each in its turn, which comes again."""
        while self._due_s:
            session, due_s = next(iter(self._due_s.items()))
            if due_s > now_s:
                return
            del self._due_s[session]
            self._due_s[session] = now_s + PLACES_TOLD_S
            yield session

    def moved(self, session: Session, places: Mapping[int, int]) -> dict[int, int]:
        """Of these what the session has not been told; it is now."""
        told = self._told.get(session, {})
        self._told[session] = places
        return {stream: number for stream, number in places.items() if told.get(stream) != number}
