"""A store's log: what is appended is read again, by unit, topic and time, however it was closed."""

from __future__ import annotations

import pytest

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_context import LogHealth
from broker_agent.core.stores.log.log_notices import (
    LogCut,
    LogDamaged,
    LogDiskIsFull,
    LogFailed,
    LogRangeGivenUp,
    LogRebuilt,
    LogResumed,
)
from broker_agent.core.stores.log.log_requests import (
    AppendRefusal,
    AppendRefused,
    AppendStored,
    AppendToLog,
    ReadUnit,
    UnitAnswer,
    UnitExtent,
)
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.segments import CHECKPOINT, DURABLE
from broker_agent.core.stores.log.stored_runs import (
    covering_row,
    row_of_run,
    rows_of_bundle,
    run_of,
)
from dynatops.kit.bundles import Bundle
from simulator.eventlog.log_disk import PowerLostError, SimulatedLogDisk
from tests.support.event_logs import (
    SMALL,
    UnitContents,
    disk,
    open_log,
    payload_of,
    row,
    run,
    stamps_of,
    store,
    topic_rows,
)


def filled(files: SimulatedLogDisk, topics: str = "ab", rows: int = 100) -> EventLog:
    """Five events a row; several segments."""
    log = open_log(files)
    for number in range(rows):
        now_us = 10_000 + number
        store(log, *(row(topic, 1 + 5 * number, 5, now_us=now_us) for topic in topics))
    return log


def segments_of(files: SimulatedLogDisk) -> list[str]:
    return sorted(name for name in files.names() if name.endswith(".segment"))


# ---- reading -------------------------------------------------------------------------------------


def test_what_was_appended_is_read_in_order() -> None:
    files = disk()
    log = filled(files)
    assert len(segments_of(files)) > 10
    for topic in "ab":
        contents = UnitContents(log, topic, after=(1, 0))
        assert contents.seqs == list(range(1, 501))
        assert contents.missing == []
        assert contents.portions > 5
    assert log.extent("a") == UnitExtent((1, 0), (1, 500), [])
    assert log.extent("c") is None
    assert log.events == 1_000


def test_what_is_before_its_beginning_is_told_as_missing() -> None:
    log = open_log(disk())
    store(log, row("a", 11, 5))
    contents = UnitContents(log, "a")
    assert contents.missing == [((0, 0), (1, 10))]
    assert contents.seqs == [11, 12, 13, 14, 15]


def test_reading_begins_within_a_row() -> None:
    log = filled(disk())
    contents = UnitContents(log, "a", after=(1, 137))
    assert contents.seqs == list(range(138, 501))


def test_reading_by_time_begins_with_the_first_row_of_that_time() -> None:
    log = filled(disk())
    contents = UnitContents(log, "a", after=(1, 0), since_us=10_050)
    assert contents.seqs == list(range(251, 501))
    assert UnitContents(log, "a", after=(1, 0), since_us=99_999).seqs == []
    assert contents.missing == []


def test_after_an_opening_all_is_there_again() -> None:
    files = disk()
    filled(files).close()
    log = open_log(files, life=2)
    assert log.take_notices() == []
    assert UnitContents(log, "b", after=(1, 0)).seqs == list(range(1, 501))
    store(log, row("b", 501, 2))
    assert UnitContents(log, "b", after=(1, 499)).seqs == [500, 501, 502]


def test_a_killed_process_has_lost_nothing_that_was_stored() -> None:
    files = disk()
    filled(files)
    files.kill()
    log = open_log(files, life=2)
    assert log.take_notices() == []
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 501))


def test_reading_topics_goes_along_the_log() -> None:
    log = filled(disk(), "abc", rows=30)
    rows = topic_rows(log, "#")
    assert [each.topic for each in rows] == ["a", "b", "c"] * 30
    assert [seq for each in rows if each.topic == "c" for _, seq in stamps_of(each)] == list(
        range(1, 151)
    )
    assert {each.topic for each in topic_rows(log, "b", since_us=10_020)} == {"b"}
    assert len(topic_rows(log, "b", since_us=10_020)) == 10


