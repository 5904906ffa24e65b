"""The map of the location workload: cells of a grid, each a topic, and brokers in them.

Distances are in cells, as the crow flies. A round trip is proportional to the distance, with chance
about its mean and a least one (DYNATOPS IV-A1 says no numbers; these are of the public Internet: a
thousand kilometres are about 15 ms, and nothing takes less than 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from experiments.sites import Floats, Ints, Sites, Topics

ROWS, COLUMNS = 20, 60
# A cell is a degree wide, about 100 km.
RTT_MS_PER_CELL = 1.5
RTT_MS_LEAST = 2.0
# Round trips vary by so much about their mean, once for each pair, as routes do.
_RTT_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class Blocks:
    """Where brokers are, and which of them is responsible for each cell."""

    places: Floats
    broker_of_cell: Ints


@dataclass(frozen=True, slots=True)
class Grid:
    rows: int = ROWS
    columns: int = COLUMNS

    def __len__(self) -> int:
        return self.rows * self.columns

    def places(self) -> Floats:
        """[cell] -> the row and column of its middle."""
        cells = np.arange(len(self))
        found = np.column_stack([cells // self.columns, cells % self.columns]) + 0.5
        return found.astype(np.float64)

    def distances_from(self, cell: int) -> Floats:
        places = self.places()
        found: Floats = np.hypot(*(places - places[cell]).T)
        return found

    def blocks(self, count: int) -> Blocks:
        """So many brokers, about, each in the middle of an equal block of cells."""
        rows = min(self.rows, max(1, round(math.sqrt(count * self.rows / self.columns))))
        columns = min(self.columns, max(1, round(count / rows)))
        blocks = Grid(rows, columns)
        size = np.array([self.rows / rows, self.columns / columns])
        row, column = np.floor(self.places() / size).astype(np.int32).T
        return Blocks(blocks.places() * size, (row * columns + column).astype(np.int32))

    def topics(self) -> Topics:
        names = tuple(f"cell/{i // self.columns}/{i % self.columns}" for i in range(len(self)))
        return Topics(names, self.places())

    def access_ms(self, sites: Sites, seed: int) -> Floats:
        """[cell, broker]: round trips of a user in the cell."""
        return _round_trips(self.places(), sites.places, seed)


def sites_at(places: Floats, seed: int) -> Sites:
    rtt = _round_trips(places, places, seed)
    # As long there as back.
    rtt = np.triu(rtt, 1)
    return Sites(places, rtt + rtt.T)


def _round_trips(here: Floats, there: Floats, seed: int) -> Floats:
    distance = np.hypot(*(here[:, None, :] - there[None, :, :]).transpose(2, 0, 1))
    chance = np.random.default_rng([seed, 1]).normal(1.0, _RTT_SPREAD, distance.shape)
    chance = chance.clip(1 - 2 * _RTT_SPREAD, 1 + 2 * _RTT_SPREAD)
    found: Floats = RTT_MS_LEAST + RTT_MS_PER_CELL * distance * chance
    return found
