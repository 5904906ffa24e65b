"""The segments of a log: those that are sealed, the one that is written to, and their indexes.

    000000000007.segment    frames, one after the other
    000000000007.index      of a sealed segment (`segment_index.py`)
    checkpoint              of all sealed ones (`checkpoint.py`)
    durable                 how far the one that is written to has been synced

A segment belongs to one life of a store: another life begins another. The file `durable` is written
after each sync and is not synced itself: a process that is killed leaves it right, a machine that
loses power leaves an older one, or none, and then frames say it of those before them.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from zlib import crc32

from broker_agent.core.stores.log.checkpoint import SegmentInfo
from broker_agent.core.stores.log.frames import (
    HEADER_BYTES,
    FrameHeader,
    LogFrameError,
    decode_directory,
    decode_header,
    decode_rows,
)
from broker_agent.core.stores.log.log_counters import LogCounters
from broker_agent.core.stores.log.log_files import (
    LogDiskFullError,
    LogFiles,
    LogFilesError,
    replace_file,
)
from broker_agent.core.stores.log.log_rows import LogRow
from broker_agent.core.stores.log.recovery import scan_segment, segment_name
from broker_agent.core.stores.log.segment_index import (
    GrowingIndex,
    IndexedFrame,
    LogIndexError,
    SealedIndex,
    SegmentIndex,
)

CHECKPOINT = "checkpoint"
DURABLE = "durable"
REWRITTEN = ".rewritten"
INDEX = ".index"
_MARK = struct.Struct("<QQ")
_CHECK = struct.Struct("<I")


def index_name(number: int) -> str:
    return f"{number:012}{INDEX}"


class SegmentUnprovenError(Exception):
    """What is in a segment must be found out anew, with all others."""

    def __init__(self, segment: int) -> None:
        super().__init__(f"segment {segment} is damaged, and so is its index")
        self.segment = segment


class ActiveSegment:
    """The one that is written to."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.index = GrowingIndex()
        # Synced, all of it.
        self.nbytes = 0
        self.events = 0
        self.first_us = 0
        self.last_us = 0
        self.last_frame = 0

    def add(
        self, offset: int, header: FrameHeader, rows: Sequence[LogRow], sizes: Sequence[int]
    ) -> None:
        """The next frame, which is on the disk."""
        is_first = not len(self.index)
        self.index.add(offset, header, rows, sizes)
        self.first_us = header.first_us if is_first else min(self.first_us, header.first_us)
        self.last_us = max(self.last_us, header.last_us)
        self.last_frame = header.number
        self.nbytes = offset + header.nbytes
        self.events += header.events

    def info(self) -> SegmentInfo:
        return SegmentInfo(
            self.number, self.nbytes, len(self.index), self.events, self.first_us, self.last_us,
            self.last_frame,
        )  # fmt: skip


