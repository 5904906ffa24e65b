"""Whether one filter wants everything that another wants, or some of it.

`a` covers `b` if and only if every event that matches `b` matches `a`. A predicate implies another
exactly if "the first and not the second" can hold for no event. That is looked for, branch by
branch; on each branch an attribute is left with the set of values that it may still have, and a
branch is dead once a set is empty. Sets are exact, so the answer is, for all predicates: `and`,
`or` and `not` may be mixed. Only the search has a limit, since it may branch at every `or`. Past
STEPS_MAX it is not settled whether an event is there: then `a` is taken not to cover `b`, and to
intersect it, either of which costs traffic and never an event.
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
from dynatops.kit.filters.pattern import pattern_covers, pattern_intersects
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
    """Whether `a` matches every event that `b` matches; False also if that is not settled."""
    return settled_covers(a, b) is True


def settled_covers(a: Filter, b: Filter) -> bool | None:
    """Whether `a` matches every event that `b` matches; None if the limit is reached before."""
    if a.predicate is None and b.predicate is None:
        return pattern_covers(a.pattern, b.pattern)
    wanted = [] if b.predicate is None else [b.predicate.condition]
    if not pattern_covers(a.pattern, b.pattern):
        return _opposite(_may_hold(wanted))
    if a.predicate is None or a.where == b.where:
        return True
    return _opposite(_may_hold([*wanted, negated(a.predicate.condition)]))


def intersects(a: Filter, b: Filter) -> bool:
    """Whether some event matches both `a` and `b`; True also if that is not settled."""
    if not pattern_intersects(a.pattern, b.pattern):
        return False
    both = [f.predicate.condition for f in (a, b) if f.predicate is not None]
    return _may_hold(both) is not False


def possible_values(condition: Condition) -> dict[str, ValueSet] | None:
    """What each attribute may be so that the condition holds, whatever the other ones are then.

    Of one that is not named any value will do. None if nothing fulfils the condition, or if that
    is not settled within the limit.
    """
    try:
        return _Search().find_box({}, [condition])
    except _TooManyStepsError:
        return None


def _opposite(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _may_hold(conditions: list[Condition]) -> bool | None:
    """Whether an event may fulfil all; None if that is not settled within the limit."""
    try:
        return _Search().find_box({}, conditions) is not None
    except _TooManyStepsError:
        return None


class _TooManyStepsError(Exception):
    """The search has not come to an end."""


class _Search:
    def __init__(self) -> None:
        self._steps = 0

    def find_box(self, box: _Box, conditions: Iterable[Condition]) -> _Box | None:
        """A part of the box all of whose events fulfil all conditions; the box is used up."""
        choices: list[_Choice] = []
        while True:
            for condition in conditions:
                if not self._narrow(box, choices, condition):
                    return None
            open_choices = self._still_open(box, choices)
            forced = [choice[0] for choice in open_choices if len(choice) == 1]
            choices = [choice for choice in open_choices if len(choice) > 1]
            if not all(open_choices):
                return None
            if not forced:
                return self._try(box, choices) if choices else box
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

    def _try(self, box: _Box, choices: list[_Choice]) -> _Box | None:
        """Go into each branch of one choice: the one whose branches rule out most."""
        best = min(choices, key=_breadth)
        others = [AnyOf(choice) for choice in choices if choice is not best]
        for part in best:
            found = self.find_box(dict(box), [part, *others])
            if found is not None:
                return found
            # What this branch has looked at, the next ones need not.
            if not _is_composed(part) and not self._narrow(box, [], negated(part)):
                return None
        return None

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
