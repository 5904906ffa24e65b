"""Columns of numbers in as few bytes as they need: the least of them, and how far each is above it.

Of rows that are much alike, and those of one batch are, most columns need no bytes at all beside
their beginning.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_BEGINNING = struct.Struct("<BQ")
COLUMN_BYTES = _BEGINNING.size
# By width: the code of `struct`.
_CODES = {0: "", 1: "B", 2: "H", 4: "I", 8: "Q"}
_WIDTHS = tuple((1 << (8 * width), width) for width in (1, 2, 4, 8))


class ColumnError(ValueError):
    """These bytes are no column."""


def encode_column(values: Sequence[int]) -> bytes:
    """Of numbers from 0 to 2^64 - 1; there is at least one."""
    least = min(values)
    spread = max(values) - least
    if not spread:
        return _BEGINNING.pack(0, least)
    width = next(width for limit, width in _WIDTHS if spread < limit)
    above = [value - least for value in values] if least else values
    return _BEGINNING.pack(width, least) + struct.pack(f"<{len(values)}{_CODES[width]}", *above)


def decode_column(raw: bytes, offset: int, count: int) -> tuple[Sequence[int], int]:
    """The column that begins there, and where it ends. Raises ColumnError."""
    try:
        width, least = _BEGINNING.unpack_from(raw, offset)
        offset += _BEGINNING.size
        if not width:
            return (least,) * count, offset
        values = struct.unpack_from(f"<{count}{_CODES[width]}", raw, offset)
    except (struct.error, KeyError) as error:
        raise ColumnError(f"no column of {count} at {offset}") from error
    if least:
        return [value + least for value in values], offset + width * count
    return values, offset + width * count


def encode_names(names: Sequence[str]) -> bytes:
    encoded = [name.encode() for name in names]
    return b"".join([encode_column([len(name) for name in encoded]), *encoded])


def decode_names(raw: bytes, offset: int, count: int) -> tuple[list[str], int]:
    lengths, offset = decode_column(raw, offset, count)
    names = []
    for length in lengths:
        end = offset + length
        if end > len(raw):
            raise ColumnError(f"a name ends after {end} of {len(raw)} bytes")
        try:
            names.append(raw[offset:end].decode())
        except UnicodeDecodeError as error:
            raise ColumnError(f"the name at {offset} is no text") from error
        offset = end
    return names, offset
