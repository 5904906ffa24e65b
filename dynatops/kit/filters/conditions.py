"""What a predicate consists of, and how it is written.

Every test asks about one attribute. It is false where the attribute is absent or of another type,
for `!=` as well; numbers, texts and truths are types, whole and fractional numbers are not told
apart. `Not` is true wherever what it negates is false. Texts are ordered by the code points of
their characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

Value = str | int | float | bool
Attributes = Mapping[str, Value]

KEYWORDS = frozenset({"and", "or", "not", "has", "startswith", "true", "false"})
BARE_NAME = re.compile(r"[^\W\d][\w.-]*")
NAME_QUOTE = "`"

_PLAIN_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class Operator(StrEnum):
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    EQUAL = "=="
    UNEQUAL = "!="
    STARTS_WITH = "startswith"


@dataclass(frozen=True, slots=True)
class NumberTest:
    """A whole value is an `int`, so that equal tests are the same test."""

    name: str
    operator: Operator
    value: int | float

    def __str__(self) -> str:
        return f"{written_name(self.name)} {self.operator} {self.value!r}"


@dataclass(frozen=True, slots=True)
class TextTest:
    name: str
    operator: Operator
    value: str

    def __str__(self) -> str:
        return f"{written_name(self.name)} {self.operator} {written_text(self.value)}"


@dataclass(frozen=True, slots=True)
class TruthTest:
    """The attribute is this truth; `!= true` is `== false`."""

    name: str
    value: bool

    def __str__(self) -> str:
        return f"{written_name(self.name)} == {'true' if self.value else 'false'}"


@dataclass(frozen=True, slots=True)
class Presence:
    name: str

    def __str__(self) -> str:
        return f"has {written_name(self.name)}"


@dataclass(frozen=True, slots=True)
class Not:
    """`part` is no Not."""

    part: Condition

    def __str__(self) -> str:
        return f"not {_in_parentheses_if(self.part, (AllOf, AnyOf))}"


@dataclass(frozen=True, slots=True)
class AllOf:
    """Two parts at least, none of them an AllOf."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(_in_parentheses_if(part, (AnyOf,)) for part in self.parts)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Two parts at least, none of them an AnyOf."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


Test = NumberTest | TextTest | TruthTest | Presence
Condition = Test | Not | AllOf | AnyOf


def negated(condition: Condition) -> Condition:
    return condition.part if isinstance(condition, Not) else Not(condition)


def all_of(parts: list[Condition]) -> Condition:
    """All of one or more, without nesting."""
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, AllOf) else (part,)
    return flat[0] if len(flat) == 1 else AllOf(tuple(flat))


def any_of(parts: list[Condition]) -> Condition:
    """Any of one or more, without nesting."""
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, AnyOf) else (part,)
    return flat[0] if len(flat) == 1 else AnyOf(tuple(flat))


def written_name(name: str) -> str:
    if BARE_NAME.fullmatch(name) and name not in KEYWORDS:
        return name
    return f"{NAME_QUOTE}{name}{NAME_QUOTE}"


def written_text(text: str) -> str:
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _PLAIN_ESCAPES:
        return _PLAIN_ESCAPES[character]
    return f"\\u{ord(character):04x}" if is_control(character) else character


def is_control(character: str) -> bool:
    return character < " " or character == "\x7f"


def _in_parentheses_if(part: Condition, looser: tuple[type, ...]) -> str:
    return f"({part})" if isinstance(part, looser) else str(part)


def number_of_tests(condition: Condition) -> int:
    """What it costs at most to ask it of an event."""
    match condition:
        case Not(part):
            return number_of_tests(part)
        case AllOf(parts) | AnyOf(parts):
            return sum(number_of_tests(part) for part in parts)
        case _:
            return 1
