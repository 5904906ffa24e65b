"""Dropping what is not retained: a whole segment, or all but the rest of one, written anew.

    000000000007.rewritten --synced--> renamed to 000000000007.segment --> its index --> checkpoint

What is dropped leaves a row without data that says what was there: nobody takes it for missing, and
fetches it from another store. A segment goes as a whole only if it is the oldest of all its units:
then these begin later. If the process dies between the renaming and the checkpoint, sizes differ,
and all segments are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker_agent.core.stores.log.coverage import Coverage
from broker_agent.core.stores.log.frames import (
    FramePlace,
    decode_header,
    encode_frame,
    size_in_frame,
)
from broker_agent.core.stores.log.log_context import LogContext
from broker_agent.core.stores.log.log_files import LogDiskFullError, replace_file
from broker_agent.core.stores.log.log_rows import LogRow, RowKind, Stamp
from broker_agent.core.stores.log.reading import FrameAt, checked_rows
from broker_agent.core.stores.log.recovery import segment_name
from broker_agent.core.stores.log.retention import SegmentVerdict
from broker_agent.core.stores.log.segments import REWRITTEN, ActiveSegment, index_name
from broker_agent.core.stores.log.stored_runs import StoredRunError, run_of, selected_events
from dynatops.kit.run_events import events_of


def carry_out(context: LogContext, verdict: SegmentVerdict) -> bool:
    """Whether something was done. Raises LogFilesError."""
    if verdict.number not in context.segments.sealed:
        return False
    if _may_go(context, verdict):
        _drop(context, verdict.number)
    elif verdict.share < context.settings.rewrite_below_share:
        return _rewrite(context, verdict)
    else:
        return False
    return True


# ---- whole segments ------------------------------------------------------------------------------


def _may_go(context: LogContext, verdict: SegmentVerdict) -> bool:
    """Nothing in it is retained, and all its units begin in it: without it they begin later."""
    if not verdict.is_expired:
        return False
    number = verdict.number
    before = max((other for other in context.segments.sealed if other < number), default=0)
    for unit in context.segments.index(number).units():
        for place, covered in enumerate(context.coverage_of(unit, {}).ranges):
            is_touched = covered.first_segment <= number <= covered.last_segment
            if is_touched and (place or covered.first_segment <= before):
                return False
    return True


def _drop(context: LogContext, number: int) -> None:
    gone = _extents(context, number)
    context.counters.log_events_expired += context.segments.sealed[number].events
    context.segments.drop(number)
    context.forget_damaged(number)
    context.change_coverage(gone, lambda coverage, upto: _without(coverage, number, upto))
    context.save_checkpoint()
    context.counters.log_segments_dropped += 1


def _extents(context: LogContext, number: int) -> dict[str, list[Stamp]]:
    """Of each unit, where its rows in the segment end."""
    index = context.segments.index(number)
    ends: dict[str, list[Stamp]] = {}
    for unit in index.units():
        entries = index.unit_frames(unit)
        ends[unit] = [entries.upto(at) for at in range(len(entries.frames))]
    return ends


def _without(coverage: Coverage, number: int, ends: Iterable[Stamp]) -> Coverage:
    """What it covers once the segment is gone; where it ended is not forgotten."""
    ranges = []
    for covered in coverage.ranges:
        if covered.first_segment <= number <= covered.last_segment:
            inside = [end for end in ends if covered.after < end <= covered.upto]
            after = covered.upto if covered.last_segment == number else max(inside, default=None)
            covered = covered._replace(  # noqa: PLW2901
                after=after or covered.after, first_segment=number + 1
            )
        ranges.append(covered)
    left = [covered for covered in ranges if covered.after < covered.upto] or ranges[-1:]
    is_later = bool(left) and left[0].after > coverage.since
    expired = max(coverage.expired, left[0].after) if is_later else coverage.expired
    return Coverage(left, is_ordered=coverage.is_ordered, expired=expired)


# ---- written anew --------------------------------------------------------------------------------


def _rewrite(context: LogContext, verdict: SegmentVerdict) -> bool:
    files, number = context.files, verdict.number
    name = f"{number:012}{REWRITTEN}"
    files.remove(name)
    written = ActiveSegment(number)
    dropped = _Dropped()
    try:
        files.create(name)
        for last_frame, rows in _portions(context, verdict, dropped):
            place = FramePlace(number, last_frame, context.life, written.nbytes)
            parts = encode_frame(place, rows)
            files.append(name, parts)
            sizes = [len(row.data) for row in rows]
            written.add(written.nbytes, decode_header(parts[0]), rows, sizes)
        files.sync(name)
    except LogDiskFullError:
        # There may be room another time, when others have been dropped.
        files.remove(name)
        return False
    if dropped.is_damaged:
        # What is covered is not what it was.
        files.remove(name)
        return True
    # The index of before is of other places, and must be gone first.
    files.remove(index_name(number))
    files.rename(name, segment_name(number))
    context.segments.forget_index(number)
    context.segments.sealed[number] = written.info()
    context.forget_damaged(number)
    replace_file(files, index_name(number), written.index.encode())
    context.save_checkpoint()
    context.counters.log_segments_rewritten += 1
    context.counters.log_events_expired += dropped.expired
    context.counters.log_events_compacted += dropped.compacted
    return True


class _Dropped:
    def __init__(self) -> None:
        self.expired = 0
        self.compacted = 0
        self.is_damaged = False


def _portions(
    context: LogContext, verdict: SegmentVerdict, dropped: _Dropped
) -> Iterator[tuple[int, list[LogRow]]]:
    """Rows of each new frame, with the number of the last old one that it has rows of."""
    rows = _RowsLeft()
    number = 0
    for at in _frames(context, verdict.number):
        found = checked_rows(context, at)
        if found is None:
            dropped.is_damaged = True
            return
        if rows.nbytes >= context.settings.frame_bytes:
            yield number, rows.take()
        number = at.frame.number
        for place, row in enumerate(found):
            rows.add(_left_of(row, at.place, place, verdict, dropped))
    if rows.rows:
        yield number, rows.take()


def _frames(context: LogContext, number: int) -> Iterator[FrameAt]:
    index = context.segments.index(number)
    for place in range(len(index)):
        yield FrameAt(number, place, index.frame(place))


def _left_of(
    row: LogRow, frame: int, place: int, verdict: SegmentVerdict, dropped: _Dropped
) -> LogRow:
    if not row.events:
        return row
    if not verdict.keeps(row.topic, frame):
        dropped.expired += row.events
        return row._replace(kind=RowKind.EXPIRED, events=0, data=b"")
    kept = verdict.kept_events.get((frame, place))
    if kept is None or len(kept) == row.events:
        return row
    if not kept:
        dropped.compacted += row.events
        return row._replace(kind=RowKind.NOTHING, events=0, data=b"")
    try:
        run = run_of(row)
    except StoredRunError:
        return row
    events = events_of(run) if run is not None else None
    if run is None or events is None:
        return row
    dropped.compacted += row.events - len(kept)
    data = selected_events(run, kept, events).SerializeToString()
    return row._replace(events=len(kept), data=data)


class _RowsLeft:
    """Rows of the next frame. What has nothing, and follows what has nothing, joins it."""

    def __init__(self) -> None:
        self.rows: list[LogRow] = []
        self._places: dict[str, int] = {}
        self.nbytes = 0

    def add(self, row: LogRow) -> None:
        place = self._places.get(row.unit)
        if place is not None:
            before = self.rows[place]
            is_alike = (before.kind, before.topic, before.events) == (row.kind, row.topic, 0)
            if is_alike and not row.events and before.upto == row.after:
                self.rows[place] = _joined(before, row)
                return
        self._places[row.unit] = len(self.rows)
        self.rows.append(row)
        self.nbytes += size_in_frame(row)

    def take(self) -> list[LogRow]:
        rows, self.rows, self.nbytes = self.rows, [], 0
        self._places = {}
        return rows


def _joined(before: LogRow, row: LogRow) -> LogRow:
    first = before.first if before.term == row.term else row.first
    return row._replace(
        after_term=before.after_term, after_seq=before.after_seq, first=first,
        first_us=min(before.first_us, row.first_us), last_us=max(before.last_us, row.last_us),
    )  # fmt: skip
