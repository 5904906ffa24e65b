"""Who wants what, and what each neighbour is told of it (Mobility section 2, Storing section III).

A broker holds the filters of each neighbour and those of its own clients. What a neighbour is told
follows from all that is held, and from nothing else: not from the order in which it came.

    peer           all but what only that neighbour wants
    hierarchical   the same to the parent, nothing to children; the parent is sent every event

With covering, filters that another one displaces are left out (`held_filters.py`). With
advertisements a neighbour is told those filters only that intersect what it has advertised, and
advertisements themselves are passed on as filters are, in a hierarchy to the parent alone. There
children are told then what they advertise events for, the parent is told everything, and it is sent
what it has asked for.

Nothing is sent here: `changes` says what is to be said since it was last asked, what has come and
what is gone for one neighbour together, so that events do not fall between a filter that goes and
those that it displaced. A change costs what it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from dynatops.kit.filters import (
    Attributes,
    Filter,
    FilterIndex,
    PatternTree,
    intersects,
    pattern_matches,
)
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.forwarding.tables.held_filters import HERE, BrokerId, HeldFilter, HeldFilters
from overlay.forwarding.tree.topology import TreeMode


@dataclass(frozen=True, slots=True)
class TableRules:
    mode: TreeMode = TreeMode.PEER
    advertisements: bool = False
    covering: bool = True
    # Of one neighbour, and as many advertisements. More are refused, which is counted.
    filters_max: int = 1_000_000


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one neighbour is to be told, in one message."""

    add: tuple[Filter, ...] = ()
    remove: tuple[Filter, ...] = ()
    advertise: tuple[Filter, ...] = ()
    withdraw: tuple[Filter, ...] = ()


@dataclass(frozen=True, slots=True)
class TablesStatus:
    filters: int
    # Displaced by others, towards one neighbour or all.
    covered: int
    advertisements: int
    held: dict[BrokerId, int] = field(default_factory=dict)
    told: dict[BrokerId, int] = field(default_factory=dict)


EVERYTHING = Filter.parse("#")


