"""Names of units, where these are not topics: none of them can be one."""

from __future__ import annotations

_MARK = "\0"


def stream_unit(stream: int) -> str:
    """A stream of a tree: what one life of one broker has stamped."""
    return f"{_MARK}{stream:x}"


def stream_of_unit(unit: str) -> int | None:
    """None: it is no stream."""
    return int(unit[1:], 16) if unit.startswith(_MARK) else None


def side_unit(unit: str, term: int) -> str:
    """Where events of a term are kept that came when their unit was in a later one: of a branch of
    its history that is none of it any more."""
    return f"{unit}{_MARK}{term:x}"


def is_side_unit(unit: str) -> bool:
    return unit.find(_MARK) > 0
