"""What stores placed by each planner cost the users who ask for the past.

The papers simulate requests and take means; with stores and rates given these are sums, and are
worked out (eq. 3). A run is a planner on so many trees drawn by the seed, all planners on the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from experiments.metrics.run import Metrics
from experiments.workloads.storing import (
    TOPICS,
    PastWorkload,
    draw_centres,
    evenly_asked,
    network_of,
    unevenly_asked,
)
from reconfig_manager.storing.assignment import (
    assign_in_rounds,
    assign_in_sequence,
    choose_stores,
    relative_weights,
    weighted_sums,
    wrr_rounds,
)
from reconfig_manager.storing.greedy import PickUse
from reconfig_manager.storing.network import Flags, Ints, StoreNetwork
from reconfig_manager.storing.planners import STORE_PLANNERS, prefer_stores
from reconfig_manager.storing.problem import (
    StoringProblem,
    StoringSolution,
    StoringTask,
    popularity,
    solution_of,
)
from reconfig_manager.storing.replicas import (
    replicas_by_minimum,
    replicas_by_places,
    stores_needed,
)

# At full scale.
TREES_DRAWN = 20
_ASSIGNMENTS = {"seq": assign_in_sequence, "wrr": assign_in_rounds}


def trees_at(scale: float) -> int:
    return max(2, round(TREES_DRAWN * scale))


def draws(scale: float, seed: int, name: str) -> Iterator[tuple[int, Random]]:
    return ((draw, Random(f"{name} {seed} {draw}")) for draw in range(trees_at(scale)))


# ---- problems ------------------------------------------------------------------------------------


def alike_problem(workload: PastWorkload, capacity: int, replicas: int) -> StoringProblem:
    """Storing: k stores a topic, and as many stores as have the places."""
    wanted = np.full(TOPICS, replicas, dtype=np.int32)
    return _problem(workload, capacity, wanted, stores_needed(wanted, capacity))


def minimum_problem(
    workload: PastWorkload, capacity: int, least: int, *, rounded_up: bool = False
) -> StoringProblem:
    """Planning 6.1.1: min_k stores for the least popular topic; fewer than all brokers are stores.

    Rounding up is for the ablation.
    """
    most = len(workload.network) - 1
    weights = popularity(workload.requests)
    wanted = replicas_by_minimum(weights, least, most)
    if rounded_up:
        shares = np.ceil(weights / weights.min() * least - 1e-9)
        wanted = np.clip(shares, least, most).astype(np.int32)
    return _problem(workload, capacity, wanted, min(most, stores_needed(wanted, capacity)))


def places_problem(workload: PastWorkload, stores: int, capacity: int) -> StoringProblem:
    """Planning 6.1.2: M stores, whose places are shared by weight."""
    weights = popularity(workload.requests)
    wanted = replicas_by_places(weights, stores * capacity, 1, stores)
    return _problem(workload, capacity, wanted, stores)


def _problem(workload: PastWorkload, capacity: int, replicas: Ints, stores: int) -> StoringProblem:
    return StoringProblem(
        network=workload.network,
        requests=workload.requests,
        replicas=replicas,
        stores=stores,
        capacity=np.full(len(workload.network), capacity, dtype=np.int32),
    )


# ---- runs ----------------------------------------------------------------------------------------


def planned(system: str, problem: StoringProblem, draw: int, use: str = "") -> StoringSolution:
    task = StoringTask(seed=draw)
    if not use:
        return STORE_PLANNERS[system](problem, task)
    found = prefer_stores(problem, task, PickUse(use))
    keeps = _ASSIGNMENTS[system](problem, found.stores, found.counts, found.sums)
    return solution_of(system, problem, found.stores, keeps)


def mean_of(found: Sequence[Metrics]) -> Metrics:
    return {name: sum(each[name] for each in found) / len(found) for name in found[0]}


def metrics_of(problem: StoringProblem, keeps: Flags, missing: int = 0) -> Metrics:
    cost = problem.cost_of(keeps)
    return {
        "hops": cost.mean_distance,
        "traffic": cost.traffic,
        "stores_used": float(np.count_nonzero(keeps.any(axis=0))),
        "unserved": cost.unserved / cost.requests if cost.requests else 0.0,
        "missing": float(missing),
    }


def measure_alike(
    scale: float,
    seed: int,
    system: str,
    brokers: int,
    capacity: int,
    replicas: int,
    *,
    asked_by: float = 1.0,
) -> Metrics:
    found = []
    for draw, rng in draws(scale, seed, f"storing {brokers}"):
        problem = alike_problem(evenly_asked(brokers, rng, asked_by), capacity, replicas)
        solution = planned(system, problem, draw)
        found.append(metrics_of(problem, solution.keeps, solution.missing))
    return mean_of(found)


def measure_minimum(
    scale: float,
    seed: int,
    system: str,
    brokers: int,
    capacity: int,
    least: int,
    *,
    tree: str = "grown",
    use: str = "",
    rounded_up: bool = False,
) -> Metrics:
    found = []
    for draw, rng in draws(scale, seed, f"planning {brokers}"):
        network = network_of(brokers, tree, rng)
        workload = unevenly_asked(network, 1.0, 0.0, [0] * TOPICS)
        problem = minimum_problem(workload, capacity, least, rounded_up=rounded_up)
        solution = planned(system, problem, draw, use)
        found.append(metrics_of(problem, solution.keeps, solution.missing))
    return mean_of(found)


@dataclass(frozen=True, slots=True)
class PlannedNetwork:
    """Who plans, for how many brokers, M and L."""

    system: str
    brokers: int
    stores: int
    capacity: int


def _city(brokers: int, rng: Random) -> tuple[StoreNetwork, list[int]]:
    return network_of(brokers, "grown", rng), draw_centres(brokers, rng)


def measure_places(
    scale: float,
    seed: int,
    of: PlannedNetwork,
    s_p: float,
    s_l: float,
) -> Metrics:
    found = []
    for draw, rng in draws(scale, seed, f"places {of.brokers}"):
        network, centres = _city(of.brokers, rng)
        problem = places_problem(unevenly_asked(network, s_p, s_l, centres), of.stores, of.capacity)
        solution = planned(of.system, problem, draw)
        found.append(metrics_of(problem, solution.keeps, solution.missing))
    return mean_of(found)


def measure_failures(
    scale: float,
    seed: int,
    of: PlannedNetwork,
    s_p: float,
    failed: int,
    *,
    again: bool = False,
) -> Metrics:
    """So many stores fail, by chance; `again`: topics are assigned to those that are left."""
    found = []
    for draw, rng in draws(scale, seed, f"places {of.brokers}"):
        network, centres = _city(of.brokers, rng)
        problem = places_problem(unevenly_asked(network, s_p, 0.0, centres), of.stores, of.capacity)
        solution = planned(of.system, problem, draw)
        gone = Random(f"failures {seed} {draw} {failed}").sample(solution.stores.tolist(), failed)
        keeps, left = solution.keeps.copy(), problem.without(gone)
        keeps[:, gone] = False
        if again:
            task = StoringTask(seed=draw, keep_stores=solution.stores)
            keeps = STORE_PLANNERS[of.system](left, task).keeps
        found.append(metrics_of(left, keeps))
    return mean_of(found)


def measure_drift(
    scale: float,
    seed: int,
    of: PlannedNetwork,
    before: tuple[float, float],
    after: tuple[float, float],
    mode: str,
) -> Metrics:
    """Planned for exponents (s_p, s_l), asked with others; `mode` says what is done about it."""
    found = []
    for draw, rng in draws(scale, seed, f"places {of.brokers}"):
        network, centres = _city(of.brokers, rng)
        old, new = (
            places_problem(unevenly_asked(network, *exponents, centres), of.stores, of.capacity)
            for exponents in (before, after)
        )
        first = planned(of.system, old, draw)
        if mode == "unchanged":
            keeps = first.keeps
        elif mode == "reassigned":
            task = StoringTask(seed=draw, keep_stores=first.stores)
            keeps = STORE_PLANNERS[of.system](new, task).keeps
        else:
            keeps = planned(of.system, new, draw).keeps
        found.append(metrics_of(new, keeps))
    return mean_of(found)


# ---- the worked example --------------------------------------------------------------------------

# Of topics a, b, c; brokers 1 to 6.
EXAMPLE_COUNTS = ((0, 3, 5, 0, 2, 2), (0, 2, 5, 0, 5, 0), (0, 2, 5, 0, 5, 0))
EXAMPLE_REQUESTS = (17, 27, 6)


def measure_example() -> Metrics:
    """From the vectors of step 1 on, as the figure with tree and requests is not at hand."""
    counts = np.array(EXAMPLE_COUNTS, dtype=np.float64)
    requests = np.zeros((3, 6))
    requests[:, 0] = EXAMPLE_REQUESTS
    problem = StoringProblem(
        network=StoreNetwork.of_links(6, [(broker, 0) for broker in range(1, 6)]),
        requests=requests,
        replicas=np.array([2, 2, 2], dtype=np.int32),
        stores=3,
        capacity=np.full(6, 2, dtype=np.int32),
    )
    sums = weighted_sums(counts, problem.weights)
    stores = choose_stores(problem, sums)
    found: dict[str, float] = {}
    for name, weight in zip("abc", problem.weights.tolist(), strict=True):
        found[f"w_{name}"] = weight
    for broker, value in enumerate(sums.tolist(), 1):
        found[f"sum_{broker}"] = value
    for place, store in enumerate((stores + 1).tolist(), 1):
        found[f"store_{place}"] = float(store)
    for assignment, assign in _ASSIGNMENTS.items():
        keeps = assign(problem, stores, counts, sums)
        for topic, name in enumerate("abc"):
            where = (np.flatnonzero(keeps[topic]) + 1).tolist()
            # Two brokers, as the digits of a number.
            found[f"{assignment}_{name}"] = float("".join(map(str, where)))
    rounds = list(wrr_rounds(relative_weights(requests), [6, 6, 6]))
    for number, round_ in enumerate(rounds, 1):
        found[f"round_{number}"] = float("".join(map(str, round_)))
    found["rounds"] = float(len(rounds))
    return found
