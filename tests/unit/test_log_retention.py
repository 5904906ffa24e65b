"""What a log drops and keeps, by age, number, size and key; nobody takes it for missing."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_context import LogHealth
from broker_agent.core.stores.log.log_requests import UnitExtent
from broker_agent.core.stores.log.log_rows import RowKind
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.retention import RetentionRule
from broker_agent.core.stores.log.stored_runs import row_of_run
from simulator.eventlog.log_disk import PowerLostError, SimulatedLogDisk
from tests.support.event_logs import SMALL, UnitContents, disk, row, run, store, topic_rows

# Rows of `filled` come one a second.
SECOND_US = 1_000_000
NOW_US = 200 * SECOND_US


def log_with(
    *rules: RetentionRule, files: SimulatedLogDisk | None = None, settings: LogSettings = SMALL
) -> EventLog:
    return EventLog.open(files or disk(), settings, 1, rules)


def fill(log: EventLog, topics: str = "a", rows: int = 100, begin: int = 0) -> None:
    for number in range(begin, begin + rows):
        now_us = 100 * SECOND_US + number * SECOND_US
        store(log, *(row(topic, 1 + 5 * number, 5, now_us=now_us) for topic in topics))


def tend(log: EventLog, now_us: int = NOW_US) -> None:
    while log.tend(now_us):
        pass
    assert log.health is LogHealth.WHOLE


def test_without_rules_everything_stays() -> None:
    log = log_with()
    fill(log)
    assert not log.tend(NOW_US)
    assert len(UnitContents(log, "a").seqs) == 500


def test_what_is_too_old_goes_and_the_rest_stays() -> None:
    files = disk()
    log = log_with(RetentionRule(pattern="#", age_s=30), files=files)
    fill(log)
    before = log.nbytes
    tend(log)
    assert log.nbytes < before / 2
    extent = log.extent("a")
    assert extent is not None
    (_, since), upto = extent.since, extent.upto
    assert upto == (1, 500)
    # Of the last 30 s all is there, and not much more.
    assert 300 < since <= 350
    kept = UnitContents(log, "a", after=(1, since)).seqs
    assert kept[0] <= 351
    assert kept == list(range(kept[0], 501))
    assert UnitContents(log, "a").missing == [((0, 0), (1, since))]
    assert log.take_notices() == []
    assert log.counters.log_segments_dropped > 5

    files.kill()
    log = log_with(files=files)
    assert log.take_notices() == []
    assert log.extent("a") == extent
    fill(log, rows=10, begin=100)
    assert UnitContents(log, "a", after=(1, since)).seqs == list(range(kept[0], 551))


def test_a_topic_of_which_all_is_gone_is_remembered_by_its_end() -> None:
    files = disk()
    log = log_with(RetentionRule(pattern="a", age_s=1), files=files)
    fill(log)
    log.close()
    tend(log, NOW_US * 10)
    assert log.extent("a") == UnitExtent((1, 500), (1, 500), [])
    assert not any(name.endswith(".segment") for name in files.names())
    files.crash()
    log = log_with(files=files)
    assert log.take_notices() == []
    assert log.extent("a") == UnitExtent((1, 500), (1, 500), [])
    fill(log, rows=1, begin=100)
    contents = UnitContents(log, "a", after=(1, 500))
    assert (contents.seqs, contents.missing) == ([501, 502, 503, 504, 505], [])


def test_as_many_events_stay_as_are_to_stay() -> None:
    eager = replace(SMALL, rewrite_below_share=0.9)
    log = log_with(RetentionRule(pattern="a", events_max=100), settings=eager)
    fill(log, "ab")
    tend(log)
    kept = UnitContents(log, "a", after=(1, 0)).seqs
    assert kept == list(range(501 - len(kept), 501))
    assert 100 <= len(kept) < 160
    assert UnitContents(log, "b", after=(1, 0)).seqs == list(range(1, 501))


def test_what_is_damaged_does_not_count_as_retained() -> None:
    files = disk()
    log = log_with(RetentionRule(pattern="a", events_max=50), files=files)
    fill(log, rows=40)
    newest = max(name for name in files.names() if name.endswith(".segment"))
    files.flip_bit(newest, 300, 1)
    lost = UnitContents(log, "a", after=(1, 0)).missing
    assert lost
    tend(log)
    assert len(UnitContents(log, "a").seqs) >= 50


def test_what_filled_a_hole_does_not_count_as_the_newest() -> None:
    log = log_with(RetentionRule(pattern="a", events_max=50))
    store(log, row("a", 1001, 50))
    for number in range(60):
        store(log, row("a", 1 + 5 * number, 5))
    log.close()
    tend(log)
    assert set(range(1001, 1051)) <= set(UnitContents(log, "a").seqs)


def test_the_last_of_a_key_is_not_displaced_by_what_filled_a_hole() -> None:
    log = log_with(RetentionRule(pattern="a", is_compacted=True))
    store(log, row("a", 1001, 50))
    for number in range(60):
        store(log, row("a", 1 + 5 * number, 5))
    log.close()
    tend(log)
    tend(log)
    assert UnitContents(log, "a").seqs[-1] == 1050


def test_as_many_bytes_stay_as_are_to_stay() -> None:
    log = log_with(RetentionRule(pattern="a", bytes_max=2_000))
    fill(log)
    tend(log)
    rows = UnitContents(log, "a").rows
    nbytes = sum(len(each.data) for each in rows)
    assert 2_000 <= nbytes < 4_500
    assert rows[-1].upto == (1, 500)


def test_the_first_rule_that_matches_holds() -> None:
    log = log_with(
        RetentionRule(pattern="keep/+"), RetentionRule(pattern="#", age_s=1), settings=SMALL
    )
    for number in range(50):
        store(log, row("keep/x", 1 + number), row("y", 1 + 5 * number, 5))
    tend(log)
    assert UnitContents(log, "keep/x", after=(1, 0)).seqs == list(range(1, 51))
    assert len(UnitContents(log, "y").seqs) < 100


def test_where_others_stay_what_was_dropped_is_said_by_rows() -> None:
    files = disk()
    log = log_with(RetentionRule(pattern="big", age_s=1), RetentionRule(pattern="#"), files=files)
    for number in range(50):
        store(log, row("big", 1 + 10 * number, 10), row("small", 1 + number))
    tend(log)
    for _ in range(2):
        assert log.counters.log_segments_rewritten > 3 or log.counters.log_events_stored == 0
        contents = UnitContents(log, "big", after=(1, 0))
        assert contents.missing == []
        expired = [each for each in contents.rows if each.kind == RowKind.EXPIRED]
        assert expired[0].after == (1, 0)
        assert contents.seqs == list(range(expired[-1].last + 1, 501))
        assert UnitContents(log, "small", after=(1, 0)).seqs == list(range(1, 51))
        assert [each.first for each in topic_rows(log, "small")] == list(range(1, 51))
        # Also if all that is known of segments is read from them.
        files.kill()
        if "checkpoint" in files.names():
            files.lose_file("checkpoint")
        log = EventLog.open(files, SMALL, 2)


def test_dropping_a_segment_in_the_middle_of_a_stream_leaves_no_hole() -> None:
    log = log_with(RetentionRule(pattern="short", age_s=1))
    seq = 1
    for topic in ("long", "short", "long"):
        for _ in range(30):
            made = row_of_run(run(topic, seq, 5), "stream", NOW_US // 2, after=(1, seq - 1))
            store(log, made)
            seq += 5
    store(log, row("other", 1, 50))
    tend(log)
    assert log.extent("stream") == UnitExtent((1, 0), (1, 450), [])
    contents = UnitContents(log, "stream", after=(1, 0))
    assert contents.missing == []
    assert {each.topic for each in contents.rows if each.kind == RowKind.EXPIRED} == {"short"}
    long = [seq for seq in contents.seqs if not 150 < seq <= 300]
    assert long == [*range(1, 151), *range(301, 451)]
    assert len(contents.seqs) < 350


# ---- compaction ----------------------------------------------------------------------------------


def test_the_last_event_of_each_key_stays() -> None:
    files = disk()
    log = log_with(RetentionRule(pattern="a", is_compacted=True, key="key"), files=files)
    last = {}
    for first in range(1, 501, 5):
        keys = [f"k{(first + i) * 7 % 20}" if first < 400 else "late" for i in range(5)]
        last.update({key: first + i for i, key in enumerate(keys)})
        store(log, row_of_run(run("a", first, 5, keys=keys), "a", 1_000))
    log.close()
    tend(log)
    for _ in range(2):
        contents = UnitContents(log, "a", after=(1, 0))
        assert contents.missing == []
        assert set(last.values()) <= set(contents.seqs)
        assert contents.seqs == sorted(contents.seqs)
        assert len(contents.seqs) < 60
        files.crash()
        log = EventLog.open(files, SMALL, 2)
    assert log.extent("a") == UnitExtent((1, 0), (1, 500), [])


def test_the_last_event_of_a_topic_stays() -> None:
    log = log_with(RetentionRule(pattern="#", is_compacted=True))
    fill(log, "ab")
    log.close()
    tend(log)
    for topic in "ab":
        assert UnitContents(log, topic, after=(1, 0)).seqs == [500]
    tend(log)
    assert log.nbytes < 5_000


def test_events_without_the_key_stay() -> None:
    log = log_with(RetentionRule(pattern="#", is_compacted=True, key="key"))
    fill(log)
    tend(log)
    assert len(UnitContents(log, "a").seqs) == 500


def test_keys_past_the_bound_keep_their_events() -> None:
    settings = LogSettings(
        segment_bytes=2_000, frame_bytes=500, refuse_below_free_bytes=0, compaction_keys_max=3
    )
    log = log_with(RetentionRule(pattern="#", is_compacted=True, key="key"), settings=settings)
    for first in range(1, 501, 5):
        keys = [f"k{i}" for i in range(5)]
        store(log, row_of_run(run("a", first, 5, keys=keys), "a", 1_000))
    log.close()
    tend(log)
    kept = UnitContents(log, "a").seqs
    # Of three keys the last, and all of two; the newest segment had too little to drop.
    assert 3 + 2 * 100 <= len(kept) < 3 + 2 * 100 + 30
    assert log.counters.log_keys_skipped > 0


# ---- what goes wrong meanwhile -------------------------------------------------------------------


@pytest.mark.parametrize("calls", range(60))
def test_a_crash_at_any_step_loses_nothing_that_is_retained(calls: int) -> None:
    files = disk(calls)
    rules = (
        RetentionRule(pattern="big", age_s=1),
        RetentionRule(pattern="last", is_compacted=True),
    )
    log = log_with(*rules, files=files)
    for number in range(30):
        store(log, row("big", 1 + 10 * number, 10), row("last", 1 + number), row("all", 1 + number))
    log.close()
    files.power_left = calls
    with contextlib.suppress(PowerLostError):
        tend(log)
    files.crash()
    log = log_with(*rules, files=files)
    for _ in range(2):
        assert UnitContents(log, "all", after=(1, 0)).seqs == list(range(1, 31))
        last = UnitContents(log, "last", after=(1, 0))
        assert (last.seqs[-1], last.missing) == (30, [])
        extent = log.extent("big")
        assert extent is not None
        assert (extent.upto, extent.holes) == ((1, 300), [])
        tend(log)


def test_a_disk_without_room_for_rewriting_is_not_the_end() -> None:
    files = disk()
    log = log_with(RetentionRule(pattern="big", age_s=1), RetentionRule(pattern="#"), files=files)
    for number in range(50):
        store(log, row("big", 1 + 10 * number, 10), row("small", 1 + number))
    files.capacity_bytes -= files.free_bytes() - 10
    tend(log)
    files.capacity_bytes += 1 << 20
    tend(log)
    assert log.counters.log_segments_rewritten > 3
    assert UnitContents(log, "small", after=(1, 0)).seqs == list(range(1, 51))


def test_damage_that_is_met_when_rewriting_is_told() -> None:
    files = disk()
    log = log_with(RetentionRule(pattern="big", age_s=1), RetentionRule(pattern="#"), files=files)
    for number in range(50):
        store(log, row("big", 1 + 10 * number, 10), row("small", 1 + number))
    files.flip_bit("000000000003.segment", 700, 1)
    tend(log)
    assert len(log.take_notices()) == 1
    tend(log)
    contents = UnitContents(log, "small", after=(1, 0))
    assert len(contents.missing) == 1
    lost = {seq for (_, after), (_, upto) in contents.missing for seq in range(after + 1, upto + 1)}
    assert contents.seqs == [seq for seq in range(1, 51) if seq not in lost]
    assert log.take_notices() == []
