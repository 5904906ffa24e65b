"""What the parts of one log share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from broker_agent.core.stores.log.checkpoint import LogCheckpoint, encode_checkpoint
from broker_agent.core.stores.log.coverage import Coverage
from broker_agent.core.stores.log.log_counters import LogCounters
from broker_agent.core.stores.log.log_files import (
    LogDiskFullError,
    LogFiles,
    LogFilesError,
    replace_file,
)
from broker_agent.core.stores.log.log_notices import (
    LogDamaged,
    LogFailed,
    LogNotice,
    LogRangeGivenUp,
)
from broker_agent.core.stores.log.log_rows import LogRow, StampRange
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.segment_index import SegmentIndex
from broker_agent.core.stores.log.segments import CHECKPOINT, Segments
from dynatops.kit.bounded import BoundedQueue

UNCOVERED = Coverage()

Change = TypeVar("Change")


class LogHealth(Enum):
    WHOLE = "whole"
    # Refuses events for want of room, until there is some.
    FULL = "full"
    # Refuses events as long as this life lasts.
    FAILED = "failed"


class LogContext:
    def __init__(self, files: LogFiles, settings: LogSettings, life: int) -> None:
        self.files = files
        self.settings = settings
        self.life = life
        self.counters = LogCounters()
        self.segments = Segments(files, settings.index_bytes_max, self.counters)
        # By unit.
        self.coverage: dict[str, Coverage] = {}
        # Of units that the segment which is written to has rows of: what others cover.
        self._before_active: dict[str, Coverage] = {}
        # How often something other than the end of a unit has changed; and, by unit, when last.
        self.version = 0
        self.changed: dict[str, int] = {}
        # The number of the next frame, and of the newest segment there has been.
        self.next_frame = 1
        self.newest_segment = 0
        self.newest_sealed = 0
        self.health = LogHealth.WHOLE
        # Why it takes no events.
        self.reason = ""
        self.notices: BoundedQueue[LogNotice] = BoundedQueue(
            settings.notices_max, self.counters, "log_notices_dropped"
        )

    def coverage_of(self, unit: str, covered: Mapping[str, Coverage]) -> Coverage:
        """As it will be, where `covered` says so."""
        return covered.get(unit) or self.coverage.get(unit, UNCOVERED)

    def cover(self, row: LogRow, segment: int, covered: dict[str, Coverage]) -> None:
        """A row at the end of the log; none of its stamps is covered yet. `covered`: where that is
        noted."""
        before = self.coverage_of(row.unit, covered)
        coverage = before.with_range(row.after, row.upto, segment)
        if len(coverage.ranges) != len(before.ranges) or row.after != before.upto:
            self._note_change(row.unit)
        if len(coverage.ranges) > self.settings.ranges_max:
            oldest = coverage.ranges[0]
            lost = oldest.after, oldest.upto
            coverage = coverage.without_range(*lost, is_given_up=True)
            self.counters.log_ranges_given_up += 1
            self.notices.put(LogRangeGivenUp(row.unit, lost))
        covered[row.unit] = coverage

    def _note_change(self, unit: str) -> None:
        self.version += 1
        self.changed[unit] = self.version

    def fail(self, reason: str) -> None:
        """The disk did what cannot be mended by trying again."""
        if self.health is not LogHealth.FAILED:
            self.health = LogHealth.FAILED
            self.reason = reason
            self.notices.put(LogFailed(reason))

    def settle(self, covered: Mapping[str, Coverage]) -> None:
        """Rows that the segment which is written to has now."""
        for unit, coverage in covered.items():
            self._before_active.setdefault(unit, self.coverage.get(unit, UNCOVERED))
            self.coverage[unit] = coverage

    def change_coverage(
        self, of_units: Mapping[str, Change], change: Callable[[Coverage, Change], Coverage]
    ) -> None:
        """Of sealed segments."""
        for unit in of_units:
            self._note_change(unit)
        for coverages in (self.coverage, self._before_active):
            for unit, with_what in of_units.items():
                if unit in coverages:
                    coverages[unit] = change(coverages[unit], with_what)

    def seal(self) -> None:
        """Write no more to the segment that is written to. Raises LogFilesError."""
        if self.segments.active is not None:
            self.segments.seal_active()
            self._before_active = {}
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        """Of sealed segments: what the one that is written to covers is found again in it. Raises
        LogFilesError."""
        coverage = {**self.coverage, **self._before_active}
        sealed = self.segments.sealed
        self.newest_sealed = max(self.newest_sealed, *sealed, 0)
        checkpoint = LogCheckpoint(
            life=self.life,
            next_frame=self.next_frame,
            newest_sealed=self.newest_sealed,
            segments=sealed,
            coverage={unit: each for unit, each in coverage.items() if each.ranges},
            damaged=frozenset(place for place in self.segments.damaged if place[0] in sealed),
        )
        replace_file(self.files, CHECKPOINT, encode_checkpoint(checkpoint))

    def forget_damaged(self, segment: int) -> None:
        """It is gone, or was written anew."""
        self.segments.damaged = {place for place in self.segments.damaged if place[0] != segment}

    def forget_empty_units(self) -> None:
        """Of which all was dropped."""
        for unit, coverage in list(self.coverage.items()):
            if coverage.since == coverage.upto:
                del self.coverage[unit]
                self.changed.pop(unit, None)

    # ---- damage ---------------------------------------------------------------------------------

    def quarantine(self, segment: int, place: int, reason: str) -> None:
        """A frame was not what had been written: nothing of it is served any more. Raises
        LogFilesError."""
        index = self.segments.index(segment)
        frame = index.frame(place)
        rows = self.segments.rows_by_directory(segment, frame)
        events = sum(row.events for row in rows) if rows is not None else None
        ranges = list(_ranges_in(index, place))
        self.segments.damaged.add((segment, frame.offset))
        self.lose(ranges)
        self.tell_damage(segment, frame.offset, frame.nbytes, events, ranges, reason)
        self._note_damage()

    def tell_damage(
        self,
        segment: int,
        offset: int,
        nbytes: int,
        events: int | None,
        lost: Sequence[tuple[str, StampRange]] | None,
        reason: str,
    ) -> None:
        self.counters.log_frames_damaged += 1
        told = _joined(lost) if lost is not None else None
        self.notices.put(LogDamaged(segment, offset, nbytes, events, told, reason))

    def tell_missing(self, unit: str, lost: StampRange) -> None:
        """Rows that should be there are not."""
        self.tell_damage(0, 0, 0, None, [(unit, lost)], "events are not where they were stored")
        self._note_damage()

    def _note_damage(self) -> None:
        if len(self.segments.damaged) > self.settings.damaged_max:
            self.fail(f"more than {self.settings.damaged_max} frames are damaged")
            return
        try:
            self.save_checkpoint()
        except LogDiskFullError:
            # Another time: until then it is found again after a restart.
            return
        except LogFilesError as error:
            self.fail(f"damage could not be noted: {error}")

    def lose(self, ranges: Iterable[tuple[str, StampRange]]) -> None:
        for unit, lost in ranges:
            self.change_coverage({unit: lost}, lambda coverage, lost: coverage.without_range(*lost))


def _ranges_in(index: SegmentIndex, frame: int) -> Iterator[tuple[str, StampRange]]:
    """What the rows of a frame cover, of each unit."""
    for unit in index.units():
        entries = index.unit_frames(unit)
        at = bisect_left(entries.frames, frame)
        while at < len(entries.frames) and entries.frames[at] == frame:
            yield unit, (entries.after(at), entries.upto(at))
            at += 1


def _joined(ranges: Sequence[tuple[str, StampRange]]) -> tuple[tuple[str, StampRange], ...]:
    """One for each unit; with what lies between its ranges."""
    found: dict[str, StampRange] = {}
    for unit, (after, upto) in ranges:
        known = found.get(unit, (after, upto))
        found[unit] = min(after, known[0]), max(upto, known[1])
    return tuple(found.items())
