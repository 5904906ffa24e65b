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

# Fields that may be there many times, and those that such are in.
Shape = dict[int, "Shape"]

LEAF: Final[Shape] = {}
# Of `dynatops.v1`: the Events in a publication, and LinkFrame.
EVENTS: Final[Shape] = {1: {3: LEAF}}
LINK_FRAME: Final[Shape] = {2: {3: LEAF}}

_PART_BYTES_MIN = 2
_LENGTH_DELIMITED = 2
_VARINT = 0
# A byte of a number that others follow.
_CONTINUED = 0x80
_FIXED_BYTES = {1: 8, 5: 4}
_VARINT_BYTES_MAX = 10


class FrameError(Exception):
    """Bytes that are no frame, or cost more than one may; the message says which."""


def is_long(raw: bytes, parts_max: int) -> bool:
    """Whether these bytes could be made of more parts than that."""
    return len(raw) > _PART_BYTES_MIN * parts_max


def check_parts(raw: bytes, shape: Shape, parts_max: int) -> None:
    """Raises FrameError if these bytes are made of more parts than that."""
    if is_long(raw, parts_max):
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
