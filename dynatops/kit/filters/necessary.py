"""What an index of conditions goes by: which values an attribute must have for one to hold.

Each answer is necessary, not sufficient: whoever finds a filter by it must still ask the filter. Of
conjunctions it is exact, attribute by attribute; of `or` it is what all parts have in common.
"""

from __future__ import annotations

from dynatops.kit.filters.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Not,
    NumberTest,
    Presence,
    TextTest,
    TruthTest,
    negated,
)
from dynatops.kit.filters.value_sets import (
    EVERYTHING,
    ValueSet,
    complement,
    intersection,
    union,
    values_of,
)


def necessary_values(condition: Condition) -> dict[str, ValueSet]:
    """Outside of which values of an attribute the condition is false, whatever the others are."""
    match condition:
        case AllOf(parts):
            return _of_all([necessary_values(part) for part in parts])
        case AnyOf(parts):
            return _of_any([necessary_values(part) for part in parts])
        case Not(AnyOf(parts)):
            return _of_all([necessary_values(negated(part)) for part in parts])
        case Not(AllOf(parts)):
            return _of_any([necessary_values(negated(part)) for part in parts])
        case Not(NumberTest() | TextTest() | TruthTest() | Presence() as test):
            return {test.name: complement(values_of(test))}
        case NumberTest() | TextTest() | TruthTest() | Presence():
            return {condition.name: values_of(condition)}
        case _:
            raise TypeError(f"{condition} is negated twice")


def _of_all(parts: list[dict[str, ValueSet]]) -> dict[str, ValueSet]:
    necessary: dict[str, ValueSet] = {}
    for part in parts:
        for name, values in part.items():
            necessary[name] = intersection(necessary.get(name, EVERYTHING), values)
    return necessary


def _of_any(parts: list[dict[str, ValueSet]]) -> dict[str, ValueSet]:
    necessary, *others = parts
    for part in others:
        both = {name: union(necessary[name], part[name]) for name in necessary if name in part}
        necessary = {name: values for name, values in both.items() if values != EVERYTHING}
    return necessary
