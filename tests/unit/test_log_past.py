"""What a store answers out of its log: all that is asked for, once, or why not."""

from __future__ import annotations

import pytest

from broker_agent.core.base.store_units import stream_unit
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.stored_runs import covering_row, row_of_run
from broker_agent.core.stores.log_past import read_past
from broker_agent.core.stores.store_reader import ReadOrder, ServedKey, StorePortion
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import PastError, PastPlace, PastRange, Run, TermSeq
from tests.support.event_logs import disk, open_log, row, run, store

KEY = ServedKey("b9", 1, 1)


def _places(**seen: dict[int, int]) -> list[PastPlace]:
    return [
        PastPlace(topic=topic, seen=[TermSeq(term=t, seq=s) for t, s in terms.items()])
        for topic, terms in seen.items()
    ]


def portions(
    log: EventLog, unit: str, wanted: PastRange | None = None, bytes_max: int = 1
) -> list[StorePortion]:
    """As a requester gets them, one after the other."""
    found: list[StorePortion] = []
    place = b""
    while True:
        order = ReadOrder(KEY, unit, wanted or PastRange(), place, bytes_max)
        found.append(read_past(log, order))
        place = found[-1].place
        if found[-1].is_end or found[-1].error:
            return found
        assert len(found) < 1_000


def seqs(found: list[StorePortion], topic: str = "a") -> list[int]:
    runs = [each for portion in found for each in portion.events]
    assert all(isinstance(each, Run) for each in runs)
    return [
        each.first_seq + offset
        for each in runs
        if isinstance(each, Run) and each.topic == topic
        for offset in range(each.count)
    ]


def _filled(*topics: str, rows: int = 20) -> EventLog:
    log = open_log(disk())
    for number in range(rows):
        for topic in topics:
            store(log, row(topic, 1 + 5 * number, 5, now_us=1_000 + number))
    return log


class TestRanges:
    @pytest.mark.parametrize("bytes_max", [1, 500, 1 << 20])
    def test_all_of_a_topic(self, bytes_max: int) -> None:
        log = _filled("a", "b")
        assert seqs(portions(log, "a", bytes_max=bytes_max)) == list(range(1, 101))

    def test_all_of_a_pattern_in_the_order_of_the_log(self) -> None:
        log = _filled("x/a", "y", "x/b")
        found = portions(log, "x/+")
        topics = [e.topic for p in found for e in p.events if isinstance(e, Run)]
        assert topics == ["x/a", "x/b"] * 20

    def test_since_a_time(self) -> None:
        log = _filled("a")
        assert seqs(portions(log, "a", PastRange(since_us=1_018))) == list(range(91, 101))
        assert seqs(portions(log, "a", PastRange(since_us=9_999))) == []

    @pytest.mark.parametrize("last", [1, 3, 5, 12, 100, 1_000])
    def test_the_last_ones(self, last: int) -> None:
        log = _filled("a", "b")
        assert seqs(portions(log, "a", PastRange(last=last))) == list(range(1, 101))[-last:]
        of_each = portions(log, "+", PastRange(last=last))
        for topic in ("a", "b"):
            assert seqs(of_each, topic) == list(range(1, 101))[-last:]

    def test_what_is_not_there_already(self) -> None:
        log = _filled("a", "b")
        found = portions(log, "a", PastRange(after=_places(a={1: 93})))
        assert seqs(found) == list(range(94, 101))
        found = portions(log, "+", PastRange(after=_places(a={1: 93})))
        assert seqs(found) == list(range(94, 101))
        assert seqs(found, "b") == list(range(1, 101))
        assert seqs(portions(log, "a", PastRange(after=_places(a={1: 100})))) == []

    def test_terms_that_are_over_are_had(self) -> None:
        log = open_log(disk())
        later = run("a", 1, 3, term=4)
        later.prev_term, later.prev_seq = 1, 5
        store(log, row("a", 1, 5), row_of_run(later, "a", 2_000))
        assert seqs(portions(log, "a", PastRange(after=_places(a={4: 1})))) == [2, 3]
        assert seqs(portions(log, "a", PastRange(after=_places(a={1: 4})))) == [5, 1, 2, 3]

    def test_another_store_goes_on_where_one_has_gone(self) -> None:
        log = _filled("a")
        first = portions(log, "a", bytes_max=1)[:7]
        had = len(seqs(first))
        again = portions(log, "a", PastRange(after=_places(a={1: had})))
        assert seqs(first) + seqs(again) == list(range(1, 101))

    def test_the_last_value_of_each_topic(self) -> None:
        log = open_log(disk())
        store(log, row("x/quiet", 1, 3), row("x/busy", 1, 5), row("y", 1, 5))
        for number in range(1, 20):
            store(log, row("x/busy", 1 + 5 * number, 5))
        found = portions(log, "x/#", PastRange(last=1))
        assert (seqs(found, "x/quiet"), seqs(found, "x/busy"), seqs(found, "y")) == ([3], [100], [])

    def test_what_filled_a_hole_is_not_among_the_last(self) -> None:
        log = open_log(disk())
        store(log, row("a", 11, 5), row("a", 6, 5))
        assert seqs(portions(log, "a", PastRange(last=3))) == [13, 14, 15]
        assert seqs(portions(log, "a", PastRange(last=7))) == [9, 10, 11, 12, 13, 14, 15]

    def test_the_last_ones_of_a_stream_do_not_include_what_filled_a_hole(self) -> None:
        log = open_log(disk())
        stream = stream_unit(5)
        store(log, row_of_run(run("a", 11, 5, term=5), stream, 1_000, (5, 10)))
        store(log, row_of_run(run("a", 1, 5, term=5), stream, 1_000, (5, 0)))
        assert seqs(portions(log, "a", PastRange(last=3))) == [13, 14, 15]


