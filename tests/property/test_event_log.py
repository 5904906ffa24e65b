"""A store's log after anything: what is read was appended, and what is missing is told."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_agent.core.stores.log.columns import decode_column, encode_column
from broker_agent.core.stores.log.coverage import Coverage
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_notices import LogCut, LogDamaged
from broker_agent.core.stores.log.log_requests import AppendStored, AppendToLog
from broker_agent.core.stores.log.log_rows import LogRow
from broker_agent.core.stores.log.recovery import segment_name
from broker_agent.core.stores.log.segments import CHECKPOINT, DURABLE
from simulator.eventlog.log_disk import SimulatedLogDisk
from tests.support.event_logs import SMALL, UnitContents, row

# Of each append: topic, and how many events.
APPENDS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), min_size=1, max_size=40)


def appended(disk: SimulatedLogDisk, appends: list[tuple[str, int]], together: int) -> EventLog:
    log = EventLog.open(disk, SMALL, 1)
    ends = {"a": 0, "b": 0}
    rows: list[LogRow] = []
    for topic, count in appends:
        rows.append(row(topic, ends[topic] + 1, count))
        ends[topic] += count
    for start in range(0, len(rows), together):
        group = [AppendToLog(start, [each]) for each in rows[start : start + together]]
        assert all(isinstance(outcome, AppendStored) for outcome in log.commit(group))
    return log


def total(appends: list[tuple[str, int]], topic: str) -> int:
    return sum(count for each, count in appends if each == topic)


def missing_seqs(contents: UnitContents) -> set[int]:
    return {s for (_, after), (_, upto) in contents.missing for s in range(after + 1, upto + 1)}


@settings(deadline=None)
@given(appends=APPENDS, together=st.integers(1, 5), left=st.integers(0, 1_000))
def test_cut_off_anywhere_it_is_a_prefix(
    appends: list[tuple[str, int]], together: int, left: int
) -> None:
    """The last segment is as long as it happens to be, and nobody knows how long it was."""
    disk = SimulatedLogDisk(Random(1))
    appended(disk, appends, together)
    newest = max(name for name in disk.names() if name.endswith(".segment"))
    disk.cut(newest, min(left, disk.size(newest)))
    disk.lose_file(DURABLE)
    log = EventLog.open(disk, SMALL, 2)
    for notice in log.take_notices():
        # Each frame says of those before it that they were durable.
        assert isinstance(notice, LogCut)
    for topic in "ab":
        contents = UnitContents(log, topic, after=(1, 0))
        assert contents.missing == []
        assert contents.seqs == list(range(1, len(contents.seqs) + 1))
        assert len(contents.seqs) <= total(appends, topic)


@settings(deadline=None)
@given(
    appends=APPENDS,
    together=st.integers(1, 5),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)), min_size=1, max_size=4),
    reopens=st.booleans(),
    knows=st.booleans(),
)
def test_flipped_bits_are_never_served_and_always_told(
    appends: list[tuple[str, int]],
    together: int,
    flips: list[tuple[int, int]],
    reopens: bool,
    knows: bool,
) -> None:
    disk = SimulatedLogDisk(Random(1))
    log = appended(disk, appends, together)
    names = sorted(name for name in disk.names() if name.endswith(".segment"))
    for at, bit in flips:
        name = names[at % len(names)]
        disk.flip_bit(name, at % disk.size(name), bit)
    if reopens:
        if not knows and CHECKPOINT in disk.names():
            disk.lose_file(CHECKPOINT)
        log = EventLog.open(disk, SMALL, 2)
    for topic in "ab":
        contents = UnitContents(log, topic, after=(1, 0))
        told = missing_seqs(contents)
        assert contents.seqs == sorted(set(contents.seqs))
        assert not told & set(contents.seqs)
        extent = log.extent(topic)
        end = extent.upto[1] if extent is not None else 0
        assert told | set(contents.seqs) >= set(range(1, end + 1))
        if len(contents.seqs) < total(appends, topic):
            notices = log.take_notices()
            assert any(isinstance(notice, LogDamaged | LogCut) for notice in notices) or end == 0
            for notice in notices:
                # Put back, for the other topic.
                log._context.notices.put(notice)


@settings(deadline=None)
@given(garbage=st.binary(max_size=2_000), is_checkpoint=st.booleans())
def test_garbage_in_place_of_files_is_survived(garbage: bytes, is_checkpoint: bool) -> None:
    disk = SimulatedLogDisk(Random(1))
    appended(disk, [("a", 5)] * 20, 1)
    name = CHECKPOINT if is_checkpoint else segment_name(2)
    disk.cut(name, 0)
    disk.append(name, [garbage])
    log = EventLog.open(disk, SMALL, 2)
    contents = UnitContents(log, "a", after=(1, 0))
    assert missing_seqs(contents) | set(contents.seqs) == set(range(1, 101))
    assert bool(contents.missing) != is_checkpoint


@given(values=st.lists(st.integers(0, (1 << 64) - 1), min_size=1), before=st.binary(max_size=9))
def test_columns_are_what_was_written(values: list[int], before: bytes) -> None:
    raw = before + encode_column(values)
    decoded, end = decode_column(raw, len(before), len(values))
    assert (list(decoded), end) == (values, len(raw))


STAMPS = st.tuples(st.integers(1, 3), st.integers(0, 12))


@given(
    steps=st.lists(st.tuples(st.booleans(), STAMPS, STAMPS), max_size=20),
    asked=st.tuples(STAMPS, STAMPS),
)
def test_coverage_is_a_set_of_stamps(
    steps: list[tuple[bool, tuple[int, int], tuple[int, int]]],
    asked: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    every = [(term, seq) for term in (1, 2, 3) for seq in range(13)]
    there: set[tuple[int, int]] = set()
    coverage = Coverage()
    for segment, (is_added, *ends) in enumerate(steps):
        after, upto = min(ends), max(ends)
        between = {stamp for stamp in every if after < stamp <= upto}
        if is_added:
            for part in coverage.missing_in(after, upto):
                coverage = coverage.with_range(*part, segment)
            there |= between
        else:
            coverage = coverage.without_range(after, upto)
            there -= between
    covered = {s for s in every if any(c.after < s <= c.upto for c in coverage.ranges)}
    assert covered == there
    after, upto = min(asked), max(asked)
    missing = {
        s for s in every for low, high in coverage.missing_in(after, upto) if low < s <= high
    }
    assert missing == {stamp for stamp in every if after < stamp <= upto} - there
    holes = {s for s in every for low, high in coverage.holes() if low < s <= high}
    assert holes == {s for s in every if coverage.since < s <= coverage.upto} - there
