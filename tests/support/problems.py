"""Placement problems small enough to be sure of, and their costs worked out the plain way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations
from random import Random

import numpy as np

from overlay.placement.cost import Cost, CostModel, Demand, Prices
from overlay.placement.cost_kernels import Ints
from overlay.placement.geometry import RingGeometry
from reconfig_manager.placement.decision import MovingCost
from reconfig_manager.placement.problem import PlacementProblem


@dataclass(frozen=True)
class Spec:
    """All there is to a problem."""

    node_ids: list[int]
    subscriptions: list[list[int]]
    publications: list[float]
    keys: list[int]
    prices: Prices
    place: list[int]

    def model(self) -> CostModel:
        demand = Demand(self.subscriptions, self.publications, self.keys)
        return CostModel(RingGeometry(self.node_ids), demand, self.prices)

    def problem(self, moving: MovingCost | None = None) -> PlacementProblem:
        place = np.array(self.place, dtype=np.int32)
        return PlacementProblem(self.model(), place, len(self.publications), moving or MovingCost())


def random_spec(rng: Random, brokers: int, topics: int, *, rtt: bool, weights: bool) -> Spec:
    """Anything goes: brokers without interests, topics without subscribers or publications."""
    node_ids = rng.sample(range(4 * brokers), brokers)
    if rng.random() < 0.5:
        node_ids = [node_id << 40 | rng.getrandbits(40) for node_id in node_ids]

    def matrix() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        values = [[float(rng.randint(1, 100)) for _ in range(brokers)] for _ in range(brokers)]
        return np.array(values)

    return Spec(
        node_ids=node_ids,
        subscriptions=[
            sorted(rng.sample(range(topics), rng.randint(0, topics))) for _ in range(brokers)
        ],
        publications=[float(rng.randint(0, 20)) for _ in range(topics)],
        keys=[rng.choice([rng.getrandbits(64), *node_ids]) for _ in range(topics)],
        prices=Prices(
            delay_weight=rng.choice([0.0, 0.25, 1.0, 3.0]),
            rtt_ms=matrix() if rtt else None,
            relay_weight=matrix() if weights else None,
        ),
        place=rng.sample(range(brokers), brokers),
    )


def plain_costs(spec: Spec, place: list[int]) -> tuple[Cost, list[float], list[float]]:
    """The cost of a placement, each broker's overhead, each broker's delay; by definition."""
    geometry = RingGeometry(spec.node_ids)
    host = {node: broker for broker, node in enumerate(place)}
    prices = spec.prices
    overheads = [0.0] * len(place)
    delays = [0.0] * len(place)
    for topic, (publications, key) in enumerate(zip(spec.publications, spec.keys, strict=True)):
        root = geometry.successor_of(key)
        members = [b for b, topics in enumerate(spec.subscriptions) if topic in topics]
        tree = geometry.tree(root, [place[broker] for broker in members])
        for relay in tree.relays:
            pair = host[tree.parents[relay]], host[relay]
            weight = 1.0 if prices.relay_weight is None else float(prices.relay_weight[pair])
            overheads[host[relay]] += publications * weight
        for broker in members:
            for above, below in pairwise(geometry.route(root, place[broker])):
                pair = host[above], host[below]
                step = 1.0 if prices.rtt_ms is None else float(prices.rtt_ms[pair])
                delays[broker] += publications * step
    overhead, delay = sum(overheads), sum(delays)
    return Cost(overhead, delay, overhead + prices.delay_weight * delay), overheads, delays


def all_places(brokers: int) -> Iterator[Ints]:
    for nodes in permutations(range(brokers)):
        yield np.array(nodes, dtype=np.int32)
