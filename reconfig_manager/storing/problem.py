"""What is given to whoever places stores, and what comes back.

A *request* is a user's request for the past of one topic: it is counted once, at the broker where
the user is, whoever answers it. Managers are told so by brokers, and Spark's `demand` counts the
same rows of the lake. A request goes to the nearest store of its topic, so the traffic of a
solution is (Planning eq. 3)

    C = sum over topics t, brokers l of  r_l^t x distance from l to the nearest store of t

Means of distances are weighted by requests. A request for a topic that no store keeps is counted,
at the largest distance that there is: leaving it out would make failures look good.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from reconfig_manager.storing.network import (
    Flags,
    Floats,
    Ints,
    StoreNetwork,
    StoringProblemError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoringProblem:
    network: StoreNetwork
    # [topic, broker] -> requests in a second (r_i^t).
    requests: Floats
    # [topic] -> how many stores keep it (k_t).
    replicas: Ints
    # How many brokers are stores (M).
    stores: int
    # [broker] -> how many topics it can keep (L); 0 where no store can be, or where it failed.
    capacity: Ints
    # [broker] -> how likely it is that what is published comes from there; None: all alike.
    origins: Floats | None = None

    def __post_init__(self) -> None:
        topics, brokers = self.requests.shape
        if brokers != len(self.network):
            raise StoringProblemError("requests", f"{brokers} brokers of {len(self.network)}")
        if (self.requests < 0).any() or not np.isfinite(self.requests).all():
            raise StoringProblemError("requests", "must be numbers from 0 on")
        if self.capacity.shape != (brokers,) or (self.capacity < 0).any():
            raise StoringProblemError("capacity", "must be a number from 0 on for each broker")
        if self.replicas.shape != (topics,) or (self.replicas < 1).any():
            raise StoringProblemError("replicas", "must be at least 1 for each topic")
        if not 1 <= self.stores <= self.sites:
            raise StoringProblemError(
                "stores", f"{self.stores} of {self.sites} brokers that can be one"
            )
        if topics and int(self.replicas.max()) > self.stores:
            raise StoringProblemError(
                "replicas", f"{self.replicas.max()} of a topic on {self.stores} stores"
            )
        if self.origins is not None and self.origins.shape != (brokers,):
            raise StoringProblemError("origins", "must be a number for each broker")

    @property
    def brokers(self) -> int:
        return int(self.requests.shape[1])

    @property
    def topics(self) -> int:
        return int(self.requests.shape[0])

    @property
    def sites(self) -> int:
        """How many brokers can be a store."""
        return int(np.count_nonzero(self.capacity))

    @property
    def weights(self) -> Floats:
        """[topic] -> its share of all requests (w_t)."""
        return popularity(self.requests)

    def without(self, failed: Collection[int]) -> StoringProblem:
        """As it is while the stores of these brokers have failed; their users ask on.

        Where fewer stores than replicas are left, each topic is on as many as there are.
        """
        capacity = self.capacity.copy()
        capacity[list(failed)] = 0
        sites = int(np.count_nonzero(capacity))
        stores = min(self.stores, sites)
        replicas = np.minimum(self.replicas, max(stores, 1)).astype(np.int32)
        return replace(self, capacity=capacity, stores=stores, replicas=replicas)

    def traffic_of_topics(self, keeps: Flags) -> Floats:
        """[topic] -> C_t (eq. 2), requests that nobody can answer included."""
        distances, farthest = self.network.distances, self.network.farthest
        traffic = np.empty(self.topics)
        for topic in range(self.topics):
            stores = np.flatnonzero(keeps[topic])
            away = distances[:, stores].min(axis=1) if len(stores) else farthest
            traffic[topic] = float((self.requests[topic] * away).sum())
        return traffic

    def cost_of(self, keeps: Flags) -> StoringCost:
        requests = float(self.requests.sum())
        unserved = float(self.requests[~keeps.any(axis=1)].sum())
        return StoringCost(float(self.traffic_of_topics(keeps).sum()), requests, unserved)


def popularity(requests: Floats) -> Floats:
    """[topic] -> its share of all requests (w_t); all alike if there are none."""
    by_topic: Floats = requests.sum(axis=1)
    total = float(by_topic.sum())
    if total == 0.0:
        return np.full(len(by_topic), 1.0 / max(len(by_topic), 1))
    return by_topic / total


@dataclass(frozen=True, slots=True)
class StoringCost:
    # C (eq. 3): requests x distance, in a second.
    traffic: float
    requests: float
    # Requests in a second for topics that no store keeps.
    unserved: float

    @property
    def mean_distance(self) -> float:
        """Between who asks and who answers, weighted by requests."""
        return self.traffic / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoringTask:
    """How to go about it."""

    # Brokers that are stores already and remain so (S): only topics are assigned. None: planned.
    keep_stores: Ints | None = None
    # [topic, broker] -> what it costs to begin to keep the topic there, in units of traffic; only
    # `refine` minds it. Zero where it is kept already.
    prices: Floats | None = None
    seed: int = 0
    # Steps of `refine`, each a replica or a store somewhere else.
    steps_max: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoringSolution:
    planner: str
    # The brokers that are stores (S), ascending; some may keep nothing.
    stores: Ints
    # [topic, broker] -> whether it keeps the topic.
    keeps: Flags
    cost: StoringCost
    # Replicas that found no store with room.
    missing: int
    steps: int = 0

    @property
    def stores_used(self) -> int:
        return int(np.count_nonzero(self.keeps.any(axis=0)))


def solution_of(
    planner: str, problem: StoringProblem, stores: Ints, keeps: Flags, steps: int = 0
) -> StoringSolution:
    missing = int(np.maximum(problem.replicas - keeps.sum(axis=1), 0).sum())
    return StoringSolution(
        planner=planner,
        stores=np.sort(stores).astype(np.int32),
        keeps=keeps,
        cost=problem.cost_of(keeps),
        missing=missing,
        steps=steps,
    )


def broken_limits(problem: StoringProblem, stores: Ints, keeps: Flags) -> list[str]:
    """What of M, L, k_t and S is not kept: nothing, for whatever minds limits."""
    found = []
    if len(set(stores.tolist())) != len(stores) or len(stores) > problem.stores:
        found.append(f"{len(stores)} stores, at most {problem.stores}")
    outside = np.setdiff1d(np.flatnonzero(keeps.any(axis=0)), stores)
    found += [f"broker {broker} keeps topics and is no store" for broker in outside.tolist()]
    load = keeps.sum(axis=0)
    over = np.flatnonzero(load > problem.capacity)
    found += [f"store {b} keeps {load[b]}, at most {problem.capacity[b]}" for b in over.tolist()]
    many = np.flatnonzero(keeps.sum(axis=1) > problem.replicas)
    found += [f"topic {topic} is on more than {problem.replicas[topic]}" for topic in many.tolist()]
    return found
