"""A log as bytes: records one after the other, each with its length before it, compressed or not.

A log that breaks off, because its broker was killed or is still running, is good up to there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.proto import serialize_length_prefixed

from broker_agent.recording.records import LogError
from dynatops.v1.stimulus_pb2 import LogBeginning, Stimulus

# zlib's way to say gzip.
GZIP_BITS = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 16
# Of one record; what the network brings is smaller.
_RECORD_BYTES_MAX = 1 << 30
_LENGTH_BYTES_MAX = 5

_Record = TypeVar("_Record", bound=Message)


def framed(record: Message) -> bytes:
    out = BytesIO()
    serialize_length_prefixed(record, out)
    return out.getvalue()


class StimulusLog:
    """A log that is read."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises LogError."""
        self._source = _Source(file)
        raw = self._source.record()
        if raw is None:
            raise LogError("it is empty, or breaks off before its broker had begun")
        self.beginning: LogBeginning = _parsed(LogBeginning, raw)
        if not self.beginning.format:
            raise LogError("it is no log of a broker's inputs (`record.dir`)")

    def __iter__(self) -> Iterator[Stimulus]:
        """The rest, once. Raises LogError."""
        while (raw := self._source.record()) is not None:
            yield _parsed(Stimulus, raw)


class _Source:
    """Whole records, as long as there are some."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._read = bytearray()
        self._at = 0
        first = file.read(len(_GZIP_MAGIC))
        self._unzip = zlib.decompressobj(GZIP_BITS) if first == _GZIP_MAGIC else None
        self._take_in(first)

    def record(self) -> bytes | None:
        size = shift = 0
        while True:
            byte = self._take(1)
            if not byte:
                return None
            size |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                break
            if shift >= 7 * _LENGTH_BYTES_MAX:
                raise LogError("it is damaged, or no log of a broker's inputs (`record.dir`)")
        if size > _RECORD_BYTES_MAX:
            raise LogError("it is damaged, or no log of a broker's inputs (`record.dir`)")
        raw = self._take(size)
        return raw if len(raw) == size else None

    def _take(self, size: int) -> bytes:
        """So many bytes; fewer at the end."""
        while len(self._read) - self._at < size:
            chunk = self._file.read(_CHUNK_BYTES)
            if not chunk:
                break
            del self._read[: self._at]
            self._at = 0
            self._take_in(chunk)
        taken = bytes(self._read[self._at : self._at + size])
        self._at += len(taken)
        return taken

    def _take_in(self, raw: bytes) -> None:
        try:
            self._read += self._unzip.decompress(raw) if self._unzip is not None else raw
        except zlib.error as error:
            raise LogError(f"it is damaged: {error}") from None


def _parsed(kind: type[_Record], raw: bytes) -> _Record:
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise LogError("it is damaged, or no log of a broker's inputs (`record.dir`)") from None
