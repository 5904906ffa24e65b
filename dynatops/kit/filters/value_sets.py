"""Sets of values that one attribute may have, exactly, whatever tests and negations describe them.

All there is lies on one line: absent, false, true, then the numbers, then the texts. A set is the
ascending tuple of the places where, going along the line, one enters or leaves it. A number has a
place before it and one after it, as there are more numbers between any two. A text has only one, as
the next text after "a" is "a\\0". So a set is empty exactly if it has no places, and every test
and every combination of tests has one form.

Numbers are the reals, whatever type carries them.
"""

from __future__ import annotations

from collections.abc import Iterator

from dynatops.kit.filters.conditions import (
    NumberTest,
    Operator,
    Presence,
    Test,
    TextTest,
    TruthTest,
    Value,
)

Place = tuple[int | float | str, ...]
ValueSet = tuple[Place, ...]

START: Place = (0,)
_FALSE: Place = (1,)
_TRUE: Place = (2,)
NUMBERS: Place = (3,)
TEXTS: Place = (4, "")
# The first component of the places of numbers and of texts.
NUMBER_KIND, TEXT_KIND = 3, 4

EVERYTHING: ValueSet = (START,)
NOTHING: ValueSet = ()


def complement(values: ValueSet) -> ValueSet:
    return values[1:] if values[:1] == EVERYTHING else EVERYTHING + values


def intersection(a: ValueSet, b: ValueSet) -> ValueSet:
    if a == EVERYTHING:
        return b
    if b == EVERYTHING:
        return a
    places: list[Place] = []
    i = j = 0
    # Beyond its last place a set may go on to the end of the line.
    while i < len(a) or j < len(b):
        place = min(a[i : i + 1] + b[j : j + 1])
        was_inside = i & j & 1
        i += a[i : i + 1] == (place,)
        j += b[j : j + 1] == (place,)
        if was_inside != i & j & 1:
            places.append(place)
    return tuple(places)


def union(a: ValueSet, b: ValueSet) -> ValueSet:
    return complement(intersection(complement(a), complement(b)))


def stretches(values: ValueSet) -> Iterator[tuple[Place, Place | None]]:
    """Where one enters the set, and where one leaves it; None if it goes on to the end."""
    for i in range(0, len(values), 2):
        yield values[i], values[i + 1] if i + 1 < len(values) else None


def place_of(value: Value) -> Place:
    """The place where one comes to the value: it lies in a set that is entered there or before,
    and not left there or before."""
    if value.__class__ is bool:
        return _TRUE if value else _FALSE
    if value.__class__ is str:
        return (TEXT_KIND, value)
    return (NUMBER_KIND, value, 0)


def text_before(text: str) -> str:
    """A text below this one, which is not empty, that few texts lie between; all of these begin as
    it does."""
    last = ord(text[-1])
    if last == 0:
        return text[:-1]
    # Halves of characters are no characters.
    before = 0xD7FF if last == 0xE000 else last - 1
    return text[:-1] + chr(before) + 4 * chr(0x10FFFF)


def values_of(test: Test) -> ValueSet:
    match test:
        case Presence():
            return (_FALSE,)
        case TruthTest(_, value):
            return (_TRUE, NUMBERS) if value else (_FALSE, _TRUE)
        case NumberTest(_, operator, number):
            before, after = (*NUMBERS, number, 0), (*NUMBERS, number, 1)
            return _compared(operator, NUMBERS, before, after, (TEXTS,))
        case TextTest(_, Operator.STARTS_WITH, text):
            return _between((4, text), _after_prefix(text))
        case TextTest(_, operator, text):
            return _compared(operator, TEXTS, (4, text), (4, text + "\0"), ())


def _compared(
    operator: Operator, start: Place, before: Place, after: Place, end: ValueSet
) -> ValueSet:
    """What compares so with a value that lies between `before` and `after`."""
    match operator:
        case Operator.LESS:
            return _between(start, (before,))
        case Operator.AT_MOST:
            return _between(start, (after,))
        case Operator.GREATER:
            return _between(after, end)
        case Operator.AT_LEAST:
            return _between(before, end)
        case Operator.EQUAL:
            return _between(before, (after,))
        case _:
            return _between(start, (before,)) + _between(after, end)


def _between(start: Place, end: ValueSet) -> ValueSet:
    return NOTHING if (start,) == end else (start, *end)


def _after_prefix(prefix: str) -> ValueSet:
    """The first text after all that begin so; nothing if they go on to the end of the line."""
    stem = prefix.rstrip(chr(0x10FFFF))
    if not stem:
        return ()
    following = ord(stem[-1]) + 1
    # Halves of characters are no characters.
    return ((4, stem[:-1] + chr(0xE000 if following == 0xD800 else following)),)