class SubscriptionTables:
    """`HERE` stands for this broker's clients, among those who hold filters."""

    def __init__(self, rules: TableRules, counters: ForwardingCounters | None = None) -> None:
        self._rules = rules
        self._counters = counters if counters is not None else ForwardingCounters()
        self._parent: BrokerId | None = None
        self._wants = HeldFilters(covering=rules.covering)
        self._advertised = HeldFilters(covering=rules.covering)
        self._neighbours: dict[BrokerId, _Neighbour] = {}

    # ---- neighbours ------------------------------------------------------------------------------

    @property
    def neighbours(self) -> list[BrokerId]:
        return list(self._neighbours)

    def add_neighbour(self, neighbour: BrokerId, *, is_parent: bool = False) -> None:
        """It holds nothing yet; what it is to be told is in the next `changes`."""
        self._neighbours[neighbour] = _Neighbour()
        if is_parent:
            self._parent = neighbour
        self._tell_all(neighbour)

    def replace(
        self, neighbour: BrokerId, filters: Iterable[Filter], advertisements: Iterable[Filter]
    ) -> None:
        """Its whole table, as it says it when a session begins."""
        wanted, advertised = dict.fromkeys(filters), dict.fromkeys(advertisements)
        change = TableChange(
            add=tuple(wanted),
            remove=tuple(one for one in self._wants.of(neighbour) if one not in wanted),
            advertise=tuple(advertised),
            withdraw=tuple(one for one in self._advertised.of(neighbour) if one not in advertised),
        )
        self.change(neighbour, change)

    # ---- filters and advertisements --------------------------------------------------------------

    def change(self, holder: BrokerId, change: TableChange) -> None:
        """What is held already, and what is not there to be removed, is passed over."""
        for one in change.remove:
            self._wants.remove(holder, one)
        for one in change.add:
            if self._has_room(self._wants, holder, one):
                self._wants.add(holder, one)
        for one in change.withdraw:
            if self._advertised.remove(holder, one) and holder != HERE:
                self._neighbours[holder].advertised.remove(one)
                self._tell_intersecting(holder, one)
        for one in change.advertise:
            if self._has_room(self._advertised, holder, one):
                self._advertise(holder, one)
        self._settle()

    def want(self, holder: BrokerId, wanted: Filter) -> None:
        self.change(holder, TableChange(add=(wanted,)))

    def give_up(self, holder: BrokerId, wanted: Filter) -> None:
        self.change(holder, TableChange(remove=(wanted,)))

    def advertise(self, holder: BrokerId, advertised: Filter) -> None:
        self.change(holder, TableChange(advertise=(advertised,)))

    def withdraw(self, holder: BrokerId, advertised: Filter) -> None:
        self.change(holder, TableChange(withdraw=(advertised,)))

    def _has_room(self, filters: HeldFilters, holder: BrokerId, one: Filter) -> bool:
        if holder == HERE or filters.count_of(holder) < self._rules.filters_max:
            return True
        is_held = filters.holds(holder, one)
        self._counters.tree_filters_refused += not is_held
        return is_held

    def _advertise(self, holder: BrokerId, advertised: Filter) -> None:
        if self._advertised.add(holder, advertised) and holder != HERE:
            self._neighbours[holder].advertised.add(advertised)
            self._tell_intersecting(holder, advertised)

    # ---- what others are told --------------------------------------------------------------------

    def changes(self) -> dict[BrokerId, TableChange]:
        """What is to be said since this was last asked, to each neighbour that is to hear any."""
        found = {}
        for neighbour, toward in self._neighbours.items():
            if not toward.has_unsaid:
                continue
            add, remove = toward.filters.take_unsaid()
            advertise, withdraw = toward.advertisements.take_unsaid()
            found[neighbour] = TableChange(add, remove, advertise, withdraw)
        return found

    def whole(self, neighbour: BrokerId) -> TableChange:
        """All that a neighbour is to know, as at the beginning of a session, where this takes the
        place of changes that have not been asked for."""
        toward = self._neighbours[neighbour]
        toward.filters.take_unsaid()
        toward.advertisements.take_unsaid()
        return TableChange(add=toward.filters.sorted(), advertise=toward.advertisements.sorted())

    def _is_told(self, held: HeldFilter, neighbour: BrokerId) -> bool:
        """Whether the neighbour is told of this filter."""
        if self.sends_all(neighbour) or not held.counts_towards(neighbour):
            return False
        if held.coverer_towards(neighbour) is not None:
            return False
        is_up = self._rules.mode is TreeMode.HIERARCHICAL and neighbour == self._parent
        if is_up or not self._rules.advertisements:
            return True
        return self._neighbours[neighbour].advertised.intersects(held.filter)

    def _is_advertised_to(self, held: HeldFilter, neighbour: BrokerId) -> bool:
        if not self._rules.advertisements:
            return False
        if self._rules.mode is TreeMode.HIERARCHICAL and neighbour != self._parent:
            return False
        return held.counts_towards(neighbour) and held.coverer_towards(neighbour) is None

    def _settle(self) -> None:
        """Bring what neighbours are told into line with what has been touched."""
        for held in self._wants.take_touched():
            for neighbour in self._neighbours:
                self._tell(held, neighbour)
        for held in self._advertised.take_touched():
            for neighbour in self._neighbours:
                self._tell_advertisement(held, neighbour)

    def _tell(self, held: HeldFilter, neighbour: BrokerId) -> None:
        is_told = self._is_told(held, neighbour)
        self._neighbours[neighbour].filters.put(held.filter, is_told=is_told)

    def _tell_advertisement(self, held: HeldFilter, neighbour: BrokerId) -> None:
        is_told = self._is_advertised_to(held, neighbour)
        self._neighbours[neighbour].advertisements.put(held.filter, is_told=is_told)

    def _tell_intersecting(self, neighbour: BrokerId, advertised: Filter) -> None:
        """What the neighbour advertises has changed by this."""
        for held in self._wants.open_intersecting(advertised.pattern):
            if intersects(advertised, held.filter):
                self._tell(held, neighbour)

    def _tell_all(self, neighbour: BrokerId) -> None:
        for held in self._wants.open_filters():
            self._tell(held, neighbour)
        for held in self._advertised.open_filters():
            self._tell_advertisement(held, neighbour)

    # ---- what is asked ---------------------------------------------------------------------------

    def takers(
        self, topic: str, attributes: Attributes, source: BrokerId | None = None
    ) -> AbstractSet[BrokerId]:
        """Who is to have an event, but the neighbour that it came from."""
        found = self.index.match(topic, attributes)
        if self.takes_all is not None and self.takes_all not in found:
            found = found | {self.takes_all}
        return found - {source} if source in found else found

    def may_take(self, topic: str) -> set[BrokerId]:
        """Who is to have events of the topic, or those of them that a condition holds for. For
        who looks at it: all filters are looked through."""
        return {
            holder
            for holder in (HERE, *self._neighbours)
            if any(pattern_matches(one.pattern, topic) for one in self.sent_to(holder))
        }

    @property
    def index(self) -> FilterIndex[BrokerId]:
        """Who wants what; not of one that takes all."""
        return self._wants.index

    @property
    def takes_all(self) -> BrokerId | None:
        """The parent, unless it is asked for what it wants."""
        is_told = self._rules.mode is TreeMode.PEER or self._rules.advertisements
        return None if is_told else self._parent

    def sends_all(self, neighbour: BrokerId) -> bool:
        """Whether it sends everything, and is not told what is wanted."""
        is_down = self._rules.mode is TreeMode.HIERARCHICAL and neighbour != self._parent
        return is_down and not self._rules.advertisements

    def wanted_by(self, holder: BrokerId) -> list[Filter]:
        return self._wants.of(holder)

    def is_wanted_by(self, holder: BrokerId, filters: Iterable[Filter]) -> bool:
        """Whether it holds all of these."""
        return all(self._wants.holds(holder, one) for one in filters)

    def sent_to(self, neighbour: BrokerId) -> list[Filter]:
        """What it is sent events for, whether it asked for them or takes all."""
        return [EVERYTHING] if neighbour == self.takes_all else self._wants.of(neighbour)

    def advertised_by(self, holder: BrokerId) -> list[Filter]:
        return self._advertised.of(holder)

    def told(self, neighbour: BrokerId) -> list[Filter]:
        return list(self._neighbours[neighbour].filters)

    def advertised_to(self, neighbour: BrokerId) -> list[Filter]:
        return list(self._neighbours[neighbour].advertisements)

    def status(self) -> TablesStatus:
        return TablesStatus(
            filters=len(self._wants),
            covered=self._wants.covered,
            advertisements=len(self._advertised),
            held={n: self._wants.count_of(n) for n in (HERE, *self._neighbours)},
            told={n: len(toward.filters) for n, toward in self._neighbours.items()},
        )


