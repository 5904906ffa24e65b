"""Filters by who holds them, and which of them another one makes superfluous.

A filter is held by neighbours that said it, and by this broker's own clients, who count as one
holder. What a neighbour n is to hear of is what others than n hold: the holders of a filter decide
whether it counts towards n, as a filter to be said, and as one that covers others.

A filter g displaces f if g covers f, and f does not cover g, or g is the first of the two in the
order of their texts. No circle of filters displaces each other, whatever the search for covering
cannot settle: in a circle all would be equal, so none would be known not to cover the one before,
and their texts cannot descend all around. So each filter that is displaced is covered by one that
is not. One that no event is known to match is displaced by filters without conditions only.

Of those that displace a filter no more than two are kept with it: enough that towards every
neighbour one counts. A filter is open as long as there is a neighbour towards which none does; only
open ones are looked through when another filter comes. What covers a filter is found by an event
that the filter matches, and what a filter covers by such events of the others
(`dynatops/kit/filters/examples.py`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from dynatops.kit.filters import (
    Filter,
    FilterIndex,
    PatternTree,
    Value,
    pattern_covers,
    settled_covers,
)
from dynatops.kit.filters.examples import Examples, examples_of, topic_matched_by
from dynatops.kit.filters.necessary import necessary_values
from dynatops.kit.filters.value_sets import START, Place, ValueSet, place_of, stretches

BrokerId: TypeAlias = str
# The holder that stands for this broker's own clients. No broker has an empty id.
HERE: Final = ""


class HeldFilter:
    __slots__ = ("coverers", "covers", "examples", "filter", "holders")

    def __init__(self, wanted: Filter, examples: Examples | None) -> None:
        self.filter = wanted
        # Events that it matches, if some are known.
        self.examples = examples
        self.holders: dict[BrokerId, None] = {}
        # What displaces it: one, or two that differ in whom they do not count towards.
        self.coverers: list[HeldFilter] = []
        # What it is kept with as the one that displaces.
        self.covers: dict[HeldFilter, None] = {}

    @property
    def left_out(self) -> BrokerId | None:
        """The neighbour towards which it does not count, if there is one."""
        if len(self.holders) != 1:
            return None
        (only,) = self.holders
        return None if only == HERE else only

    def counts_towards(self, neighbour: BrokerId) -> bool:
        return len(self.holders) > 1 or (bool(self.holders) and neighbour not in self.holders)

    def coverer_towards(self, neighbour: BrokerId) -> HeldFilter | None:
        for coverer in self.coverers:
            if coverer.counts_towards(neighbour):
                return coverer
        return None


class HeldFilters:
    """Whoever changes it asks afterwards what was touched (`take_touched`)."""

    def __init__(self, *, covering: bool) -> None:
        self.index: FilterIndex[BrokerId] = FilterIndex()
        self._covering = covering
        self._held: dict[Filter, HeldFilter] = {}
        self._by_holder: dict[BrokerId, dict[Filter, HeldFilter]] = {}
        self._open: PatternTree[_OpenFilters] = PatternTree()
        self._touched: dict[HeldFilter, None] = {}
        # How many are displaced towards at least one neighbour.
        self.covered = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, wanted: Filter) -> HeldFilter | None:
        return self._held.get(wanted)

    def of(self, holder: BrokerId) -> list[Filter]:
        return list(self._by_holder.get(holder, ()))

    def count_of(self, holder: BrokerId) -> int:
        return len(self._by_holder.get(holder, ()))

    def take_touched(self) -> list[HeldFilter]:
        """The filters for which it may differ from before who is to hear of them."""
        touched, self._touched = self._touched, {}
        return list(touched)

    def open_filters(self) -> list[HeldFilter]:
        """All that somebody may have to hear of."""
        return [held for of_pattern in self._open.covered("#") for held in of_pattern.filters]

    def open_intersecting(self, pattern: str) -> list[HeldFilter]:
        """Those of them that have a topic in common with the pattern."""
        found = self._open.intersecting(pattern)
        return [held for of_pattern in found for held in of_pattern.filters]

    # ---- changes ---------------------------------------------------------------------------------

    def holds(self, holder: BrokerId, wanted: Filter) -> bool:
        return wanted in self._by_holder.get(holder, ())

    def add(self, holder: BrokerId, wanted: Filter) -> bool:
        """Whether the holder did not hold it before."""
        held = self._held.get(wanted)
        if held is None:
            examples = examples_of(wanted) if self._covering else None
            held = self._held[wanted] = HeldFilter(wanted, examples)
        elif holder in held.holders:
            return False
        was_held, left_out = bool(held.holders), held.left_out
        held.holders[holder] = None
        self._by_holder.setdefault(holder, {})[wanted] = held
        self.index.add(wanted, holder)
        if was_held and left_out is None:
            # It counted towards everyone already.
            return True
        self._review(held)
        for below in list(held.covers):
            self._review(below)
        if self._covering:
            self._displace(held)
        return True

    def remove(self, holder: BrokerId, wanted: Filter) -> bool:
        """Whether the holder held it."""
        held = self._held.get(wanted)
        if held is None or holder not in held.holders:
            return False
        left_out = held.left_out
        del held.holders[holder]
        self.index.remove(wanted, holder)
        del self._by_holder[holder][wanted]
        if not self._by_holder[holder]:
            del self._by_holder[holder]
        if not held.holders:
            del self._held[wanted]
        if not held.holders or held.left_out != left_out:
            below = list(held.covers)
            self._review(held)
            for one in below:
                self._review(one)
        return True

    def _review(self, held: HeldFilter) -> None:
        """Look again for what displaces it, as far as that is not known."""
        self._touched[held] = None
        if not held.holders:
            self._set_coverers(held, [])
            return
        coverers = [coverer for coverer in held.coverers if coverer.holders]
        if self._covering and not _is_enough(coverers, held):
            for other in self._candidates(held.examples, held.filter):
                candidate = self._held[other]
                if _adds_to(coverers, candidate) and _displaces(candidate, held):
                    coverers.append(candidate)
                    if _is_enough(coverers, held):
                        break
        self._set_coverers(held, coverers)

    def _displace(self, held: HeldFilter) -> None:
        """Keep it with the open ones that it displaces."""
        predicate = held.filter.predicate
        necessary = None if predicate is None else necessary_values(predicate.condition)
        for of_pattern in list(self._open.covered(held.filter.pattern)):
            for other in of_pattern.candidates(held.filter, necessary):
                if other is held or not _adds_to(other.coverers, held):
                    continue
                if _displaces(held, other):
                    self._touched[other] = None
                    self._set_coverers(other, [*other.coverers, held])

    def _set_coverers(self, held: HeldFilter, coverers: list[HeldFilter]) -> None:
        by_left_out = {coverer.left_out: coverer for coverer in coverers}
        coverers = [by_left_out[None]] if None in by_left_out else list(by_left_out.values())
        self.covered += bool(coverers) - bool(held.coverers)
        for coverer in held.coverers:
            del coverer.covers[held]
        held.coverers = coverers
        for coverer in coverers:
            coverer.covers[held] = None
        self._set_open(held, is_open=bool(held.holders) and not _is_enough(coverers, held))

    def _set_open(self, held: HeldFilter, *, is_open: bool) -> None:
        pattern = held.filter.pattern
        of_pattern = self._open.get(pattern)
        if is_open:
            if of_pattern is None:
                of_pattern = _OpenFilters()
                self._open.put(pattern, of_pattern)
            if held not in of_pattern.filters:
                of_pattern.add(held)
        elif of_pattern is not None and held in of_pattern.filters:
            of_pattern.remove(held)
            if not of_pattern.filters:
                self._open.remove(pattern)

    # ---- covering --------------------------------------------------------------------------------

    def _candidates(self, examples: Examples | None, wanted: Filter) -> Iterator[Filter]:
        """What may cover a filter that has these examples; others cannot."""
        if examples is None:
            found = self.index.matching(topic_matched_by(wanted.pattern), {})
            yield from (other for other in found if other.predicate is None)
            return
        for other in self.index.matching(examples.topic, examples.near):
            if other.predicate is None or other.predicate.holds(examples.opposite):
                yield other


def _displaces(wide: HeldFilter, narrow: HeldFilter) -> bool:
    if wide is narrow or not pattern_covers(wide.filter.pattern, narrow.filter.pattern):
        return False
    if narrow.examples is None and wide.filter.predicate is not None:
        return False
    if not settled_covers(wide.filter, narrow.filter):
        return False
    is_first = _text_of(wide.filter) < _text_of(narrow.filter)
    return is_first or settled_covers(narrow.filter, wide.filter) is False


def _text_of(wanted: Filter) -> tuple[str, str]:
    return wanted.pattern, wanted.where


def _adds_to(coverers: list[HeldFilter], other: HeldFilter) -> bool:
    """Whether it counts towards somebody that none of these counts towards."""
    if not coverers:
        return True
    return other not in coverers and all(
        coverer.left_out is not None and coverer.left_out != other.left_out for coverer in coverers
    )


def _is_enough(coverers: Iterable[HeldFilter], held: HeldFilter) -> bool:
    """Whether one of them counts wherever the filter itself does."""
    left_out = {coverer.left_out for coverer in coverers}
    if len(left_out) != 1:
        return len(left_out) > 1
    (neighbour,) = left_out
    return neighbour is None or not held.counts_towards(neighbour)


class _OpenFilters:
    """The open ones of one pattern, by the attributes of their examples."""

    __slots__ = ("_columns", "filters")

    def __init__(self) -> None:
        self.filters: dict[HeldFilter, None] = {}
        self._columns: dict[str, _ExampleColumn] = {}

    def add(self, held: HeldFilter) -> None:
        self.filters[held] = None
        for name, value in _near(held).items():
            if name not in self._columns:
                self._columns[name] = _ExampleColumn()
            self._columns[name].add(place_of(value), held)

    def remove(self, held: HeldFilter) -> None:
        del self.filters[held]
        for name, value in _near(held).items():
            self._columns[name].remove(place_of(value), held)
            if not self._columns[name].keys:
                del self._columns[name]

    def candidates(self, wide: Filter, necessary: dict[str, ValueSet] | None) -> list[HeldFilter]:
        """Those that the filter may cover, by the attribute that leaves fewest of them."""
        if wide.predicate is None or necessary is None:
            return list(self.filters)
        best: Iterable[HeldFilter] = self.filters
        fewest = len(self.filters)
        for name, values in necessary.items():
            if values[:1] == (START,):
                # It may be absent.
                continue
            column = self._columns.get(name)
            if column is None:
                return []
            count = column.count_within(values, fewest)
            if count < fewest:
                best, fewest = column.within(values), count
        holds = wide.predicate.holds
        return [
            held
            for held in best
            if held.examples is not None
            and holds(held.examples.near)
            and holds(held.examples.opposite)
        ]


class _ExampleColumn:
    """One attribute of examples, by its value."""

    __slots__ = ("_at", "keys")

    def __init__(self) -> None:
        self._at: dict[Place, dict[HeldFilter, None]] = {}
        # In ascending order.
        self.keys: list[Place] = []

    def add(self, place: Place, held: HeldFilter) -> None:
        if place not in self._at:
            self._at[place] = {}
            insort(self.keys, place)
        self._at[place][held] = None

    def remove(self, place: Place, held: HeldFilter) -> None:
        del self._at[place][held]
        if not self._at[place]:
            del self._at[place]
            del self.keys[bisect_left(self.keys, place)]

    def count_within(self, values: ValueSet, count_max: int) -> int:
        """How many there are; the limit if there are as many or more."""
        count = 0
        for place in self._places(values):
            count += len(self._at[place])
            if count >= count_max:
                return count_max
        return count

    def within(self, values: ValueSet) -> Iterator[HeldFilter]:
        for place in self._places(values):
            yield from self._at[place]

    def _places(self, values: ValueSet) -> Iterator[Place]:
        for enter, leave in stretches(values):
            first = bisect_left(self.keys, enter)
            last = len(self.keys) if leave is None else bisect_left(self.keys, leave)
            for i in range(first, last):
                yield self.keys[i]


def _near(held: HeldFilter) -> dict[str, Value]:
    return {} if held.examples is None else held.examples.near
