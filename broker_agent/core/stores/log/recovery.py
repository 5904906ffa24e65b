"""What the bytes of a segment mean after a crash, or worse.

    |frame|frame|///////|frame|frame|frame|frame|......torn......|
                 damaged               ^durable   ^end
                 quarantined                      cut from here on

Up to `durable` all had been synced: the broker says so beside the log after each sync, and each
frame says it of those before it. What is damaged there had been promised to somebody, and is told.
Beyond it nothing was promised: what was not written whole is cut, with all that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker_agent.core.stores.log.frames import (
    HEADER_BYTES,
    MAGIC,
    FrameHeader,
    LogFrameError,
    check_body,
    check_directory,
    decode_header,
)
from broker_agent.core.stores.log.log_files import LogFiles, LogFilesError

_SEARCH_BYTES = 1 << 20


class FoundFrame(NamedTuple):
    offset: int
    header: FrameHeader


class DamagedStretch(NamedTuple):
    """Bytes that had been durable, and are not what was written."""

    offset: int
    nbytes: int
    # Of the frame that begins there, if its header could be read.
    header: FrameHeader | None
    reason: str


class SegmentScan(NamedTuple):
    frames: list[FoundFrame]
    damaged: list[DamagedStretch]
    # What is beyond it was never promised, and is of no use.
    end: int
    # How far it is known to have been durable.
    durable: int


_SUFFIX = ".segment"


def segment_name(number: int) -> str:
    return f"{number:012}{_SUFFIX}"


def segment_numbers(names: Iterable[str]) -> list[int]:
    found = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(int(digits) for digits in found if digits.isdigit())


def scan_segment(files: LogFiles, segment: int, *, durable: int, size: int) -> SegmentScan:
    """`durable`: how far it is known to have been synced."""
    name = segment_name(segment)
    frames: list[FoundFrame] = []
    damaged: list[DamagedStretch] = []
    for found in _walk(files, name, segment, size):
        if isinstance(found, FoundFrame):
            frames.append(found)
        else:
            damaged.append(found)
    durable = max([durable, *(frame.header.durable for frame in frames)])
    # The first that is beyond, and was not written whole.
    end = next((each.offset for each in damaged if each.offset >= durable), size)
    frames = [frame for frame in frames if frame.offset < end]
    damaged = [each for each in damaged if each.offset < end]
    if damaged and damaged[-1].offset + damaged[-1].nbytes >= size > durable:
        # It goes over into what is torn.
        last = damaged[-1]
        end = durable
        damaged[-1] = last._replace(nbytes=end - last.offset)
    if size < durable:
        begin = size
        if damaged and damaged[-1].offset + damaged[-1].nbytes == size:
            begin = damaged.pop().offset
        damaged.append(DamagedStretch(begin, durable - begin, None, "the file is too short"))
    return SegmentScan(frames, damaged, min(end, size), durable)


def _walk(
    files: LogFiles, name: str, segment: int, size: int
) -> Iterator[FoundFrame | DamagedStretch]:
    offset, number = 0, -1
    while offset < size:
        header: FrameHeader | None = None
        try:
            header = _header_at(files, name, segment, offset, number)
            _check_frame(files, name, offset, header)
        except LogFrameError as error:
            # Where its length can be believed, the next frame is behind it.
            known = header.nbytes if header is not None and offset + header.nbytes <= size else 1
            following = _next_frame(files, name, segment, offset + known, number, size)
            yield DamagedStretch(offset, following - offset, header, str(error))
            offset = following
            continue
        yield FoundFrame(offset, header)
        offset += header.nbytes
        number = header.number


def _header_at(files: LogFiles, name: str, segment: int, offset: int, number: int) -> FrameHeader:
    """That of a frame of this segment, which is not older than those before. Raises
    LogFrameError."""
    try:
        header = decode_header(files.read(name, offset, HEADER_BYTES))
    except LogFilesError as error:
        raise LogFrameError(str(error)) from error
    if header.segment != segment or header.number <= number:
        raise LogFrameError("it is a frame of another place")
    return header


def _check_frame(files: LogFiles, name: str, offset: int, header: FrameHeader) -> None:
    try:
        rest = files.read(name, offset + HEADER_BYTES, header.nbytes - HEADER_BYTES)
    except LogFilesError as error:
        raise LogFrameError(str(error)) from error
    if len(rest) < header.nbytes - HEADER_BYTES:
        raise LogFrameError("it is cut off")
    check_directory(header, rest[: header.directory_bytes])
    check_body(header, rest[header.directory_bytes :])


def _next_frame(
    files: LogFiles, name: str, segment: int, offset: int, number: int, size: int
) -> int:
    """Where the next sound header is, or the end of the file."""
    while offset < size:
        try:
            raw = files.read(name, offset, _SEARCH_BYTES)
        except LogFilesError:
            offset += _SEARCH_BYTES
            continue
        at = raw.find(MAGIC)
        while at >= 0:
            try:
                _header_at(files, name, segment, offset + at, number)
            except LogFrameError:
                at = raw.find(MAGIC, at + 1)
                continue
            return offset + at
        # The last bytes may be the beginning of it.
        offset += max(len(raw) - len(MAGIC) + 1, 1)
    return size
