"""Since when all that meets a filter has come from a neighbour.

A filter that a neighbour was told stands once it is said to be in place: of each stream that comes
from there, all that meets it comes after the place that the stream has then, or is told as lost. It
stands until it is given up while the link is up; nothing comes while the link is down. Places are
kept for so many moments; a filter whose moment is forgotten stands since the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping

from dynatops.kit.filters import Filter, covers

_MOMENTS_MAX = 32
# Filters that are compared to find one that covers another, before it is taken for not covered.
_COMPARED_MAX = 2_000


class StandingFilters:
    """Of one neighbour."""

    def __init__(self) -> None:
        # Whether a table has been said to be in place at all.
        self.is_begun = False
        # Told in this session, in which version of the table; and those that stand, since which
        # moment.
        self._told: dict[Filter, int] = {}
        self._since: dict[Filter, int] = {}
        # Moments, and where streams were then.
        self._moments: list[int] = []
        self._places: list[Mapping[int, int]] = []
        self._next_moment = 0

    def begin_session(self, table: Iterable[Filter]) -> None:
        """The whole table is told, as its first version."""
        told = dict.fromkeys(table, 1)
        self._since = {each: since for each, since in self._since.items() if each in told}
        self._told = {each: 1 for each in told if each not in self._since}

    def tell(self, version: int, add: Iterable[Filter], remove: Iterable[Filter]) -> None:
        for each in remove:
            self._told.pop(each, None)
            self._since.pop(each, None)
        for each in add:
            self._told[each] = version

    def confirm(self, version: int, places: Callable[[], Mapping[int, int]]) -> None:
        """The version is in place, with the neighbour's streams where they are now."""
        self.is_begun = True
        standing = [each for each, told in self._told.items() if told <= version]
        if not standing:
            return
        moment = self._next_moment
        self._next_moment += 1
        for each in standing:
            del self._told[each]
            self._since[each] = moment
        self._moments.append(moment)
        self._places.append(places())
        if len(self._moments) > _MOMENTS_MAX:
            # The longer ago, the farther from each other.
            del self._moments[1:-1:2], self._places[1:-1:2]

    def since(self, filters: Iterable[Filter]) -> Mapping[int, int] | None:
        """Since which place of each stream all of these stand; None if not all do. Streams that are
        not named were not known then."""
        latest, compared = -1, 0
        for each in filters:
            moment = self._since.get(each)
            if moment is None:
                compared += len(self._since)
                if compared > _COMPARED_MAX:
                    return None
                moment = self._since_covered(each)
            if moment is None:
                return None
            latest = max(latest, moment)
        if latest < 0:
            return {}
        return self._places[bisect_left(self._moments, latest)]

    def _since_covered(self, wanted: Filter) -> int | None:
        found = [since for each, since in self._since.items() if covers(each, wanted)]
        return min(found, default=None)
