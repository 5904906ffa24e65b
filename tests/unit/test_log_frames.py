"""Frames, columns and indexes of a log as bytes: what is written is read, and nothing else is."""

from __future__ import annotations

from random import Random

import pytest

from broker_agent.core.stores.log.checkpoint import (
    CheckpointError,
    LogCheckpoint,
    SegmentInfo,
    decode_checkpoint,
    encode_checkpoint,
)
from broker_agent.core.stores.log.columns import ColumnError, decode_column, encode_column
from broker_agent.core.stores.log.coverage import Coverage, CoveredRange
from broker_agent.core.stores.log.frames import (
    FRAME_BYTES_MAX,
    FramePlace,
    LogFrameError,
    decode_header,
    decode_rows,
    encode_frame,
    size_in_frame,
)
from broker_agent.core.stores.log.log_rows import LogRow, RowKind
from broker_agent.core.stores.log.segment_index import GrowingIndex, LogIndexError, SealedIndex
from broker_agent.core.stores.log.stored_runs import (
    covering_row,
    first_published_us,
    part_of_row,
    row_of_run,
    run_of,
    selected_events,
)
from dynatops.kit.run_events import events_of
from tests.support.event_logs import row, run, stamps_of

PLACE = FramePlace(segment=3, number=17, life=2, durable=1_000)


def rows() -> list[LogRow]:
    return [
        row("a", 1, 5),
        row("stock/é", (1 << 62), 1, term=(1 << 63) + 5, now_us=1_700_000_000_000_000),
        row_of_run(run("b", 9, term=4), "s4", 1_000, after=(3, 77)),
        covering_row("s4", (4, 9), (4, 200), 5_000),
        LogRow("u", "t", RowKind.PLAIN, 1, 1, 1, 4, 4, 1, 1 << 63, 3, 10, 20, b"x" * 300),
    ]


@pytest.mark.parametrize("count", range(1, 6))
def test_a_frame_is_what_was_written(count: int) -> None:
    written = rows()[:count]
    raw = b"".join(encode_frame(PLACE, written))
    header = decode_header(raw)
    assert decode_rows(header, raw) == written
    assert (header.segment, header.number, header.life, header.durable) == PLACE[:2] + PLACE[2:]
    assert (header.rows, header.nbytes) == (count, len(raw))
    assert header.events == sum(each.events for each in written)
    names = sum(len(each.unit.encode()) + len(each.topic.encode()) for each in written)
    assert len(raw) <= FRAME_BYTES_MAX + names + sum(map(size_in_frame, written))


def test_every_flipped_bit_is_found() -> None:
    raw = b"".join(encode_frame(PLACE, rows()))
    for offset in range(len(raw)):
        damaged = bytearray(raw)
        damaged[offset] ^= 1 << (offset % 8)
        with pytest.raises(LogFrameError):
            decode_rows(decode_header(bytes(damaged)), bytes(damaged))


def test_a_frame_that_ends_early_is_none() -> None:
    raw = b"".join(encode_frame(PLACE, rows()))
    for size in range(len(raw)):
        with pytest.raises(LogFrameError):
            decode_rows(decode_header(raw[:size]), raw[:size])


def test_columns_take_as_few_bytes_as_they_need() -> None:
    for values, nbytes in (
        ([7, 7, 7], 9),
        ([1 << 60, (1 << 60) + 255], 11),
        ([0, 256], 13),
        ([5, 5 + (1 << 31)], 17),
        ([0, (1 << 64) - 1], 25),
    ):
        raw = encode_column(values)
        assert len(raw) == nbytes
        decoded, end = decode_column(b"??" + raw, 2, len(values))
        assert (list(decoded), end) == (values, nbytes + 2)


@pytest.mark.parametrize("raw", [b"", b"\x03" + bytes(20), b"\x08" + bytes(15)])
def test_what_is_no_column_is_refused(raw: bytes) -> None:
    with pytest.raises(ColumnError):
        decode_column(raw, 0, 2)


def index() -> GrowingIndex:
    growing, offset = GrowingIndex(), 0
    for number in range(1, 6):
        written = [row("a", 5 * number, 5), row("b", number), row("b", 10 + number)]
        parts = encode_frame(FramePlace(1, number, 1, 0), written)
        header = decode_header(parts[0])
        growing.add(offset, header, written, [len(each.data) for each in written])
        offset += header.nbytes
    return growing


