from __future__ import annotations

from typing import Any

import pytest

from dynatops.v1.overlay_pb2 import Fetched, Position, Run, TermSeq
from overlay.base.identifiers import Term, TermOwner
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.retention import LogBudget
from overlay.history.reader import PARKED_RUNS_MAX, ReadResult, TopicReader
from overlay.history.topic_log import TopicLog
from tests.support.nodes import events, publication

TERM = 1 << 24
NEXT = 2 << 24


def run(seq: int, *, term: int = TERM, count: int = 1, **more: Any) -> Run:
    payloads = events(*[b"x"] * count)
    return Run(
        topic="t", term=term, first_seq=seq, count=count, publisher=7, first_number=seq,
        events=payloads, **more,
    )  # fmt: skip


def reader_at(seq: int) -> TopicReader:
    reader = TopicReader("t", 100)
    reader.observe(Position(term=TERM, seq=seq))
    return reader


def test_nothing_is_read_before_the_position_is_known() -> None:
    reader = TopicReader("t", 100)
    assert reader.offer(run(1)) == []
    assert not reader.is_behind


def test_reading_begins_after_the_first_position() -> None:
    reader = reader_at(5)
    assert reader.offer(run(5)) == []
    assert len(reader.offer(run(6))) == 1


def test_overtaken_runs_wait_for_their_turn() -> None:
    reader = reader_at(0)
    assert reader.offer(run(2)) == []
    assert reader.is_behind
    assert [part.run.first_seq for part in reader.offer(run(1))] == [1, 2]
    assert not reader.is_behind


def test_a_heartbeat_tells_of_a_lost_tail() -> None:
    reader = reader_at(3)
    assert reader.offer(run(6, count=0, beat=1)) == []
    assert reader.is_behind


def test_a_term_that_begins_here_is_entered() -> None:
    reader = reader_at(3)
    parts = reader.offer(run(1, term=NEXT, prev_term=TERM, prev_seq=3))
    assert len(parts) == 1
    assert reader.position == (NEXT, 1)


def test_a_term_that_begins_elsewhere_is_asked_about() -> None:
    reader = reader_at(3)
    assert reader.offer(run(1, term=NEXT, prev_term=TERM, prev_seq=4)) == []
    assert reader.is_behind


def test_an_older_term_is_not_believed() -> None:
    reader = reader_at(3)
    reader.observe(Position(term=NEXT, seq=0, prev_term=TERM, prev_seq=3))
    assert reader.offer(run(4)) == []
    assert reader.is_ahead
    assert reader.newest_term == NEXT


def test_losses_are_counted_once() -> None:
    log = TopicLog("t", OverlaySettings(log_events_max=2, fetch_bytes_max=1), LogBudget(1 << 20))
    log.open_next_term(TermOwner(1))
    reader = TopicReader("t", 100)
    reader.observe(log.position_message())
    for i in range(1, 8):
        log.stamp(publication("t", i), 0.0)
    reader.observe(log.position_message())
    lost = heard = 0
    while reader.is_behind:
        seen = {entry.term: entry.seq for entry in reader.seen()}
        reading = reader.fetched(log.since(seen))
        lost += reading.lost
        heard += len(reading.parts)
    assert (lost, heard) == (5, 2)


def test_what_waits_is_bounded() -> None:
    reader = reader_at(0)
    for seq in range(2, PARKED_RUNS_MAX + 100):
        reader.offer(run(seq))
    assert len(reader.offer(run(1))) <= PARKED_RUNS_MAX + 1


