"""Events that another store gave, as rows that fill holes of a log.

    proven   (after ............................. upto]     the other store's word: these are all
    runs           [5..9]        [12..20]
    rows     (after ....9]  (9 ........20]  (20 .. upto]

A row covers what lies before its events, too, up to the row before it, or to where the span begins;
the last one has no events, if the span goes on behind them. What is not as it was said to be, is
left out, and what it was to fill is not filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from broker_agent.core.base.store_units import (
    is_side_unit,
    stream_of_unit,
    term_of_side_unit,
    topic_of_unit,
)
from broker_agent.core.stores.log.log_rows import LogRow, Stamp
from broker_agent.core.stores.log.stored_runs import covering_row, row_of_run
from broker_agent.core.stores.log_peers import range_of
from dynatops.kit.filters import pattern_matches
from dynatops.v1.overlay_pb2 import LogSpan, Run
from overlay.forwarding.streams.portions import Portion


def rows_that_fill(
    portions: Iterable[Portion],
    proven: Iterable[LogSpan],
    patterns: Sequence[str],
    now_us: int,
) -> list[LogRow]:
    """`patterns`: what the store keeps."""
    runs = [portion for portion in portions if isinstance(portion, Run)]
    kept = [run for run in runs if any(pattern_matches(p, run.topic) for p in patterns)]
    return [row for span in proven for row in _rows_of_span(span, kept, now_us)]


def _rows_of_span(span: LogSpan, runs: Iterable[Run], now_us: int) -> Iterator[LogRow]:
    after, upto = range_of(span)
    if after >= upto:
        return
    of_unit = (run for run in runs if _is_of(run, span.unit))
    inside = [run for run in of_unit if after < (run.term, run.first_seq) and _last(run) <= upto]
    for run in sorted(inside, key=_last):
        if after < (run.term, run.first_seq):
            yield row_of_run(run, span.unit, now_us, after)
            after = _last(run)
    if after < upto:
        yield covering_row(span.unit, after, upto, now_us)


def _last(run: Run) -> Stamp:
    return run.term, run.first_seq + run.count - 1


def _is_of(run: Run, unit: str) -> bool:
    stream = stream_of_unit(unit)
    if stream is not None:
        return run.term == stream
    if is_side_unit(unit) and run.term != term_of_side_unit(unit):
        return False
    return run.topic == topic_of_unit(unit)
