"""What stores tell each other of their logs: only what is proven, and no more than was asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from broker_agent.core.base.store_units import side_unit, stream_unit
from broker_agent.core.stores.filling import rows_that_fill
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_requests import AppendStored, AppendToLog
from broker_agent.core.stores.log.log_rows import LogRow, Stamp, StampRange
from broker_agent.core.stores.log.retention import RetentionRule
from broker_agent.core.stores.log.stored_runs import covering_row, row_of_run
from broker_agent.core.stores.log_peers import range_of, read_for_store, span_of
from broker_agent.core.stores.store_reader import ReadOrder, ServedKey, StorePortion
from dynatops.v1.overlay_pb2 import ForStore, LogSpan, PastRange, Run
from tests.support.event_logs import SMALL, disk, run

TOPIC = "quake/ca"
ALL = ("#",)
NOW_US = 1_000
_KEY = ServedKey("other", 1, 1)


def _log(*rows: LogRow, rules: Sequence[RetentionRule] = ()) -> EventLog:
    log = EventLog.open(disk(), SMALL, 1, rules)
    append(log, rows)
    return log


def append(log: EventLog, rows: Iterable[LogRow]) -> None:
    for row in rows:
        assert log.commit([AppendToLog(1, [row])]) == [AppendStored(1)]


def row(first: int, count: int = 1, topic: str = TOPIC, *, term: int = 1) -> LogRow:
    return row_of_run(run(topic, first, count, term=term), topic, NOW_US, (term, first - 1))


def spans(portion: StorePortion) -> list[tuple[str, StampRange]]:
    return [(span.unit, range_of(span)) for span in portion.spans]


def asked(
    log: EventLog, *, proves_streams: bool = True, bytes_max: int = 1 << 20, **wanted: object
) -> StorePortion:
    about = ForStore(patterns=ALL)
    for name, value in wanted.items():
        about.MergeFrom(ForStore(**{name: value}))  # type: ignore[arg-type]
    wanted_range = PastRange(for_store=about)
    order = ReadOrder(_KEY, "$store/b0", wanted_range, b"", bytes_max, proves_streams)
    return read_for_store(log, order)


def lacked(log: EventLog, *of_others: LogSpan) -> list[tuple[str, StampRange]]:
    order = ReadOrder(_KEY, "", PastRange(), b"", 1 << 20, compared=of_others)
    return spans(read_for_store(log, order))


def events(portion: StorePortion) -> list[int]:
    return [r.first_seq + at for r in portion.events if isinstance(r, Run) for at in range(r.count)]


def between(after: int, upto: int, unit: str = TOPIC) -> LogSpan:
    return span_of(unit, (1, after), (1, upto))


class TestOutline:
    def test_it_says_what_is_covered_whatever_ranges_it_came_in(self) -> None:
        log = _log(row(1, 3), row(8, 2), row(4, 2))
        assert spans(asked(log)) == [(TOPIC, ((1, 0), (1, 5))), (TOPIC, ((1, 7), (1, 9)))]

    def test_only_of_what_the_other_store_keeps(self) -> None:
        log = _log(row(1), row(1, topic="news"))
        portion = read_for_store(
            log,
            ReadOrder(_KEY, "", PastRange(for_store=ForStore(patterns=["news"])), b"", 100),
        )
        assert [unit for unit, _ in spans(portion)] == ["news"]

    def test_what_has_only_grown_at_its_end_is_not_said_again(self) -> None:
        log = _log(row(1), row(1, topic="news"))
        standing = asked(log).standing
        append(log, [row(2), row(5, topic="news")])
        said = asked(log, life=standing.life, version=standing.version)
        assert {unit for unit, _ in spans(said)} == {"news"}
        # Another life does not know what it said in this one.
        again = asked(log, life=standing.life + 1, version=standing.version)
        assert {unit for unit, _ in spans(again)} == {"news", TOPIC}

    def test_pages(self) -> None:
        log = _log(*[row(1, topic=f"t{number:04}") for number in range(700)])
        first = asked(log)
        assert first.more_units
        second = asked(log, after_unit=first.spans[-1].unit)
        assert not second.more_units
        units = [unit for unit, _ in [*spans(first), *spans(second)]]
        assert units == [f"t{number:04}" for number in range(700)]

    def test_a_stream_is_for_stores_that_keep_no_more_than_this_one(self) -> None:
        stream = stream_unit(7)
        log = _log(row_of_run(run(TOPIC, 3, term=7), stream, NOW_US, (7, 0)))
        assert spans(asked(log, proves_streams=False)) == []
        assert spans(asked(log)) == [(stream, ((7, 0), (7, 3)))]
        wanted = [span_of(stream, (7, 0), (7, 3))]
        assert not asked(log, proves_streams=False, spans=wanted).events


class TestLacked:
    def test_what_is_not_covered_here(self) -> None:
        log = _log(row(3, 3))
        assert lacked(log, between(0, 9)) == [(TOPIC, ((1, 0), (1, 2))), (TOPIC, ((1, 5), (1, 9)))]
        assert lacked(log, between(2, 5)) == []
        assert lacked(log, between(0, 2, "news")) == [("news", ((1, 0), (1, 2)))]

    def test_what_is_not_retained_any_more_is_not_lacked(self) -> None:
        rules = [RetentionRule(pattern="#", events_max=2)]
        log = _log(*[row(number, 1) for number in range(1, 60)], rules=rules)
        while log.tend(NOW_US):
            pass
        extent = log.extent(TOPIC)
        assert extent is not None
        assert extent.since > (1, 0)
        assert lacked(log, between(0, 59)) == []

    def test_a_branch_elsewhere_may_be_the_history_here(self) -> None:
        log = _log(row(1, 5))
        branch = side_unit(TOPIC, 1)
        assert lacked(log, between(3, 5, branch)) == []
        assert lacked(log, between(3, 8, branch)) == [(branch, ((1, 5), (1, 8)))]


class TestFilling:
    def test_events_of_the_spans_and_what_they_prove(self) -> None:
        log = _log(row(1, 5), row(9, 4))
        portion = asked(log, spans=[between(2, 10)])
        assert events(portion) == [3, 4, 5, 9, 10]
        assert spans(portion) == [(TOPIC, ((1, 2), (1, 5))), (TOPIC, ((1, 8), (1, 10)))]
        assert portion.is_end

    def test_in_portions(self) -> None:
        log = _log(*[row(number) for number in range(1, 30)])
        order = ReadOrder(
            _KEY, "", PastRange(for_store=ForStore(patterns=ALL, spans=[between(3, 25)])), b"", 90
        )
        found, proven, portions = [], [], 0
        portion = read_for_store(log, order)
        while True:
            found += events(portion)
            proven += spans(portion)
            portions += 1
            if portion.is_end:
                break
            order = ReadOrder(_KEY, "", order.wanted, portion.place, 90)
            portion = read_for_store(log, order)
        assert found == list(range(4, 26))
        assert portions > 2
        assert proven[0][1][0] == (1, 3)
        assert proven[-1][1][1] == (1, 25)
        assert all(one[1][1] == two[1][0] for one, two in pairwise(proven))

    def test_what_another_store_retains_no_more_is_not_proven(self) -> None:
        rules = [RetentionRule(pattern=TOPIC, events_max=1)]
        both = [row(n, topic=t) for n in range(1, 30) for t in (TOPIC, "news")]
        log = _log(*both, rules=rules)
        while log.tend(NOW_US):
            pass
        portion = asked(log, spans=[between(0, 29)])
        proven: list[Stamp] = [part[0] for _, part in spans(portion)]
        assert events(portion)
        assert min(proven) > (1, 0)

    def test_what_is_damaged_is_not_proven(self) -> None:
        files = disk()
        log = EventLog.open(files, SMALL, 1)
        append(log, [row(number) for number in range(1, 10)])
        name = next(name for name in files.names() if name.endswith(".segment"))
        files.flip_bit(name, files.size(name) // 2, 3)
        portion = asked(log, spans=[between(0, 9)])
        missing = sorted({*range(1, 10)} - {*events(portion)})
        assert len(missing) == 1
        assert spans(portion) == [
            (TOPIC, ((1, 0), (1, missing[0] - 1))),
            (TOPIC, ((1, missing[0]), (1, 9))),
        ]


class TestRows:
    def test_they_cover_what_was_proven(self) -> None:
        runs = [run(TOPIC, 5, 2), run(TOPIC, 3)]
        rows = rows_that_fill(runs, [between(1, 8)], ALL, NOW_US)
        assert [(r.after, r.upto, r.events) for r in rows] == [
            ((1, 1), (1, 3), 1),
            ((1, 3), (1, 6), 2),
            ((1, 6), (1, 8), 0),
        ]

    def test_events_without_proof_fill_nothing(self) -> None:
        assert rows_that_fill([run(TOPIC, 5)], [], ALL, NOW_US) == []
        (left,) = rows_that_fill([run(TOPIC, 5)], [between(1, 3)], ALL, NOW_US)
        assert left == covering_row(TOPIC, (1, 1), (1, 3), NOW_US)

    def test_of_other_topics_and_streams_nothing_is_taken(self) -> None:
        rows = rows_that_fill([run("news", 2)], [between(0, 3)], ALL, NOW_US)
        assert [r.events for r in rows] == [0]
        stream = span_of(stream_unit(7), (7, 0), (7, 3))
        runs = [run(TOPIC, 2, term=7), run(TOPIC, 3, term=8), run("news", 1, term=7)]
        rows = rows_that_fill(runs, [stream], ["quake/#"], NOW_US)
        assert [(r.topic, r.after, r.upto, r.events) for r in rows] == [
            (TOPIC, (7, 0), (7, 2), 1),
            ("", (7, 2), (7, 3), 0),
        ]

    def test_a_log_that_is_given_them_says_what_it_has_of_the_unit_then(self) -> None:
        log = _log(row(1, 2), row(6, 2))
        rows = rows_that_fill([run(TOPIC, 3, 3)], [between(2, 5)], ALL, NOW_US)
        (stored,) = log.commit([AppendToLog(4, rows, fills=True)])
        assert isinstance(stored, AppendStored)
        assert stored.extents[TOPIC].holes == []
        assert stored.extents[TOPIC].upto == (1, 7)
