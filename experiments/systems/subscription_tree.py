"""Brokers in a tree that are nothing but their tables, as shipped; what they tell is counted.

Messages arrive in order, and at once. A message is a filter, or an advertisement, that one broker
tells another, or takes back; and an event that one broker sends another: once for each hop.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from dynatops.kit.filters import Filter
from overlay.forwarding.held_filters import HERE
from overlay.forwarding.tables import SubscriptionTables, TableChange, TableRules


@dataclass(slots=True)
class TreeMessages:
    subscriptions: int = 0
    advertisements: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True)
class EventWay:
    """Where an event went, and at how many brokers clients wanted it."""

    hops: list[tuple[str, str]]
    wanting: int


class SubscriptionTree:
    def __init__(self, rules: TableRules, links: Iterable[tuple[str, str]]) -> None:
        """The first of a link is the parent of the second."""
        self.sent = TreeMessages()
        self._tables: dict[str, SubscriptionTables] = {}
        # How many clients of each broker hold what.
        self._held: dict[str, Counter[Filter]] = {}
        for parent, child in links:
            for name in (parent, child):
                if name not in self._tables:
                    self._tables[name] = SubscriptionTables(rules)
                    self._held[name] = Counter()
            self._tables[parent].add_neighbour(child)
            self._tables[child].add_neighbour(parent, is_parent=True)

    def want(self, broker: str, wanted: Filter) -> None:
        held = self._held[broker]
        held[wanted] += 1
        if held[wanted] == 1:
            self._tables[broker].want(HERE, wanted)
            self._tell(broker)

    def give_up(self, broker: str, wanted: Filter) -> None:
        held = self._held[broker]
        held[wanted] -= 1
        if not held[wanted]:
            del held[wanted]
            self._tables[broker].give_up(HERE, wanted)
            self._tell(broker)

    def advertise(self, broker: str, advertised: Filter) -> None:
        """For good."""
        self._tables[broker].advertise(HERE, advertised)
        self._tell(broker)

    def publish(self, broker: str, topic: str) -> EventWay:
        hops: list[tuple[str, str]] = []
        wanting = 0
        waiting: deque[tuple[str, str | None]] = deque([(broker, None)])
        while waiting:
            name, came_from = waiting.popleft()
            takers = self._tables[name].takers(topic, {}, came_from)
            wanting += HERE in takers
            onward = [taker for taker in takers if taker != HERE]
            hops += [(name, taker) for taker in onward]
            waiting.extend((taker, name) for taker in onward)
        self.sent.events += len(hops)
        return EventWay(hops, wanting)

    def told(self, broker: str, neighbour: str) -> list[str]:
        """What the broker wants of its neighbour, in order."""
        return sorted(map(str, self._tables[broker].told(neighbour)))

    def _tell(self, broker: str) -> None:
        """Until nobody has anything more to say."""
        waiting: deque[tuple[str, str, TableChange]] = deque()
        self._collect(broker, waiting)
        while waiting:
            source, name, change = waiting.popleft()
            self.sent.subscriptions += len(change.add) + len(change.remove)
            self.sent.advertisements += len(change.advertise) + len(change.withdraw)
            self._tables[name].change(source, change)
            self._collect(name, waiting)

    def _collect(self, broker: str, waiting: deque[tuple[str, str, TableChange]]) -> None:
        for neighbour, change in self._tables[broker].changes().items():
            waiting.append((broker, neighbour, change))
