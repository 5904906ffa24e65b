"""Patterns of topics, by MQTT's rules: `+` stands for one level, a last `#` for all that remain.

Levels are what `/` separates; they may be empty. A wildcard is alone in its level. `a/#` also
matches `a`. What begins with `$` is the system's own: no wildcard in the first level matches it,
and nobody may subscribe to it.
"""

from __future__ import annotations

from dynatops.kit.topics import RESERVED_PREFIX, TOPIC_BYTES_MAX
from dynatops.v1.client_pb2 import ErrorCode

SEPARATOR = "/"
ONE_LEVEL = "+"
ALL_LEVELS = "#"
# Of patterns with wildcards; what a topic may pass in a trie of patterns grows with it.
LEVELS_MAX = 32

_INVALID = ErrorCode.ERROR_CODE_FILTER_INVALID


class FilterError(ValueError):
    """The text is no filter: its pattern or its condition cannot be used.

    `position` counts characters from 0, where one place of the text is to blame.
    """

    def __init__(
        self, text: str, code: ErrorCode.ValueType, reason: str, position: int | None = None
    ) -> None:
        super().__init__(f"filter {_abbreviated(text)} {reason}")
        self.text = text
        self.code = code
        self.reason = reason
        self.position = position


def check_pattern(pattern: str, bytes_max: int = TOPIC_BYTES_MAX) -> None:
    """Raise FilterError unless users may subscribe to `pattern`. Every legal topic is a pattern."""
    if not pattern:
        raise FilterError(pattern, ErrorCode.ERROR_CODE_TOPIC_EMPTY, "is empty")
    try:
        size = len(pattern) if pattern.isascii() else len(pattern.encode())
    except UnicodeEncodeError:
        raise FilterError(pattern, _INVALID, "cannot be written as UTF-8") from None
    if size > bytes_max:
        raise FilterError(
            pattern,
            ErrorCode.ERROR_CODE_TOPIC_TOO_LONG,
            f"has {size:,} bytes; the limit is {bytes_max:,}",
        )
    if pattern.startswith(RESERVED_PREFIX):
        raise FilterError(
            pattern, _INVALID, f"begins with {RESERVED_PREFIX!r}, which is reserved for the system"
        )
    if "\0" in pattern:
        raise FilterError(pattern, _INVALID, "contains a NUL character")
    if is_wildcard(pattern):
        _check_wildcards(pattern)


def _check_wildcards(pattern: str) -> None:
    levels = pattern.split(SEPARATOR)
    if len(levels) > LEVELS_MAX:
        reason = f"has {len(levels)} levels; with wildcards the limit is {LEVELS_MAX}"
        raise FilterError(pattern, _INVALID, reason)
    for number, level in enumerate(levels, start=1):
        if level == ALL_LEVELS and number < len(levels):
            raise FilterError(
                pattern, _INVALID, f"has '#' in level {number}, which is not its last"
            )
        for wildcard in (ONE_LEVEL, ALL_LEVELS):
            if wildcard in level and len(level) > 1:
                raise FilterError(
                    pattern,
                    _INVALID,
                    f"has {wildcard!r} beside other characters in level {number};"
                    " a wildcard stands alone between slashes",
                )


def is_wildcard(pattern: str) -> bool:
    return ONE_LEVEL in pattern or ALL_LEVELS in pattern


def pattern_matches(pattern: str, topic: str) -> bool:
    """Whether events of `topic` are wanted. For many patterns at once there is `FilterTrie`."""
    if not is_wildcard(pattern):
        return pattern == topic
    if topic.startswith(RESERVED_PREFIX) and pattern.startswith((ONE_LEVEL, ALL_LEVELS)):
        return False
    wanted, levels = pattern.split(SEPARATOR), topic.split(SEPARATOR)
    if wanted[-1] == ALL_LEVELS:
        wanted.pop()
        if len(levels) < len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    return all(want in (ONE_LEVEL, level) for want, level in zip(wanted, levels, strict=False))


def pattern_covers(a: str, b: str) -> bool:
    """Whether `a` matches every topic that `b` matches; exact for topics of any length."""
    if not is_wildcard(b):
        return pattern_matches(a, b)
    if b.startswith(RESERVED_PREFIX) and a.startswith((ONE_LEVEL, ALL_LEVELS)):
        return False
    levels_a, open_a = levels_and_openness(a)
    levels_b, open_b = levels_and_openness(b)
    if open_a:
        if len(levels_b) < len(levels_a):
            return False
    elif open_b or len(levels_b) != len(levels_a):
        return False
    return all(x in (ONE_LEVEL, y) for x, y in zip(levels_a, levels_b, strict=False))


def pattern_intersects(a: str, b: str) -> bool:
    """Whether `a` and `b` match a topic in common; exact for topics of any length."""
    if not is_wildcard(b):
        return pattern_matches(a, b)
    if not is_wildcard(a):
        return pattern_matches(b, a)
    for one, other in ((a, b), (b, a)):
        if one.startswith(RESERVED_PREFIX) and other.startswith((ONE_LEVEL, ALL_LEVELS)):
            return False
    levels_a, open_a = levels_and_openness(a)
    levels_b, open_b = levels_and_openness(b)
    if (len(levels_a) < len(levels_b) and not open_a) or (
        len(levels_b) < len(levels_a) and not open_b
    ):
        return False
    return all(x == y or ONE_LEVEL in (x, y) for x, y in zip(levels_a, levels_b, strict=False))


def levels_and_openness(pattern: str) -> tuple[list[str], bool]:
    """The levels that a topic must have, and whether it may have more.

    No topic is empty, so `#` asks for a first level and `/#` for a second one.
    """
    levels = pattern.split(SEPARATOR)
    if levels[-1] != ALL_LEVELS:
        return levels, False
    levels.pop()
    if levels in ([], [""]):
        levels.append(ONE_LEVEL)
    return levels, True


def _abbreviated(text: str, characters_max: int = 40) -> str:
    return repr(text if len(text) <= characters_max else text[:characters_max] + "…")