def test_terms_follow_each_other() -> None:
    log = open_log(disk())
    later = run("a", 1, 2, term=3)
    later.prev_term, later.prev_seq = 1, 5
    store(log, row("a", 1, 5), row_of_run(later, "a", 2_000))
    assert log.extent("a") == UnitExtent((1, 0), (3, 2), [])
    assert UnitContents(log, "a", after=(1, 3)).stamps == [(1, 4), (1, 5), (3, 1), (3, 2)]


# ---- streams of many topics, and bundles ---------------------------------------------------------


def test_a_stream_has_many_topics_and_a_store_some_of_them() -> None:
    log = open_log(disk())
    store(log, row_of_run(run("x", 3, 2, term=9), "s9", 1_000, after=(9, 0)))
    store(log, row_of_run(run("y", 7, 1, term=9), "s9", 1_000, after=(9, 4)))
    store(log, covering_row("s9", (9, 7), (9, 20), 1_000))
    store(log, row_of_run(run("x", 25, 1, term=9), "s9", 1_000, after=(9, 20)))
    assert log.extents() == {"s9": UnitExtent((9, 0), (9, 25), [])}
    contents = UnitContents(log, "s9", after=(9, 0))
    assert contents.seqs == [3, 4, 7, 25]
    assert contents.missing == []
    only = UnitContents(log, "s9", after=(9, 0), pattern="x")
    assert only.seqs == [3, 4, 25]


def test_events_of_a_bundle_are_rows() -> None:
    log = open_log(disk())
    payloads = [payload_of(topic, 4, seq) for topic, seq in (("x", 8), ("y", 2), ("x", 9))]
    bundle = Bundle(7, ["x", "y", "x"], [1, 1, 2], [500, 600, 700], payloads)
    bundle.terms, bundle.seqs = [4, 4, 4], [8, 2, 9]
    store(log, *rows_of_bundle(bundle, str, 1_000))
    assert UnitContents(log, "x", after=(4, 7)).seqs == [8, 9]
    (stored,) = UnitContents(log, "y", after=(4, 1)).rows
    assert run_of(stored) == bundle.run_at(1)
    assert (stored.first_us, stored.last_us) == (600, 1_000)


def test_a_bundle_of_a_stream_covers_what_was_not_for_this_store() -> None:
    log = open_log(disk())
    bundle = Bundle(7, ["x", "y"], [1, 1], [500, 600], [b"x:4.8", b"y:4.12"])
    bundle.terms, bundle.seqs = [4, 4], [8, 12]
    store(log, *rows_of_bundle(bundle, lambda _: "s4", 1_000, after=(4, 5)))
    assert log.extent("s4") == UnitExtent((4, 5), (4, 12), [])
    assert UnitContents(log, "s4", after=(4, 5)).seqs == [8, 12]


# ---- holes and repeats ---------------------------------------------------------------------------


def test_a_hole_is_known_told_and_filled() -> None:
    log = open_log(disk())
    store(log, row("a", 1, 5), row("a", 21, 5))
    assert log.extent("a") == UnitExtent((1, 0), (1, 25), [((1, 5), (1, 20))])
    assert UnitContents(log, "a", after=(1, 2)).missing == [((1, 5), (1, 20))]
    store(log, row("a", 6, 10))
    store(log, row("a", 26, 5), row("a", 11, 12))
    assert log.extent("a") == UnitExtent((1, 0), (1, 30), [])
    for bytes_max in (1, 300, 10_000):
        contents = UnitContents(log, "a", after=(1, 0), bytes_max=bytes_max)
        assert contents.seqs == list(range(1, 31))
        assert contents.missing == []


