"""Names of units, where these are not topics: none of them can be one."""

from __future__ import annotations

_MARK = "\0"
_DIGITS = frozenset("0123456789abcdef")
_DIGITS_MAX = 16


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


def topic_of_unit(unit: str) -> str:
    """Of a unit of one topic; empty of a stream."""
    return unit.partition(_MARK)[0]


def term_of_side_unit(unit: str) -> int:
    return int(unit.partition(_MARK)[2], 16)


def is_sound_unit(unit: str) -> bool:
    """Whether it is the name of one: others say names of theirs."""
    topic, mark, number = unit.partition(_MARK)
    if not mark:
        return bool(topic)
    return 0 < len(number) <= _DIGITS_MAX and set(number) <= _DIGITS
