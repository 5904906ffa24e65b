"""What a store must be able to do to serve the past: the seam between requests and the log.

    PastServing --ReadOrder--> StoreReader ... log, disk
    PastServing <--StorePortion-- (at once, or when the disk has been read)

Each order is answered once, by a portion or by what is wrong. Where reading goes on after a portion
is the reader's to say (`place`); nobody else looks into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dynatops.v1.overlay_pb2 import LogSpan, PastError, PastRange
from overlay.forwarding.streams.portions import Portion


@dataclass(frozen=True, slots=True)
class ServedKey:
    """Of a request that a store has open: the broker that asks, its life, and its number there."""

    broker_id: str
    incarnation: int
    request: int


@dataclass(frozen=True, slots=True)
class LogStanding:
    """What a log says of itself."""

    # The version is the same for as long as units have changed at their ends only, in this life.
    life: int = 0
    version: int = 0
    # Of its own store: frames that were found damaged in this life, units with holes.
    damaged: int = 0
    units_with_holes: int = 0


@dataclass(frozen=True, slots=True)
class ReadOrder:
    key: ServedKey
    # A topic, or a pattern: whatever of it the store has.
    unit: str
    # What is asked for of it. If what follows one of its places is not kept any more, the answer is
    # that it has expired, unless `with_loss`. If there is nothing beyond the places, and one of
    # them is beyond all that the store has of its topic, the answer is that it is in the future.
    wanted: PastRange
    # Where a portion ended, of this request or of one before it: reading goes on from there, to the
    # end. Empty: from where what is asked for begins.
    place: bytes
    bytes_max: int
    # For another store (`wanted.for_store`): whether all that it keeps is kept here, too.
    proves_streams: bool = False
    # For the store here: what of these spans, of another one's log, is not in the log?
    compared: Sequence[LogSpan] | None = None


@dataclass(frozen=True, slots=True)
class StorePortion:
    """Events in the order in which they are to be read: of a topic in the order of its history."""

    events: Sequence[Portion] = ()
    place: bytes = b""
    is_end: bool = False
    # Something that was asked for is not kept any more, and `with_loss` was said.
    is_lossy: bool = False
    # There is no portion, for this reason; `message` says it to people.
    error: PastError.ValueType = PastError.PAST_ERROR_UNSPECIFIED
    message: str = ""
    # Between stores: what a log covers; or lacks; or of what these events are all there are.
    spans: Sequence[LogSpan] = ()
    standing: LogStanding = LogStanding()
    more_units: bool = False


class StoreStanding(Protocol):
    def has_come_to(self, topic: str, term: int, seq: int) -> bool:
        """Whether all of the topic up to this stamp that is kept here is on the disk; of
        `$streams`, all of the stream."""


class StoreReader(Protocol):
    def begin_read(self, order: ReadOrder) -> None:
        """Answered by `PastServing.on_portion`, later; never from within this call."""
