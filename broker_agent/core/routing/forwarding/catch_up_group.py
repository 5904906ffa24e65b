"""Sessions that come from elsewhere, or from disk, until they have what they missed.

    in place --fetch--> parts --> done --> what was held meanwhile --> live

Events that come while their past is fetched are held, those that they want and within bounds; past
them the fetch begins again from where it had got to. All that the disk gives back after a restart
stand at the same places and are one group.

Reading logs is work that others wait for: a client that has caught up does so again after a rest as
long as that took, and a second, however it comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from broker_agent.core.sessions.session import Session
from dynatops.kit.bounded import BoundedTable
from dynatops.kit.filters import Filter
from overlay.forwarding.streams.filter_set import FilterSet
from overlay.forwarding.streams.known_streams import ALL_READ
from overlay.forwarding.streams.portions import Portion, last_of, newer_part, size_of, stream_of

HELD_BYTES_MAX = 16 << 20
# What a portion takes beside its events.
_PORTION_BYTES = 256
_REST_MIN_S = 1.0


@dataclass(slots=True, eq=False)
class CatchUpGroup:
    members: dict[Session, None]
    # How far all of them have read each stream.
    reached: dict[int, int]
    # Since when; None of those that the disk gave back.
    began_s: float | None = None
    # Requests of theirs with filters that are not in place yet.
    awaited: int = 0
    # Streams that have ended, perhaps with more than anybody knows of, and how far they were read.
    ended: dict[int, int] = field(default_factory=dict)
    # What is held, as a question to events: asked for once they have all their filters, which do
    # not become more before they have caught up.
    _wanted: FilterSet | None = None
    _held: list[Portion] = field(default_factory=list)
    _held_bytes: int = 0
    # Whether some could not be held: they are to be fetched, too.
    is_incomplete: bool = False
    # Whether its requests for the past have been counted: a fetch may begin again.
    is_counted: bool = False

    def filters(self) -> list[Filter]:
        """All that its members want."""
        wanted = (f for session in self.members for fs in session.filters.values() for f in fs)
        return list(dict.fromkeys(wanted))

    def hold(self, portion: Portion) -> None:
        """It came while the past is being fetched."""
        if self.is_incomplete:
            return
        if self._wanted is None:
            self._wanted = FilterSet(self.filters())
        wanted = self._wanted.part_of(portion)
        if wanted is None:
            return
        self._held_bytes += size_of(wanted) + _PORTION_BYTES
        self._held.append(wanted)
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

    def end(self, streams: Iterable[int]) -> None:
        """Whatever is missing of these nobody can give."""
        for stream in streams:
            self.ended.setdefault(stream, self.reached.get(stream, 0))
            self.reached[stream] = ALL_READ

    def told(self) -> dict[int, int]:
        """How far they have read as far as they know: what has ended is told when all is there."""
        return {**self.reached, **self.ended}

    def begin_again(self) -> None:
        self.is_incomplete = False

    def take_held(self) -> Sequence[Portion]:
        held, self._held, self._held_bytes = self._held, [], 0
        return held


class Rests:
    """Who has caught up lately, and until when it rests."""

    def __init__(self, clients_max: int, counters: object) -> None:
        self._until_s: BoundedTable[str, float] = BoundedTable(
            clients_max, counters, "rests_forgotten"
        )

    def note(self, client_id: str, began_s: float | None, now_s: float) -> None:
        """It has caught up, or has been given up."""
        if began_s is not None:
            self._until_s[client_id] = now_s + max(_REST_MIN_S, now_s - began_s)

    def is_resting(self, client_id: str, now_s: float) -> bool:
        until_s = self._until_s.get(client_id)
        if until_s is None or now_s < until_s:
            return until_s is not None
        del self._until_s[client_id]
        return False