def test_the_past_before_a_beginning_is_filled_in_later() -> None:
    files = disk()
    log = open_log(files)
    for number in range(40):
        store(log, row("a", 201 + 5 * number, 5))
    for number in range(40):
        store(log, row("a", 1 + 5 * number, 5))
    for _ in range(2):
        assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 401))
        assert UnitContents(log, "a", after=(1, 333)).seqs == list(range(334, 401))
        assert UnitContents(log, "a", after=(1, 77)).seqs == list(range(78, 401))
        log = open_log(files, life=2)


def test_a_portion_that_ends_with_a_range_goes_on_with_the_next_wherever_that_is() -> None:
    files = disk()
    log = open_log(files)
    store(log, row("a", 1, 5), row("a", 21, 5))
    for number in range(30):
        store(log, row("b", 1 + 5 * number, 5))
    # In a later segment than what follows it.
    store(log, row("a", 6, 5))
    store(log, row("a", 11, 5))
    store(log, row("a", 16, 5), row("b", 151))
    for bytes_max in range(1, 2_000, 50):
        contents = UnitContents(log, "a", after=(1, 0), bytes_max=bytes_max)
        assert (contents.seqs, contents.missing) == (list(range(1, 26)), [])
    assert log.take_notices() == []


def test_repeats_are_stored_and_written_once() -> None:
    log = open_log(disk())
    store(log, row("a", 1, 5))
    before = log.nbytes
    store(log, row("a", 1, 5))
    assert log.nbytes == before
    assert log.counters.log_rows_repeated == 1
    store(log, row("a", 3, 6))
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 9))


def test_units_past_the_bound_are_refused() -> None:
    log = open_log(disk(), LogSettings(units_max=2, refuse_below_free_bytes=0))
    outcomes = log.commit(
        [AppendToLog(1, [row("a", 1), row("b", 1)]), AppendToLog(2, [row("c", 1)])]
    )
    assert outcomes[0] == AppendStored(1)
    assert isinstance(outcomes[1], AppendRefused)
    assert outcomes[1].refusal is AppendRefusal.TOO_MANY_UNITS
    assert log.commit([AppendToLog(3, [row("b", 2)])]) == [AppendStored(3)]
    assert log.counters.log_appends_refused == 1


def test_ranges_past_the_bound_are_given_up_and_told() -> None:
    log = open_log(disk(), LogSettings(ranges_max=2, refuse_below_free_bytes=0))
    store(log, row("a", 1), row("a", 3), row("a", 5))
    assert log.extent("a") == UnitExtent((1, 2), (1, 5), [((1, 3), (1, 4))])
    assert log.take_notices() == [LogRangeGivenUp("a", ((1, 0), (1, 1)))]
    assert UnitContents(log, "a").seqs == [3, 5]


def test_a_row_that_covers_nothing_is_a_bug() -> None:
    with pytest.raises(ValueError, match="covers nothing"):
        open_log(disk()).commit([AppendToLog(1, [row("a", 5)._replace(after_seq=7)])])


# ---- damage --------------------------------------------------------------------------------------


def test_a_flipped_bit_is_told_and_not_served_and_filled_again() -> None:
    files = disk()
    log = filled(files)
    files.flip_bit(segments_of(files)[2], 300, 2)
    contents = UnitContents(log, "a", after=(1, 0))
    (lost,) = contents.missing
    assert lost == ((1, 50), (1, 55))
    assert contents.seqs == [seq for seq in range(1, 501) if not 50 < seq <= 55]
    (told,) = log.take_notices()
    assert isinstance(told, LogDamaged)
    assert told.lost == (("a", lost), ("b", lost))
    assert told.events == 10
    extent = log.extent("b")
    assert extent is not None
    assert extent.holes == [lost]

    files.kill()
    log = open_log(files, life=2)
    assert log.take_notices() == []
    store(log, row("a", 51, 5))
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 501))
    assert UnitContents(log, "b", after=(1, 0)).missing == [lost]


def test_a_damaged_header_loses_what_the_index_says() -> None:
    files = disk()
    log = filled(files)
    files.flip_bit(segments_of(files)[3], 10, 0)
    contents = UnitContents(log, "b", after=(1, 0))
    assert contents.missing == [((1, 75), (1, 80))]
    (told,) = log.take_notices()
    assert isinstance(told, LogDamaged)
    assert told.lost == (("a", ((1, 75), (1, 80))), ("b", ((1, 75), (1, 80))))


