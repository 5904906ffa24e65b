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
from experiments.workloads.checkins import CheckinError, visits_of_file
from experiments.workloads.grid import Grid, sites_at
from experiments.workloads.location_kernels import visit_all
from experiments.workloads.made_up_visits import USERS, made_up_visits
from experiments.workloads.visits import DAY_H, Visits
from experiments.workloads.workload import Step, UserChanges, UserPublication

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
        check_length(visits, path)
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

    @property
    def follows_max(self) -> int:
        return 1 + min(self.friends_count, self.users - 1)

    def steps(self) -> Iterator[Step]:
        self._forget()
        followers = _followers(self.friends)
        visits = self.visits
        ends = np.searchsorted(visits.at_h, np.arange(STEP_H, self.end_h + STEP_H / 2, STEP_H))
        first = 0
        for number, end in enumerate(ends.tolist(), 1):
            users, cells = visits.user[first:end], visits.cell[first:end]
            first = end
            changes = visit_all(users, cells, self.cell_of, self.friends, *followers)
            yield Step(number * STEP_H, UserChanges(*changes))

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


def check_length(visits: Visits, path: Path) -> None:
    days, least = float(visits.at_h.max(initial=0.0)) / DAY_H, SETTLED_H / DAY_H
    if days <= least:
        raise CheckinError(
            f"{path}: of {days:.1f} days; the first {least:g}, in which users come, are not "
            "measured"
        )


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


def _followers(friends: Ints) -> tuple[Ints, Ints]:
    """Where those who follow each user begin, and all of them, by who follows."""
    users, count = friends.shape
    order = np.argsort(friends.ravel(), kind="stable")
    first = np.zeros(users + 1, dtype=np.int32)
    np.cumsum(np.bincount(friends.ravel(), minlength=users), out=first[1:])
    followers: Ints = (order // max(count, 1)).astype(np.int32)
    return first, followers