def test_an_index_is_the_same_when_it_is_read_again() -> None:
    growing = index()
    sealed = SealedIndex(growing.encode())
    assert len(sealed) == len(growing) == 5
    assert [sealed.frame(place) for place in range(5)] == [growing.frame(p) for p in range(5)]
    for name in ("a", "b", "c"):
        assert list(map(list, sealed.unit_frames(name))) == list(
            map(list, growing.unit_frames(name))
        )
        assert list(map(list, sealed.topic_frames(name))) == list(
            map(list, growing.topic_frames(name))
        )
    assert list(sealed.topics()) == list(growing.topics()) == ["a", "b"]
    assert list(sealed.units()) == ["a", "b"]
    entries = sealed.unit_frames("b")
    # In each frame twice: what is between is not there.
    assert [(entries.frames[at], entries.after(at), entries.upto(at)) for at in (4, 5)] == [
        (2, (1, 2), (1, 3)),
        (2, (1, 12), (1, 13)),
    ]
    assert list(sealed.topic_frames("b").events) == [2] * 5
    assert len(SealedIndex(GrowingIndex().encode())) == 0


def test_an_index_that_is_damaged_is_refused() -> None:
    raw = index().encode()
    rng = Random(1)
    for _ in range(200):
        damaged = bytearray(raw)
        damaged[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        with pytest.raises(LogIndexError):
            SealedIndex(bytes(damaged))
    for size in range(len(raw)):
        with pytest.raises(LogIndexError):
            SealedIndex(raw[:size])


def test_a_checkpoint_is_the_same_when_it_is_read_again() -> None:
    checkpoint = LogCheckpoint(
        life=4,
        next_frame=9,
        newest_sealed=3,
        segments={3: SegmentInfo(3, 100, 2, 10, 5, 6, 8)},
        coverage={
            "é": Coverage([CoveredRange((1, 0), (1, 5), 1, 3), CoveredRange((1, 7), (2, 1), 3, 3)]),
            "b": Coverage([], is_ordered=False),
        },
        damaged=frozenset({(3, 50)}),
    )
    raw = encode_checkpoint(checkpoint)
    read = decode_checkpoint(raw)
    assert encode_checkpoint(read) == raw
    assert read.coverage["é"].ranges == checkpoint.coverage["é"].ranges
    assert not read.coverage["b"].is_ordered
    assert (read.segments, read.damaged) == (checkpoint.segments, checkpoint.damaged)
    for offset in range(len(raw) - 1):
        with pytest.raises(CheckpointError):
            decode_checkpoint(raw[:offset] + bytes([raw[offset] ^ 1]) + raw[offset + 1 :])


def test_a_part_of_a_row_has_the_events_between() -> None:
    whole = row("a", 11, 10)
    part = part_of_row(whole, (1, 12), (1, 15))
    assert (part.after, part.upto) == ((1, 12), (1, 15))
    assert stamps_of(part) == [(1, 13), (1, 14), (1, 15)]
    assert part_of_row(whole, (1, 10), (1, 20)) == whole


def test_a_part_of_a_partial_row_keeps_its_offsets() -> None:
    made = run("a", 11, 10)
    events = events_of(made)
    assert events is not None
    partial = selected_events(made, [0, 4, 7, 9], events)
    stored = row_of_run(partial, "s1", 1_000, after=(1, 5))
    assert stamps_of(stored) == [(1, 11), (1, 15), (1, 18), (1, 20)]
    part = part_of_row(stored, (1, 11), (1, 18))
    assert (part.after, part.upto) == ((1, 11), (1, 18))
    assert stamps_of(part) == [(1, 15), (1, 18)]
    assert part.number == 12


def test_a_part_without_events_covers_what_it_covered() -> None:
    stored = row_of_run(run("a", 11, 2, term=3), "s", 1_000, after=(2, 5))
    part = part_of_row(stored, (2, 7), (3, 4))
    assert (part.after, part.upto, part.events) == ((2, 7), (3, 4), 0)
    assert run_of(part) is None


def test_the_time_of_the_first_event_is_found_without_the_others() -> None:
    assert first_published_us(run("a", 1, 3, published_us=77).events) == 77
    for raw in (b"", b"\x0a", b"\x0a\x05ab", b"\x12\x01a", b"\x0a\xff\xff\xff\xff\xff\xff"):
        assert first_published_us(raw) == 0
