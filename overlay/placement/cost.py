"""What a placement of brokers on nodes costs (DYNATOPS III-A and III-C).

A topic's tree is rooted at its rendezvous point and spans the nodes whose brokers subscribe. One
publication costs its relays (nodes of the tree, other than the root, whose brokers do not
subscribe) and, weighted with `delay_weight`, the sum of the delays to its subscribers. A delay is
the number of hops or, where a matrix of round trip times is known, their sum along the route; a
relay may be weighted by the pair of brokers that the message passes between.

`CostModel` evaluates any placement from nothing. `Placement` holds one and knows what swapping two
brokers changes, in time that grows with the topics in which just one of them is interested times
the length of a route (and, with matrices, the fingers that touch the two nodes).

Prices are rounded to multiples of a power of two, so fine that nobody can tell and so coarse that
sums of them are exact: hence what is added up in small steps equals what is evaluated from nothing,
to the last bit, in any order. With matrices this holds to rounding only.

Not here: how to find a better placement, and whether it is worth the trouble.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from overlay.placement import cost_kernels as kernels
from overlay.placement import swap_kernels
from overlay.placement.cost_kernels import Floats, Ints
from overlay.placement.geometry import NodeIndex, RingGeometry

# Sums stay below 2^53 grid steps, where floating point numbers are exact; two bits to spare.
_GRID_BITS = 51
# Up to here delays of every broker on every node are kept at hand: 128 MiB.
_DELAY_MATRIX_BROKERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a placement, for the publications of a period (eq. 4, 5, 6)."""

    overhead: float
    delay: float
    total: float


@dataclass(frozen=True, slots=True)
class Demand:
    """Who subscribes to what, and how much is published. Brokers and topics are numbered."""

    # Topics of each broker, ascending, without repeats.
    subscriptions: Sequence[Sequence[int]]
    # Publications of each topic in the period.
    publications: Sequence[float]
    # The key of each topic on the ring.
    keys: Sequence[int]


@dataclass(frozen=True, slots=True)
class Prices:
    """What counts how much."""

    delay_weight: float = 1.0
    # [from broker, to broker]; the diagonal does not matter.
    rtt_ms: Floats | None = None
    relay_weight: Floats | None = None


class CostModel:
    """Everything about the cost that no placement changes."""

    def __init__(self, geometry: RingGeometry, demand: Demand, prices: Prices) -> None:
        if len(demand.subscriptions) != len(geometry):
            raise ValueError("there must be as many brokers as nodes")
        self.geometry = geometry
        self.prices = prices
        tables = _tables(geometry, demand, prices)
        if len(geometry) <= _DELAY_MATRIX_BROKERS_MAX and not self.by_pairs:
            tables = tables._replace(delay_at=kernels.delay_matrix(tables))
        self.tables = tables

    @property
    def brokers(self) -> int:
        return len(self.geometry)

    @property
    def by_pairs(self) -> bool:
        """Whether costs depend on which brokers talk to each other."""
        return self.prices.rtt_ms is not None or self.prices.relay_weight is not None

    def evaluate(self, place: NodeIndex) -> Cost:
        """Of brokers on these nodes; place[broker] is a node."""
        place = np.ascontiguousarray(place, dtype=np.int32)
        host = np.empty_like(place)
        host[place] = np.arange(len(place), dtype=np.int32)
        overhead, delay = kernels.evaluate(self.tables, place, host)
        weight = self.prices.delay_weight
        return Cost(
            overhead, delay / weight if weight else self._delay(place, host), overhead + delay
        )

    def _delay(self, place: Ints, host: Ints) -> float:
        """The delay where it has no weight, hence no price."""
        unpriced = self.tables._replace(delay_price=self.tables.relay_price)
        return float(kernels.evaluate(unpriced, place, host)[1])

    def delay_matrix(self) -> Floats:
        """[broker, node] -> priced delay of the broker there, by hops (eq. 14)."""
        if len(self.tables.delay_at):
            return self.tables.delay_at
        costs: Floats = kernels.delay_matrix(self.tables)
        return costs


@dataclass(slots=True)
class CostedPlacement:
    """Brokers on nodes, and the cost of it, kept while brokers change places."""

    model: CostModel
    state: kernels.State = field(repr=False)

    @classmethod
    def of(cls, model: CostModel, place: NodeIndex) -> CostedPlacement:
        size, tables = model.brokers, model.tables
        edges = len(tables.edge_to)
        state = kernels.State(
            place=np.array(place, dtype=np.int32),
            host=np.empty(size, dtype=np.int32),
            counts=np.empty((len(tables.row), size), dtype=np.int32),
            relay_cost=np.empty(size),
            delay_cost=np.empty(size),
            delay_flow=np.empty(edges),
            relay_flow=np.empty(edges),
            total=np.empty(1),
            chain=np.empty(size, dtype=np.int32),
        )
        kernels.fill(tables, state)
        return cls(model, state)

    def restore(self, place: NodeIndex) -> None:
        """Put all brokers on these nodes."""
        self.state.place[:] = place
        kernels.fill(self.model.tables, self.state)

    @property
    def place(self) -> Ints:
        """[broker] -> node. A copy."""
        return self.state.place.copy()

    @property
    def total(self) -> float:
        return float(self.state.total[0])

    def broker_costs(self) -> tuple[Floats, Floats]:
        """[broker] -> its overhead (eq. 7) and its delays, times their weight (eq. 8)."""
        overhead, delay = kernels.broker_costs(self.model.tables, self.state)
        return overhead, delay

    def swap_delta(self, first: int, second: int) -> float:
        """What the total would gain if these brokers changed places."""
        return float(swap_kernels.swap_delta(self.model.tables, self.state, first, second))

    def swap(self, first: int, second: int) -> float:
        """Let two brokers change places; returns what the total gained."""
        delta = self.swap_delta(first, second)
        swap_kernels.swap(self.model.tables, self.state, first, second, delta)
        return delta


