"""What a frame may cost before anyone has looked at it.

Two bytes on the wire can be a message in memory, some forty times as large: a frame of nothing but
empty messages takes twenty times its size, and seconds. So its messages, nested ones too, are
counted on the raw bytes, without building any of them; and whoever has not said hello yet is heard
for some kilobytes only. Frames that are too small to hold too many are not counted: nearly all
are.

A client's bounds are in the settings; a broker's, which has proven that it is one, are wider.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from broker_agent.core.core_settings import CoreSettings
from dynatops.v1.client_pb2 import ClientFrame

# Fields that may be there many times, and those that such are in.
Shape = dict[int, "Shape"]

_LEAF: Final[Shape] = {}
_CURSOR: Final[Shape] = {2: _LEAF}
_SUBSCRIBE: Final[Shape] = {2: _LEAF, 4: _CURSOR, 5: _LEAF}
_UNSUBSCRIBE: Final[Shape] = {2: _LEAF}
_RECEIVED: Final[Shape] = {2: _LEAF, 3: _LEAF}
_HELLO: Final[Shape] = {14: _LEAF}
# Of `dynatops.v1`: ClientFrame, the Events in a publication, and LinkFrame.
CLIENT_FRAME: Final[Shape] = {1: {1: _HELLO, 2: _SUBSCRIBE, 3: _UNSUBSCRIBE, 6: _RECEIVED}}
EVENTS: Final[Shape] = {1: {3: _LEAF}}
LINK_FRAME: Final[Shape] = {2: {3: _LEAF}}

_PART_BYTES_MIN = 2
_LENGTH_DELIMITED = 2
_VARINT = 0
# A byte of a number that others follow.
_CONTINUED = 0x80
_FIXED_BYTES = {1: 8, 5: 4}
_VARINT_BYTES_MAX = 10


class FrameError(Exception):
    """Bytes that are no frame, or cost more than one may; the message says which."""


def read_client_frame(raw: bytes, settings: CoreSettings, *, is_named: bool) -> ClientFrame:
    """The frame that these bytes are. Raises FrameError."""
    if not is_named and len(raw) > settings.hello_frame_bytes_max:
        limit = f"{settings.hello_frame_bytes_max:,}"
        raise FrameError(f"the first frame has {len(raw):,} bytes; the limit is {limit}")
    if len(raw) > _PART_BYTES_MIN * settings.frame_parts_max:
        # Messages first: the sooner it is known, the less it costs.
        check_parts(raw, _LEAF, settings.frame_messages_max)
        check_parts(raw, CLIENT_FRAME, settings.frame_parts_max)
    try:
        frame = ClientFrame.FromString(raw)
    except DecodeError:
        text = "that was not a ClientFrame (or contained text that is not UTF-8)"
        raise FrameError(text) from None
    if len(frame.messages) > settings.frame_messages_max:
        limit = f"{settings.frame_messages_max:,}"
        raise FrameError(f"a frame has {len(frame.messages):,} messages; the limit is {limit}")
    return frame


def check_parts(raw: bytes, shape: Shape, parts_max: int) -> None:
    """Raises FrameError if these bytes are made of more parts than that."""
    if len(raw) > _PART_BYTES_MIN * parts_max:
        _count(raw, 0, len(raw), shape, parts_max, parts_max)


def _count(raw: bytes, at: int, end: int, shape: Shape, left: int, parts_max: int) -> int:
    """How many parts are left after these bytes."""
    while at < end:
        key, at = (raw[at], at + 1) if raw[at] < _CONTINUED else _varint(raw, at, end)
        wire_type = key & 7
        if wire_type == _LENGTH_DELIMITED:
            left -= 1
            if left < 0:
                raise FrameError(f"a frame has more than {parts_max:,} parts")
            length, at = _varint(raw, at, end)
            following = at + length
            if following > end:
                raise FrameError("a frame ends in the middle of a field")
            if length and (inner := shape.get(key >> 3)):
                left = _count(raw, at, following, inner, left, parts_max)
            at = following
        elif wire_type == _VARINT:
            _, at = _varint(raw, at, end)
        elif wire_type in _FIXED_BYTES:
            at += _FIXED_BYTES[wire_type]
        else:
            raise FrameError("a frame has fields of a kind that nobody uses")
    return left


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """The number that begins here, and where it ends."""
    value = shift = 0
    while at < end and shift < 7 * _VARINT_BYTES_MAX:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _CONTINUED:
            return value, at
        shift += 7
    raise FrameError("a frame ends in the middle of a number")
