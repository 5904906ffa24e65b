"""The log of a store: events of the topics that it keeps, on its disk.

    log = EventLog.open(files, settings, life)
    outcomes = log.commit([AppendToLog(1, rows), AppendToLog(2, rows)])     # written and synced
    together
    answer = log.read(ReadUnit(3, unit="news", after=(7, 100)))

One thread uses it. `commit` answers only what is synced; `read` serves only what it has just
checked. If a sync fails, nobody knows what is on the disk: the log takes nothing more in this life,
and says so. Damage is told, and is a hole from then on; what fills it is appended like everything
else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from broker_agent.core.stores.log.coverage import Coverage
from broker_agent.core.stores.log.dropping import carry_out
from broker_agent.core.stores.log.frames import (
    FRAME_BYTES_MAX,
    FramePlace,
    decode_header,
    encode_frame,
    size_in_frame,
)
from broker_agent.core.stores.log.log_context import UNCOVERED, LogContext, LogHealth
from broker_agent.core.stores.log.log_counters import LogCounters
from broker_agent.core.stores.log.log_files import LogDiskFullError, LogFiles, LogFilesError
from broker_agent.core.stores.log.log_notices import LogDiskIsFull, LogNotice, LogResumed
from broker_agent.core.stores.log.log_requests import (
    AppendRefusal,
    AppendRefused,
    AppendStored,
    AppendToLog,
    LogAnswer,
    LogOutcome,
    LogRead,
    ReadUnit,
    UnitExtent,
)
from broker_agent.core.stores.log.log_rows import LogRow, Stamp
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.opening import rebuild, recover
from broker_agent.core.stores.log.reading import (
    frame_before,
    read_topics,
    read_unit,
)
from broker_agent.core.stores.log.recovery import segment_name
from broker_agent.core.stores.log.retention import RetentionPass, RetentionRule
from broker_agent.core.stores.log.segments import ActiveSegment, SegmentUnprovenError
from broker_agent.core.stores.log.stored_runs import StoredRunError, part_of_row

_REFUSALS = {LogHealth.FULL: AppendRefusal.FULL, LogHealth.FAILED: AppendRefusal.FAILED}


_Answer = TypeVar("_Answer")


class EventLog:
    def __init__(self, context: LogContext, rules: Sequence[RetentionRule]) -> None:
        self._context = context
        self._rules = rules
        self._pass: RetentionPass | None = None

    @classmethod
    def open(
        cls,
        files: LogFiles,
        settings: LogSettings,
        life: int,
        rules: Sequence[RetentionRule] = (),
    ) -> EventLog:
        """`life`: of the store, more than any before. Raises LogFilesError, if the disk does not
        work."""
        context = LogContext(files, settings, life)
        recover(context)
        return cls(context, rules)

    # ---- what it says of itself -----------------------------------------------------------------

    @property
    def health(self) -> LogHealth:
        return self._context.health

    @property
    def counters(self) -> LogCounters:
        return self._context.counters

    @property
    def nbytes(self) -> int:
        return self._context.segments.nbytes

    @property
    def events(self) -> int:
        return self._context.segments.events

    def extent(self, unit: str) -> UnitExtent | None:
        coverage = self._context.coverage.get(unit)
        if coverage is None or not coverage.ranges:
            return None
        return UnitExtent(coverage.since, coverage.upto, coverage.holes())

    def extents(self) -> Mapping[str, UnitExtent]:
        """By unit: what a broker goes on from."""
        found = ((unit, self.extent(unit)) for unit in self._context.coverage)
        return {unit: extent for unit, extent in found if extent is not None}

    def coverage(self, unit: str) -> Coverage:
        return self._context.coverage.get(unit, UNCOVERED)

    @property
    def life(self) -> int:
        return self._context.life

    @property
    def version(self) -> int:
        """The same for as long as units change at their ends only, in one life."""
        return self._context.version

    def units_changed_since(self, version: int) -> Iterator[str]:
        """Units that have not only grown at their ends since then."""
        changed = self._context.changed
        return (unit for unit in self._context.coverage if changed.get(unit, 0) > version)

    def take_notices(self) -> list[LogNotice]:
        return self._context.notices.take_all()

    # ---- reading --------------------------------------------------------------------------------

    def read(self, request: LogRead) -> LogAnswer:
        """Raises LogFilesError, if the disk does not work; damage is part of the answer."""
        return self._proven(lambda: self._read(request))

    def _proven(self, ask: Callable[[], _Answer]) -> _Answer:
        """What it comes to, once all segments have been read again if one cannot be proven."""
        try:
            return ask()
        except SegmentUnprovenError as unproven:
            self._rebuild(unproven)
            return ask()

    def _read(self, request: LogRead) -> LogAnswer:
        if isinstance(request, ReadUnit):
            return read_unit(self._context, request)
        return read_topics(self._context, request)

    def is_ordered(self, unit: str) -> bool:
        """Whether all of it came in the order of its stamps."""
        return self._context.coverage.get(unit, UNCOVERED).is_ordered

    def units(self) -> Iterable[str]:
        return self._context.coverage

    def frame_before(self, unit: str, stamp: Stamp) -> int:
        """The number of a frame behind which all later rows of the unit are; 0: of none."""
        return self._proven(lambda: frame_before(self._context, unit, stamp))

    # ---- writing --------------------------------------------------------------------------------

    def commit(self, appends: Sequence[AppendToLog]) -> list[LogOutcome]:
        """Write and sync them all together; each is stored, or is not."""
        sizes = (size_in_frame(row) for append in appends for row in append.rows)
        self._look_at_room(FRAME_BYTES_MAX + sum(sizes))
        if self.health is not LogHealth.WHOLE:
            return self._refuse(appends)
        outcomes: list[LogOutcome] = []
        try:
            active = self._segment_to_write()
            group = _LogGroup(self._context, active.number)
            outcomes = [group.add(append) for append in appends]
            self._write(active, group)
        except LogDiskFullError as error:
            self._become_full(str(error))
        except LogFilesError as error:
            self._context.fail(str(error))
        if self.health is not LogHealth.WHOLE:
            return self._refuse(appends)
        self.counters.log_appends_refused += sum(
            isinstance(each, AppendRefused) for each in outcomes
        )
        return [self._answered(*each) for each in zip(appends, outcomes, strict=True)]

    def _answered(self, append: AppendToLog, outcome: LogOutcome) -> LogOutcome:
        if not append.fills or isinstance(outcome, AppendRefused):
            return outcome
        found = ((unit, self.extent(unit)) for unit in {row.unit: None for row in append.rows})
        return AppendStored(append.number, {u: extent for u, extent in found if extent is not None})

    def _refuse(self, appends: Sequence[AppendToLog]) -> list[LogOutcome]:
        self.counters.log_appends_refused += len(appends)
        refusal = _REFUSALS[self.health]
        return [AppendRefused(append.number, refusal, self._context.reason) for append in appends]

    def _segment_to_write(self) -> ActiveSegment:
        context, segments = self._context, self._context.segments
        active = segments.active
        if active is not None and active.nbytes >= context.settings.segment_bytes:
            context.seal()
            active = None
        if active is None:
            active = segments.begin(context.newest_segment + 1)
            context.newest_segment = active.number
        return active

    def _write(self, active: ActiveSegment, group: _LogGroup) -> None:
        if not group.rows:
            return
        context, name = self._context, segment_name(active.number)
        frames = list(_frames(group.rows, context, active))
        try:
            context.files.append(name, [part for parts, _ in frames for part in parts])
        except LogDiskFullError:
            context.files.cut(name, active.nbytes)
            raise
        context.files.sync(name)
        context.settle(group.covered)
        before = active.nbytes
        for parts, rows in frames:
            sizes = [len(row.data) for row in rows]
            active.add(active.nbytes, decode_header(parts[0]), rows, sizes)
        context.next_frame += len(frames)
        self.counters.log_syncs += 1
        self.counters.log_events_stored += sum(row.events for row in group.rows)
        self.counters.log_bytes_written += active.nbytes - before
        context.segments.mark_durable(active.number, active.nbytes)

    def close(self) -> None:
        """Seal what is written to, so that nothing has to be read when it is opened. Raises
        LogFilesError."""
        if self.health is not LogHealth.FAILED:
            self._context.seal()

    # ---- what is not retained -------------------------------------------------------------------

    def tend(self, now_us: int) -> bool:
        """Look at one more segment, and drop what is not retained. False: this pass is at its end,
        and the next call begins another. A disk that fails is told."""
        context = self._context
        if not self._rules or context.health is LogHealth.FAILED:
            return False
        try:
            if self._pass is None:
                self._pass = RetentionPass(context, self._rules, now_us)
            verdict = self._pass.next_verdict()
            if verdict is not None:
                carry_out(context, verdict)
                return True
        except SegmentUnprovenError as unproven:
            self._rebuild(unproven)
        except LogDiskFullError as error:
            self._become_full(str(error))
        except LogFilesError as error:
            context.fail(str(error))
        self._pass = None
        return False

    def _rebuild(self, unproven: SegmentUnprovenError) -> None:
        rebuild(self._context, str(unproven))

    # ---- room -----------------------------------------------------------------------------------

    def _look_at_room(self, wanted_bytes: int) -> None:
        """Refuse early: what the log keeps beside events needs room, too, and so does who cleans
        up."""
        context, settings = self._context, self._context.settings
        if context.health is LogHealth.FAILED:
            return
        try:
            free = context.files.free_bytes()
        except LogFilesError as error:
            context.fail(str(error))
            return
        is_full = context.health is LogHealth.FULL
        least = settings.resume_above_free_bytes if is_full else settings.refuse_below_free_bytes
        if free - wanted_bytes < least:
            self._become_full(f"the disk has {free >> 20} MB left; {least >> 20} MB must remain")
        elif settings.log_bytes_max and self.nbytes + wanted_bytes > settings.log_bytes_max:
            self._become_full(f"the log has {self.nbytes >> 20} MB, and may not have more")
        elif is_full:
            context.health = LogHealth.WHOLE
            context.notices.put(LogResumed())

    def _become_full(self, reason: str) -> None:
        context = self._context
        if context.health is LogHealth.WHOLE:
            context.health = LogHealth.FULL
            context.notices.put(LogDiskIsFull(reason))
        context.reason = reason


class _LogGroup:
    """Rows that are to be written together, without what the log has already."""

    def __init__(self, context: LogContext, segment: int) -> None:
        self._context = context
        self._segment = segment
        # Of the units that it has rows of, what will be covered.
        self.covered: dict[str, Coverage] = {}
        self.rows: list[LogRow] = []

    def add(self, append: AppendToLog) -> LogOutcome:
        """What is to be said once the group is written."""
        known, units_max = self._context.coverage, self._context.settings.units_max
        units = {row.unit for row in append.rows}
        if not units <= known.keys():
            units |= self.covered.keys()
            if len(known) + len(units - known.keys()) > units_max:
                self._context.forget_empty_units()
            if len(known) + len(units - known.keys()) > units_max:
                reason = f"the log has {units_max} topics or streams, and may not have more"
                return AppendRefused(append.number, AppendRefusal.TOO_MANY_UNITS, reason)
        try:
            for row in append.rows:
                self._add_row(row)
        except StoredRunError as error:
            return AppendRefused(append.number, AppendRefusal.UNREADABLE, str(error))
        return AppendStored(append.number)

    def _add_row(self, row: LogRow) -> None:
        if row.after >= row.upto:
            raise ValueError(f"a row of {row.unit} covers nothing: {row.after} to {row.upto}")
        coverage = self._context.coverage_of(row.unit, self.covered)
        ranges = coverage.ranges
        if not ranges or row.after >= ranges[-1].upto:
            self._cover(row)
            return
        missing = coverage.missing_in(row.after, row.upto)
        if not missing:
            self._context.counters.log_rows_repeated += 1
        for part in missing:
            self._cover(part_of_row(row, *part)._replace(is_late=1))

    def _cover(self, row: LogRow) -> None:
        self._context.cover(row, self._segment, self.covered)
        self.rows.append(row)


def _frames(
    rows: Iterable[LogRow], context: LogContext, active: ActiveSegment
) -> Iterator[tuple[list[bytes], list[LogRow]]]:
    """Frames that are not larger than they may be, if no row is."""
    number = context.next_frame
    for together in _portions(rows, context.settings.frame_bytes):
        place = FramePlace(active.number, number, context.life, active.nbytes)
        yield encode_frame(place, together), together
        number += 1


def _portions(rows: Iterable[LogRow], bytes_max: int) -> Iterator[list[LogRow]]:
    portion: list[LogRow] = []
    nbytes = 0
    for row in rows:
        size = size_in_frame(row)
        if portion and nbytes + size > bytes_max:
            yield portion
            portion, nbytes = [], 0
        portion.append(row)
        nbytes += size
    if portion:
        yield portion