class _Neighbour:
    __slots__ = ("advertised", "advertisements", "filters")

    def __init__(self) -> None:
        # What it is told.
        self.filters = _Told()
        self.advertisements = _Told()
        # What it has told us that it may send.
        self.advertised = _Advertised()

    @property
    def has_unsaid(self) -> bool:
        return self.filters.has_unsaid or self.advertisements.has_unsaid


class _Told:
    """What a neighbour is told, and how that differs from what has been said."""

    __slots__ = ("_told", "_unsaid")

    def __init__(self) -> None:
        self._told: dict[Filter, None] = {}
        # Whether it is to be added.
        self._unsaid: dict[Filter, bool] = {}

    def __len__(self) -> int:
        return len(self._told)

    def __iter__(self) -> Iterator[Filter]:
        return iter(self._told)

    def put(self, wanted: Filter, *, is_told: bool) -> None:
        if (wanted in self._told) == is_told:
            return
        if is_told:
            self._told[wanted] = None
        else:
            del self._told[wanted]
        if wanted in self._unsaid:
            # It is as it was said.
            del self._unsaid[wanted]
        else:
            self._unsaid[wanted] = is_told

    @property
    def has_unsaid(self) -> bool:
        return bool(self._unsaid)

    def take_unsaid(self) -> tuple[tuple[Filter, ...], tuple[Filter, ...]]:
        """What is to be added and what is to be removed, each in the order of their texts."""
        unsaid, self._unsaid = self._unsaid, {}
        return (
            _in_order(wanted for wanted, is_told in unsaid.items() if is_told),
            _in_order(wanted for wanted, is_told in unsaid.items() if not is_told),
        )

    def sorted(self) -> tuple[Filter, ...]:
        return _in_order(self._told)


class _Advertised:
    """What a neighbour may send."""

    __slots__ = ("_by_pattern",)

    def __init__(self) -> None:
        self._by_pattern: PatternTree[dict[Filter, None]] = PatternTree()

    def add(self, advertised: Filter) -> None:
        filters = self._by_pattern.get(advertised.pattern)
        if filters is None:
            filters = {}
            self._by_pattern.put(advertised.pattern, filters)
        filters[advertised] = None

    def remove(self, advertised: Filter) -> None:
        filters = self._by_pattern.get(advertised.pattern)
        if filters is None:
            raise KeyError(advertised)
        del filters[advertised]
        if not filters:
            self._by_pattern.remove(advertised.pattern)

    def intersects(self, wanted: Filter) -> bool:
        return any(
            intersects(advertised, wanted)
            for filters in self._by_pattern.intersecting(wanted.pattern)
            for advertised in filters
        )


def _in_order(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    return tuple(sorted(filters, key=lambda wanted: (wanted.pattern, wanted.where)))
