"""Runs and bundles of the wire as rows of a log, and back.

A run is kept as it is encoded; nobody looks at its events, but for the time of the first. Events of
a bundle are rows of one event each, of which only the payload is kept beside the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from broker_agent.core.stores.log.log_rows import LogRow, RowKind, Stamp
from dynatops.kit.bundles import Bundle, events_with
from dynatops.kit.repeats import part_of_run
from dynatops.kit.run_events import count_of, events_of
from dynatops.v1.overlay_pb2 import Event, Events, Run

# The unit of a topic's events: on a ring the topic itself.
UnitOf = Callable[[str], str]


class StoredRunError(ValueError):
    """A row is sound, and its data is no run."""


def row_of_run(run: Run, unit: str, now_us: int, after: Stamp | None = None) -> LogRow:
    """`after`: it covers what comes after that; without, what is between a term's first run and the
    history before it, or nothing beside its own stamps. `now_us`: when the store got it."""
    if after is None:
        is_first_of_term = run.prev_term and run.first_seq == 1
        after = (run.prev_term, run.prev_seq) if is_first_of_term else (run.term, run.first_seq - 1)
    published_us = first_published_us(run.events) or now_us
    return LogRow(
        unit, run.topic, RowKind.RUN, after[0], after[1], run.term, run.first_seq,
        run.first_seq + run.count - 1, count_of(run), run.publisher, run.first_number,
        min(published_us, now_us), max(published_us, now_us), run.SerializeToString(),
    )  # fmt: skip


def rows_of_bundle(
    bundle: Bundle, unit_of: UnitOf, now_us: int, after: Stamp | None = None
) -> list[LogRow]:
    """`after`: of a bundle of one unit, which covers all stamps after that up to its last."""
    rows = []
    columns = (bundle.topics, bundle.terms, bundle.seqs, bundle.numbers, bundle.published_us)
    for topic, term, seq, number, published_us, payload in zip(
        *columns, bundle.payloads, strict=True
    ):
        before = after if after is not None else (term, seq - 1)
        rows.append(
            LogRow(
                unit_of(topic), topic, RowKind.PLAIN, before[0], before[1], term, seq, seq, 1,
                bundle.publisher, number, min(published_us, now_us), max(published_us, now_us),
                _plain_data(published_us, payload),
            )
        )  # fmt: skip
        if after is not None:
            after = term, seq
    return rows


def covering_row(unit: str, after: Stamp, upto: Stamp, now_us: int, topic: str = "") -> LogRow:
    """There was nothing for this store between these."""
    first = after[1] + 1 if after[0] == upto[0] else 1
    return LogRow(
        unit, topic, RowKind.NOTHING, *after, upto[0], min(first, upto[1]), upto[1], 0, 0, 0,
        now_us, now_us, b"",
    )  # fmt: skip


def run_of(row: LogRow) -> Run | None:
    """None of a row without events. Raises StoredRunError."""
    if row.kind == RowKind.RUN:
        try:
            return Run.FromString(row.data)
        except DecodeError as error:
            raise StoredRunError(f"a run of {row.topic} cannot be read") from error
    if row.kind == RowKind.PLAIN:
        return Run(
            topic=row.topic,
            term=row.term,
            first_seq=row.first,
            count=1,
            publisher=row.publisher,
            first_number=row.number,
            events=events_with(row.data[8:], int.from_bytes(row.data[:8], "little")),
        )
    return None


def part_of_row(row: LogRow, after: Stamp, upto: Stamp) -> LogRow:
    """What of it lies between these, which it covers. Raises StoredRunError."""
    if row.after >= after and row.upto <= upto:
        return row
    first = after[1] + 1 if after[0] == row.term else row.first
    last = upto[1] if upto[0] == row.term else 0
    after = max(after, row.after)
    if last < row.first or first > row.last or row.kind != RowKind.RUN:
        # Either all of its events are between, or none.
        is_inside = first <= row.first and row.last <= last
        if is_inside:
            return row._replace(after_term=after[0], after_seq=after[1])
        return covering_row(row.unit, after, min(upto, row.upto), row.last_us, row.topic)
    first, last = max(first, row.first), min(last, row.last)
    run = run_of(row)
    assert run is not None
    part = (
        _part_of_partial(run, first, last)
        if run.partial
        else part_of_run(run, first - run.first_seq, last - first + 1)
    )
    return row._replace(
        after_term=after[0], after_seq=after[1], first=first, last=last, events=count_of(part),
        number=part.first_number, data=part.SerializeToString(),
    )  # fmt: skip


def selected_events(run: Run, places: Sequence[int], events: Sequence[Event]) -> Run:
    """Those alone, with the offsets that they have among all of its stamps."""
    offsets = run.selected if run.partial else range(run.count)
    part = Run()
    part.CopyFrom(run)
    part.partial = True
    del part.selected[:]
    part.selected.extend(offsets[place] for place in places)
    attributed = any(events[place].attributes for place in places)
    chosen = Events(events=[events[place] for place in places], attributed=attributed)
    part.events = chosen.SerializeToString()
    return part


def _part_of_partial(run: Run, first: int, last: int) -> Run:
    events = events_of(run)
    if events is None:
        raise StoredRunError(f"events of {run.topic} cannot be read")
    places = [p for p, offset in enumerate(run.selected) if first <= run.first_seq + offset <= last]
    part = selected_events(run, places, events)
    shift = first - run.first_seq
    shifted = [offset - shift for offset in part.selected]
    del part.selected[:]
    part.selected.extend(shifted)
    part.first_seq, part.count = first, last - first + 1
    part.first_number = run.first_number + shift
    return part


def _plain_data(published_us: int, payload: bytes) -> bytes:
    return published_us.to_bytes(8, "little") + payload


def first_published_us(events: bytes) -> int:
    """When the first of a serialised `Events` was published; 0 if that cannot be read."""
    # Field 1, of so many bytes.
    if not events or events[0] != 0x0A:
        return 0
    length = shift = 0
    for at in range(1, min(len(events), 6)):
        length |= (events[at] & 0x7F) << shift
        shift += 7
        if events[at] < 0x80:
            try:
                return Event.FromString(events[at + 1 : at + 1 + length]).published_us
            except DecodeError:
                return 0
    return 0
