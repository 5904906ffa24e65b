"""A frame: what is written, checked and read as one, rows of any units and topics.

    header     magic, segment, its own number, sizes, how many rows and events, the life of the
               store that wrote it, the earliest and the latest time, three CRCs
    directory  names and columns: a row's unit, topic, stamps, times, and how long its data is
    body       the data of the rows, end to end

The directory has a CRC of its own, so that where a body is damaged it is known whose events were
in it. `durable` says how much of the segment had been synced when the frame was written: what is
damaged before that is no torn end. Numbers of frames grow along the log; with the number of the
segment they tell a frame from bytes of another time or place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from broker_agent.core.stores.log.columns import (
    COLUMN_BYTES,
    ColumnError,
    decode_column,
    decode_names,
    encode_column,
    encode_names,
)
from broker_agent.core.stores.log.log_rows import LogRow

MAGIC = b"DyL1"
_HEADER = struct.Struct("<4sIQIIIIQQQQII")
_CHECK = struct.Struct("<I")
_COUNTS = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECK.size
_COLUMNS = 15
# What a frame takes at most beside its rows, and a row beside its data and its names.
FRAME_BYTES_MAX = HEADER_BYTES + _COUNTS.size + (1 + _COLUMNS) * COLUMN_BYTES
_ROW_BYTES_MAX = 8 * _COLUMNS


class LogFrameError(ValueError):
    """These bytes are no sound frame; the message says what is wrong with them."""


class FrameHeader(NamedTuple):
    magic: bytes
    segment: int
    number: int
    directory_bytes: int
    body_bytes: int
    rows: int
    events: int
    life: int
    durable: int
    first_us: int
    last_us: int
    directory_crc: int
    body_crc: int

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + self.directory_bytes + self.body_bytes


class FramePlace(NamedTuple):
    """What a frame is to know of where it will be."""

    segment: int
    number: int
    life: int
    durable: int


def encode_frame(place: FramePlace, rows: Sequence[LogRow]) -> list[bytes]:
    """As parts to be written one after the other."""
    directory = _encode_directory(rows)
    body = b"".join([row.data for row in rows])
    header = _HEADER.pack(
        MAGIC,
        place.segment,
        place.number,
        len(directory),
        len(body),
        len(rows),
        sum(row.events for row in rows),
        place.life,
        place.durable,
        min(row.first_us for row in rows),
        max(row.last_us for row in rows),
        crc32(directory),
        crc32(body),
    )
    return [b"".join((header, _CHECK.pack(crc32(header)), directory)), body]


def decode_header(raw: bytes, offset: int = 0) -> FrameHeader:
    """Raises LogFrameError."""
    end = offset + _HEADER.size
    if len(raw) < end + _CHECK.size:
        raise LogFrameError("it ends in its header")
    (check,) = _CHECK.unpack_from(raw, end)
    if crc32(raw[offset:end]) != check:
        raise LogFrameError("its header is damaged")
    header = FrameHeader._make(_HEADER.unpack_from(raw, offset))
    if header.magic != MAGIC:
        raise LogFrameError("it was written by another version of this program")
    return header


def decode_directory(header: FrameHeader, raw: bytes) -> tuple[list[LogRow], Sequence[int]]:
    """The rows, without data, and how long that of each is. Raises LogFrameError."""
    check_directory(header, raw)
    try:
        return _decode_directory(header.rows, raw)
    except (ColumnError, IndexError, struct.error) as error:
        raise LogFrameError(f"its directory cannot be read: {error}") from error


def decode_rows(header: FrameHeader, raw: bytes) -> list[LogRow]:
    """All of the frame that these bytes are, checked. Raises LogFrameError."""
    if len(raw) != header.nbytes:
        raise LogFrameError("it is cut off")
    body_at = HEADER_BYTES + header.directory_bytes
    check_body(header, raw[body_at:])
    rows, sizes = decode_directory(header, raw[HEADER_BYTES:body_at])
    return [
        row._replace(data=raw[start : start + size])
        for row, size, start in zip(rows, sizes, _starts(sizes, body_at), strict=True)
    ]


def check_directory(header: FrameHeader, raw: bytes) -> None:
    if len(raw) != header.directory_bytes or crc32(raw) != header.directory_crc:
        raise LogFrameError("its directory is damaged")


def check_body(header: FrameHeader, body: bytes) -> None:
    if crc32(body) != header.body_crc:
        raise LogFrameError("its events are damaged")


def size_in_frame(row: LogRow) -> int:
    """At most so much, if its unit is its topic: frames are bounded in bytes."""
    return len(row.data) + len(row.topic) + _ROW_BYTES_MAX


def _starts(sizes: Sequence[int], start: int) -> Iterator[int]:
    for size in sizes:
        yield start
        start += size


# ---- the directory -------------------------------------------------------------------------------


def _encode_directory(rows: Sequence[LogRow]) -> bytes:
    (
        units, topics, kinds, after_terms, after_seqs, terms, firsts, lasts, events, publishers,
        numbers, first_us, last_us, datas, late,
    ) = zip(*rows, strict=True)  # fmt: skip
    names = dict.fromkeys(units)
    names.update(dict.fromkeys(topics))
    places = {name: place for place, name in enumerate(names)}
    columns = (
        [places[unit] for unit in units],
        [places[topic] for topic in topics],
        kinds,
        # Most terms are the term before, and most stamps the next: nothing remains to be said.
        list(map(int.__sub__, terms, after_terms)),
        [
            first - 1 - after if term == after_term else after
            for first, after, term, after_term in zip(
                firsts, after_seqs, terms, after_terms, strict=True
            )
        ],
        terms,
        firsts,
        list(map(int.__sub__, lasts, firsts)),
        events,
        publishers,
        numbers,
        first_us,
        list(map(int.__sub__, last_us, first_us)),
        late,
        list(map(len, datas)),
    )
    return b"".join(
        [_COUNTS.pack(len(places)), encode_names(list(places)), *map(encode_column, columns)]
    )


def _decode_directory(count: int, raw: bytes) -> tuple[list[LogRow], Sequence[int]]:
    (names_count,) = _COUNTS.unpack_from(raw)
    names, offset = decode_names(raw, _COUNTS.size, names_count)
    columns = []
    for _ in range(_COLUMNS):
        column, offset = decode_column(raw, offset, count)
        columns.append(column)
    (
        units, topics, kinds, term_steps, gaps, terms, firsts, spans, events, publishers, numbers,
        first_us, lasting_us, late, sizes,
    ) = columns  # fmt: skip
    rows = [
        LogRow(
            names[unit], names[topic], kind, term - step, gap if step else first - 1 - gap, term,
            first, first + span, number_of, publisher, number, begin, begin + lasting, b"", is_late,
        )
        for unit, topic, kind, step, gap, term, first, span, number_of, publisher, number, begin,
            lasting, is_late in zip(
            units, topics, kinds, term_steps, gaps, terms, firsts, spans, events, publishers,
            numbers, first_us, lasting_us, late, strict=True,
        )
    ]  # fmt: skip
    return rows, sizes
