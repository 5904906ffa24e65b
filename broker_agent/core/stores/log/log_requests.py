"""What is asked of a log, and what it answers: effects of a broker's core, and its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from broker_agent.core.stores.log.log_rows import NOWHERE, LogRow, Stamp, StampRange


@dataclass(frozen=True, slots=True)
class UnitExtent:
    """What a store has of a unit: of (since, upto] all but the holes."""

    since: Stamp
    upto: Stamp
    holes: Sequence[StampRange]


@dataclass(frozen=True, slots=True)
class AppendToLog:
    """Make these rows last, and say when all of them do."""

    number: int
    rows: Sequence[LogRow]
    # They come from another store: what the log then has of their units is to be said.
    fills: bool = False


class AppendRefusal(Enum):
    FULL = "full"
    FAILED = "failed"
    BUSY = "busy"
    TOO_MANY_UNITS = "too many units"
    # The log has a part of it already, and cannot take it apart.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class AppendStored:
    """They are on the disk, synced."""

    number: int
    # Of units that were filled.
    extents: Mapping[str, UnitExtent] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """They are not, or not all of them. Full or busy: they may come again, later."""

    number: int
    refusal: AppendRefusal
    # For people.
    reason: str


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """Rows of one unit after a stamp, in order. Not less than one, if there are any."""

    number: int
    unit: str
    after: Stamp = NOWHERE
    # A topic, or a pattern. Empty: all of the unit's.
    pattern: str = ""
    # Begin with the first row that may have events of this time or later.
    since_us: int = 0
    bytes_max: int = 1 << 20
    # Where the answer before came to; it says so itself.
    first_segment: int = 0


@dataclass(frozen=True, slots=True)
class ReadTopics:
    """Rows of topics, of whatever units, in the order in which the store got them."""

    number: int
    # A topic, or a pattern.
    pattern: str
    since_us: int = 0
    bytes_max: int = 1 << 20
    # The number of the frame that the answer before came to; it says so itself.
    after_frame: int = 0
    # Of each topic the newest so many events; 0: all. What filled a hole later does not count.
    last: int = 0


@dataclass(frozen=True, slots=True)
class UnitAnswer:
    number: int
    # In the order of their stamps. Those without events say what there was, once, or that there was
    # nothing.
    rows: Sequence[LogRow]
    # All of the unit up to here that the store has is in this answer, or in those before.
    upto: Stamp
    # Stamps before that which the store cannot prove anything about.
    missing: Sequence[StampRange]
    # To be asked next; None at the end.
    following: ReadUnit | None


@dataclass(frozen=True, slots=True)
class TopicsAnswer:
    """What may be missing of the units is in their extents."""

    number: int
    rows: Sequence[LogRow]
    following: ReadTopics | None
    # By place among the rows: how many of its events are not among the newest that were asked for.
    skipped: Mapping[int, int] = field(default_factory=dict)


LogOutcome = AppendStored | AppendRefused
LogRead = ReadUnit | ReadTopics
LogAnswer = UnitAnswer | TopicsAnswer