class Segments:
    def __init__(self, files: LogFiles, index_bytes_max: int, counters: LogCounters) -> None:
        self.files = files
        self._counters = counters
        self.sealed: dict[int, SegmentInfo] = {}
        self.active: ActiveSegment | None = None
        # Segment and offset of frames that are served no more.
        self.damaged: set[tuple[int, int]] = set()
        self._index_bytes_max = index_bytes_max
        self._indexes: OrderedDict[int, SealedIndex] = OrderedDict()
        self._index_bytes = 0

    @property
    def nbytes(self) -> int:
        sealed = sum(info.nbytes for info in self.sealed.values())
        return sealed + (self.active.nbytes if self.active is not None else 0)

    @property
    def events(self) -> int:
        sealed = sum(info.events for info in self.sealed.values())
        return sealed + (self.active.events if self.active is not None else 0)

    def infos(self) -> Iterator[SegmentInfo]:
        """The oldest first, that which is written to as the last."""
        yield from self.sealed.values()
        if self.active is not None:
            yield self.active.info()

    # ---- reading --------------------------------------------------------------------------------

    def index(self, number: int) -> SegmentIndex:
        """Of a segment that there is. Raises LogFilesError."""
        if self.active is not None and self.active.number == number:
            return self.active.index
        index = self._indexes.get(number)
        if index is None:
            index = self._load_index(number)
            self._indexes[number] = index
            self._index_bytes += index.nbytes
            while self._index_bytes > self._index_bytes_max and len(self._indexes) > 1:
                _, gone = self._indexes.popitem(last=False)
                self._index_bytes -= gone.nbytes
                self._counters.log_indexes_dropped += 1
        else:
            self._indexes.move_to_end(number)
        return index

    def _load_index(self, number: int) -> SealedIndex:
        try:
            name = index_name(number)
            index = SealedIndex(self.files.read(name, 0, self.files.size(name)))
        except (LogFilesError, LogIndexError):
            return self._rebuild_index(number)
        return index if len(index) == self.sealed[number].frames else self._rebuild_index(number)

    def _rebuild_index(self, number: int) -> SealedIndex:
        """Raises SegmentUnprovenError, if something is damaged besides: nobody knows then
        what that was."""
        self._counters.log_indexes_rebuilt += 1
        info = self.sealed[number]
        size = self.files.size(segment_name(number))
        scan = scan_segment(self.files, number, durable=info.nbytes, size=size)
        if any((number, damaged.offset) not in self.damaged for damaged in scan.damaged):
            raise SegmentUnprovenError(number)
        growing = GrowingIndex()
        for found in scan.frames:
            rows, sizes = self.read_directory(number, found.offset, found.header)
            growing.add(found.offset, found.header, rows, sizes)
        raw = growing.encode()
        self.sealed[number] = info._replace(frames=len(growing))
        with suppress(LogDiskFullError):
            # Without it, it is made anew again.
            replace_file(self.files, index_name(number), raw)
        return SealedIndex(raw)

    def forget_index(self, number: int) -> None:
        gone = self._indexes.pop(number, None)
        if gone is not None:
            self._index_bytes -= gone.nbytes

    def read_directory(
        self, number: int, offset: int, header: FrameHeader
    ) -> tuple[list[LogRow], Sequence[int]]:
        """Raises LogFrameError."""
        raw = self._read(number, offset + HEADER_BYTES, header.directory_bytes)
        return decode_directory(header, raw)

    def read_rows(self, number: int, frame: IndexedFrame) -> list[LogRow]:
        """All of a frame, checked. Raises LogFrameError."""
        raw = self._read(number, frame.offset, frame.nbytes)
        header = decode_header(raw)
        if header.segment != number or header.number != frame.number:
            raise LogFrameError("it is a frame of another place")
        return decode_rows(header, raw)

    def rows_by_directory(self, number: int, frame: IndexedFrame) -> list[LogRow] | None:
        """Whose events were in a frame, if that can be said of one whose body cannot be
        believed."""
        try:
            header = decode_header(self._read(number, frame.offset, HEADER_BYTES))
            if header.segment != number or header.number != frame.number:
                return None
            return self.read_directory(number, frame.offset, header)[0]
        except LogFrameError:
            return None

    def _read(self, number: int, offset: int, size: int) -> bytes:
        try:
            return self.files.read(segment_name(number), offset, size)
        except LogFilesError as error:
            raise LogFrameError(str(error)) from error

    # ---- writing --------------------------------------------------------------------------------

    def begin(self, number: int) -> ActiveSegment:
        """Raises LogFilesError."""
        self.files.create(segment_name(number))
        self.active = ActiveSegment(number)
        return self.active

    def seal_active(self) -> None:
        """Its index becomes a file. Raises LogFilesError."""
        if self.active is not None:
            active = self.active
            replace_file(self.files, index_name(active.number), active.index.encode())
            self.sealed[active.number] = active.info()
            self.active = None

    def drop(self, number: int) -> None:
        """Raises LogFilesError."""
        self.files.remove(index_name(number))
        self.files.remove(segment_name(number))
        self.forget_index(number)
        del self.sealed[number]

    def mark_durable(self, number: int, nbytes: int) -> None:
        mark = _MARK.pack(number, nbytes)
        self.files.write_at(DURABLE, 0, mark + _CHECK.pack(crc32(mark)))


def read_mark(files: LogFiles) -> tuple[int, int]:
    """A segment, and how far it is known to have been synced; (0, 0) if that is not known."""
    try:
        raw = files.read(DURABLE, 0, _MARK.size + _CHECK.size)
    except LogFilesError:
        return 0, 0
    mark, check = raw[: _MARK.size], raw[_MARK.size :]
    if len(check) != _CHECK.size or crc32(mark) != _CHECK.unpack(check)[0]:
        return 0, 0
    number, nbytes = _MARK.unpack(mark)
    return number, nbytes
