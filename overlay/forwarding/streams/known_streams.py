"""The streams that a broker knows, and its position V in each: everything of the stream up to there
that was wanted here has come, or is known to be lost.

A stream is one life of one broker. Whoever holds it, its origin or the keeper of one that is gone,
says in which direction of the tree it comes from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from dynatops.kit.bounded import BoundedTable
from dynatops.v1.overlay_pb2 import StreamPlace
from overlay.base.identifiers import NUMBER_MAX
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.forwarding.base.forwarding_settings import ForwardingSettings

_HASH_BITS = 22
# The place of whoever need not read on in a stream: it has ended, and what nobody knows of is told.
ALL_READ = NUMBER_MAX - 1


def stream_id(broker_id: str, incarnation: int) -> int:
    """The stream of a broker's life that began in this millisecond: grows from life to life."""
    digest = hashlib.sha1(broker_id.encode(), usedforsecurity=False).digest()
    tag = int.from_bytes(digest[:8], "big") >> (64 - _HASH_BITS)
    return incarnation << _HASH_BITS | tag


def is_stream_of(stream: int, broker_id: str) -> bool:
    """Whether it may be one of this broker's: of all others hardly ever."""
    return is_same_origin(stream, stream_id(broker_id, 0))


def is_same_origin(one: int, other: int) -> bool:
    """Whether both may be of one broker."""
    return (one ^ other) & ((1 << _HASH_BITS) - 1) == 0


def next_stream_id(latest: int) -> int:
    """Of the same broker, after one that should have been older."""
    return latest + (1 << _HASH_BITS)


@dataclass(slots=True)
class KnownStream:
    stream: int
    holder: str
    # What came before this was never asked for.
    begin: int
    # V.
    number: int
    # How many had been known before it.
    ordinal: int = 0
    # The last number, of a stream that has ended.
    end: int | None = None
    # Since when nobody in the topology holds it.
    orphan_since_s: float | None = None
    # The log has all that came of it after this.
    log_floor: int = 0
    # It has ended, and nobody knows with which number.
    is_doubtful: bool = False


class KnownStreams:
    def __init__(self, settings: ForwardingSettings, counters: ForwardingCounters) -> None:
        self._by_id: BoundedTable[int, KnownStream] = BoundedTable(
            settings.streams_max, counters, "streams_dropped"
        )
        self.get = self._by_id.get
        self.ever_known = 0

    def __iter__(self) -> Iterator[KnownStream]:
        return iter(list(self._by_id.values()))

    def add(self, stream: int, holder: str, number: int, begin: int | None = None) -> KnownStream:
        begin = number if begin is None else begin
        known = KnownStream(stream, holder, begin, number, self.ever_known)
        self.ever_known += 1
        self._by_id[stream] = known
        return known

    def forget(self, stream: int) -> None:
        self._by_id.pop(stream, None)

    def has_ended(self, stream: int) -> bool:
        """Whether its origin has begun another life since, as far as is known here."""
        known = self._by_id.get(stream)
        if known is not None:
            return known.end is not None
        return any(other > stream and is_same_origin(other, stream) for other in self._by_id)

    def positions(self) -> dict[int, int]:
        return {known.stream: known.number for known in self._by_id.values()}


def place_message(known: KnownStream, number: int) -> StreamPlace:
    place = StreamPlace(stream=known.stream, number=number, holder=known.holder)
    if known.end is not None:
        place.closed, place.end = True, known.end
    return place