def test_a_damaged_index_is_made_anew() -> None:
    files = disk()
    filled(files).close()
    name = segments_of(files)[4].replace("segment", "index")
    files.flip_bit(name, 40, 3)
    log = open_log(files, life=2)
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 501))
    assert log.counters.log_indexes_rebuilt == 1


def test_where_frame_and_index_are_damaged_everything_is_read_again() -> None:
    files = disk()
    filled(files).close()
    name = segments_of(files)[4]
    files.flip_bit(name, 10, 3)
    files.flip_bit(name.replace("segment", "index"), 40, 3)
    log = open_log(files, life=2)
    contents = UnitContents(log, "a", after=(1, 0), pattern="a")
    assert contents.missing == [((1, 100), (1, 105))]
    assert contents.seqs == [seq for seq in range(1, 501) if not 100 < seq <= 105]
    assert [type(notice) for notice in log.take_notices()] == [LogRebuilt, LogDamaged]


@pytest.mark.parametrize("gone", [CHECKPOINT, "000000000005.segment"])
def test_without_its_checkpoint_or_a_segment_the_rest_is_served(gone: str) -> None:
    files = disk()
    filled(files).close()
    files.lose_file(gone)
    log = open_log(files, life=2)
    contents = UnitContents(log, "a", after=(1, 0))
    assert [type(notice) for notice in log.take_notices()] == [LogRebuilt]
    assert bool(contents.missing) == (gone != CHECKPOINT)
    lost = {seq for (_, after), (_, upto) in contents.missing for seq in range(after + 1, upto + 1)}
    assert contents.seqs == [seq for seq in range(1, 501) if seq not in lost]


def test_the_newest_segment_that_is_gone_is_told() -> None:
    files = disk()
    filled(files)
    files.lose_file(segments_of(files)[-1])
    (told,) = open_log(files, life=2).take_notices()
    assert isinstance(told, LogDamaged)
    assert told.reason == "the segment is gone"


def test_damage_that_is_found_when_opening_is_told() -> None:
    files = disk()
    log = filled(files, rows=3)
    files.flip_bit(segments_of(files)[0], 300, 1)
    files.kill()
    log = open_log(files, life=2)
    (told,) = log.take_notices()
    assert isinstance(told, LogDamaged)
    assert told.lost == (("a", ((1, 0), (1, 5))), ("b", ((1, 0), (1, 5))))
    assert UnitContents(log, "a").seqs == list(range(6, 16))


def test_a_file_that_is_too_short_is_damage_as_far_as_it_was_durable() -> None:
    files = disk()
    filled(files, rows=3)
    name = segments_of(files)[0]
    files.cut(name, files.size(name) - 7)
    log = open_log(files, life=2)
    assert [type(notice) for notice in log.take_notices()] == [LogDamaged]
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 11))


# ---- torn ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_mark", [True, False])
def test_a_torn_end_is_cut(has_mark: bool) -> None:
    files = disk()
    log = filled(files, rows=3)
    name = segments_of(files)[0]
    stored = files.size(name)
    files.power_left = 0
    with pytest.raises(PowerLostError):
        store(log, row("a", 16, 5))
    files.kill()
    files.append(name, [b"torn"])
    if not has_mark:
        files.lose_file(DURABLE)
    log = open_log(files, life=2)
    (cut,) = log.take_notices()
    assert isinstance(cut, LogCut)
    assert cut.offset == stored
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 16))


def test_what_was_written_and_not_synced_is_synced_before_it_counts() -> None:
    files = disk()
    log = filled(files, rows=3)
    files.sync_failures = 1
    (outcome,) = log.commit([AppendToLog(1, [row("a", 16, 5)])])
    assert isinstance(outcome, AppendRefused)
    files.kill()
    syncs = files.syncs
    log = open_log(files, life=2)
    assert files.syncs > syncs
    files.crash()
    log = open_log(files, life=3)
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 21))


