"""What operators are told of a broker's subscription tables.

`TableEntries` are the tables at one moment, and nothing changes them: a report is made of them
elsewhere, as looking through 100,000 filters takes longer than a broker may stand still. A report
has the first filters of each list, in the order of their texts, and says how many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

from dynatops.kit.filters import Filter, PatternTree, covers, intersects
from dynatops.v1.inspection_pb2 import (
    FilterList,
    FilterRelation,
    HolderTable,
    ListedFilter,
    TablesReport,
)
from overlay.forwarding.topology import TreeMode

LISTED_MAX = 1_000
# Of all lists together, so that a report stays far below what a message may have.
_LISTED_IN_ALL_MAX = 20_000
# Of the filters that may be why another one is kept back, so many are looked at.
_COVERERS_TRIED_MAX = 10_000
_APART = FilterRelation.FILTER_RELATION_UNSPECIFIED


@dataclass(frozen=True, slots=True)
class TableEntries:
    mode: TreeMode
    parent: str | None
    covering: bool
    advertisements: bool
    # What clients here want; by neighbour, what it wants, and what it is told.
    own: Collection[Filter]
    wanted: Mapping[str, Collection[Filter]]
    told: Mapping[str, Collection[Filter]]
    advertisements_told: Mapping[str, int]

    def asks(self, neighbour: str) -> bool:
        """Whether it is told anything at all: events go up by themselves."""
        is_child = self.mode is TreeMode.HIERARCHICAL and neighbour != self.parent
        return self.advertisements or not is_child

    def kept_back(self, neighbour: str) -> set[Filter]:
        """What others want, and it is not told."""
        if not self.asks(neighbour):
            return set()
        others = set(self.own)
        for name, filters in self.wanted.items():
            if name != neighbour:
                others.update(filters)
        return others.difference(self.told[neighbour])


def describe_tables(entries: TableEntries, about: Filter | None, limit: int) -> TablesReport:
    """With a filter: only what meets it, which is what some event could match both."""
    lists = _Lists(about, min(limit or LISTED_MAX, LISTED_MAX))
    report = TablesReport(
        mode=entries.mode.value,
        covering=entries.covering,
        advertisements=entries.advertisements,
        parent=entries.parent or "",
        own=lists.of(entries.own),
    )
    for neighbour in sorted(entries.wanted):
        told = entries.told[neighbour]
        report.holders.append(
            HolderTable(
                broker_id=neighbour,
                wanted=lists.of(entries.wanted[neighbour]),
                told=lists.of(told),
                kept_back=lists.of(entries.kept_back(neighbour), kept_back_for=told),
                advertisements_told=entries.advertisements_told[neighbour],
                is_asked=entries.asks(neighbour),
            )
        )
    return report


class _Lists:
    def __init__(self, about: Filter | None, limit: int) -> None:
        self._about = about
        self._limit = limit
        self._left = _LISTED_IN_ALL_MAX
        # A filter is in several lists.
        self._relations: dict[Filter, FilterRelation.ValueType] = {}

    def of(
        self, filters: Collection[Filter], kept_back_for: Iterable[Filter] | None = None
    ) -> FilterList:
        """Filters that are kept back for these stand beside those of them that cover them."""
        chosen: Collection[Filter] = filters
        about = self._about
        if about is not None:
            chosen = [each for each in filters if self._relation(each, about) != _APART]
        first = nsmallest(min(self._limit, self._left), chosen, key=_in_order)
        self._left -= len(first)
        listed = [
            ListedFilter(filter=each.to_wire(), relation=self._relations.get(each, _APART))
            for each in first
        ]
        if first and kept_back_for is not None:
            for entry, coverer in zip(listed, _coverers(first, kept_back_for), strict=True):
                if coverer is not None:
                    entry.covered_by.CopyFrom(coverer.to_wire())
        return FilterList(count=len(filters), chosen=len(chosen), filters=listed)

    def _relation(self, each: Filter, about: Filter) -> FilterRelation.ValueType:
        found = self._relations.get(each)
        if found is None:
            found = self._relations[each] = relation_of(each, about)
        return found


def relation_of(each: Filter, about: Filter) -> FilterRelation.ValueType:
    """How it stands to the filter that was asked about."""
    if not intersects(each, about):
        return _APART
    is_wider, is_narrower = covers(each, about), covers(about, each)
    if is_wider and is_narrower:
        return FilterRelation.FILTER_RELATION_SAME
    if is_wider:
        return FilterRelation.FILTER_RELATION_COVERS
    if is_narrower:
        return FilterRelation.FILTER_RELATION_COVERED
    return FilterRelation.FILTER_RELATION_MEETS


def _in_order(each: Filter) -> tuple[str, str]:
    return each.pattern, each.where


def _coverers(wanted: Iterable[Filter], told: Iterable[Filter]) -> Iterator[Filter | None]:
    """Of each one that is told and covers it; None if there is none."""
    by_pattern: PatternTree[list[Filter]] = PatternTree()
    for each in told:
        same = by_pattern.get(each.pattern)
        if same is None:
            by_pattern.put(each.pattern, [each])
        else:
            same.append(each)
    for one in wanted:
        candidates = (each for same in by_pattern.intersecting(one.pattern) for each in same)
        tried = islice(candidates, _COVERERS_TRIED_MAX)
        yield next((each for each in tried if covers(each, one)), None)
