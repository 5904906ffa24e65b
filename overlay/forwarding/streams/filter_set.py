"""The filters of one repair, as a question to portions."""

from __future__ import annotations

from collections.abc import Iterable

from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter, FilterTrie
from overlay.forwarding.streams.portions import Portion, RunSelection, plain_event_meets


class FilterSet:
    def __init__(self, filters: Iterable[Filter]) -> None:
        # In an order of their own: sets have another one in each process.
        self.filters = tuple(sorted(set(filters), key=str))
        self._trie: FilterTrie[Filter] = FilterTrie()
        for each in self.filters:
            self._trie.add(each.pattern, each)

    def part_of(self, portion: Portion) -> Portion | None:
        """What of it is wanted."""
        if isinstance(portion, Bundle):
            places = [p for p, topic in enumerate(portion.topics) if self._meets_plain(topic)]
            return portion.pick(places) if places else None
        found = self._trie.match(portion.topic)
        if not found:
            return None
        if any(each.predicate is None for each in found):
            return portion
        return RunSelection(portion).of(tuple(found))

    def _meets_plain(self, topic: str) -> bool:
        return plain_event_meets(tuple(self._trie.match(topic)))
