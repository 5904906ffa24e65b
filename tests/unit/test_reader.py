from __future__ import annotations

from typing import Any

from dynatops.v1.overlay_pb2 import Position, Run
from overlay.identifiers import NodeId
from overlay.reader import PARKED_RUNS_MAX, TopicReader
from overlay.retention import LogBudget
from overlay.settings import OverlaySettings
from overlay.topic_log import TopicLog
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
    log.open_next_term(NodeId(1))
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