class TestFromTheStart:
    """A reader that was told to read everything that is retained."""

    def log(self, **bounds: int) -> TopicLog:
        log = TopicLog("t", OverlaySettings(**bounds), LogBudget(1 << 20))
        log.open_next_term(TermOwner(1))
        return log

    def reader(self) -> TopicReader:
        reader = TopicReader("t", 100)
        reader.begin_at_start()
        return reader

    def catch_up(self, reader: TopicReader, log: TopicLog) -> tuple[list[int], int]:
        """What comes out of repairs until the reader is not behind; and how many are lost."""
        numbers: list[int] = []
        lost = 0
        while reader.is_behind:
            seen = {entry.term: entry.seq for entry in reader.seen()}
            reading = reader.fetched(log.since(seen))
            numbers += [part.run.first_number for part in reading.parts]
            lost += reading.lost
        return numbers, lost

    def test_what_was_before_comes_page_by_page(self) -> None:
        log, reader = self.log(fetch_bytes_max=20), self.reader()
        for i in range(1, 8):
            log.stamp(publication("t", i), 0.0)
        assert not reader.started
        reader.observe(log.position_message())
        assert reader.started
        assert self.catch_up(reader, log) == ([1, 2, 3, 4, 5, 6, 7], 0)
        _, after = log.stamp(publication("t", 8), 0.0)
        assert after is not None
        assert len(reader.offer(after)) == 1

    def test_a_topic_without_events_has_been_read(self) -> None:
        log, reader = self.log(), self.reader()
        reader.observe(log.position_message())
        assert self.catch_up(reader, log) == ([], 0)
        _, first = log.stamp(publication("t", 1), 0.0)
        assert first is not None
        assert len(reader.offer(first)) == 1

    def test_what_comes_by_meanwhile_waits_for_its_turn(self) -> None:
        log, reader = self.log(), self.reader()
        for i in range(1, 4):
            log.stamp(publication("t", i), 0.0)
        _, fourth = log.stamp(publication("t", 4), 0.0)
        assert fourth is not None
        assert reader.offer(fourth) == []
        assert reader.is_behind
        assert self.catch_up(reader, log) == ([1, 2, 3, 4], 0)

    def test_it_reads_through_more_terms_than_are_remembered(self) -> None:
        log, reader = self.log(fetch_bytes_max=60), self.reader()
        for i in range(1, 61):
            log.stamp(publication("t", i), 0.0)
            log.open_next_term(TermOwner(i % 3))
        reader.observe(log.position_message())
        assert self.catch_up(reader, log) == (list(range(1, 61)), 0)

    def test_what_is_no_longer_retained_is_counted(self) -> None:
        log, reader = self.log(log_events_max=2, fetch_bytes_max=1), self.reader()
        for i in range(1, 6):
            log.stamp(publication("t", i), 0.0)
        reader.observe(log.position_message())
        assert self.catch_up(reader, log) == ([4, 5], 3)

    def test_a_term_that_may_lack_events_is_not_taken_for_the_first(self) -> None:
        log, reader = self.log(), self.reader()
        log.stamp(publication("t", 1), 0.0)
        log.open_next_term(TermOwner(2), certain=False)
        reader.observe(log.position_message())
        assert self.catch_up(reader, log) == ([1], 0)


class TestBrokenHistory:
    def test_whoever_came_before_it_broke_is_owed_what_comes_late(self) -> None:
        """The other side of a partition has both copies, and stamps on; this side begins anew."""
        there = TopicLog("t", OverlaySettings(), LogBudget(1 << 20))
        there.open_next_term(TermOwner(1))
        there.stamp(publication("t", 1, publisher=1), 0.0)
        reader = TopicReader("t", 100)
        reader.observe(there.position_message())
        joined = reader.clock
        here = TopicLog("t", OverlaySettings(), LogBudget(1 << 20))
        here.open_next_term(TermOwner(2), newer_than=there.term)
        here.stamp(publication("t", 3, publisher=1, settled=2), 0.0)
        assert self.read(reader, here).unknown_loss
        there.stamp(publication("t", 2, publisher=1), 0.0)
        here.merge(there, TermOwner(2))
        late = [part for part in self.read(reader, here).parts if part.opened is not None]
        assert [part.run.first_number for part in late] == [1, 2]
        assert all(part.opened is not None and joined < part.opened for part in late)

    def read(self, reader: TopicReader, log: TopicLog) -> ReadResult:
        return reader.fetched(log.since({entry.term: entry.seq for entry in reader.seen()}))


