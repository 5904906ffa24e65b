"""Which of many conditions hold for an event, without asking those that cannot.

    branch --- name --> column --- value ------> branch
      |                      |---- stretch ----> branch
    its own entries          |---- threshold --> branch
                             `---- presence ---> branch

Each condition lies where one of its necessary tests leads to: under a value that an attribute must
have, under a stretch of values, a lower or an upper bound, or under an attribute that must be
there, whichever has the fewest beside it. A branch with too many is divided by another attribute.
An event is followed wherever its own attributes lead; the conditions that it meets there are asked.
Alternatives about different attributes are conditions of their own. Those without a necessary test
are at the root: they are asked always.

Stretches of numbers lie in cells as large as themselves, of which a stretch meets two at most, and
an event one for each size that there is. Those of texts lie under what all their texts begin with,
and an event is looked up with as many of its first characters as there are such beginnings of
different length. So nothing depends on the order in which conditions come and go.

What it does not do: conditions that only have bounds to one side, of several attributes, are asked
wherever one of the bounds is kept. This is as in the counting algorithm of Siena, and worse than a
tree of boxes would be.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from dynatops.kit.filters.conditions import (
    AllOf,
    AnyOf,
    Attributes,
    Condition,
    NumberTest,
    Operator,
    TextTest,
    TruthTest,
    Value,
    all_of,
)
from dynatops.kit.filters.filter import Filter
from dynatops.kit.filters.necessary import necessary_values
from dynatops.kit.filters.predicate import Check, Predicate
from dynatops.kit.filters.value_sets import (
    NUMBER_KIND,
    NUMBERS,
    START,
    TEXT_KIND,
    TEXTS,
    Place,
    ValueSet,
    place_of,
    stretches,
    text_before,
)

# A branch with more is divided.
UNDIVIDED_MAX = 4
# A condition with more alternatives for one attribute is found by their range.
VALUES_MAX = 8
# Sizes of cells, as exponents of 2: what is beyond is found as being there at all.
_EXPONENT_MIN, _EXPONENT_MAX = -1_000, 1_000

_NONE: frozenset[str] = frozenset()
H = TypeVar("H", bound=Hashable)


class _Kind(IntEnum):
    """How a condition is found; the earlier, the fewer events lead there."""

    VALUE = 0
    STRETCH = 1
    BEGINNING = 2
    LOWER = 3
    UPPER = 4
    PRESENCE = 5


class _Access(NamedTuple):
    """Where in a column the condition may lie: in all of these places."""

    name: str
    kind: _Kind
    # Values, cells, a beginning or a threshold.
    keys: tuple[Place, ...]
    # Of the cells, or of the beginning in characters.
    size: float = 0


class HeldCondition(Generic[H]):
    """The condition of a filter, or one of its alternatives, and who holds the filter."""

    __slots__ = ("_accesses", "_condition", "branches", "filter", "holders")

    def __init__(self, wanted: Filter, holders: dict[H, None], condition: Condition) -> None:
        self.filter = wanted
        self.holders = holders
        # Where it lies.
        self.branches: list[_Branch[H]] = []
        self._condition = condition
        self._accesses = _accesses(condition)

    @property
    def is_found_by_attributes(self) -> bool:
        return bool(self._accesses)

    def check_where(self, known: frozenset[str]) -> Check:
        """What is still to be asked where the values of these attributes are those that it must
        have."""
        condition = self._condition
        parts = condition.parts if isinstance(condition, AllOf) else (condition,)
        left = [part for part in parts if not _is_known(part, known)]
        return Predicate(all_of(left)).check if left else _always

    def best_access(self, branch: _Branch[H]) -> _Access | None:
        """The one of a name not yet divided by that leads to where the fewest are."""
        best: _Access | None = None
        best_cost = (0, 0)
        for access in self._accesses:
            if access.name in branch.names:
                continue
            column = branch.columns.get(access.name)
            cost = (access.kind, 0 if column is None else column.crowd(access))
            if best is None or cost < best_cost:
                best, best_cost = access, cost
        return best


class ConditionIndex(Generic[H]):
    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Branch[H] = _Branch(_NONE, _NONE, None)

    def __bool__(self) -> bool:
        return self._root.size > 0

    def add(self, entry: HeldCondition[H]) -> None:
        self._root.add(entry)

    def remove(self, entry: HeldCondition[H]) -> None:
        for branch in entry.branches:
            branch.remove(entry)
        entry.branches.clear()

    def collect(self, attributes: Attributes, found: set[H], holders_max: int) -> None:
        """Add to `found` who holds a condition that is true of the event.

        Conditions are not asked if all their holders are in already, and none once there are
        `holders_max`, which is how many there are altogether.
        """
        branches = [self._root]
        while branches:
            branch = branches.pop()
            for entry, holds in branch.entries.items():
                if found and entry.holders.keys() <= found:
                    continue
                if holds(attributes):
                    found.update(entry.holders)
                    if len(found) == holders_max:
                        return
            if branch.columns:
                branch.lead(attributes, branches)

    def holding(self, attributes: Attributes) -> Iterator[HeldCondition[H]]:
        """All that are true of the event, one by one; alternatives of one filter each by itself."""
        branches = [self._root]
        while branches:
            branch = branches.pop()
            yield from [entry for entry, holds in branch.entries.items() if holds(attributes)]
            if branch.columns:
                branch.lead(attributes, branches)


class _Branch(Generic[H]):
    """Conditions that have something in common: what leads here."""

    __slots__ = ("_is_divided", "_known", "columns", "entries", "names", "parent", "size")

    def __init__(
        self, names: frozenset[str], known: frozenset[str], parent: _Twig[H] | None
    ) -> None:
        # What was divided by on the way here; and by value.
        self.names = names
        self._known = known
        self.parent = parent
        self._is_divided = False
        self.columns: dict[str, _Column[H]] = {}
        # What is to be asked of each here.
        self.entries: dict[HeldCondition[H], Check] = {}
        # Of all below, too.
        self.size = 0

    def lead(self, attributes: Attributes, branches: list[_Branch[H]]) -> None:
        """Add the branches that an event with these attributes comes to from here."""
        columns = self.columns
        if len(attributes) < len(columns):
            for name, value in attributes.items():
                if name in columns:
                    columns[name].lead(value, branches)
            return
        for name, column in columns.items():
            if name in attributes:
                column.lead(attributes[name], branches)

    def below(self, twig: _Twig[H]) -> _Branch[H]:
        """A new one."""
        name = {twig.access.name}
        by_value = name if twig.access.kind is _Kind.VALUE else _NONE
        return _Branch(self.names | name, self._known | by_value, twig)

    def add(self, entry: HeldCondition[H]) -> None:
        self.size += 1
        if self._is_divided:
            self._hand_on(entry)
            return
        self._keep(entry)
        if len(self.entries) > UNDIVIDED_MAX:
            self._is_divided = True
            entries, self.entries = self.entries, {}
            for one in entries:
                one.branches.remove(self)
                self._hand_on(one)

    def _keep(self, entry: HeldCondition[H]) -> None:
        self.entries[entry] = entry.check_where(self._known)
        entry.branches.append(self)

    def _hand_on(self, entry: HeldCondition[H]) -> None:
        access = entry.best_access(self)
        if access is None:
            self._keep(entry)
            return
        column = self.columns.get(access.name)
        if column is None:
            column = self.columns[access.name] = _Column(self)
        below = [column.branch(access, key) for key in access.keys]
        self._grow(len(below) - 1)
        for branch in below:
            branch.add(entry)

    def remove(self, entry: HeldCondition[H]) -> None:
        """Take it out of here, and this out of where it was, if nothing is left."""
        del self.entries[entry]
        branch = self
        while True:
            branch.size -= 1
            twig = branch.parent
            if twig is None:
                return
            branch = twig.column.owner
            if not twig.column.places(twig.access)[twig.key].size:
                twig.column.drop(twig)
                if not twig.column:
                    del branch.columns[twig.access.name]

    def _grow(self, by: int) -> None:
        self.size += by
        twig = self.parent
        while twig is not None:
            branch = twig.column.owner
            branch.size += by
            twig = branch.parent


class _Twig(Generic[H]):
    """Where a branch grows: at one key of a column."""

    __slots__ = ("access", "column", "key")

    def __init__(self, column: _Column[H], access: _Access, key: Place) -> None:
        self.column = column
        self.access = access
        self.key = key


class _Column(Generic[H]):
    """One attribute of one branch."""

    __slots__ = ("_beginnings", "_bounds", "_cells", "_present", "_values", "owner")

    def __init__(self, owner: _Branch[H]) -> None:
        self.owner = owner
        self._values: dict[Place, _Branch[H]] = {}
        # By their size.
        self._cells: dict[float, dict[Place, _Branch[H]]] = {}
        # By their length.
        self._beginnings: dict[int, dict[Place, _Branch[H]]] = {}
        self._bounds: dict[tuple[_Kind, int | float | str], _Thresholds[H]] = {}
        self._present: dict[Place, _Branch[H]] = {}

    def __bool__(self) -> bool:
        return bool(
            self._values or self._cells or self._beginnings or self._bounds or self._present
        )

    def lead(self, value: Value, branches: list[_Branch[H]]) -> None:
        """Add the branches that an event with this value comes to."""
        place = place_of(value)
        if place in self._values:
            branches.append(self._values[place])
        if self._cells and place[0] == NUMBER_KIND:
            number = _axis(place)
            for size, cells in self._cells.items():
                cell = (number // size,)
                if cell in cells:
                    branches.append(cells[cell])
        if self._beginnings and place[0] == TEXT_KIND:
            text = str(value)
            for length, beginnings in self._beginnings.items():
                beginning = (text[:length],)
                if beginning in beginnings:
                    branches.append(beginnings[beginning])
        if self._bounds:
            for side in (_Kind.LOWER, _Kind.UPPER):
                thresholds = self._bounds.get((side, place[0]))
                if thresholds is not None:
                    branches += thresholds.passed_by(place, side)
        if self._present:
            branches += self._present.values()

    def crowd(self, access: _Access) -> int:
        """How many lie where this one would come to lie."""
        if access.kind in (_Kind.LOWER, _Kind.UPPER):
            thresholds = self._bounds.get((access.kind, access.keys[0][0]))
            return 0 if thresholds is None else len(thresholds.keys)
        places: dict[Place, _Branch[H]]
        match access.kind:
            case _Kind.STRETCH:
                places = self._cells.get(access.size, {})
            case _Kind.BEGINNING:
                places = self._beginnings.get(int(access.size), {})
            case _:
                places = self.places(access)
        return sum(places[key].size for key in access.keys if key in places)

    def branch(self, access: _Access, key: Place) -> _Branch[H]:
        """The one of this key, new if need be."""
        places = self.places(access)
        found = places.get(key)
        if found is None:
            found = places[key] = self.owner.below(_Twig(self, access, key))
            if access.kind in (_Kind.LOWER, _Kind.UPPER):
                insort(self._bounds[access.kind, key[0]].keys, key)
        return found

    def drop(self, twig: _Twig[H]) -> None:
        access, key = twig.access, twig.key
        places = self.places(access)
        del places[key]
        if access.kind is _Kind.STRETCH and not places:
            del self._cells[access.size]
        if access.kind is _Kind.BEGINNING and not places:
            del self._beginnings[int(access.size)]
        if access.kind in (_Kind.LOWER, _Kind.UPPER):
            keys = self._bounds[access.kind, key[0]].keys
            del keys[bisect_left(keys, key)]
            if not keys:
                del self._bounds[access.kind, key[0]]

    def places(self, access: _Access) -> dict[Place, _Branch[H]]:
        match access.kind:
            case _Kind.VALUE:
                return self._values
            case _Kind.STRETCH:
                return self._cells.setdefault(access.size, {})
            case _Kind.BEGINNING:
                return self._beginnings.setdefault(int(access.size), {})
            case _Kind.PRESENCE:
                return self._present
        bound = (access.kind, access.keys[0][0])
        if bound not in self._bounds:
            self._bounds[bound] = _Thresholds()
        return self._bounds[bound].branches


class _Thresholds(Generic[H]):
    """Bounds to one side, of numbers or of texts."""

    __slots__ = ("branches", "keys")

    def __init__(self) -> None:
        self.branches: dict[Place, _Branch[H]] = {}
        # In ascending order.
        self.keys: list[Place] = []

    def passed_by(self, place: Place, side: _Kind) -> list[_Branch[H]]:
        end = bisect_right(self.keys, place)
        keys = self.keys[:end] if side is _Kind.LOWER else self.keys[end:]
        branches = self.branches
        return [branches[key] for key in keys]


def _always(attributes: Attributes) -> bool:
    return True


def _is_known(part: Condition, known: frozenset[str]) -> bool:
    """Whether it asks for the one value that the attribute has."""
    match part:
        case NumberTest(name, Operator.EQUAL) | TextTest(name, Operator.EQUAL):
            return name in known
        case TruthTest(name):
            return name in known
    return False


def held_conditions(wanted: Filter, holders: dict[H, None]) -> list[HeldCondition[H]]:
    """What an index is to hold for the filter: none without a condition, most often one."""
    if wanted.predicate is None:
        return []
    condition = wanted.predicate.condition
    whole = HeldCondition(wanted, holders, condition)
    if isinstance(condition, AnyOf) and not whole.is_found_by_attributes:
        return [HeldCondition(wanted, holders, part) for part in condition.parts]
    return [whole]


# ---- from sets of values to places ---------------------------------------------------------------


def _accesses(condition: Condition) -> list[_Access]:
    necessary = necessary_values(condition)
    return [
        access
        for name, values in necessary.items()
        if (access := _access(name, values)) is not None
    ]


def _access(name: str, values: ValueSet) -> _Access | None:
    """None if the attribute may be absent: then no event leads there."""
    if values[:1] == (START,) or not values:
        return None
    spans = list(stretches(values))
    if len(spans) <= VALUES_MAX and all(_is_one_value(*span) for span in spans):
        return _Access(name, _Kind.VALUE, tuple(enter for enter, _ in spans))
    enter, leave = spans[0][0], spans[-1][1]
    kind = enter[0]
    if kind == NUMBER_KIND:
        is_whole_type = leave == TEXTS
    elif kind == TEXT_KIND:
        is_whole_type = leave is None
    else:
        return _Access(name, _Kind.PRESENCE, (NUMBERS,))
    if enter in (NUMBERS, TEXTS):
        if leave is not None and leave[0] == kind and not is_whole_type:
            return _Access(name, _Kind.UPPER, (leave,))
        return _Access(name, _Kind.PRESENCE, (NUMBERS,))
    if is_whole_type:
        return _Access(name, _Kind.LOWER, (enter,))
    if leave is None or leave[0] != kind:
        return _Access(name, _Kind.PRESENCE, (NUMBERS,))
    if kind == TEXT_KIND:
        return _beginning(name, str(enter[1]), text_before(str(leave[1])))
    return _stretch(name, enter, leave)


def _beginning(name: str, low: str, high: str) -> _Access:
    """What all texts between the two begin with."""
    length = 0
    while length < min(len(low), len(high)) and low[length] == high[length]:
        length += 1
    if not length:
        return _Access(name, _Kind.PRESENCE, (NUMBERS,))
    return _Access(name, _Kind.BEGINNING, ((low[:length],),), length)


def _is_one_value(enter: Place, leave: Place | None) -> bool:
    match enter, leave:
        case (1,), (2,):
            return True
        case (2,), (3,):
            return True
        case (3, number, 0), (3, other, 1):
            return number == other
        case (4, str() as text), (4, str() as other):
            return other == text + "\0"
    return False


def _stretch(name: str, enter: Place, leave: Place) -> _Access:
    """Cells are twice as large as the stretch, or less: it meets two at most."""
    low, high = _axis(enter), _axis(leave)
    exponent = math.frexp(high - low)[1] if math.isfinite(high - low) else _EXPONENT_MAX + 1
    if exponent > _EXPONENT_MAX:
        return _Access(name, _Kind.PRESENCE, (NUMBERS,))
    exponent = max(exponent, _EXPONENT_MIN)
    size = math.ldexp(1.0, exponent)
    cells = sorted({low // size, high // size})
    return _Access(name, _Kind.STRETCH, tuple((cell,) for cell in cells), size)


def _axis(place: Place) -> float:
    """A number that ascends, or stays, as the places of numbers do."""
    if place[0] != NUMBER_KIND or len(place) == 1:
        return 0.0
    number = place[1]
    assert not isinstance(number, str)
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
