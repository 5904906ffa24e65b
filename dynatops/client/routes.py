"""From a topic to the subscriptions of this client that want it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dynatops.client.core.reading import FilterKey
from dynatops.client.subscription import EventQueue
from dynatops.kit.filters import Filter, pattern_matches

# A subscription, and the filters of which an event must meet one; none: it wants all events.
Route = tuple[EventQueue, tuple[Filter, ...]]


class Routes:
    def __init__(self) -> None:
        self._queues: dict[EventQueue, None] = {}
        # Whether the application acknowledges events of any of them.
        self.has_work = False
        # Whether any has a past, which what comes live is joined with.
        self.has_joined = False
        # How many subscriptions have each filter.
        self._filters: dict[FilterKey, int] = {}
        self._by_topic: dict[str, list[Route]] = {}
        # The same list for all topics that the same subscriptions want.
        self._shared: dict[tuple[tuple[int, ...], ...], list[Route]] = {}

    def __iter__(self) -> Iterator[EventQueue]:
        return iter(self._queues)

    def __len__(self) -> int:
        """How many subscriptions there are."""
        return len(self._queues)

    def __contains__(self, key: FilterKey) -> bool:
        return key in self._filters

    def add(self, queue: EventQueue) -> list[FilterKey]:
        """The filters that no other subscription has."""
        self._queues[queue] = None
        self._look()
        keys = queue.filter_keys
        new = [key for key in keys if key not in self._filters]
        for key in keys:
            self._filters[key] = self._filters.get(key, 0) + 1
        return new

    def remove(self, queue: EventQueue) -> list[FilterKey]:
        """The filters that no subscription has any more."""
        if self._queues.pop(queue, True):
            return []
        self._look()
        gone: list[FilterKey] = []
        for key in queue.filter_keys:
            self._filters[key] -= 1
            if not self._filters[key]:
                del self._filters[key]
                gone.append(key)
        return gone

    def _look(self) -> None:
        self.has_work = any(queue.is_work for queue in self._queues)
        self.has_joined = any(queue.is_joined for queue in self._queues)
        self._by_topic.clear()
        self._shared.clear()

    def to(self, topic: str) -> list[Route]:
        """Those without a past."""
        routes = self._by_topic.get(topic)
        if routes is None:
            routes = list(self._find(topic))
            key = tuple((id(queue), *map(id, condition)) for queue, condition in routes)
            routes = self._by_topic[topic] = self._shared.setdefault(key, routes)
        return routes

    def are_all(self, topics: Sequence[str], routes: list[Route]) -> bool:
        """Whether these, which are those to one topic, are those to all."""
        by_topic = self._by_topic
        found = [by_topic.get(topic) or self.to(topic) for topic in topics]
        return found.count(routes) == len(found)

    def joined(self, topic: str) -> list[Route]:
        """Those with a past."""
        return list(self._find(topic, joined=True)) if self.has_joined else []

    def _find(self, topic: str, *, joined: bool = False) -> Iterable[Route]:
        for queue in self._queues:
            if queue.is_joined is not joined:
                continue
            matching = [f for f in queue.filters if pattern_matches(f.pattern, topic)]
            if any(f.predicate is None for f in matching):
                yield queue, ()
            elif matching:
                yield queue, tuple(matching)