class TestGoingBack:
    """The rendezvous point is where the reader has come from, or in a history of its own."""

    def log(self, owner: int, newer_than: int, *numbers: int) -> TopicLog:
        log = TopicLog("t", OverlaySettings(), LogBudget(1 << 20))
        log.open_next_term(TermOwner(owner), newer_than=newer_than)
        for number in numbers:
            log.stamp(publication("t", number, publisher=1), 0.0)
        return log

    def ask(self, reader: TopicReader, log: TopicLog) -> Fetched:
        return log.since({entry.term: entry.seq for entry in reader.seen()})

    def numbers(self, reading: ReadResult) -> list[int]:
        return [part.run.first_number for part in reading.parts]

    def returning(self, log: TopicLog) -> TopicReader:
        reader = TopicReader("t", 100)
        reader.resume([TermSeq(term=log.term, seq=1)])
        assert self.numbers(reader.fetched(self.ask(reader, log))) == [2, 3]
        return reader

    def test_what_was_read_is_a_repeat_when_histories_are_joined(self) -> None:
        older = self.log(1, 0, 2)
        newer = self.log(2, older.term, 1, 2, 3)
        reader = self.returning(newer)
        reader.go_back(self.ask(reader, older))
        assert reader.is_behind
        assert self.numbers(reader.fetched(self.ask(reader, older))) == []
        older.stamp(publication("t", 4, publisher=1, settled=3), 0.0)
        reader.observe(older.position_message())
        older.merge(newer, TermOwner(1))
        assert self.numbers(reader.fetched(self.ask(reader, older))) == [4]

    def test_and_when_the_history_is_there_again(self) -> None:
        older = self.log(1, 0)
        newer = self.log(2, older.term, 1, 2, 3)
        reader = self.returning(newer)
        stood = reader.position
        reader.go_back(self.ask(reader, older))
        reader.fetched(self.ask(reader, older))
        assert reader.position == older.position
        newer.stamp(publication("t", 4, publisher=1), 0.0)
        reader.observe(newer.position_message())
        answer = self.ask(reader, newer)
        assert not answer.unknown_loss
        assert self.numbers(reader.fetched(answer)) == [4]
        assert reader.position == (stood[0], stood[1] + 1)

    def test_nothing_is_forgotten_if_it_goes_back_before_it_has_begun(self) -> None:
        oldest = self.log(1, 0)
        older = self.log(3, oldest.term)
        newer = self.log(2, older.term, 1, 2, 3)
        reader = self.returning(newer)
        reader.go_back(self.ask(reader, older))
        reader.go_back(self.ask(reader, oldest))
        reader.fetched(self.ask(reader, oldest))
        assert reader.cursor == (oldest.position, newer.position)

    def test_pages_of_what_was_read_lead_on(self) -> None:
        older = self.log(1, 0)
        newer = TopicLog("t", OverlaySettings(fetch_bytes_max=1), LogBudget(1 << 20))
        newer.open_next_term(TermOwner(2), newer_than=older.term)
        for number in range(1, 6):
            newer.stamp(publication("t", number, publisher=1), 0.0)
        reader = TopicReader("t", 100)
        reader.resume([TermSeq(term=newer.term, seq=1)])
        reader.observe(newer.position_message())
        read = [self.numbers(reader.fetched(self.ask(reader, newer))) for _ in range(3)]
        assert read == [[2], [3], [4]]
        reader.go_back(self.ask(reader, older))
        # It has asked from the start, and there is a page of what it knows.
        reader.observe(newer.position_message())
        read = [self.numbers(reader.fetched(self.ask(reader, newer))) for _ in range(2)]
        assert read == [[], [5]]
        assert not reader.is_behind

    def test_nobody_else_stands_where_it_does(self) -> None:
        """What it goes past as a repeat would be news to whoever has not read it."""
        older = self.log(1, 0)
        newer = self.log(2, older.term, 1, 2, 3)
        reader = self.returning(newer)
        assert reader.stands_at((newer.position,))
        reader.go_back(self.ask(reader, older))
        assert not reader.stands_at(())
        reader.fetched(self.ask(reader, older))
        assert not reader.stands_at((older.position,))
        assert reader.stands_at((older.position, newer.position))


