"""What one store tells another of its log, and what it lacks of another one's.

    peer: outline  spans that its log covers, a page of units at a time
    here: lacking  what of these the log here does not cover
    peer: filling  the events of those; and of which spans these are all that there are

A span is proven, or nothing is said of it: what is damaged meanwhile, or is retained no more, is
not. Streams of a tree have events of many topics, and a log knows all of a stream that is of the
patterns kept there: only a store that keeps all of what the other one keeps can prove anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest

from broker_agent.core.base.store_units import (
    is_side_unit,
    stream_of_unit,
    term_of_side_unit,
    topic_of_unit,
)
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_requests import ReadUnit, UnitAnswer
from broker_agent.core.stores.log.log_rows import LogRow, RowKind, Stamp, StampRange
from broker_agent.core.stores.log.stored_runs import StoredRunError, part_of_row, run_of
from broker_agent.core.stores.store_reader import LogStanding, ReadOrder, StorePortion
from dynatops.kit.filters import pattern_matches
from dynatops.v1.overlay_pb2 import ForStore, LogSpan, PastError, Run

# In one page of an outline; a unit more at most.
_SPANS_PER_PAGE = 500
# Where reading goes on: at which span, behind which stamp.
_PLACE = struct.Struct("<IQQ")


def is_about_logs(order: ReadOrder) -> bool:
    """Whether it is a store that asks: another one, or the one here itself."""
    return order.compared is not None or order.wanted.HasField("for_store")


def read_for_store(log: EventLog, order: ReadOrder) -> StorePortion:
    """Raises LogFilesError, if the disk does not work."""
    if order.compared is not None:
        lacked = [part for span in order.compared for part in _lacked_of(log, span)]
        return StorePortion(is_end=True, spans=lacked, standing=_standing(log))
    wanted = order.wanted.for_store
    if wanted.spans:
        return _Filling(log, order).portion()
    return _outline(log, wanted, proves_streams=order.proves_streams)


def span_of(unit: str, after: Stamp, upto: Stamp) -> LogSpan:
    return LogSpan(unit=unit, after_term=after[0], after_seq=after[1], term=upto[0], seq=upto[1])


def range_of(span: LogSpan) -> StampRange:
    return (span.after_term, span.after_seq), (span.term, span.seq)


def is_of_patterns(unit: str, patterns: Sequence[str]) -> bool:
    """Whether some of it may be of these; all of it, if it is of one topic."""
    topic = topic_of_unit(unit)
    return not topic or any(pattern_matches(pattern, topic) for pattern in patterns)


def _standing(log: EventLog) -> LogStanding:
    holes = sum(len(log.coverage(unit).spans()) > 1 for unit in log.units())
    damaged = log.counters.log_frames_damaged
    return LogStanding(log.life, log.version, damaged=damaged, units_with_holes=holes)


# ---- what there is -------------------------------------------------------------------------------


def _outline(log: EventLog, wanted: ForStore, *, proves_streams: bool) -> StorePortion:
    since = wanted.version if wanted.life == log.life else 0
    standing = LogStanding(log.life, log.version)
    named = (
        unit
        for unit in (log.units_changed_since(since) if since else log.units())
        if unit > wanted.after_unit
        and (proves_streams or stream_of_unit(unit) is None)
        and is_of_patterns(unit, wanted.patterns)
    )
    spans: list[LogSpan] = []
    units = nsmallest(_SPANS_PER_PAGE + 1, named)
    for place, unit in enumerate(units):
        spans += [span_of(unit, *span) for span in log.coverage(unit).spans()]
        if len(spans) >= _SPANS_PER_PAGE:
            return StorePortion(
                is_end=True, spans=spans, standing=standing, more_units=place + 1 < len(units)
            )
    return StorePortion(is_end=True, spans=spans, standing=standing)


# ---- what of it is not here ----------------------------------------------------------------------


def _lacked_of(log: EventLog, span: LogSpan) -> Iterator[LogSpan]:
    after, upto = range_of(span)
    coverage = log.coverage(span.unit)
    after = max(after, coverage.expired)
    if after >= upto:
        return
    missing: Iterable[StampRange] = coverage.missing_in(after, upto)
    if is_side_unit(span.unit):
        missing = _not_in_history(log, span.unit, missing)
    for part in missing:
        yield span_of(span.unit, *part)


def _not_in_history(
    log: EventLog, side: str, missing: Iterable[StampRange]
) -> Iterator[StampRange]:
    """What is a branch for another store may be in the history of the topic here."""
    term = term_of_side_unit(side)
    for after, upto in missing:
        for row in _rows(log, topic_of_unit(side), after, upto):
            if row.term == term and row.events:
                if after < (term, row.first - 1):
                    yield after, (term, row.first - 1)
                after = max(after, row.upto)  # noqa: PLW2901
        if after < upto:
            yield after, upto


def _rows(log: EventLog, unit: str, after: Stamp, upto: Stamp) -> Iterator[LogRow]:
    request: ReadUnit | None = ReadUnit(0, unit, after)
    while request is not None and request.after < upto:
        answer = log.read(request)
        assert isinstance(answer, UnitAnswer)
        yield from (row for row in answer.rows if row.after < upto)
        request = answer.following


# ---- its events ----------------------------------------------------------------------------------


class _Filling:
    def __init__(self, log: EventLog, order: ReadOrder) -> None:
        self._log = log
        self._order = order
        self._wanted = order.wanted.for_store
        self._events: list[Run] = []
        self._proven: list[LogSpan] = []
        self._nbytes = 0

    def portion(self) -> StorePortion:
        order, spans = self._order, self._wanted.spans
        at, behind = 0, (0, 0)
        if order.place:
            if len(order.place) != _PLACE.size:
                message = "the place to go on from is none of this store's"
                return StorePortion(error=PastError.PAST_ERROR_INVALID, message=message)
            at, *stamp = _PLACE.unpack(order.place)
            behind = stamp[0], stamp[1]
        while at < len(spans) and self._nbytes < order.bytes_max:
            following = self._read(spans[at], behind)
            at, behind = (at, following) if following is not None else (at + 1, (0, 0))
        place = _PLACE.pack(at, *behind)
        return StorePortion(self._events, place, at >= len(spans), spans=self._proven)

    def _read(self, span: LogSpan, behind: Stamp) -> Stamp | None:
        """Read on behind there; behind what it goes on, None at the end of the span."""
        unit = span.unit
        after, upto = range_of(span)
        after = max(after, behind)
        if not self._may_serve(unit) or after >= upto:
            return None
        room = max(self._order.bytes_max - self._nbytes, 1)
        answer = self._log.read(ReadUnit(0, unit, after, bytes_max=room))
        assert isinstance(answer, UnitAnswer)
        rows = [row for row in answer.rows if row.after < upto]
        end = min(answer.upto, upto)
        unproven = list(answer.missing)
        unproven += [(row.after, row.upto) for row in rows if not self._take(row, after, upto)]
        self._proven += [span_of(unit, *part) for part in _without(after, end, unproven)]
        return end if answer.following is not None and end < upto else None

    def _may_serve(self, unit: str) -> bool:
        if not self._log.coverage(unit).ranges:
            return False
        may_prove = self._order.proves_streams or stream_of_unit(unit) is None
        return may_prove and is_of_patterns(unit, self._wanted.patterns)

    def _take(self, row: LogRow, after: Stamp, upto: Stamp) -> bool:
        """Whether its events are all that there are in what it covers."""
        if row.kind == RowKind.EXPIRED:
            return False
        patterns = self._wanted.patterns
        if not row.events or not any(pattern_matches(each, row.topic) for each in patterns):
            return True
        try:
            run = run_of(part_of_row(row, max(after, row.after), min(upto, row.upto)))
        except StoredRunError:
            return False
        if run is not None:
            self._events.append(run)
            self._nbytes += len(run.events)
        return True


def _without(after: Stamp, upto: Stamp, parts: Iterable[StampRange]) -> Iterator[StampRange]:
    for begin, end in sorted(parts):
        if after < min(begin, upto):
            yield after, min(begin, upto)
        after = max(after, end)
    if after < upto:
        yield after, upto
