"""Ours: lowers the traffic (eq. 3) further, under the same limits L, M and k_t.

It starts from the better one of `seq` and `wrr`, gives topics the replicas that found no room, and
takes the step of `store_search` that gains most until none does. Then a few stores (or replicas,
where the stores stay) are put elsewhere by chance, and it goes down again from there; what is not
better is taken back. It ends after some such rounds that gained nothing, or after `steps_max`.

It follows from the problem and the seed alone. With prices for replicas that are not where they
were it lowers traffic and transfers together.
"""

from __future__ import annotations

from random import Random

import numpy as np

from reconfig_manager.storing.network import Flags, Floats, Ints
from reconfig_manager.storing.problem import (
    StoringProblem,
    StoringSolution,
    StoringTask,
    solution_of,
)
from reconfig_manager.storing.store_search import StoreSearch, StoreStep

FRUITLESS_ROUNDS_MAX = 20
# What a round puts elsewhere.
SHIFTED = 2
MOVED = 4


def refine(problem: StoringProblem, task: StoringTask, start: StoringSolution) -> StoringSolution:
    """Nothing that it returns costs more than where it starts."""
    search = StoreSearch(problem, start.stores, start.keeps, task.prices)
    shifting = task.keep_stores is None
    search.complete(shifting=shifting)
    steps = _descend(search, task.steps_max, shifting=shifting)
    stores, keeps, traffic = search.stores, search.keeps.copy(), search.traffic
    rng = Random(task.seed)
    fruitless = 0
    while steps < task.steps_max and fruitless < FRUITLESS_ROUNDS_MAX:
        steps += _shake(search, problem, rng, shifting=shifting)
        steps += _descend(search, task.steps_max - steps, shifting=shifting)
        if search.traffic < traffic - search.least_gain:
            stores, keeps, traffic = search.stores, search.keeps.copy(), search.traffic
            fruitless = 0
        else:
            search.restore(stores, keeps)
            fruitless += 1
    return solution_of("refine", problem, stores, keeps, steps)


def _descend(search: StoreSearch, steps_max: int, *, shifting: bool) -> int:
    steps = 0
    while steps < steps_max:
        step = search.best_step(shifting=shifting)
        if step is None:
            break
        search.take(step)
        steps += 1
    return steps


def _shake(search: StoreSearch, problem: StoringProblem, rng: Random, *, shifting: bool) -> int:
    if shifting:
        for _ in range(SHIFTED):
            _shift_one(search, problem, rng)
        return SHIFTED
    for _ in range(MOVED):
        _swap_two(search, problem, rng)
    return MOVED


def _shift_one(search: StoreSearch, problem: StoringProblem, rng: Random) -> None:
    old = rng.choice(search.stores.tolist())
    load = int(search.keeps[:, old].sum())
    able = np.flatnonzero(~search.is_store & (problem.capacity >= max(load, 1)))
    if len(able):
        search.take(search.shift(old, rng.choice(able.tolist())))


def _swap_two(search: StoreSearch, problem: StoringProblem, rng: Random) -> None:
    """Two replicas of different topics change places, or one goes where there is room."""
    one, other = _replica(search, rng), _replica(search, rng)
    if one is None or other is None:
        return
    (topic, source), (second, target) = one, other
    if search.keeps[topic, target] or search.keeps[second, source]:
        return
    search.take(StoreStep(0.0, ((topic, source, target), (second, target, source))))


def _replica(search: StoreSearch, rng: Random) -> tuple[int, int] | None:
    topics, stores = np.nonzero(search.keeps)
    if not len(topics):
        return None
    at = rng.randrange(len(topics))
    return int(topics[at]), int(stores[at])


def prices_of(distances: Floats, keeps: Flags, price: Floats) -> Floats:
    """[topic, broker] -> `price[topic]` x distance from the nearest store that keeps it; 0 where
    it is kept already, and where nobody has it any more."""
    prices = np.zeros(keeps.shape)
    for topic in range(len(keeps)):
        holders: Ints = np.flatnonzero(keeps[topic]).astype(np.int32)
        if len(holders):
            prices[topic] = price[topic] * distances[holders].min(axis=0)
    return prices
