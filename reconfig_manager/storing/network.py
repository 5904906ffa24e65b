"""How far requests for the past have to go between brokers, and by which brokers they go.

    distances[from, to]        hops, or any other measure that adds up along a way
    parents[target, broker]    the next broker on the way to the target; -1 of the target itself

All ways to one target are a tree, whatever the network: in a tree of brokers, along shortest paths
of a graph, along the routes of a ring. Where brokers ask each other directly there are no ways but
a matrix of distances, say of round trips. On a ring distances change whenever brokers move, so a
network is of one placement (and a plan of one epoch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from overlay.placement.geometry import RingGeometry

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# What differs by a smaller share than this differs by rounding alone.
ROUNDING = 1e-9
# Distances and ways are twelve bytes for each pair of brokers.
BROKERS_MAX = 8_192


class StoringProblemError(Exception):
    """A problem that makes no sense; `field` says where."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True)
class StoreNetwork:
    distances: Floats
    # None: brokers ask each other directly, and nobody is on the way.
    parents: Ints | None = None

    def __post_init__(self) -> None:
        size = len(self.distances)
        if self.distances.shape != (size, size) or size == 0:
            raise StoringProblemError("distances", "must be a square of at least one broker")
        if size > BROKERS_MAX:
            raise StoringProblemError("distances", f"{size} brokers, at most {BROKERS_MAX}")
        if not np.isfinite(self.distances).all() or (self.distances < 0).any():
            raise StoringProblemError("distances", "every broker must be reached from every other")
        if self.parents is not None and self.parents.shape != (size, size):
            raise StoringProblemError("parents", "must be as large as the distances")

    def __len__(self) -> int:
        return len(self.distances)

    @property
    def farthest(self) -> float:
        """The largest distance that there is."""
        return float(self.distances.max())

    @classmethod
    def of_links(
        cls, brokers: int, links: Sequence[tuple[int, int]], lengths: Sequence[float] | None = None
    ) -> Self:
        """A tree or any connected graph. Among shortest ways the neighbour of the lowest number is
        taken, so that all ways to a target are one tree."""
        ends = np.array(links, dtype=np.int64).reshape(-1, 2)
        length = np.ones(len(ends)) if lengths is None else np.array(lengths, dtype=np.float64)
        if (length <= 0).any():
            raise StoringProblemError("links", "a link has a length above 0")
        both = (np.concatenate([ends[:, 0], ends[:, 1]]), np.concatenate([ends[:, 1], ends[:, 0]]))
        graph = coo_array((np.tile(length, 2), both), shape=(brokers, brokers)).tocsr()
        graph.sort_indices()
        distances: Floats = np.asarray(dijkstra(graph), dtype=np.float64)
        if not np.isfinite(distances).all():
            raise StoringProblemError("links", "every broker must be reached from every other")
        parents = np.full((brokers, brokers), -1, dtype=np.int32)
        for broker in range(brokers):
            near = graph.indices[graph.indptr[broker] : graph.indptr[broker + 1]]
            steps = graph.data[graph.indptr[broker] : graph.indptr[broker + 1]]
            if len(near):
                ways = distances[near, :] + steps[:, None]
                parents[:, broker] = near[np.argmin(ways, axis=0)]
            parents[broker, broker] = -1
        return cls(distances, parents)

    @classmethod
    def of_ring(cls, geometry: RingGeometry, place: Ints) -> Self:
        """Hops along the ring, for brokers on these nodes."""
        hops = geometry.hops()[np.ix_(place, place)].astype(np.float64)
        host = np.empty(len(geometry), dtype=np.int32)
        host[place] = np.arange(len(place), dtype=np.int32)
        next_hops = geometry.next_hops()[np.ix_(place, place)]
        parents = np.where(next_hops >= 0, host[next_hops], -1).astype(np.int32)
        return cls(hops, np.ascontiguousarray(parents.T))

    @classmethod
    def of_matrix(cls, distances: Floats) -> Self:
        """Brokers that ask each other directly. The diagonal does not matter."""
        direct = np.array(distances, dtype=np.float64)
        np.fill_diagonal(direct, 0.0)
        return cls(direct)
