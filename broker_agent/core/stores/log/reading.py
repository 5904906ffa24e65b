"""Reading from a log: portions of a unit in the order of its stamps, of topics in the order of the
log.

Every frame is checked when it is read. A damaged one is quarantined, and what was in it is missing
from then on: a reader of a unit is told, by the stamps. It is told so as well if rows do not follow
each other as they should, whatever the reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from broker_agent.core.stores.log.coverage import Coverage, CoveredRange
from broker_agent.core.stores.log.frames import LogFrameError
from broker_agent.core.stores.log.log_context import UNCOVERED, LogContext
from broker_agent.core.stores.log.log_requests import (
    ReadTopics,
    ReadUnit,
    TopicsAnswer,
    UnitAnswer,
)
from broker_agent.core.stores.log.log_rows import LogRow, Stamp, StampRange
from broker_agent.core.stores.log.segment_index import IndexedFrame, SegmentIndex, UnitFrames
from broker_agent.core.stores.log.stored_runs import StoredRunError, part_of_row
from dynatops.kit.filters import is_wildcard, pattern_matches

# What a row counts as beside its data, in a portion that is bounded in bytes.
_ROW_BYTES = 64


class FrameAt(NamedTuple):
    segment: int
    # Which of its segment.
    place: int
    frame: IndexedFrame


def checked_rows(context: LogContext, at: FrameAt) -> list[LogRow] | None:
    """None: the frame was damaged, and is quarantined now."""
    if (at.segment, at.frame.offset) in context.segments.damaged:
        return []
    try:
        return context.segments.read_rows(at.segment, at.frame)
    except LogFrameError as error:
        context.quarantine(at.segment, at.place, str(error))
        return None


# ---- one unit ------------------------------------------------------------------------------------


def read_unit(context: LogContext, request: ReadUnit) -> UnitAnswer:
    reading = _UnitReading(context, request)
    while reading.reads_on():
        pass
    return reading.answer()


class _UnitReading:
    def __init__(self, context: LogContext, request: ReadUnit) -> None:
        self._context = context
        self._request = request
        self._rows: list[LogRow] = []
        self._nbytes = 0
        self._missing: list[StampRange] = []
        # All up to here has been read, or is missing.
        self._upto = request.after
        # Until there is a row of the time that is asked for, those before are passed over.
        self._is_seeking = request.since_us > 0
        self._segment = request.first_segment
        self._is_end = False

    def answer(self) -> UnitAnswer:
        request = self._request
        following = None
        if not self._is_end:
            since_us = request.since_us if self._is_seeking else 0
            following = ReadUnit(
                request.number, request.unit, self._upto, request.pattern, since_us,
                request.bytes_max, self._segment,
            )  # fmt: skip
        return UnitAnswer(request.number, self._rows, self._upto, self._missing, following)

    def reads_on(self) -> bool:
        """Read one range, up to its end, where the portion is full, or where something is
        damaged. Whether there is more to be read."""
        coverage = self._context.coverage.get(self._request.unit, UNCOVERED)
        covered = coverage.first_after(self._upto)
        if covered is None:
            self._is_end = True
            return False
        if covered.after >= self._upto:
            # Another range may begin in earlier segments.
            self._segment = 0
        if covered.after > self._upto:
            self._skip(covered.after)
        for at in self._frames(coverage, covered):
            if self._upto == covered.upto:
                break
            if self._nbytes >= self._request.bytes_max:
                return False
            rows = checked_rows(self._context, at)
            if rows is None:
                # What is covered is not what it was.
                self._segment = 0
                return True
            self._segment = at.segment
            for row in rows:
                if row.unit == self._request.unit and self._upto < row.upto <= covered.upto:
                    self._take(row)
        if self._upto < covered.upto:
            self._pass_over(covered.upto)
        self._segment = 0
        return True

    def _take(self, row: LogRow) -> None:
        request = self._request
        if row.after < self._upto:
            row = _later_part(row, self._upto)
        if row.after > self._upto:
            self._pass_over(row.after)
        self._upto = row.upto
        if self._is_seeking and row.last_us < request.since_us:
            return
        self._is_seeking = False
        if not request.pattern or pattern_matches(request.pattern, row.topic):
            self._rows.append(row)
            self._nbytes += len(row.data) + _ROW_BYTES
            self._context.counters.log_events_read += row.events

    def _pass_over(self, stamp: Stamp) -> None:
        """No rows up to there: they are of other topics, of another time, or are not there
        although they should be."""
        if not self._request.pattern and not self._is_seeking:
            lost = self._upto, stamp
            self._context.lose([(self._request.unit, lost)])
            self._context.tell_missing(self._request.unit, lost)
            self._missing.append(lost)
        self._upto = stamp

    def _skip(self, stamp: Stamp) -> None:
        self._missing.append((self._upto, stamp))
        self._upto = stamp

    # ---- where its rows are ---------------------------------------------------------------------

    def _frames(self, coverage: Coverage, covered: CoveredRange) -> Iterator[FrameAt]:
        request, segments = self._request, self._context.segments
        first = max(covered.first_segment, self._segment)
        infos = [info for info in segments.infos() if first <= info.number <= covered.last_segment]
        if coverage.is_ordered and not self._segment:
            infos = infos[self._first_place([info.number for info in infos]) :]
        for info in infos:
            if self._is_seeking and info.last_us < request.since_us:
                continue
            index = segments.index(info.number)
            entries = index.unit_frames(request.unit)
            first = _frames_upto(entries, self._upto) if coverage.is_ordered else 0
            wanted = _places_of(index, request.pattern) if request.pattern else None
            place = -1
            for at in range(first, len(entries.frames)):
                if entries.upto(at) <= self._upto or entries.after(at) >= covered.upto:
                    continue
                if entries.frames[at] == place or not (
                    wanted is None or entries.frames[at] in wanted
                ):
                    continue
                place = entries.frames[at]
                frame = index.frame(place)
                if not self._is_seeking or frame.last_us >= request.since_us:
                    yield FrameAt(info.number, place, frame)

    def _first_place(self, numbers: Sequence[int]) -> int:
        """Which of the segments is the first with later stamps than have been read. All before it
        have earlier ones, or none."""
        low, high = 0, len(numbers)
        while low < high:
            middle = probe = (low + high) // 2
            upto = self._upto_in(numbers[probe])
            while upto is None and probe > low:
                probe -= 1
                upto = self._upto_in(numbers[probe])
            if upto is None or upto <= self._upto:
                low = middle + 1
            else:
                high = probe
        return low

    def _upto_in(self, number: int) -> Stamp | None:
        entries = self._context.segments.index(number).unit_frames(self._request.unit)
        return entries.upto(-1) if entries.frames else None


def _frames_upto(entries: UnitFrames, stamp: Stamp) -> int:
    """How many have nothing that is later; of stamps in order."""
    return bisect_right(range(len(entries.frames)), stamp, key=entries.upto)


def _topics_of(index: SegmentIndex, pattern: str) -> list[str]:
    if not is_wildcard(pattern):
        return [pattern]
    return [topic for topic in index.topics() if topic and pattern_matches(pattern, topic)]


def _places_of(index: SegmentIndex, pattern: str) -> set[int]:
    topics = _topics_of(index, pattern)
    return {place for topic in topics for place in index.topic_frames(topic).frames}


def _later_part(row: LogRow, after: Stamp) -> LogRow:
    try:
        return part_of_row(row, after, row.upto)
    except StoredRunError:
        # As it was stored; whoever reads it knows what it has already.
        return row


# ---- topics, of whatever units -------------------------------------------------------------------


def read_topics(context: LogContext, request: ReadTopics) -> TopicsAnswer:
    rows: list[LogRow] = []
    skipped: dict[int, int] = {}
    begins = _begins_of_last(context, request) if request.last else {}
    nbytes, after = 0, request.after_frame
    for at in _frames_of_topics(context, request, begins):
        if nbytes >= request.bytes_max:
            following = replace(request, after_frame=after)
            return TopicsAnswer(request.number, rows, following, skipped)
        after = at.frame.number
        others = {t: b.others for t, b in begins.items() if b.frame == after and b.others}
        for row in checked_rows(context, at) or ():
            if row.last_us < request.since_us or not pattern_matches(request.pattern, row.topic):
                continue
            if request.last:
                skip = _not_among_last(row, after, begins, others)
                if skip == row.events:
                    continue
                if skip:
                    skipped[len(rows)] = skip
            rows.append(row)
            nbytes += len(row.data) + _ROW_BYTES
            context.counters.log_events_read += row.events
    return TopicsAnswer(request.number, rows, None, skipped)


class _BeginOfLast(NamedTuple):
    """Where the newest events of a topic begin."""

    # The number of a frame; 0: there are not so many, all of them are wanted.
    frame: int
    # Events of the topic in that frame that come before them.
    others: int


def _not_among_last(
    row: LogRow, frame: int, begins: Mapping[str, _BeginOfLast], others: dict[str, int]
) -> int:
    """How many events of this row are not wanted; `others` is what is left to be passed over."""
    begin = begins.get(row.topic)
    if begin is None or frame < begin.frame or (begin.frame and row.is_late):
        return row.events
    skip = min(others.get(row.topic, 0), row.events)
    if skip:
        others[row.topic] -= skip
    return skip


def _begins_of_last(context: LogContext, request: ReadTopics) -> dict[str, _BeginOfLast]:
    begins: dict[str, _BeginOfLast] = {}
    missing: dict[str, int] = {}
    for info in reversed(list(context.segments.infos())):
        index = context.segments.index(info.number)
        for topic in _topics_of(index, request.pattern):
            left = missing.get(topic, request.last)
            entries = index.topic_frames(topic)
            counts = zip(reversed(entries.frames), reversed(entries.events), strict=True)
            for place, count in counts if left else ():
                begins[topic] = _BeginOfLast(index.frame(place).number, max(count - left, 0))
                left = max(left - count, 0)
                if not left:
                    break
            missing[topic] = left
        if not is_wildcard(request.pattern) and not missing.get(request.pattern, 1):
            break
    whole = {topic: _BeginOfLast(0, 0) for topic, left in missing.items() if left}
    return begins | whole


def _frames_of_topics(
    context: LogContext, request: ReadTopics, begins: Mapping[str, _BeginOfLast]
) -> Iterator[FrameAt]:
    segments = context.segments
    first = min((begin.frame for begin in begins.values()), default=0)
    after_frame = max(request.after_frame, first - 1)
    for info in list(segments.infos()):
        if info.last_us < request.since_us or info.last_frame <= after_frame:
            continue
        index = segments.index(info.number)
        for place in sorted(_places_of(index, request.pattern)):
            frame = index.frame(place)
            if frame.number > after_frame and frame.last_us >= request.since_us:
                yield FrameAt(info.number, place, frame)


def frame_before(context: LogContext, unit: str, stamp: Stamp) -> int:
    """The number of a frame behind which all later rows of the unit are; 0: of none."""
    coverage = context.coverage.get(unit, UNCOVERED)
    covered = coverage.first_after(stamp)
    if covered is None:
        return context.next_frame - 1
    if not coverage.is_ordered:
        return 0
    for info in context.segments.infos():
        if info.number < covered.first_segment:
            continue
        index = context.segments.index(info.number)
        entries = index.unit_frames(unit)
        place = _frames_upto(entries, stamp)
        if place < len(entries.frames):
            return index.frame(entries.frames[place]).number - 1
    return 0
