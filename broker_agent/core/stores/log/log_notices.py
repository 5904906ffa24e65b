"""What those who run a store should hear of its log. Drivers log it, and tell the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from broker_agent.core.stores.log.log_rows import StampRange
from dynatops.kit.observing.log_lines import Level, Operation


@dataclass(frozen=True, slots=True)
class LogDamaged:
    """What was stored once is not what was written, or is gone. Nothing of it is served."""

    operation: ClassVar[Operation] = Operation(
        "log_damaged",
        "Stored events are damaged: they are served no more, until another store gives them.",
        ("broker", "segment", "offset", "nbytes", "events", "units", "reason"),
        Level.ERROR,
    )

    segment: int
    offset: int
    nbytes: int
    # None: nobody knows.
    events: int | None
    # By unit, what of it is missing; None if not even the names could be read. What is missing
    # between two events that are there is always known: see `Coverage.holes`.
    lost: tuple[tuple[str, StampRange], ...] | None
    reason: str

    @property
    def units(self) -> int | None:
        return None if self.lost is None else len(self.lost)


@dataclass(frozen=True, slots=True)
class LogCut:
    operation: ClassVar[Operation] = Operation(
        "log_cut",
        "The end of the log was not written whole when the store died. Nobody had been told that "
        "it is stored; it is cut off.",
        ("broker", "segment", "offset", "nbytes"),
        Level.WARNING,
    )

    segment: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LogRebuilt:
    operation: ClassVar[Operation] = Operation(
        "log_rebuilt",
        "What the log knows of its segments was not there, or not of these: all were read again.",
        ("broker", "segments", "reason"),
        Level.WARNING,
    )

    segments: int
    reason: str


@dataclass(frozen=True, slots=True)
class LogDiskIsFull:
    operation: ClassVar[Operation] = Operation(
        "log_full",
        "The store takes no events, for want of room; it serves what it has. Said once.",
        ("broker", "reason"),
        Level.ERROR,
    )

    reason: str


@dataclass(frozen=True, slots=True)
class LogResumed:
    operation: ClassVar[Operation] = Operation(
        "log_resumed", "There is room again: the store takes events.", ("broker",), Level.WARNING
    )


@dataclass(frozen=True, slots=True)
class LogFailed:
    operation: ClassVar[Operation] = Operation(
        "log_failed",
        "The disk failed: this store takes no events any more, until it is started again on a disk "
        "that works. It serves what it can prove.",
        ("broker", "reason"),
        Level.ERROR,
    )

    reason: str


@dataclass(frozen=True, slots=True)
class LogRangeGivenUp:
    operation: ClassVar[Operation] = Operation(
        "log_range_given_up",
        "A unit had more holes than are kept: its oldest range is served no more.",
        ("broker", "unit", "after", "upto"),
        Level.WARNING,
    )

    unit: str
    lost: StampRange

    @property
    def after(self) -> str:
        return "{}.{}".format(*self.lost[0])

    @property
    def upto(self) -> str:
        return "{}.{}".format(*self.lost[1])


LogNotice = (
    LogDamaged | LogCut | LogRebuilt | LogDiskIsFull | LogResumed | LogFailed | LogRangeGivenUp
)
