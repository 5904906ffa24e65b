"""Who places stores: all `(StoringProblem, StoringTask) -> StoringSolution`, by name.

| `seq`     | steps 1 to 4 as published: a topic gets all its stores at once |
| `wrr`     | the same, topics get them in rounds |
| `refine`  | ours: from the better of these on |
| `rnd`     | S without a difference between topics, and topics on any of S: to compare with |
| `rnd-all` | any brokers, and topics on any of them: what no planning at all would do |
| `grd-opt` | each topic where step 1 likes it best, without L and M: to compare with |

`rnd` follows the text, by which topics are not told apart when stores are selected, and only the
final assignment is random. So its stores are chosen by step 1 too, of all requests as if they were
of one topic. The other reading, in which also the stores are random, is `rnd-all`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

import numpy as np

from reconfig_manager.storing.assignment import (
    assign_in_rounds,
    assign_in_sequence,
    choose_stores,
    weighted_sums,
)
from reconfig_manager.storing.greedy import PickUse, pick_counts
from reconfig_manager.storing.network import Flags, Floats, Ints
from reconfig_manager.storing.problem import (
    StoringProblem,
    StoringSolution,
    StoringTask,
    solution_of,
)
from reconfig_manager.storing.refine import refine


@dataclass(frozen=True, slots=True)
class StorePreferences:
    """What steps 1 to 3 find: counts s_t, their weighted sums, and S."""

    counts: Floats
    sums: Floats
    stores: Ints


def prefer_stores(
    problem: StoringProblem, task: StoringTask, use: PickUse | None = None
) -> StorePreferences:
    """With `keep_stores`, S stays; the counts are of today's requests all the same, as step 4 of a
    reassignment goes by them."""
    counts = pick_counts(problem, use)
    sums = weighted_sums(counts, problem.weights)
    kept = task.keep_stores
    if kept is None:
        return StorePreferences(counts, sums, choose_stores(problem, sums))
    # Stores that failed keep nothing.
    alive = kept[problem.capacity[kept] > 0].astype(np.int32)
    return StorePreferences(counts, sums, alive)


def plan_seq(problem: StoringProblem, task: StoringTask) -> StoringSolution:
    found = prefer_stores(problem, task)
    keeps = assign_in_sequence(problem, found.stores, found.counts, found.sums)
    return solution_of("seq", problem, found.stores, keeps)


def plan_wrr(problem: StoringProblem, task: StoringTask) -> StoringSolution:
    found = prefer_stores(problem, task)
    keeps = assign_in_rounds(problem, found.stores, found.counts, found.sums)
    return solution_of("wrr", problem, found.stores, keeps)


def plan_refine(problem: StoringProblem, task: StoringTask) -> StoringSolution:
    """From the better one of both, by traffic, and by replicas that found no room before that."""
    found = prefer_stores(problem, task)
    both = [
        assign(problem, found.stores, found.counts, found.sums)
        for assign in (assign_in_sequence, assign_in_rounds)
    ]
    starts = [solution_of("refine", problem, found.stores, keeps) for keeps in both]
    start = min(starts, key=lambda solution: (solution.missing, solution.cost.traffic))
    return refine(problem, task, start)


def plan_grd_opt(problem: StoringProblem, task: StoringTask) -> StoringSolution:
    """A broker that step 1 never picked for a topic is not taken for it: it saved nothing."""
    counts = pick_counts(problem)
    keeps: Flags = np.zeros(problem.requests.shape, dtype=np.bool_)
    for topic, wanted in enumerate(problem.replicas.tolist()):
        liked = np.argsort(-counts[topic], kind="stable")[:wanted]
        keeps[topic, liked[counts[topic, liked] > 0]] = True
    stores = np.flatnonzero(keeps.any(axis=0)).astype(np.int32)
    return solution_of("grd-opt", problem, stores, keeps)


def plan_rnd(problem: StoringProblem, task: StoringTask) -> StoringSolution:
    together = replace(
        problem,
        requests=problem.requests.sum(axis=0, keepdims=True),
        replicas=np.array([problem.stores], dtype=np.int32),
    )
    stores = prefer_stores(together, task).stores
    keeps = _assign_by_chance(problem, stores, Random(task.seed))
    return solution_of("rnd", problem, stores, keeps)


def plan_rnd_all(problem: StoringProblem, task: StoringTask) -> StoringSolution:
    rng = Random(task.seed)
    able = np.flatnonzero(problem.capacity > 0).tolist()
    stores = np.array(rng.sample(able, problem.stores), dtype=np.int32)
    keeps = _assign_by_chance(problem, stores, rng)
    return solution_of("rnd-all", problem, stores, keeps)


def _assign_by_chance(problem: StoringProblem, stores: Ints, rng: Random) -> Flags:
    keeps: Flags = np.zeros(problem.requests.shape, dtype=np.bool_)
    room = problem.capacity.copy()
    for topic in rng.sample(range(problem.topics), problem.topics):
        free = [store for store in stores.tolist() if room[store] > 0]
        chosen = rng.sample(free, min(len(free), int(problem.replicas[topic])))
        keeps[topic, chosen] = True
        room[chosen] -= 1
    return keeps


StorePlanner = Callable[[StoringProblem, StoringTask], StoringSolution]
STORE_PLANNERS: Mapping[str, StorePlanner] = MappingProxyType(
    {
        "seq": plan_seq,
        "wrr": plan_wrr,
        "refine": plan_refine,
        "rnd": plan_rnd,
        "rnd-all": plan_rnd_all,
        "grd-opt": plan_grd_opt,
    }
)
