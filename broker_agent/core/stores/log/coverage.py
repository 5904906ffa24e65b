"""What a store has of one unit: ranges of stamps in which nothing is missing.

    ----(after....upto]        (after...upto](after......upto]--->  stamps
          segments 3 to 9   hole   10 to 12     12 to 40

What is appended in order makes the last range longer. What skips stamps begins another, with a
hole before it. What fills a hole has a range of its own, as it is later in the log than what
follows it: within one range rows are in the order of their stamps, and to read a unit is to read
its ranges one after the other. Damage splits a range. A range also says in which segments its
rows are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from broker_agent.core.stores.log.log_rows import NOWHERE, Stamp, StampRange


class CoveredRange(NamedTuple):
    after: Stamp
    upto: Stamp
    first_segment: int
    last_segment: int


_AFTER = attrgetter("after")


class Coverage:
    """Never changed: others are made of it."""

    __slots__ = ("expired", "is_ordered", "ranges")

    def __init__(
        self,
        ranges: Iterable[CoveredRange] = (),
        *,
        is_ordered: bool = True,
        expired: Stamp = NOWHERE,
    ) -> None:
        # In the order of their stamps; they do not overlap.
        self.ranges = tuple(ranges)
        # Whether all rows of the unit that were ever in the log came in the order of their stamps.
        self.is_ordered = is_ordered
        # Up to here it is not retained any more: nobody is to fetch that from another store.
        self.expired = expired

    @property
    def since(self) -> Stamp:
        return self.ranges[0].after if self.ranges else NOWHERE

    @property
    def upto(self) -> Stamp:
        return self.ranges[-1].upto if self.ranges else NOWHERE

    def holes(self) -> list[StampRange]:
        return [
            (before.upto, then.after)
            for before, then in pairwise(self.ranges)
            if before.upto != then.after
        ]

    def spans(self) -> list[StampRange]:
        """What is covered, whatever ranges it is in."""
        spans: list[StampRange] = []
        for covered in self.ranges:
            if spans and spans[-1][1] == covered.after:
                spans[-1] = spans[-1][0], covered.upto
            elif covered.after < covered.upto:
                spans.append((covered.after, covered.upto))
        return spans

    def missing_in(self, after: Stamp, upto: Stamp) -> list[StampRange]:
        """What of these stamps is not covered."""
        missing = []
        for covered in self.ranges:
            if covered.upto <= after:
                continue
            if covered.after >= upto:
                break
            if after < covered.after:
                missing.append((after, covered.after))
            after = covered.upto
        if after < upto:
            missing.append((after, upto))
        return missing

    def with_range(self, after: Stamp, upto: Stamp, segment: int) -> Coverage:
        """With these stamps, none of which is covered yet: of a row at the end of the log."""
        ranges = self.ranges
        if ranges and after == ranges[-1].upto:
            # Nearly always.
            newest = ranges[-1]
            longer = CoveredRange(newest.after, upto, newest.first_segment, segment)
            return self._with((*ranges[:-1], longer))
        if not ranges or after > ranges[-1].upto:
            place = len(ranges)
        else:
            place = bisect_right(ranges, after, key=_AFTER)
        is_ordered = self.is_ordered and place == len(ranges)
        before = ranges[place - 1] if place else None
        if before is not None and before.upto == after:
            longer = before._replace(upto=upto, last_segment=segment)
            return self._with((*ranges[: place - 1], longer, *ranges[place:]), is_ordered)
        added = CoveredRange(after, upto, segment, segment)
        return self._with((*ranges[:place], added, *ranges[place:]), is_ordered)

    def _with(self, ranges: Iterable[CoveredRange], is_ordered: bool | None = None) -> Coverage:
        ordered = self.is_ordered if is_ordered is None else is_ordered
        return Coverage(ranges, is_ordered=ordered, expired=self.expired)

    def without_range(self, after: Stamp, upto: Stamp, *, is_given_up: bool = False) -> Coverage:
        """These stamps are damaged, or are not kept any more."""
        left = []
        for covered in self.ranges:
            if covered.upto <= after or covered.after >= upto:
                left.append(covered)
                continue
            if covered.after < after:
                left.append(covered._replace(upto=after))
            if covered.upto > upto:
                left.append(covered._replace(after=upto))
        # What comes in their place is later in the log than what follows.
        expired = max(self.expired, upto) if is_given_up else self.expired
        return Coverage(left, is_ordered=self.is_ordered, expired=expired)

    def first_after(self, stamp: Stamp) -> CoveredRange | None:
        """The first with later stamps."""
        return next((covered for covered in self.ranges if covered.upto > stamp), None)
