"""Storing problems small enough to be sure of, and their best solutions by looking at all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from random import Random

import numpy as np

from reconfig_manager.storing.network import Flags, Floats, Ints, StoreNetwork
from reconfig_manager.storing.problem import StoringProblem


def tree_network(brokers: int, rng: Random) -> StoreNetwork:
    return StoreNetwork.of_links(brokers, [(b, rng.randrange(b)) for b in range(1, brokers)])


def any_network(brokers: int, rng: Random) -> StoreNetwork:
    """A tree, a graph with lengths, or a matrix."""
    kind = rng.randrange(3)
    if kind == 0:
        return tree_network(brokers, rng)
    if kind == 1:
        links = {(b, rng.randrange(b)) for b in range(1, brokers)}
        links |= {(b, rng.randrange(b)) for b in range(1, brokers) if rng.random() < 0.5}
        ordered = sorted(links)
        return StoreNetwork.of_links(brokers, ordered, [rng.randint(1, 4) for _ in ordered])
    return StoreNetwork.of_matrix(
        np.array([[float(rng.randint(1, 50)) for _ in range(brokers)] for _ in range(brokers)])
    )


def random_storing(
    rng: Random, network: StoreNetwork, topics: int, *, stores: int | None = None
) -> StoringProblem:
    """Anything goes: brokers and topics that nobody asks, stores with more and less room."""
    brokers = len(network)
    stores = rng.randint(1, brokers) if stores is None else stores
    asked = [[rng.choice([0, 0, 1, 5, 9]) for _ in range(brokers)] for _ in range(topics)]
    capacity = [rng.randint(1, topics) for _ in range(brokers)]
    return StoringProblem(
        network=network,
        requests=np.array(asked, dtype=np.float64),
        replicas=np.array([rng.randint(1, stores) for _ in range(topics)], dtype=np.int32),
        stores=stores,
        capacity=np.array(capacity, dtype=np.int32),
    )


def all_assignments(problem: StoringProblem, stores: tuple[int, ...]) -> Iterator[Flags]:
    """All that give every topic its replicas, within capacity."""
    choices = [combinations(stores, int(wanted)) for wanted in problem.replicas]
    for chosen in product(*choices):
        keeps = np.zeros(problem.requests.shape, dtype=np.bool_)
        for topic, where in enumerate(chosen):
            keeps[topic, list(where)] = True
        if (keeps.sum(axis=0) <= problem.capacity).all():
            yield keeps


def least_traffic(problem: StoringProblem, stores: Ints | None = None) -> float:
    """Over all sets of stores, or this one; infinite if not all replicas have room."""
    able = np.flatnonzero(problem.capacity > 0).tolist()
    sets = combinations(able, problem.stores) if stores is None else [tuple(stores.tolist())]
    return min(
        (
            problem.cost_of(keeps).traffic
            for chosen in sets
            for keeps in all_assignments(problem, chosen)
        ),
        default=float("inf"),
    )


def plain_traffic(network: StoreNetwork, requests: Floats, keeps: Flags) -> float:
    """eq. 3, by definition."""
    total = 0.0
    for topic, asked in enumerate(requests.tolist()):
        stores = np.flatnonzero(keeps[topic]).tolist()
        for broker, rate in enumerate(asked):
            total += rate * min(float(network.distances[broker, store]) for store in stores)
    return total
