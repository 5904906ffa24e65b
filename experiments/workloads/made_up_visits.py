"""Visits that are made up, with the statistics that DYNATOPS IV-A1 tells of its trace.

The trace itself is not public. Told are: 40,000 users, three months, 450,000 visits, 160,000 pairs
of user and cell, a third of these with one visit; half of the visits shorter than a day, a tenth
longer than a week. How users move is not told. Taken is what is known of people (exploration and
preferential return; Song, Koren, Wang, Barabasi, Nature Physics 2010): a user in S cells goes to a
new one with a probability that falls with S, else back to one of them, the more likely the oftener
it was there. New cells are drawn by how many people live there, over the distance from home to a
power. People live in cities whose sizes follow Zipf. The numbers below were chosen so that the
statistics come out, and nothing else was looked at.
"""

from __future__ import annotations

import numpy as np

from experiments.sites import Floats, Ints
from experiments.workloads.grid import Grid
from experiments.workloads.visits import DAY_H, WEEK_H, Visits

USERS = 40_000
DAYS = 92
_VISITS_PER_USER = 11.3
# How unequal users are: the shape of a gamma distribution.
_ACTIVITY_SHAPE = 1.6
# The chance of a new cell with S known ones is RHO * S ** -GAMMA.
_RHO, _GAMMA = 0.86, 1.0
# Returns are by the number of visits to this power.
_FAVOUR = 0.4
_CELLS_MAX = 48
# Shares of visits below a day and above a week before those of busy users are cut to fit.
_BELOW_DAY, _ABOVE_WEEK = 0.49, 0.106
_CITIES_PER_CELL = 0.05
_COUNTRYSIDE = 0.1
_CITY_CELLS = 0.7
_DISTANCE_POWER = 1.6
# Users are first seen within so long.
_FIRST_SEEN_H = 10 * DAY_H


def made_up_visits(grid: Grid, users: int, seed: int, days: int = DAYS) -> Visits:
    """The same arguments make the same visits."""
    rng = np.random.default_rng([seed, 0])
    people = _people(grid, rng)
    home = rng.choice(len(grid), users, p=people).astype(np.int32)
    activity = rng.gamma(_ACTIVITY_SHAPE, 1.0 / _ACTIVITY_SHAPE, users)
    counts = np.maximum(1, np.round(activity * _VISITS_PER_USER * days / DAYS)).astype(np.int32)
    cells = _wander(grid, people, home, counts, rng)
    at_h = _times(counts, days * DAY_H, rng)
    user = np.repeat(np.arange(users, dtype=np.int32), counts)
    return Visits.of(user, cells, at_h, users)


def _people(grid: Grid, rng: np.random.Generator) -> Floats:
    """[cell] -> the share of people who live there."""
    cities = max(1, round(_CITIES_PER_CELL * len(grid)))
    where = rng.uniform((0.0, 0.0), (grid.rows, grid.columns), (cities, 2))
    sizes = 1.0 / np.arange(1, cities + 1)
    away = np.hypot(*(grid.places()[:, None, :] - where[None, :, :]).transpose(2, 0, 1))
    spread = np.exp(-away / _CITY_CELLS)
    share = (spread / spread.sum(axis=0) * sizes / sizes.sum()).sum(axis=1)
    found: Floats = (1 - _COUNTRYSIDE) * share / share.sum() + _COUNTRYSIDE / len(grid)
    return found


def _wander(grid: Grid, people: Floats, home: Ints, counts: Ints, rng: np.random.Generator) -> Ints:
    """The cells of all visits, users one after the other. All users take a step at once."""
    users, longest = len(home), int(counts.max())
    visited = np.zeros((users, longest), dtype=np.int32)
    visited[:, 0] = home
    known = np.full((users, _CELLS_MAX), -1, dtype=np.int32)
    known[:, 0] = home
    often = np.zeros((users, _CELLS_MAX))
    often[:, 0] = 1.0
    size = np.ones(users, dtype=np.int64)
    here = np.zeros(users, dtype=np.int64)
    draws = _Draws(grid, people)
    for step in range(1, longest):
        who = np.flatnonzero(counts > step)
        is_new = rng.random(len(who)) < _RHO * size[who] ** -_GAMMA
        is_new |= size[who] == 1
        is_new &= size[who] < _CELLS_MAX
        explorers = who[is_new]
        cells = draws.near(home[explorers], rng)
        # Where a user has been already is no new cell, but a visit all the same.
        again = known[explorers] == cells[:, None]
        fresh = ~again.any(axis=1)
        slot = np.where(fresh, size[explorers], again.argmax(axis=1))
        # Where it is now it cannot come to.
        stuck = slot == here[explorers]
        explorers, cells, slot, fresh = (x[~stuck] for x in (explorers, cells, slot, fresh))
        known[explorers[fresh], slot[fresh]] = cells[fresh]
        size[explorers] += fresh
        goes = here.copy()
        goes[explorers] = slot
        returners = np.setdiff1d(who, explorers, assume_unique=True)
        weights = often[returners] ** _FAVOUR
        weights[np.arange(len(returners)), here[returners]] = 0.0
        sums = np.cumsum(weights, axis=1)
        chance = rng.random(len(returners)) * sums[:, -1]
        can = sums[:, -1] > 0
        goes[returners[can]] = (sums <= chance[:, None]).sum(axis=1)[can]
        here[who] = goes[who]
        often[who, here[who]] += 1.0
        visited[who, step] = known[who, here[who]]
    return visited[np.arange(longest)[None, :] < counts[:, None]]


class _Draws:
    """Cells near a home: by people there, over the distance to a power."""

    def __init__(self, grid: Grid, people: Floats) -> None:
        self._sums = np.empty((len(grid), len(grid)))
        for cell in range(len(grid)):
            away = grid.distances_from(cell)
            weights = people / np.maximum(away, 1.0) ** _DISTANCE_POWER
            weights[cell] = 0.0
            self._sums[cell] = np.cumsum(weights)

    def near(self, homes: Ints, rng: np.random.Generator) -> Ints:
        sums = self._sums[homes]
        chance = rng.random(len(homes)) * sums[:, -1]
        found: Ints = (sums <= chance[:, None]).sum(axis=1).astype(np.int32)
        return found


def _times(counts: Ints, period_h: float, rng: np.random.Generator) -> Floats:
    """When each visit begins, users one after the other."""
    total = int(counts.sum())
    kind = rng.random(total)
    short = DAY_H * rng.beta(1.2, 2.0, total)
    middle = DAY_H * np.exp(rng.uniform(0.0, np.log(7.0), total))
    long = WEEK_H * (1.0 + rng.exponential(1.0, total))
    duration = np.where(kind < _BELOW_DAY, short, middle)
    duration = np.where(kind >= 1 - _ABOVE_WEEK, long, duration)
    last = np.cumsum(counts) - 1
    duration[last] = 0.0
    owner = np.repeat(np.arange(len(counts)), counts)
    sums = np.bincount(owner, weights=duration, minlength=len(counts))
    # Of users who would need longer than there is, everything is quicker.
    duration *= np.minimum(1.0, 0.98 * period_h / np.maximum(sums, 1e-9))[owner]
    sums = np.minimum(sums, 0.98 * period_h)
    first = rng.uniform(0.0, np.minimum(_FIRST_SEEN_H, period_h - sums))
    before = np.cumsum(duration) - duration
    found: Floats = before - before[last - counts + 1][owner] + first[owner]
    return found
