"""Who was in which cell from when on: columns, in order of time; and what can be said of them.

A visit lasts until the same user is seen in another cell; repeated check-ins in one cell are one
visit. The last visit of each user has no end, and is in no statistics of how long visits last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.sites import Floats, Ints

DAY_H = 24.0
WEEK_H = 7 * DAY_H


@dataclass(frozen=True, slots=True)
class VisitStatistics:
    """What DYNATOPS figure 5 shows, and IV-A1 says."""

    users: int
    visits: int
    # (user, cell).
    pairs: int
    # Of the pairs, those with one visit.
    single: float
    # Of the visits that end.
    below_day: float
    above_week: float


@dataclass(frozen=True, slots=True)
class Visits:
    user: Ints
    cell: Ints
    # Since the beginning.
    at_h: Floats
    users: int

    def __len__(self) -> int:
        return len(self.user)

    @classmethod
    def of(cls, user: Ints, cell: Ints, at_h: Floats, users: int) -> Visits:
        """Of check-ins in any order: in order of time, those in one cell joined."""
        order = np.lexsort((np.arange(len(user)), at_h, user))
        user, cell, at_h = user[order], cell[order], at_h[order]
        begins = np.ones(len(user), dtype=bool)
        begins[1:] = (user[1:] != user[:-1]) | (cell[1:] != cell[:-1])
        user, cell, at_h = user[begins], cell[begins], at_h[begins]
        order = np.argsort(at_h, kind="stable")
        return cls(user[order], cell[order], at_h[order], users)

    def durations_h(self) -> Floats:
        """Of all visits that end, in no order."""
        order = np.argsort(self.user, kind="stable")
        user, at_h = self.user[order], self.at_h[order]
        ends = user[1:] == user[:-1]
        found: Floats = (at_h[1:] - at_h[:-1])[ends]
        return found

    def visits_of_pairs(self) -> Ints:
        """How often each user was in each of its cells."""
        codes = self.user.astype(np.int64) * (int(self.cell.max(initial=0)) + 1) + self.cell
        counts: Ints = np.unique(codes, return_counts=True)[1].astype(np.int32)
        return counts

    def statistics(self) -> VisitStatistics:
        durations, counts = self.durations_h(), self.visits_of_pairs()
        return VisitStatistics(
            users=self.users,
            visits=len(self),
            pairs=len(counts),
            single=float(np.mean(counts == 1)) if len(counts) else 0.0,
            below_day=float(np.mean(durations < DAY_H)) if len(durations) else 0.0,
            above_week=float(np.mean(durations > WEEK_H)) if len(durations) else 0.0,
        )