class TestWhatIsNotThere:
    def test_what_there_is_comes_before_a_place_in_the_future(self) -> None:
        log = _filled("a", "b")
        found = portions(log, "+", PastRange(after=_places(a={1: 101})), bytes_max=1 << 20)
        assert seqs(found, "b") == list(range(1, 101))
        assert found[-1].error == PastError.PAST_ERROR_FUTURE

    def test_a_place_in_the_future(self) -> None:
        log = _filled("a")
        (answer,) = portions(log, "a", PastRange(after=_places(a={1: 101})))
        assert answer.error == PastError.PAST_ERROR_FUTURE
        assert answer.message == "the place 1/101 of a is beyond 1/100, the newest here"

    def test_what_follows_a_place_has_expired(self) -> None:
        log = open_log(disk())
        store(log, row("a", 51, 5))
        wanted = PastRange(after=_places(a={1: 10}))
        (answer,) = portions(log, "a", wanted)
        assert answer.error == PastError.PAST_ERROR_EXPIRED
        assert answer.message == "of a only what comes after 1/50 is kept here"
        wanted.with_loss = True
        (answer,) = portions(log, "a", wanted)
        assert answer.is_lossy
        assert seqs([answer]) == [51, 52, 53, 54, 55]
        # Who asks for all asks for what there is.
        (answer,) = portions(log, "a")
        assert not answer.is_lossy

    def test_something_is_missing_in_the_middle(self) -> None:
        log = open_log(disk())
        store(log, row("a", 1, 5), row("a", 11, 5))
        (answer,) = portions(log, "a", PastRange(after=_places(a={1: 3})))
        assert answer.error == PastError.PAST_ERROR_EXPIRED
        assert seqs(portions(log, "a", PastRange(after=_places(a={1: 12})))) == [13, 14, 15]

    def test_what_is_not_known_at_all(self) -> None:
        assert seqs(portions(_filled("a"), "zzz")) == []

    def test_a_place_that_is_none(self) -> None:
        answer = read_past(_filled("a"), ReadOrder(KEY, "a", PastRange(), b"x", 1))
        assert answer.error == PastError.PAST_ERROR_INVALID


class TestFilledLater:
    def test_a_hole_that_was_filled_is_read_in_its_place(self) -> None:
        log = open_log(disk())
        store(log, row("a", 1, 5), row("a", 11, 5), row("b", 1, 5))
        store(log, row("a", 6, 5))
        assert seqs(portions(log, "a")) == list(range(1, 16))
        found = portions(log, "+")
        assert seqs(found) == list(range(1, 16))
        assert seqs(found, "b") == [1, 2, 3, 4, 5]


class TestStreams:
    def _log(self) -> EventLog:
        log = open_log(disk())
        unit = stream_unit(9)
        store(log, row_of_run(run("a", 3, 2, term=9), unit, 1_000, after=(9, 0)))
        store(log, row_of_run(run("b", 7, 1, term=9), unit, 1_000, after=(9, 4)))
        store(log, covering_row(unit, (9, 7), (9, 20), 1_000))
        store(log, row_of_run(run("a", 25, 1, term=9), unit, 1_000, after=(9, 20)))
        return log

    def test_a_topic_out_of_a_stream_of_many(self) -> None:
        assert seqs(portions(self._log(), "a")) == [3, 4, 25]
        assert seqs(portions(self._log(), "#"), "b") == [7]

    def test_what_is_not_there_already_of_a_stream(self) -> None:
        assert seqs(portions(self._log(), "a", PastRange(after=_places(a={9: 3})))) == [4, 25]

    def test_another_stream_is_not_had_with_it(self) -> None:
        assert seqs(portions(self._log(), "a", PastRange(after=_places(a={12: 3})))) == [3, 4, 25]

    def test_a_stream_that_was_filled_later(self) -> None:
        log = self._log()
        unit = stream_unit(9)
        store(log, row_of_run(run("a", 31, 1, term=9), unit, 1_000, after=(9, 30)))
        store(log, row_of_run(run("a", 28, 1, term=9), unit, 1_000, after=(9, 25)))
        assert seqs(portions(log, "a")) == [3, 4, 25, 28, 31]
        assert all(
            events_of(e) is not None
            for p in portions(log, "a")
            for e in p.events
            if isinstance(e, Run)
        )
