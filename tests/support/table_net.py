"""Brokers that are nothing but their tables, wired together: messages arrive in order, at once.

A link that is cut loses what is under way; both sides keep what they know, and say everything again
when it is mended. `expected_told` says from what clients hold what every broker must tell another
one: by the definitions, word for word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from dynatops.kit.filters import Attributes, Filter, covers, intersects, pattern_covers
from dynatops.kit.filters.examples import examples_of
from overlay.forwarding.tables.held_filters import HERE, BrokerId
from overlay.forwarding.tables.subscription_tables import (
    SubscriptionTables,
    TableChange,
    TableRules,
)
from overlay.forwarding.tree.topology import TreeMode

Edge = tuple[BrokerId, BrokerId]


@dataclass(frozen=True, slots=True)
class TableMessage:
    source: BrokerId
    destination: BrokerId
    change: TableChange
    # The first of a session: all that there is.
    is_whole: bool = False


class TableNet:
    """The first broker of an edge is the parent of the second."""

    def __init__(self, rules: TableRules, edges: Iterable[Edge]) -> None:
        self.rules = rules
        self.edges = list(edges)
        self.tables: dict[BrokerId, SubscriptionTables] = {}
        # Called after a client has done something, and after each message.
        self.on_change: Callable[[BrokerId], None] = lambda name: None
        self.on_message: Callable[[TableMessage], None] = lambda message: None
        # What clients hold, and how many of them.
        self.wanted: dict[BrokerId, dict[Filter, int]] = {}
        self.advertised: dict[BrokerId, dict[Filter, int]] = {}
        self.cut: set[frozenset[BrokerId]] = set()
        self.messages = 0
        self._queue: deque[TableMessage] = deque()
        for edge in self.edges:
            for name in edge:
                self._start(name)
        for parent, child in self.edges:
            self._link(parent, child)
        self.run()

    def neighbours(self, name: BrokerId) -> list[BrokerId]:
        return [a if b == name else b for a, b in self.edges if name in (a, b)]

    # ---- what happens ----------------------------------------------------------------------------

    def want(self, name: BrokerId, wanted: Filter) -> None:
        self.wanted[name][wanted] = self.wanted[name].get(wanted, 0) + 1
        self.tables[name].want(HERE, wanted)
        self.on_change(name)
        self.run()

    def give_up(self, name: BrokerId, wanted: Filter) -> None:
        if not _count_down(self.wanted[name], wanted):
            self.tables[name].give_up(HERE, wanted)
        self.on_change(name)
        self.run()

    def advertise(self, name: BrokerId, advertised: Filter) -> None:
        self.advertised[name][advertised] = self.advertised[name].get(advertised, 0) + 1
        self.tables[name].advertise(HERE, advertised)
        self.on_change(name)
        self.run()

    def withdraw(self, name: BrokerId, advertised: Filter) -> None:
        if not _count_down(self.advertised[name], advertised):
            self.tables[name].withdraw(HERE, advertised)
        self.on_change(name)
        self.run()

    def crash(self, name: BrokerId) -> None:
        """It comes back with nothing, and is told everything by its neighbours."""
        self._start(name)
        self._add_neighbours(name)
        self._begin_sessions(name)
        self.run()

    def _add_neighbours(self, name: BrokerId) -> None:
        for parent, child in self.edges:
            if name in (parent, child):
                other = child if name == parent else parent
                self.tables[name].add_neighbour(other, is_parent=other == parent)

    def _begin_sessions(self, name: BrokerId) -> None:
        for parent, child in self.edges:
            if name in (parent, child):
                self._begin_session(parent, child)

    def cut_link(self, a: BrokerId, b: BrokerId) -> None:
        self.cut.add(frozenset((a, b)))

    def mend_link(self, a: BrokerId, b: BrokerId) -> None:
        self.cut.discard(frozenset((a, b)))
        self._begin_session(a, b)
        self.run()

    def remove_edge(self, edge: Edge) -> None:
        """They are no neighbours any more, and make their tables anew, of what clients hold."""
        self.edges.remove(edge)
        for name in edge:
            self.tables[name] = tables = SubscriptionTables(self.rules)
            self._add_neighbours(name)
            for wanted in self.wanted[name]:
                tables.want(HERE, wanted)
            for advertised in self.advertised[name]:
                tables.advertise(HERE, advertised)
        for name in edge:
            self._begin_sessions(name)
        self.run()

    def add_edge(self, edge: Edge) -> None:
        self.edges.append(edge)
        self._link(*edge)
        self.run()

    def reach(self, source: BrokerId, topic: str, attributes: Attributes) -> dict[BrokerId, bool]:
        """The brokers that an event comes to, and whether it is for clients there."""
        reached: dict[BrokerId, bool] = {}
        queue: deque[tuple[BrokerId, BrokerId | None]] = deque([(source, None)])
        while queue:
            name, came_from = queue.popleft()
            assert name not in reached
            takers = self.tables[name].takers(topic, attributes, came_from)
            assert came_from not in takers
            reached[name] = HERE in takers
            queue += [(taker, name) for taker in sorted(takers) if taker != HERE]
        return reached

    # ---- messages --------------------------------------------------------------------------------

    def run(self) -> None:
        """Until nobody has anything to say."""
        self._collect()
        while self._queue:
            message = self._queue.popleft()
            if frozenset((message.source, message.destination)) in self.cut:
                continue
            self.messages += 1
            self._deliver(message)
            self._collect()
            self.on_message(message)

    def _start(self, name: BrokerId) -> None:
        self.tables[name] = SubscriptionTables(self.rules)
        self.wanted[name] = {}
        self.advertised[name] = {}

    def _link(self, parent: BrokerId, child: BrokerId) -> None:
        self.tables[parent].add_neighbour(child)
        self.tables[child].add_neighbour(parent, is_parent=True)

    def _begin_session(self, a: BrokerId, b: BrokerId) -> None:
        for source, destination in ((a, b), (b, a)):
            whole = self.tables[source].whole(destination)
            self._queue.append(TableMessage(source, destination, whole, is_whole=True))

    def _collect(self) -> None:
        for name, tables in self.tables.items():
            for neighbour, change in tables.changes().items():
                self._queue.append(TableMessage(name, neighbour, change))

    def _deliver(self, message: TableMessage) -> None:
        tables, change = self.tables[message.destination], message.change
        source = message.source
        if message.is_whole:
            tables.replace(source, change.add, change.advertise)
            return
        assert not set(change.add) & set(tables.wanted_by(source))
        assert tables.is_wanted_by(source, change.remove)
        assert not set(change.advertise) & set(tables.advertised_by(source))
        assert set(change.withdraw) <= set(tables.advertised_by(source))
        tables.change(source, change)


def _count_down(counts: dict[Filter, int], wanted: Filter) -> int:
    """How many hold it still."""
    counts[wanted] -= 1
    return counts[wanted] or counts.pop(wanted)


# ---- the reference -------------------------------------------------------------------------------


@cache
def displaces(wide: Filter, narrow: Filter) -> bool:
    """By the rule at the head of `held_filters.py`, if covering is settled always."""
    if wide == narrow or not pattern_covers(wide.pattern, narrow.pattern):
        return False
    if wide.predicate is not None and examples_of(narrow) is None:
        return False
    is_first = (wide.pattern, wide.where) < (narrow.pattern, narrow.where)
    return covers(wide, narrow) and (is_first or not covers(narrow, wide))


def minimal(filters: set[Filter]) -> set[Filter]:
    return {one for one in filters if not any(displaces(other, one) for other in filters)}


class ReferenceTables:
    """What brokers must tell each other, once everything has been said."""

    def __init__(self, net: TableNet) -> None:
        self._net = net
        self._told: dict[Edge, set[Filter]] = {}
        self._advertised: dict[Edge, set[Filter]] = {}

    def advertised(self, name: BrokerId, to: BrokerId) -> set[Filter]:
        if (name, to) not in self._advertised:
            found = set(self._net.advertised[name])
            for other in self._net.neighbours(name):
                if other != to:
                    found |= self.advertised(other, name)
            rules = self._net.rules
            if not rules.advertisements or (
                rules.mode is TreeMode.HIERARCHICAL and not self._is_parent(to, name)
            ):
                found = set()
            self._advertised[name, to] = minimal(found) if rules.covering else found
        return self._advertised[name, to]

    def told(self, name: BrokerId, to: BrokerId) -> set[Filter]:
        if (name, to) not in self._told:
            found = set(self._net.wanted[name])
            for other in self._net.neighbours(name):
                if other != to:
                    found |= self.told(other, name)
            self._told[name, to] = self._of_those(found, name, to)
        return self._told[name, to]

    def _of_those(self, wanted: set[Filter], name: BrokerId, to: BrokerId) -> set[Filter]:
        rules = self._net.rules
        chosen = minimal(wanted) if rules.covering else wanted
        if rules.mode is TreeMode.HIERARCHICAL:
            if self._is_parent(to, name):
                return chosen
            if not rules.advertisements:
                return set()
        if not rules.advertisements:
            return chosen
        advertised = self.advertised(to, name)
        return {one for one in chosen if any(intersects(other, one) for other in advertised)}

    def _is_parent(self, parent: BrokerId, child: BrokerId) -> bool:
        return (parent, child) in self._net.edges


def check_tables(net: TableNet) -> None:
    """Every table is as the reference has it, and what was said is what was heard."""
    expected = ReferenceTables(net)
    for name, tables in net.tables.items():
        assert set(tables.wanted_by(HERE)) == set(net.wanted[name])
        assert sorted(tables.neighbours) == sorted(net.neighbours(name))
        for other in net.neighbours(name):
            assert set(tables.told(other)) == expected.told(name, other), (name, other)
            assert set(tables.wanted_by(other)) == expected.told(other, name), (name, other)
            assert set(tables.advertised_to(other)) == expected.advertised(name, other)
            assert set(tables.advertised_by(other)) == expected.advertised(other, name)
