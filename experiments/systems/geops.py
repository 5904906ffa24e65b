"""GeoPS, known only from what DYNATOPS says of it (IV-B): topics are places, a rectangle is divided
into cells whose number is a power of two on both edges (32 x 32), brokers form an overlay with a
geographic hierarchy, events are geocast, a user is at the broker of the cell that the user is in.

What is assumed of it, each time as kindly as the words allow:

- *One broker a cell.* A topic's tree begins at the broker of the topic's cell.
- *The hierarchy*: four cells make a region, four regions a larger one, up to the whole. A region
  has a head: the broker at the inner corner of its first quarter, so that each broker is head of
  one region at most. Above a cell is the head of its region of four; above a head that of the next
  larger region. Hence a head need not be asked by itself about its own cell.

        + + + +        . cell   1 head of 2 x 2   2 head of 4 x 4
        + 1 . 1 . +
        + . 2 . . +    4 x 4 cells: (0,0) (0,2) (2,0) (2,2) head four cells each, (1,1) the whole.
        + 1 . 1 . +
        + . . . . +

- *Heads of one region know each other* (`siblings`), and so do cells that share a head: a route
  goes up only as far as to where a sibling covers the target, across, and down. Whether GeoPS has
  these links is not said; without them a route goes over the common head.
- *Subscribing* to a topic sends a message along the route to its cell, as far as to the first
  broker that is in its tree already (regions are summed up by their heads); unsubscribing takes
  back what nobody else needs. Nobody is asked, so nothing is answered.
- *Geocast*: an event goes to the cell that it is about, and from there to the regions in which
  somebody subscribes, from head to head.
- *Handover*: at each change of cell the user leaves one broker and joins another; both then change
  their subscriptions as any broker would (`cell_at`, `handovers`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from experiments.systems.route_trees import RouteTrees
from experiments.systems.system import Dissemination, Floats, Ints, Pairs, Sites, Topics, Upkeep

CELLS_A_SIDE = 32


class GeoPS:
    """`sites` are the cells of a square grid, row after row; topics have places."""

    def __init__(
        self, sites: Sites, topics: Topics, seed: int = 0, *, siblings: bool = True
    ) -> None:
        """Nothing is drawn: `seed` is there as for all systems."""
        del seed
        side = round(len(sites) ** 0.5)
        if side * side != len(sites) or side.bit_count() != 1:
            raise ValueError(f"GeoPS divides both edges by a power of two: {len(sites)} brokers")
        if topics.places is None:
            raise ValueError("GeoPS is for topics that have places")
        self._trees = RouteTrees(
            next_hops(side, siblings=siblings), nearest(sites.places, topics.places), sites
        )

    def change(self, joins: Pairs, leaves: Pairs) -> Upkeep:
        return Upkeep(sum(links for *_pair, links in self._trees.changes(joins, leaves)))

    def publish(self, publisher: int, topic: int) -> Dissemination:
        return self._trees.publish(publisher, topic)

    @property
    def greatest_degree(self) -> int:
        return self._trees.greatest_degree


def cell_centres(rows: float, columns: float, side: int = CELLS_A_SIDE) -> Floats:
    """Places of the brokers on a rectangle that begins at (0, 0)."""
    row, column = np.divmod(np.arange(side * side), side)
    return np.column_stack([(row + 0.5) * rows / side, (column + 0.5) * columns / side])


def cell_at(places: Floats, rows: float, columns: float, side: int = CELLS_A_SIDE) -> Ints:
    """The cell that each place is in; what lies outside belongs to the cells on the edge."""
    steps = np.floor(places * side / np.array([rows, columns])).clip(0, side - 1).astype(np.int32)
    cells: Ints = steps[:, 0] * side + steps[:, 1]
    return cells


def handovers(cells: Ints) -> int:
    """Of a user who is in these cells, one after the other."""
    return int(np.count_nonzero(np.diff(cells)))


def nearest(sites: Floats, places: Floats) -> Ints:
    """On a grid of equal rectangles: the site of the cell that each place is in; of a place on an
    edge the cell that begins there, as in `cell_at`."""
    squares = ((places[:, None, :] - sites[None, :, :]) ** 2).sum(axis=2)
    least = squares.min(axis=1, keepdims=True)
    close = squares <= least + 1e-9
    found: Ints = (len(sites) - 1 - close[:, ::-1].argmax(axis=1)).astype(np.int32)
    return found


def heads(side: int) -> Ints:
    """[cell] -> the broker above it in the hierarchy; -1 for the head of the whole."""
    row, column = np.divmod(np.arange(side * side), side)
    above = np.full(side * side, -1, dtype=np.int32)
    # From the whole down, so that the head of the smallest region that is larger than what a
    # broker heads itself is written last.
    for size in _regions(side):
        inner = size // 2 - 1
        head = (row // size * size + inner) * side + column // size * size + inner
        below_it = np.ones(side * side, dtype=np.bool_)
        for as_large in _regions(side):
            if as_large >= size:
                below_it &= ~_is_head(row, column, as_large)
        above[below_it] = head[below_it]
    return above


def _regions(side: int) -> list[int]:
    """Edges of regions that have heads, the largest first."""
    return [1 << level for level in range(side.bit_length() - 1, 0, -1)]


def _is_head(row: Ints, column: Ints, size: int) -> NDArray[np.bool_]:
    inner = size // 2 - 1
    found: NDArray[np.bool_] = (row % size == inner) & (column % size == inner)
    return found


def next_hops(side: int, *, siblings: bool) -> Ints:
    """[here, target] -> the next broker on the route; `here` where they are the same."""
    above = heads(side)
    brokers = len(above)
    # [broker, other]: the other is the broker itself, or below it.
    covers = np.eye(brokers, dtype=np.bool_)
    path = np.arange(brokers)
    while (path >= 0).any():
        covers[path[path >= 0], np.flatnonzero(path >= 0)] = True
        path = np.where(path >= 0, above[path], -1)
    below: list[list[int]] = [[] for _ in range(brokers)]
    for broker, head in enumerate(above):
        if head >= 0:
            below[head].append(broker)
    hops = np.empty((brokers, brokers), dtype=np.int32)
    for here in range(brokers):
        hops[here] = above[here]
        if siblings and above[here] >= 0:
            for sibling in below[above[here]]:
                hops[here, covers[sibling]] = sibling
        for child in below[here]:
            hops[here, covers[child]] = child
        hops[here, here] = here
    return hops
