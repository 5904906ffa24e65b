"""Where in a segment something is: frames by unit and stamp, by topic, and by time.

A growing index belongs to the segment that is written to. When the segment is sealed, its index
becomes a file beside it, and is read again when somebody looks for something there: what is held
of a log in memory does not grow with the log. The file can always be made anew from the segment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from broker_agent.core.stores.log.columns import decode_names, encode_names
from broker_agent.core.stores.log.frames import FrameHeader
from broker_agent.core.stores.log.log_rows import LogRow, Stamp

_MAGIC = b"DyI1"
_BEGINNING = struct.Struct("<4sI")
_LENGTH = struct.Struct("<Q")
_NAME_BYTES = 120


class LogIndexError(ValueError):
    """These bytes are no index of this program."""


class IndexedFrame(NamedTuple):
    offset: int
    nbytes: int
    number: int
    first_us: int
    last_us: int


class UnitFrames(NamedTuple):
    """The frames that have rows of a unit, and the stamps that these cover. A frame stands there
    once for all rows that follow each other."""

    frames: Sequence[int]
    after_terms: Sequence[int]
    after_seqs: Sequence[int]
    terms: Sequence[int]
    lasts: Sequence[int]

    def after(self, place: int) -> Stamp:
        return self.after_terms[place], self.after_seqs[place]

    def upto(self, place: int) -> Stamp:
        return self.terms[place], self.lasts[place]


class TopicFrames(NamedTuple):
    """The frames that have rows of a topic; how many events and bytes of data that came in their
    turn, and bytes of others."""

    frames: Sequence[int]
    events: Sequence[int]
    nbytes: Sequence[int]
    late_bytes: Sequence[int]


_NO_UNIT = UnitFrames((), (), (), (), ())
_NO_TOPIC = TopicFrames((), (), (), ())
# Types of the columns, as `array` calls them.
_FRAME_CODES = "QQQQQ"
_UNIT_CODES = "IQQQQ"
_TOPIC_CODES = "IIII"


class GrowingIndex:
    def __init__(self) -> None:
        self._frames = _columns(_FRAME_CODES)
        # By name: its columns.
        self._units: dict[str, list[array[int]]] = {}
        self._topics: dict[str, list[array[int]]] = {}

    def __len__(self) -> int:
        """How many frames."""
        return len(self._frames[0])

    def add(
        self, offset: int, header: FrameHeader, rows: Sequence[LogRow], sizes: Sequence[int]
    ) -> None:
        """The next frame; `sizes`: of the data of its rows."""
        frame = len(self)
        values = (offset, header.nbytes, header.number, header.first_us, header.last_us)
        for column, value in zip(self._frames, values, strict=True):
            column.append(value)
        for row, size in zip(rows, sizes, strict=True):
            self._add_unit(frame, row)
            self._add_topic(frame, row, size)

    def _add_unit(self, frame: int, row: LogRow) -> None:
        columns = self._units.get(row.unit)
        if columns is None:
            columns = self._units[row.unit] = _columns(_UNIT_CODES)
        frames, after_terms, after_seqs, terms, lasts = columns
        if frames and frames[-1] == frame and (terms[-1], lasts[-1]) == row.after:
            terms[-1], lasts[-1] = row.upto
            return
        frames.append(frame)
        after_terms.append(row.after_term)
        after_seqs.append(row.after_seq)
        terms.append(row.term)
        lasts.append(row.last)

    def _add_topic(self, frame: int, row: LogRow, size: int) -> None:
        columns = self._topics.get(row.topic)
        if columns is None:
            columns = self._topics[row.topic] = _columns(_TOPIC_CODES)
        frames, events, nbytes, late_bytes = columns
        if not frames or frames[-1] != frame:
            frames.append(frame)
            for column in (events, nbytes, late_bytes):
                column.append(0)
        if row.is_late:
            late_bytes[-1] += size
        else:
            events[-1] += row.events
            nbytes[-1] += size

    def frame(self, place: int) -> IndexedFrame:
        return IndexedFrame._make(column[place] for column in self._frames)

    def unit_frames(self, unit: str) -> UnitFrames:
        columns = self._units.get(unit)
        return _NO_UNIT if columns is None else UnitFrames._make(columns)

    def topic_frames(self, topic: str) -> TopicFrames:
        columns = self._topics.get(topic)
        return _NO_TOPIC if columns is None else TopicFrames._make(columns)

    def units(self) -> Iterable[str]:
        return self._units

    def topics(self) -> Iterable[str]:
        return self._topics

    def encode(self) -> bytes:
        sections = [_raw(column) for column in self._frames]
        for table, codes in ((self._units, _UNIT_CODES), (self._topics, _TOPIC_CODES)):
            counts = array("I", [len(columns[0]) for columns in table.values()])
            sections += [_raw(counts), encode_names(list(table)) if table else b""]
            sections += [
                b"".join([_raw(columns[place]) for columns in table.values()])
                for place in range(len(codes))
            ]
        body = b"".join(part for s in sections for part in (_LENGTH.pack(len(s)), s))
        return _BEGINNING.pack(_MAGIC, crc32(body)) + body


class SealedIndex:
    """Of a segment that is not written to any more, as read from its file."""

    def __init__(self, raw: bytes) -> None:
        """Raises LogIndexError."""
        sections = _sections(raw)
        try:
            self._frames = [_column(code, next(sections)) for code in _FRAME_CODES]
            self._units = _NameTable(_UNIT_CODES, sections)
            self._topics = _NameTable(_TOPIC_CODES, sections)
        except (StopIteration, ValueError) as error:
            raise LogIndexError("it is incomplete") from error
        self.nbytes = len(raw) + _NAME_BYTES * (len(self._units.places) + len(self._topics.places))

    def __len__(self) -> int:
        return len(self._frames[0])

    def frame(self, place: int) -> IndexedFrame:
        return IndexedFrame._make(column[place] for column in self._frames)

    def unit_frames(self, unit: str) -> UnitFrames:
        return UnitFrames._make(self._units.entries(unit))

    def topic_frames(self, topic: str) -> TopicFrames:
        return TopicFrames._make(self._topics.entries(topic))

    def units(self) -> Iterable[str]:
        return self._units.places

    def topics(self) -> Iterable[str]:
        return self._topics.places


SegmentIndex = GrowingIndex | SealedIndex


class _NameTable:
    """Columns of many names, one name's after the other's."""

    def __init__(self, codes: str, sections: Iterator[bytes]) -> None:
        counts = _column("I", next(sections))
        names = next(sections)
        self._columns = [_column(code, next(sections)) for code in codes]
        # Of each name, where its part of the columns begins and ends.
        self.places: dict[str, tuple[int, int]] = {}
        end = 0
        listed = decode_names(names, 0, len(counts))[0] if counts else []
        for name, count in zip(listed, counts, strict=True):
            self.places[name] = end, end + count
            end += count

    def entries(self, name: str) -> list[Sequence[int]]:
        start, end = self.places.get(name, (0, 0))
        return [column[start:end] for column in self._columns]


def _sections(raw: bytes) -> Iterator[bytes]:
    if len(raw) < _BEGINNING.size:
        raise LogIndexError("it is empty")
    magic, check = _BEGINNING.unpack_from(raw)
    body = raw[_BEGINNING.size :]
    if magic != _MAGIC or crc32(body) != check:
        raise LogIndexError("it is damaged")
    offset = 0
    while offset < len(body):
        (length,) = _LENGTH.unpack_from(body, offset)
        offset += _LENGTH.size
        yield body[offset : offset + length]
        offset += length


def _columns(codes: str) -> list[array[int]]:
    return [array(code) for code in codes]


def _raw(column: array[int]) -> bytes:
    """Little endian, wherever it is written."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _column(code: str, raw: bytes) -> array[int]:
    column = array(code, raw)
    if sys.byteorder == "big":
        column.byteswap()
    return column