# ---- tables --------------------------------------------------------------------------------------


def _tables(geometry: RingGeometry, demand: Demand, prices: Prices) -> kernels.Tables:
    size = len(geometry)
    counts = np.array([len(topics) for topics in demand.subscriptions], dtype=np.int64)
    subscribed = np.concatenate(
        [np.asarray(topics, dtype=np.int32) for topics in demand.subscriptions]
    )
    owners = np.repeat(np.arange(size, dtype=np.int32), counts)
    publications = np.asarray(demand.publications, dtype=np.float64)
    # A topic that nobody publishes or subscribes to costs nothing anywhere.
    followers = np.bincount(subscribed, minlength=len(publications))
    active = (followers > 0) & (publications > 0)
    renumbered = np.cumsum(active, dtype=np.int32) - 1
    kept = active[subscribed]
    topics, owners = renumbered[subscribed[kept]], owners[kept]
    keys = np.asarray(demand.keys, dtype=np.uint64)[active]
    roots, row = np.unique(geometry.successors_of(keys), return_inverse=True)
    parents = np.empty((len(roots), size), dtype=np.int32)
    hops = np.empty((len(roots), size), dtype=np.uint8)
    kernels.grow_routes(roots, *_offsets(geometry), parents, hops)
    paired = prices.rtt_ms is not None or prices.relay_weight is not None
    rtt_ms = _matrix(prices.rtt_ms, size if paired else 0)
    relay_weight = _matrix(prices.relay_weight, size if paired else 0)
    by_topic = np.argsort(topics, kind="stable")
    relay_price, delay_price = _on_grid(
        publications[active],
        followers[active],
        longest=size
        * max(1.0, float(rtt_ms.max(initial=0.0)), float(relay_weight.max(initial=0.0))),
        delay_weight=prices.delay_weight,
    )
    edge, edge_from, edge_to = _edges(parents) if paired else _no_edges(size)
    first_touching, touching = _touching(edge_from, edge_to, size)
    return kernels.Tables(
        first_topic=_starts(np.bincount(owners, minlength=size)),
        topics=topics,
        first_broker=_starts(np.bincount(topics, minlength=int(active.sum()))),
        brokers=owners[by_topic],
        row=row.astype(np.int32),
        roots=roots,
        parents=parents,
        hops=hops,
        relay_price=relay_price,
        delay_price=delay_price,
        delay_at=np.empty((0, 0)),
        rtt_ms=rtt_ms,
        relay_weight=relay_weight,
        edge=edge,
        edge_from=edge_from,
        edge_to=edge_to,
        first_touching=first_touching,
        touching=touching,
    )


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def _matrix(values: Floats | None, size: int) -> Floats:
    if values is None:
        return np.ones((size, size))
    if values.shape != (size, size):
        raise ValueError(f"a matrix between brokers must be {size} x {size}")
    return np.ascontiguousarray(values, dtype=np.float64)


def _offsets(geometry: RingGeometry) -> tuple[NDArray[np.int64], Ints]:
    """The distinct fingers of each node, in places clockwise from it."""
    size = len(geometry)
    away = (geometry.fingers() - np.arange(size, dtype=np.int32)[:, None]) % size
    distinct = away > 0
    distinct[:, 1:] &= away[:, 1:] != away[:, :-1]
    return _starts(distinct.sum(axis=1)), away[distinct].astype(np.int32)


def _on_grid(
    publications: Floats, followers: NDArray[np.int64], *, longest: float, delay_weight: float
) -> tuple[Floats, Floats]:
    """Prices of a relay and of a hop, as multiples of a power of two.

    No sum of them ever exceeds every node relaying every topic and every route passing all nodes.
    """
    most = float(np.sum(publications * (1.0 + delay_weight * followers))) * longest
    if most == 0.0:
        return publications, publications * delay_weight
    step = math.ldexp(1.0, math.frexp(most)[1] - _GRID_BITS)
    return (
        np.round(publications / step) * step,
        np.round(publications * delay_weight / step) * step,
    )


def _edges(parents: Ints) -> tuple[Ints, Ints, Ints]:
    """Number the edges that any route uses."""
    size = parents.shape[1]
    children = np.arange(size, dtype=np.int64)[None, :]
    codes = np.where(parents >= 0, parents.astype(np.int64) * size + children, -1)
    used, edge = np.unique(codes, return_inverse=True)
    # The roots have none: they come first, as -1, and are numbered so again.
    used = used[1:]
    numbered: Ints = (edge.reshape(parents.shape) - 1).astype(np.int32)
    return numbered, (used // size).astype(np.int32), (used % size).astype(np.int32)


def _no_edges(size: int) -> tuple[Ints, Ints, Ints]:
    nothing = np.empty(0, dtype=np.int32)
    return np.empty((0, size), dtype=np.int32), nothing, nothing


def _touching(edge_from: Ints, edge_to: Ints, size: int) -> tuple[NDArray[np.int64], Ints]:
    """For each node the edges that begin or end there."""
    ends = np.concatenate([edge_from, edge_to])
    edges = np.tile(np.arange(len(edge_from), dtype=np.int32), 2)
    return _starts(np.bincount(ends, minlength=size)), edges[np.argsort(ends, kind="stable")]