# ---- a disk that is full, or fails ---------------------------------------------------------------


def test_a_failed_sync_is_the_end_of_this_life() -> None:
    files = disk()
    log = filled(files)
    files.sync_failures = 1
    for _ in range(2):
        (outcome,) = log.commit([AppendToLog(1, [row("a", 501)])])
        assert isinstance(outcome, AppendRefused)
        assert outcome.refusal is AppendRefusal.FAILED
    assert log.health is LogHealth.FAILED
    (told,) = log.take_notices()
    assert isinstance(told, LogFailed)
    assert "synced" in told.reason
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 501))
    extent = log.extent("a")
    assert extent is not None
    assert extent.upto == (1, 500)


def test_a_full_disk_refuses_and_resumes() -> None:
    files = disk()
    log = filled(files)
    files.capacity_bytes -= files.free_bytes() - 100
    (outcome,) = log.commit([AppendToLog(1, [row("a", 501, 20)])])
    assert isinstance(outcome, AppendRefused)
    assert outcome.refusal is AppendRefusal.FULL
    assert isinstance(log.take_notices()[0], LogDiskIsFull)
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 501))
    files.capacity_bytes += 10_000
    store(log, row("a", 501, 20))
    assert log.take_notices() == [LogResumed()]
    files.kill()
    log = open_log(files, life=2)
    assert log.take_notices() == []
    assert UnitContents(log, "a", after=(1, 500)).seqs == list(range(501, 521))


def test_on_a_full_disk_a_log_opens_and_serves() -> None:
    files = disk()
    filled(files)
    files.capacity_bytes -= files.free_bytes()
    for life in (2, 3):
        files.crash()
        log = open_log(files, life=life)
        assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 501))
        assert isinstance(log.commit([AppendToLog(1, [row("a", 501)])])[0], AppendRefused)
    files.capacity_bytes += 10_000
    store(log, row("a", 501))
    assert [type(notice) for notice in log.take_notices()] == [LogDiskIsFull, LogResumed]


def test_events_are_refused_before_the_disk_is_full() -> None:
    files = SimulatedLogDisk(disk()._rng, capacity_bytes=10_000)
    settings = LogSettings(refuse_below_free_bytes=5_000, resume_above_free_bytes=7_000)
    log = EventLog.open(files, settings, 1)
    outcomes = [log.commit([AppendToLog(n, [row("a", n)])])[0] for n in range(1, 100)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, AppendRefused)]
    assert 0 < len(refused) < 99
    assert outcomes[-len(refused) :] == refused
    assert len(log.take_notices()) == 1
    assert files.free_bytes() > 4_900
    files.capacity_bytes += 1_500
    assert isinstance(log.commit([AppendToLog(1, [row("a", 99)])])[0], AppendRefused)
    files.capacity_bytes += 1_500
    store(log, row("a", 99))


def test_a_log_has_no_more_bytes_than_it_may() -> None:
    settings = LogSettings(log_bytes_max=2_000, refuse_below_free_bytes=0)
    log = open_log(disk(), settings)
    outcomes = [log.commit([AppendToLog(n, [row("a", n)])])[0] for n in range(1, 100)]
    assert isinstance(outcomes[-1], AppendRefused)
    assert 1_000 < log.nbytes <= 2_000


def test_memory_for_indexes_is_bounded() -> None:
    files = disk()
    filled(files).close()
    log = open_log(files, LogSettings(index_bytes_max=5_000, refuse_below_free_bytes=0), life=2)
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 501))
    assert log.counters.log_indexes_dropped > 0


def test_one_row_is_an_answer_however_large() -> None:
    log = open_log(disk(), SMALL)
    store(log, row("a", 1, 100))
    answer = log.read(ReadUnit(1, "a", (1, 0), bytes_max=1))
    assert isinstance(answer, UnitAnswer)
    assert len(answer.rows) == 1
