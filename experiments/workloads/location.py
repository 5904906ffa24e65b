"""The location workload (DYNATOPS IV-A1): users go from cell to cell, and follow their friends.

A topic is a cell of the map, and at full scale in each is a broker. A user follows the cell where
it is and those of some other users, its friends, drawn once. So a visit changes the interests of
the visitor and of all who follow it. A user is there from its first visit on. Each publishes now
and then, on the topic of the cell where it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from experiments.sites import Floats, Ints, Sites, Topics
from experiments.workloads.checkins import visits_of_file
from experiments.workloads.grid import Grid, sites_at
from experiments.workloads.made_up_visits import USERS, made_up_visits
from experiments.workloads.visits import DAY_H, Visits
from experiments.workloads.workload import Step, UserChange, UserPublication

# The paper's.
FRIENDS = 4
STEP_H = 1.0
# Until here users come: nothing is measured.
SETTLED_H = 12 * DAY_H
# The paper says nothing of it. It decides when moving brokers pays.
EVENTS_PER_USER_AND_HOUR = 2.0


@dataclass
class LocationWorkload:
    grid: Grid
    visits: Visits
    seed: int
    sites: Sites
    topics: Topics
    settled_h: float
    end_h: float
    # [cell] -> the broker that is responsible for users there.
    broker_of_cell: Ints
    # Of each user.
    friends_count: int = FRIENDS
    events_per_user_and_hour: float = EVENTS_PER_USER_AND_HOUR
    friends: Ints = field(init=False)
    # [user] -> the cell where it is; -1: not there yet.
    cell_of: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.friends = _friends(
            self.visits.users, self.friends_count, np.random.default_rng([self.seed, 2])
        )
        self._access_ms = self.grid.access_ms(self.sites, self.seed)
        self._forget()

    def with_friends(self, count: int) -> LocationWorkload:
        """The same users and movements; each follows so many others."""
        return replace(self, friends_count=count)

    def with_brokers(self, places: Floats, broker_of_cell: Ints) -> LocationWorkload:
        """The same users and topics, with brokers elsewhere."""
        sites = sites_at(places, self.seed)
        return replace(self, sites=sites, broker_of_cell=broker_of_cell)

    @classmethod
    def made_up(cls, scale: float, seed: int) -> LocationWorkload:
        """Users and brokers shrink with the scale, and topics stay: so as many users are at a
        broker as at full scale, and as many of them follow each of its topics."""
        visits = made_up_visits(Grid(), max(1, round(USERS * scale)), seed)
        return cls.of(Grid(), visits, seed, settled_h=SETTLED_H, scale=scale)

    @classmethod
    def of_file(cls, path: Path, scale: float, seed: int) -> LocationWorkload:
        """Of somebody's check-ins, on a grid over the area that they are in."""
        visits = visits_of_file(path, Grid()).visits
        return cls.of(Grid(), visits, seed, settled_h=SETTLED_H, scale=scale)

    @classmethod
    def of(
        cls, grid: Grid, visits: Visits, seed: int, *, settled_h: float, scale: float = 1.0
    ) -> LocationWorkload:
        blocks = grid.blocks(max(1, round(scale * len(grid))))
        end_h = STEP_H * math.ceil(float(visits.at_h.max(initial=0.0)) / STEP_H + 1e-9)
        sites = sites_at(blocks.places, seed)
        return cls(
            grid, visits, seed, sites, grid.topics(), settled_h, end_h, blocks.broker_of_cell
        )

    @property
    def users(self) -> int:
        return self.visits.users

    def _forget(self) -> None:
        self.cell_of = np.full(self.users, -1, dtype=np.int32)

    def steps(self) -> Iterator[Step]:
        self._forget()
        world = _Followers(self.friends.tolist(), self.cell_of)
        visits = self.visits
        user, cell = visits.user.tolist(), visits.cell.tolist()
        ends = np.searchsorted(visits.at_h, np.arange(STEP_H, self.end_h + STEP_H / 2, STEP_H))
        first = 0
        for number, end in enumerate(ends.tolist(), 1):
            changes: list[UserChange] = []
            for visit in range(first, end):
                changes += world.visit(user[visit], cell[visit])
            first = end
            yield Step(number * STEP_H, changes)

    def rates(self) -> Floats:
        here = self.cell_of[self.cell_of >= 0]
        people = np.bincount(here, minlength=len(self.topics)).astype(np.float64)
        return people * self.events_per_user_and_hour

    def publications(self, count: int, rng: np.random.Generator) -> list[UserPublication]:
        there = np.flatnonzero(self.cell_of >= 0)
        drawn = rng.choice(there, count).tolist()
        return [UserPublication(u, int(self.cell_of[u]), int(self.cell_of[u])) for u in drawn]

    def access_ms(self, cells: Ints, brokers: Ints) -> Floats:
        found: Floats = self._access_ms[cells, brokers]
        return found


def _friends(users: int, wanted: int, rng: np.random.Generator) -> Ints:
    """[user, i] -> others, all different."""
    count = min(wanted, users - 1)
    friends = np.zeros((users, count), dtype=np.int32)
    # Those with repeats are drawn again, until there are none.
    again = np.arange(users if count else 0)
    while len(again):
        drawn = rng.integers(users - 1, size=(len(again), count)).astype(np.int32)
        # Of those before and after it.
        friends[again] = drawn + (drawn >= again[:, None])
        ordered = np.sort(friends[again], axis=1)
        again = again[(ordered[:, 1:] == ordered[:, :-1]).any(axis=1)]
    return friends


class _Followers:
    """What users follow: how often each cell, as several friends may be in one."""

    def __init__(self, friends: list[list[int]], cell_of: Ints) -> None:
        self._friends = friends
        self._cell_of = cell_of
        self._followers: list[list[int]] = [[] for _ in friends]
        for user, theirs in enumerate(friends):
            for friend in theirs:
                self._followers[friend].append(user)
        self._follows: list[dict[int, int]] = [{} for _ in friends]
        self._cells = [-1] * len(friends)

    def visit(self, user: int, cell: int) -> Iterator[UserChange]:
        """The user first, then whoever follows it."""
        before = self._cells[user]
        self._cells[user] = cell
        self._cell_of[user] = cell
        follows = self._follows[user]
        if before < 0:
            for friend in self._friends[user]:
                if self._cells[friend] >= 0:
                    there = self._cells[friend]
                    follows[there] = follows.get(there, 0) + 1
            follows[cell] = follows.get(cell, 0) + 1
            yield UserChange(user, cell, (), tuple(follows))
        else:
            # It is elsewhere now, even where its interests stay the same.
            yield UserChange(user, cell, *_replace(follows, before, cell))
        for follower in self._followers[user]:
            at = self._cells[follower]
            if at >= 0:
                dropped, added = _replace(self._follows[follower], before, cell)
                if dropped or added:
                    yield UserChange(follower, at, dropped, added)


def _replace(
    follows: dict[int, int], before: int, cell: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    dropped: tuple[int, ...] = ()
    if before >= 0:
        follows[before] -= 1
        if not follows[before]:
            del follows[before]
            dropped = (before,)
    is_new = cell not in follows
    follows[cell] = follows.get(cell, 0) + 1
    return dropped, (cell,) if is_new else ()
