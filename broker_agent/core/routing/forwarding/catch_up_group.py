"""Sessions that come from elsewhere, or from disk, until they have what they missed.

    in place --fetch--> parts --> done --> what was held meanwhile --> live

Events that come while their past is fetched are held, within bounds; past them the fetch begins
again from where it had got to. All that the disk gives back after a restart stand at the same
places and are one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Filter
from overlay.forwarding.known_streams import STREAM_OVER
from overlay.forwarding.portions import Portion, last_of, newer_part, size_of, stream_of

HELD_BYTES_MAX = 16 << 20
# What a portion takes beside its events.
_PORTION_BYTES = 256


@dataclass(slots=True, eq=False)
class CatchUpGroup:
    members: dict[Session, None]
    # How far all of them have read each stream.
    reached: dict[int, int]
    # Requests of theirs with filters that are not in place yet.
    awaited: int = 0
    # Streams that nobody knows.
    _unknown: dict[int, None] = field(default_factory=dict)
    _held: list[Portion] = field(default_factory=list)
    _held_bytes: int = 0
    # Whether some could not be held: they are to be fetched, too.
    is_incomplete: bool = False

    def filters(self) -> list[Filter]:
        """All that its members want."""
        wanted = (f for session in self.members for fs in session.filters.values() for f in fs)
        return list(dict.fromkeys(wanted))

    def hold(self, portion: Portion) -> None:
        """It came while the past is being fetched."""
        if self.is_incomplete:
            return
        self._held_bytes += size_of(portion) + _PORTION_BYTES
        self._held.append(portion)
        if self._held_bytes > HELD_BYTES_MAX:
            self._held, self._held_bytes, self.is_incomplete = [], 0, True

    def advance(self, portions: Iterable[Portion]) -> Iterator[Portion]:
        """Of these, in order, what has not been read yet: it has now."""
        for portion in portions:
            stream = stream_of(portion)
            newer = newer_part(portion, self.reached.get(stream, 0))
            if newer is not None:
                self.reached[stream] = last_of(newer)
                yield newer

    def reach(self, places: Mapping[int, int]) -> None:
        for stream, number in places.items():
            self.reached[stream] = max(number, self.reached.get(stream, 0))

    def forget(self, stream: int) -> None:
        self.reached.pop(stream, None)
        self._unknown[stream] = None

    def beside(self) -> dict[int, int]:
        """Where its members stand in streams that have ended, nobody knows where; of those that
        nobody knows, before the beginning."""
        over = {stream: number for stream, number in self.reached.items() if number == STREAM_OVER}
        return {**dict.fromkeys(self._unknown, -1), **over}

    def begin_again(self) -> None:
        self.is_incomplete = False

    def take_held(self) -> Sequence[Portion]:
        held, self._held, self._held_bytes = self._held, [], 0
        return held
