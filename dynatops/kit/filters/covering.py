"""Whether one filter wants everything that another wants.

`a` covers `b` if and only if every event that matches `b` matches `a`. A predicate implies another
exactly if "the first and not the second" can hold for no event. That is looked for, branch by
branch; on each branch an attribute is left with the set of values that it may still have, and a
branch is dead once a set is empty. Sets are exact, so the answer is, for all predicates: `and`,
`or` and `not` may be mixed. Only the search has a limit, since it may branch at every `or`; past
STEPS_MAX the answer is that `a` does not cover `b`, which costs traffic and never an event.
"""

from __future__ import annotations

from collections.abc import Iterable

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
from dynatops.kit.filters.filter import Filter
from dynatops.kit.filters.pattern import pattern_covers
from dynatops.kit.filters.value_sets import (
    EVERYTHING,
    NOTHING,
    ValueSet,
    complement,
    intersection,
    values_of,
)

# Conjunctions need one or two for each test. As many as this take about a hundredth of a second.
STEPS_MAX = 4_000

# What each attribute may still be; one that is not here may be anything, or absent.
_Box = dict[str, ValueSet]
# One of these must hold.
_Choice = tuple[Condition, ...]


def covers(a: Filter, b: Filter) -> bool:
    """Whether `a` matches every event that `b` matches."""
    if a.predicate is None and b.predicate is None:
        return pattern_covers(a.pattern, b.pattern)
    if not pattern_covers(a.pattern, b.pattern):
        return b.predicate is not None and not _may_hold([b.predicate.condition])
    if a.predicate is None or a.where == b.where:
        return True
    without_a = negated(a.predicate.condition)
    wanted = [] if b.predicate is None else [b.predicate.condition]
    return not _may_hold([*wanted, without_a])


def _may_hold(conditions: list[Condition]) -> bool:
    """Whether an event may fulfil all; True also if that is not settled within the limit."""
    try:
        return _Search().finds_event({}, conditions)
    except _TooManyStepsError:
        return True


class _TooManyStepsError(Exception):
    """The search has not come to an end."""


class _Search:
    def __init__(self) -> None:
        self._steps = 0

    def finds_event(self, box: _Box, conditions: Iterable[Condition]) -> bool:
        """Whether an event in the box may fulfil all conditions. The box is used up."""
        choices: list[_Choice] = []
        while True:
            for condition in conditions:
                if not self._narrow(box, choices, condition):
                    return False
            open_choices = self._still_open(box, choices)
            forced = [choice[0] for choice in open_choices if len(choice) == 1]
            choices = [choice for choice in open_choices if len(choice) > 1]
            if not all(open_choices):
                return False
            if not forced:
                return not choices or self._try(box, choices)
            conditions = forced

    def _narrow(self, box: _Box, choices: list[_Choice], condition: Condition) -> bool:
        """Take one more condition into account; False if nothing is left."""
        self._count_step()
        match condition:
            case AllOf(parts):
                return all(self._narrow(box, choices, part) for part in parts)
            case Not(AnyOf(parts)):
                return all(self._narrow(box, choices, negated(part)) for part in parts)
            case AnyOf(parts):
                choices.append(parts)
            case Not(AllOf(parts)):
                choices.append(tuple(negated(part) for part in parts))
            case _:
                name, values = _one_attribute(condition)
                left = intersection(box.get(name, EVERYTHING), values)
                box[name] = left
                return left != NOTHING
        return True

    def _still_open(self, box: _Box, choices: list[_Choice]) -> list[_Choice]:
        """Without the parts that the box rules out, and the choices that it has made already."""
        still_open = []
        for choice in choices:
            parts: list[Condition] = []
            for part in choice:
                self._count_step()
                if _is_composed(part):
                    parts.append(part)
                    continue
                name, values = _one_attribute(part)
                before = box.get(name, EVERYTHING)
                after = intersection(before, values)
                if after == before:
                    break
                if after != NOTHING:
                    parts.append(part)
            else:
                still_open.append(tuple(parts))
        return still_open

    def _try(self, box: _Box, choices: list[_Choice]) -> bool:
        """Go into each branch of one choice: the one whose branches rule out most."""
        best = min(choices, key=_breadth)
        others = [AnyOf(choice) for choice in choices if choice is not best]
        for part in best:
            if self.finds_event(dict(box), [part, *others]):
                return True
            # What this branch has looked at, the next ones need not.
            if not _is_composed(part) and not self._narrow(box, [], negated(part)):
                return False
        return False

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise _TooManyStepsError


def _breadth(choice: _Choice) -> tuple[bool, int]:
    return not any(map(_is_composed, choice)), len(choice)


def _is_composed(condition: Condition) -> bool:
    inside = condition.part if isinstance(condition, Not) else condition
    return isinstance(inside, AllOf | AnyOf)


def _one_attribute(condition: Condition) -> tuple[str, ValueSet]:
    """What a test, or a negated one, says about its attribute."""
    match condition:
        case Not(NumberTest() | TextTest() | TruthTest() | Presence() as test):
            return test.name, complement(values_of(test))
        case NumberTest() | TextTest() | TruthTest() | Presence():
            return condition.name, values_of(condition)
        case _:
            raise TypeError(f"{condition} asks about more than one attribute")
