"""Events that a filter matches, at the edge of what it wants.

Whatever covers a filter matches them too. So an index that finds filters by events finds those that
cover one, and one that finds events by filters those that a filter covers. Their values are chosen
where the filter's own tests end, so that little else matches them.

They are never published: numbers may lie beyond those of attributes, and levels of topics have a
character that no pattern has.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dynatops.kit.filters.conditions import Value
from dynatops.kit.filters.covering import possible_values
from dynatops.kit.filters.filter import Filter
from dynatops.kit.filters.pattern import ONE_LEVEL, SEPARATOR, levels_and_openness
from dynatops.kit.filters.value_sets import (
    NUMBERS,
    START,
    TEXTS,
    Place,
    ValueSet,
    place_of,
    stretches,
    text_before,
)

# No pattern may have it, so that only wildcards match.
_ANY_LEVEL = "\0"
# Beyond all numbers that attributes and tests can have.
_FAR = 1 << 1_100


class Examples(NamedTuple):
    """A topic, and two choices of attributes: the filter matches it with either."""

    topic: str
    near: dict[str, Value]
    # At the other end of what each attribute may be.
    opposite: dict[str, Value]


def examples_of(wanted: Filter) -> Examples | None:
    """None if nothing matches, or nothing that can be written down, or if it is hard to find."""
    topic = topic_matched_by(wanted.pattern)
    if wanted.predicate is None:
        return Examples(topic, {}, {})
    possible = possible_values(wanted.predicate.condition)
    if possible is None:
        return None
    near: dict[str, Value] = {}
    opposite: dict[str, Value] = {}
    for name, values in possible.items():
        ends = _ends(values)
        if not ends:
            return None
        for attributes, value in ((near, ends[0]), (opposite, ends[-1])):
            if value is not None:
                attributes[name] = value
    holds = wanted.predicate.holds
    return Examples(topic, near, opposite) if holds(near) and holds(opposite) else None


def topic_matched_by(pattern: str) -> str:
    levels, is_open = levels_and_openness(pattern)
    named = [_ANY_LEVEL if level == ONE_LEVEL else level for level in levels]
    return SEPARATOR.join([*named, _ANY_LEVEL] if is_open else named)


def _ends(values: ValueSet) -> list[Value | None]:
    """Values at the ends of a set, as far as there are some; None where it is to be absent.

    The first is at the end where a comparison ends it, if only one is.
    """
    spans = list(stretches(values))
    ends = [_first_inside(spans[0], upwards=True), _first_inside(spans[-1], upwards=False)]
    if spans[0][0] in (NUMBERS, TEXTS):
        ends.reverse()
    return [value for end in ends for value in end]


def _first_inside(span: tuple[Place, Place | None], *, upwards: bool) -> list[Value | None]:
    """The lowest value of the stretch, or its highest; another if that cannot be written."""
    enter, leave = span
    sides = (_from(enter), _up_to(leave)) if upwards else (_up_to(leave), _from(enter))
    for value in (*sides[0], *sides[1]):
        place = START if value is None else place_of(value)
        if enter <= place and (leave is None or place < leave):
            return [value]
    return []


def _from(enter: Place) -> tuple[Value | None, ...]:
    match enter:
        case (1,):
            return (False,)
        case (2,):
            return (True,)
        case (3,):
            return (-_FAR,)
        case (3, int() | float() as number, 0):
            return (number,)
        case (3, int() | float() as number, _):
            return (math.nextafter(number, math.inf), number + 1)
        case (4, str() as text):
            return (text,)
    return (None,)


def _up_to(leave: Place | None) -> tuple[Value | None, ...]:
    match leave:
        case None:
            return (text_before(chr(0x10FFFF)),)
        case (1,):
            return (None,)
        case (2,):
            return (False,)
        case (3,):
            return (True,)
        case (3, int() | float() as number, 0):
            return (math.nextafter(number, -math.inf), number - 1)
        case (3, int() | float() as number, _):
            return (number,)
        case (4, ""):
            return (_FAR,)
        case (4, str() as text):
            return (text_before(text),)
    return ()
