"""Who wants what, and what is told to whom: subscription tables of one broker in a tree.

What is told to a neighbour is a function of what is wanted elsewhere, computed anew after a change.
`HERE` stands for this broker's own subscribers and publishers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dynatops.kit.filters import Filter, FilterTrie, covers, pattern_intersects, pattern_matches
from overlay.forwarding.topology import TreeMode

HERE = ""
EVERYTHING = Filter.parse("#")
_MATCHES_KEPT_MAX = 50_000


@dataclass(frozen=True, slots=True)
class TopicMatch:
    """Who wants events of a topic: all of them, or those that meet one of some conditions."""

    whole: frozenset[str]
    conditional: Mapping[str, tuple[Filter, ...]]


@dataclass(frozen=True, slots=True)
class TableNews:
    """What one neighbour is to be told."""

    add: frozenset[Filter] = frozenset()
    remove: frozenset[Filter] = frozenset()
    advertise: frozenset[Filter] = frozenset()
    retract: frozenset[Filter] = frozenset()


class PlainTables:
    def __init__(
        self,
        neighbours: Iterable[str],
        *,
        mode: TreeMode = TreeMode.PEER,
        parent: str | None = None,
        advertisements: bool = False,
        covering: bool = True,
    ) -> None:
        self._mode = mode
        self._parent = parent
        self._with_advertisements = advertisements
        self._covering = covering
        self._neighbours = tuple(neighbours)
        holders = (HERE, *self._neighbours)
        self._wanted: dict[str, dict[Filter, None]] = {holder: {} for holder in holders}
        self._advertised: dict[str, dict[Filter, None]] = {holder: {} for holder in holders}
        self._told: dict[str, frozenset[Filter]] = dict.fromkeys(self._neighbours, frozenset())
        self._ads_told: dict[str, frozenset[Filter]] = dict.fromkeys(self._neighbours, frozenset())
        self._trie: FilterTrie[tuple[str, Filter]] = FilterTrie()
        self._matches: dict[str, TopicMatch] = {}
        self._is_stale = True

    # ---- changing -------------------------------------------------------------------------------

    def change(
        self,
        holder: str,
        *,
        add: Iterable[Filter] = (),
        remove: Iterable[Filter] = (),
        advertise: Iterable[Filter] = (),
        retract: Iterable[Filter] = (),
    ) -> None:
        wanted, advertised = self._wanted[holder], self._advertised[holder]
        for each in remove:
            if wanted.pop(each, self) is None:
                self._trie.remove(each.pattern, (holder, each))
        for each in add:
            if each not in wanted:
                wanted[each] = None
                self._trie.add(each.pattern, (holder, each))
        for each in retract:
            advertised.pop(each, None)
        for each in advertise:
            advertised[each] = None
        self._matches.clear()
        self._is_stale = True

    def replace(
        self, holder: str, wanted: Iterable[Filter], advertised: Iterable[Filter] = ()
    ) -> None:
        """Whatever the holder said before, now it is this."""
        new, ads = dict.fromkeys(wanted), dict.fromkeys(advertised)
        self.change(
            holder,
            add=new,
            remove=[each for each in self._wanted[holder] if each not in new],
            advertise=ads,
            retract=[each for each in self._advertised[holder] if each not in ads],
        )

    def changes(self) -> dict[str, TableNews]:
        """What neighbours are to be told since this was asked last."""
        if not self._is_stale:
            return {}
        self._is_stale = False
        news: dict[str, TableNews] = {}
        for neighbour in self._neighbours:
            told, ads = self._to_tell(neighbour), self._ads_to_tell(neighbour)
            before, ads_before = self._told[neighbour], self._ads_told[neighbour]
            if told != before or ads != ads_before:
                news[neighbour] = TableNews(
                    told - before, before - told, ads - ads_before, ads_before - ads
                )
            self._told[neighbour], self._ads_told[neighbour] = told, ads
        return news

    # ---- reading --------------------------------------------------------------------------------

    def told(self, neighbour: str) -> frozenset[Filter]:
        """What this broker has asked the neighbour for, as of the last `changes`."""
        return self._told[neighbour]

    def ads_told(self, neighbour: str) -> frozenset[Filter]:
        return self._ads_told[neighbour]

    def asked_by(self, holder: str) -> frozenset[Filter]:
        """What the holder has asked for."""
        return frozenset(self._wanted[holder])

    def advertised_by(self, holder: str) -> frozenset[Filter]:
        return frozenset(self._advertised[holder])

    def wanted_by(self, holder: str) -> frozenset[Filter]:
        """What the holder is sent, whether it asked for it or gets everything."""
        if self._gets_everything(holder):
            return frozenset({EVERYTHING})
        return frozenset(self._wanted[holder])

    def match(self, topic: str) -> TopicMatch:
        found = self._matches.get(topic)
        if found is None:
            if len(self._matches) >= _MATCHES_KEPT_MAX:
                self._matches.clear()
            found = self._matches[topic] = self._match(topic)
        return found

    def _match(self, topic: str) -> TopicMatch:
        whole: set[str] = set()
        conditional: dict[str, dict[Filter, None]] = {}
        for holder, each in self._trie.match(topic):
            if each.predicate is None:
                whole.add(holder)
            else:
                conditional.setdefault(holder, {})[each] = None
        if self._parent is not None and self._gets_everything(self._parent):
            whole.add(self._parent)
        return TopicMatch(
            frozenset(whole),
            {holder: tuple(each) for holder, each in conditional.items() if holder not in whole},
        )

    def is_advertised_here(self, topic: str) -> bool:
        return any(pattern_matches(each.pattern, topic) for each in self._advertised[HERE])

    # ---- what is told ---------------------------------------------------------------------------

    def _gets_everything(self, holder: str) -> bool:
        hierarchical = self._mode is TreeMode.HIERARCHICAL
        return hierarchical and holder == self._parent and not self._with_advertisements

    def _others(self, tables: Mapping[str, dict[Filter, None]], but: str) -> set[Filter]:
        return {each for holder, held in tables.items() if holder != but for each in held}

    def _to_tell(self, neighbour: str) -> frozenset[Filter]:
        if self._mode is TreeMode.HIERARCHICAL and neighbour != self._parent:
            if not self._with_advertisements:
                return frozenset()
            return self._intersecting(neighbour)
        if self._with_advertisements and self._mode is TreeMode.PEER:
            return self._intersecting(neighbour)
        return self._minimal(self._others(self._wanted, neighbour))

    def _intersecting(self, neighbour: str) -> frozenset[Filter]:
        ads = self._advertised[neighbour]
        return frozenset(
            each
            for each in self._minimal(self._others(self._wanted, neighbour))
            if any(pattern_intersects(each.pattern, ad.pattern) for ad in ads)
        )

    def _ads_to_tell(self, neighbour: str) -> frozenset[Filter]:
        if not self._with_advertisements:
            return frozenset()
        if self._mode is TreeMode.HIERARCHICAL and neighbour != self._parent:
            return frozenset()
        return self._minimal(self._others(self._advertised, neighbour))

    def _minimal(self, filters: set[Filter]) -> frozenset[Filter]:
        if not self._covering:
            return frozenset(filters)
        kept: list[Filter] = []
        for each in sorted(filters, key=_by_size):
            if not any(covers(other, each) for other in kept):
                kept = [other for other in kept if not covers(each, other)]
                kept.append(each)
        return frozenset(kept)


def _by_size(each: Filter) -> tuple[str, str]:
    return (each.pattern, each.where)
