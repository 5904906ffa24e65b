"""Who wants an event, of very many who hold filters: patterns in a trie, conditions in indexes.

A filter is held by one or more: sessions, or neighbours. An event is looked up with its topic and
attributes; each holder is found once, and a condition is not asked where all its holders have been
found already. What the patterns alone say is remembered by topic, so that an event without
attributes on a topic that was looked up before costs one look into a dictionary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

from dynatops.kit.filters.condition_index import ConditionIndex, held_conditions
from dynatops.kit.filters.conditions import Attributes
from dynatops.kit.filters.filter import Filter
from dynatops.kit.filters.trie import FilterTrie

# Past this many, the remembering begins anew.
REMEMBERED_TOPICS_MAX = 10_000

H = TypeVar("H", bound=Hashable)


class _IndexedFilter(Generic[H]):
    """Who holds a filter, and the conditions that it is found by."""

    __slots__ = ("conditions", "filter", "holders", "is_bare")

    def __init__(self, wanted: Filter) -> None:
        self.filter = wanted
        self.holders: dict[H, None] = {}
        self.conditions = held_conditions(wanted, self.holders)
        # Whether it matches events without attributes.
        self.is_bare = wanted.predicate is None or wanted.predicate.holds({})


class _OfPattern(Generic[H]):
    """All filters with one pattern."""

    __slots__ = ("bare", "conditions", "plain")

    def __init__(self) -> None:
        # The filter without a condition.
        self.plain: _IndexedFilter[H] | None = None
        self.conditions: ConditionIndex[H] = ConditionIndex()
        # Those with conditions that are true where there are no attributes.
        self.bare: dict[_IndexedFilter[H], None] = {}

    def __bool__(self) -> bool:
        return self.plain is not None or bool(self.conditions)


class TopicHolders(Generic[H]):
    """What the patterns say about a topic, until a filter comes or goes."""

    __slots__ = ("all_events", "bare_events", "conditions")

    def __init__(
        self,
        all_events: frozenset[H],
        bare_events: frozenset[H],
        conditions: list[ConditionIndex[H]],
    ) -> None:
        # Who wants all events, and who wants those without attributes.
        self.all_events = all_events
        self.bare_events = bare_events
        self.conditions = conditions


class FilterIndex(Generic[H]):
    """Holders are found by events. One that holds several matching filters is found once."""

    __slots__ = ("_filters_of", "_held", "_patterns", "_remembered", "_trie")

    def __init__(self) -> None:
        self._held: dict[Filter, _IndexedFilter[H]] = {}
        self._patterns: dict[str, _OfPattern[H]] = {}
        self._trie: FilterTrie[_OfPattern[H]] = FilterTrie()
        # How many filters each holder has.
        self._filters_of: Counter[H] = Counter()
        self._remembered: dict[str, TopicHolders[H]] = {}

    def __len__(self) -> int:
        """How many different filters there are."""
        return len(self._held)

    def __contains__(self, wanted: Filter) -> bool:
        return wanted in self._held

    def __iter__(self) -> Iterator[Filter]:
        return iter(self._held)

    def add(self, wanted: Filter, holder: H) -> bool:
        """Whether the holder did not hold this filter before."""
        held = self._held.get(wanted)
        if held is None:
            held = self._held[wanted] = _IndexedFilter(wanted)
            self._insert(held)
        elif holder in held.holders:
            return False
        held.holders[holder] = None
        self._filters_of[holder] += 1
        self._forget_topics(held)
        return True

    def remove(self, wanted: Filter, holder: H) -> None:
        """Raise KeyError if the holder does not hold this filter."""
        held = self._held[wanted]
        del held.holders[holder]
        self._filters_of[holder] -= 1
        if not self._filters_of[holder]:
            del self._filters_of[holder]
        self._forget_topics(held)
        if not held.holders:
            del self._held[wanted]
            self._take_out(held)

    def match(self, topic: str, attributes: Attributes) -> AbstractSet[H]:
        """Who holds a filter that matches the event."""
        return self.match_known(self.of_topic(topic), attributes)

    def of_topic(self, topic: str) -> TopicHolders[H]:
        known = self._remembered.get(topic)
        return known if known is not None else self._remember(topic)

    def match_known(self, known: TopicHolders[H], attributes: Attributes) -> AbstractSet[H]:
        """As `match`, of many events on one topic."""
        if not attributes:
            return known.bare_events
        holders_max = len(self._filters_of)
        if not known.conditions or len(known.all_events) == holders_max:
            return known.all_events
        found = set(known.all_events)
        for conditions in known.conditions:
            conditions.collect(attributes, found, holders_max)
            if len(found) == holders_max:
                break
        return found

    def matching(self, topic: str, attributes: Attributes) -> Iterator[Filter]:
        """The filters themselves, one by one; nothing may be added or removed meanwhile."""
        for of_pattern in self._trie.match(topic):
            if of_pattern.plain is not None:
                yield of_pattern.plain.filter
            # One with alternatives may be found several times.
            found = of_pattern.conditions.holding(attributes)
            yield from dict.fromkeys(held.filter for held in found)

    def _insert(self, held: _IndexedFilter[H]) -> None:
        pattern = held.filter.pattern
        of_pattern = self._patterns.get(pattern)
        if of_pattern is None:
            of_pattern = self._patterns[pattern] = _OfPattern()
            self._trie.add(pattern, of_pattern)
        if held.filter.predicate is None:
            of_pattern.plain = held
            return
        if not of_pattern.conditions:
            # Topics are to be led to the conditions of this pattern from now on.
            self._remembered.clear()
        for condition in held.conditions:
            of_pattern.conditions.add(condition)
        if held.is_bare:
            of_pattern.bare[held] = None

    def _take_out(self, held: _IndexedFilter[H]) -> None:
        pattern = held.filter.pattern
        of_pattern = self._patterns[pattern]
        if held.filter.predicate is None:
            of_pattern.plain = None
        else:
            for condition in held.conditions:
                of_pattern.conditions.remove(condition)
            of_pattern.bare.pop(held, None)
            if not of_pattern.conditions:
                self._remembered.clear()
        if not of_pattern:
            self._trie.remove(pattern, of_pattern)
            del self._patterns[pattern]

    # ---- what is remembered by topic -------------------------------------------------------------

    def _forget_topics(self, held: _IndexedFilter[H]) -> None:
        """Nothing is remembered of conditions that only attributes make true."""
        if held.is_bare:
            self._remembered.clear()

    def _remember(self, topic: str) -> TopicHolders[H]:
        all_events: set[H] = set()
        bare_events: set[H] = set()
        conditions: list[ConditionIndex[H]] = []
        for of_pattern in self._trie.match(topic):
            if of_pattern.plain is not None:
                all_events.update(of_pattern.plain.holders)
            for held in of_pattern.bare:
                bare_events.update(held.holders)
            if of_pattern.conditions:
                conditions.append(of_pattern.conditions)
        known = TopicHolders(frozenset(all_events), frozenset(bare_events | all_events), conditions)
        if len(self._remembered) >= REMEMBERED_TOPICS_MAX:
            self._remembered.clear()
        self._remembered[topic] = known
        return known
