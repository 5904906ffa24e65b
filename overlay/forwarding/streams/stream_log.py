"""Recent events in the order in which they came, bounded.

Every entry has a place; places are counted up, never used twice. A broker has one log of all that
came by, from which its neighbours are served, one of its own streams, from which others repair, and
one for each neighbour whose keeper it is. Of a log of whole streams it is known from where on it is
complete: `floors`. What is dropped is told to whoever made the log, never in silence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from dynatops.v1.overlay_pb2 import StreamLoss
from overlay.forwarding.streams.portions import Portion, first_of, last_of, size_of, stream_of

_ENTRY_BYTES = 200
# Lives of one broker whose streams are kept.
_LIVES_MAX = 32
# So many dropped entries at the beginning of the list are let be before the list is made shorter.
_DROPPED_MIN = 1_024


@dataclass(slots=True)
class LogEntry:
    place: int
    stream: int
    first: int
    last: int
    # What is lost is said in its turn.
    item: Portion | StreamLoss
    nbytes: int
    targets: AbstractSet[str] = frozenset()
    # What those get that do not want all of it.
    parts: Mapping[str, Portion] = field(default_factory=dict)
    # Its place in the log of own streams; -1 of what came from others.
    own_place: int = -1


class StreamLog:
    def __init__(
        self,
        entries_max: int,
        bytes_max: int,
        on_drop: Callable[[LogEntry], None],
    ) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._on_drop = on_drop
        self._entries: list[LogEntry] = []
        # How many at the beginning of the list are dropped already.
        self._dropped = 0
        self.first_place = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries) - self._dropped

    @property
    def end_place(self) -> int:
        return self.first_place + len(self)

    def __getitem__(self, place: int) -> LogEntry:
        return self._entries[place - self.first_place + self._dropped]

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self._entries[self._dropped :])

    def append(self, portion: Portion) -> LogEntry:
        entry = LogEntry(
            self.end_place, stream_of(portion), first_of(portion), last_of(portion), portion, 0
        )
        entry.nbytes = size_of(portion) + _ENTRY_BYTES
        self._keep(entry)
        return entry

    def append_loss(self, loss: StreamLoss) -> LogEntry:
        entry = LogEntry(self.end_place, loss.stream, loss.after + 1, loss.upto, loss, _ENTRY_BYTES)
        self._keep(entry)
        return entry

    def _keep(self, entry: LogEntry) -> None:
        self._entries.append(entry)
        self.nbytes += entry.nbytes
        while len(self) > 1 and (len(self) > self._entries_max or self.nbytes > self._bytes_max):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        entry = self._entries[self._dropped]
        self._dropped += 1
        self.first_place += 1
        self.nbytes -= entry.nbytes
        if self._dropped >= _DROPPED_MIN and 2 * self._dropped > len(self._entries):
            del self._entries[: self._dropped]
            self._dropped = 0
        self._on_drop(entry)


class OwnedStreams:
    """Whole streams, one after the other: a log of them, and how far it reaches in each."""

    def __init__(
        self, entries_max: int, bytes_max: int, on_drop: Callable[[LogEntry], None]
    ) -> None:
        self._told_of_drops = on_drop
        self.log = StreamLog(entries_max, bytes_max, self._dropped)
        # Complete after `floors[stream]` and up to `highs[stream]`; in the order of their lives.
        self.floors: dict[int, int] = {}
        self.highs: dict[int, int] = {}
        # Streams that may have gone on beyond that.
        self.doubtful: set[int] = set()
        self._ordinals: dict[int, int] = {}
        self._begun = 0

    def begin(self, stream: int, floor: int = 0) -> None:
        if stream not in self.highs:
            self.floors[stream] = self.highs[stream] = floor
            self._ordinals[stream] = self._begun = self._begun + 1
            if len(self.highs) > _LIVES_MAX:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = next(iter(self.highs))
        for table in (self.highs, self.floors, self._ordinals):
            del table[oldest]
        self.doubtful.discard(oldest)

    def append(self, portion: Portion) -> LogEntry:
        """It must be the next of its stream, which must be the last that was begun."""
        entry = self.log.append(portion)
        self.highs[entry.stream] = entry.last
        return entry

    def begins_after(self, stream: int) -> bool:
        """Whether it is older than all lives that anything is known of."""
        return stream < min(self.highs, default=stream)

    def place_after(self, stream: int, number: int) -> int:
        """Where events of the stream with higher numbers, and streams after it, begin."""
        log, ordinals = self.log, self._ordinals
        sought = (ordinals[stream], number)

        def is_later(place: int) -> bool:
            entry = log[place]
            return (ordinals.get(entry.stream, 0), entry.last) > sought

        places = range(log.first_place, log.end_place)
        return log.first_place + bisect_left(places, True, key=is_later)

    def _dropped(self, entry: LogEntry) -> None:
        if entry.stream in self.floors:
            self.floors[entry.stream] = entry.last
        self._told_of_drops(entry)