class TestTogether:
    """One reader reads on for two."""

    def resumed(self, *seen: tuple[int, int]) -> TopicReader:
        reader = TopicReader("t", 100)
        reader.resume(TermSeq(term=term, seq=seq) for term, seq in seen)
        return reader

    def test_only_one_that_has_read_the_same_since_it_began_agrees(self) -> None:
        reader = self.resumed((5, 14), (7, 4))
        assert reader.agrees_with(self.resumed((7, 4)))
        assert reader.agrees_with(self.resumed((3, 8), (5, 14), (7, 4)))
        assert not reader.agrees_with(self.resumed((5, 9), (7, 4)))
        assert not reader.agrees_with(self.resumed((5, 14), (7, 5)))
        # A term that both histories of a partition do not share.
        assert not reader.agrees_with(self.resumed((6, 1), (7, 4)))
        # But nothing was read of one without events.
        assert reader.agrees_with(self.resumed((5, 14), (6, 0), (7, 4)))

    def test_one_that_began_at_the_start_lacks_whatever_it_has_not_read(self) -> None:
        reader = TopicReader("t", 100)
        reader.begin_at_start()
        reader.resume([TermSeq(term=7, seq=4)])
        assert not reader.agrees_with(self.resumed((5, 14), (7, 4)))

    def test_terms_of_two_histories_count_however_old_they_look(self) -> None:
        sides = []
        for owner in (1, 2):
            log = TopicLog("t", OverlaySettings(), LogBudget(1 << 20))
            log.open_next_term(TermOwner(owner))
            log.stamp(publication("t", 1, publisher=owner), 0.0)
            sides.append(log)
        older, newer = sorted(sides, key=lambda log: log.term)
        reader = TopicReader("t", 100)
        reader.observe(older.position_message())
        reader.fetched(newer.since({older.term: 1}))
        returning = self.resumed((newer.term, 1))
        assert reader.position == returning.position
        assert not returning.agrees_with(reader)
        # Where the histories are joined both read what was stamped again.
        newer.merge(older, TermOwner(2))
        for each in (reader, returning):
            each.fetched(newer.since({entry.term: entry.seq for entry in each.seen()}))
        assert returning.agrees_with(reader)

    def test_what_one_has_read_is_a_repeat_to_the_other(self) -> None:
        here, there = self.histories()
        live, returning = self.beside(here)
        live.learn_from(returning)
        parts = live.fetched(there.since({here.term: 2})).parts
        assert [part.run.first_number for part in parts] == [3]

    def test_one_that_has_read_of_another_history_reads_on_until_that_is_known(self) -> None:
        """To whoever was on this side it is new; to those it was read for, a repeat."""
        here, there = self.histories()
        _, returning = self.beside(here)
        live = self.resumed((there.term, 3))
        returning.fetched(there.since({here.term: 2}))
        assert returning.position == live.position
        assert not returning.agrees_with(live)
        # Where that one has read it, too, nobody lacks anything.
        assert returning.agrees_with(self.resumed((here.term, 2), (there.term, 3)))
        there.merge(here, TermOwner(2))
        for each in (live, returning):
            each.fetched(there.since({entry.term: entry.seq for entry in each.seen()}))
        assert returning.agrees_with(live)

    def histories(self) -> tuple[TopicLog, TopicLog]:
        """Two events; and the same again in a history that knows nothing of that, and a third."""
        here, there = (TopicLog("t", OverlaySettings(), LogBudget(1 << 20)) for _ in range(2))
        here.open_next_term(TermOwner(1))
        there.open_next_term(TermOwner(2), newer_than=here.term)
        for number in (1, 2, 3):
            for log in (here, there)[number == 3 :]:
                log.stamp(publication("t", number, publisher=1), 0.0)
        return here, there

    def beside(self, log: TopicLog) -> tuple[TopicReader, TopicReader]:
        """One that begins at the end, and one that comes back and reads up to there."""
        returning = self.resumed((log.term, 0))
        returning.fetched(log.since({log.term: 0}))
        live = TopicReader("t", 100)
        live.observe(log.position_message())
        assert returning.agrees_with(live)
        return live, returning


class TestWhatTheHistoryLacks:
    """A publisher went to the other side of a partition, and left an acknowledged event."""

    def log(self) -> TopicLog:
        settings = OverlaySettings()
        log = TopicLog("t", settings, LogBudget(1 << 20))
        log.open_term(Term(TERM))
        log.stamp(publication("t", 1), 0.0)
        # What was settled elsewhere is not waited for.
        log.stamp(publication("t", 3, settled=2), 0.0)
        log.stamp(publication("t", 3, settled=2), 100.0)
        log.stamp(publication("t", 4, settled=3), 100.0)
        return log

    def reader_of(self, log: TopicLog, seq: int) -> TopicReader:
        """Of a session that comes from elsewhere, and stood there."""
        reader = TopicReader("t", 100)
        reader.resume([TermSeq(term=TERM, seq=seq)])
        assert reader.wants_holes
        reader.fetched(log.since({TERM: seq}, holes=True))
        assert not reader.wants_holes
        return reader

    @pytest.mark.parametrize("seq", [2, 3])
    def test_comes_late_to_a_reader_that_began_behind_it(self, seq: int) -> None:
        late = run(1, term=NEXT, prev_term=TERM, prev_seq=3)
        late.first_number = 2
        parts = self.reader_of(self.log(), seq).offer(late)
        # Only for those who have read elsewhere before.
        assert [(part.run.first_number, part.opened) for part in parts] == [(2, 0)]

    def test_is_said_to_those_who_ask(self) -> None:
        assert not self.log().since({TERM: 2}).holes
        (state,) = self.log().since({TERM: 2}, holes=True).holes
        assert (state.publisher, list(state.holes)) == (7, [2, 2])
