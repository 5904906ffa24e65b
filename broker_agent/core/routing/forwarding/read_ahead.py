"""Sessions that have read a stream farther than it has come here.

What a session missed may be had from elsewhere than by the way of the stream, which a link that
comes back is still bringing; or it was read at another broker, or in a former life of this one.
Events up to where the session is are nothing new to it then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker_agent.core.sessions.session import Session

# Streams that a session may be ahead in; of more only the newest.
_STREAMS_MAX = 256
_NOBODY: Mapping[Session, int] = {}


@dataclass(slots=True, eq=False)
class _Reached:
    """How far sessions that have caught up together have read."""

    places: dict[int, int]
    members: dict[Session, None]


class ReadAhead:
    def __init__(self) -> None:
        self._of: dict[Session, _Reached] = {}
        self._by_stream: dict[int, dict[_Reached, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_stream)

    def note(
        self, sessions: Iterable[Session], reached: Mapping[int, int], here: Mapping[int, int]
    ) -> None:
        """They have read so far, and it has come here so far."""
        members = dict.fromkeys(sessions)
        for session in members:
            self.forget(session)
        beyond = sorted(s for s, number in reached.items() if number > here.get(s, 0))
        ahead = _Reached({s: reached[s] for s in beyond[-_STREAMS_MAX:]}, members)
        if ahead.places and members:
            self._of.update(dict.fromkeys(members, ahead))
            for stream in ahead.places:
                self._by_stream.setdefault(stream, {})[ahead] = None

    def of(self, stream: int, first: int) -> Mapping[Session, int]:
        """Who has read this number already, and how far."""
        if stream not in self._by_stream:
            return _NOBODY
        return {
            session: ahead.places[stream]
            for ahead in self._by_stream[stream]
            if ahead.places[stream] >= first
            for session in ahead.members
        }

    def come(self, here: Mapping[int, int]) -> None:
        """Streams have come so far here."""
        for stream in list(self._by_stream):
            for ahead in list(self._by_stream[stream]):
                if ahead.places[stream] <= here.get(stream, 0):
                    self._end(stream, ahead)

    def _end(self, stream: int, ahead: _Reached) -> None:
        del ahead.places[stream], self._by_stream[stream][ahead]
        if not self._by_stream[stream]:
            del self._by_stream[stream]
        if not ahead.places:
            for session in ahead.members:
                del self._of[session]

    def places(self, session: Session) -> Mapping[int, int]:
        ahead = self._of.get(session)
        return ahead.places if ahead is not None else {}

    def sessions(self) -> Iterable[Session]:
        return self._of

    def forget(self, session: Session) -> None:
        ahead = self._of.pop(session, None)
        if ahead is None:
            return
        del ahead.members[session]
        if not ahead.members:
            for stream in list(ahead.places):
                self._end(stream, ahead)
