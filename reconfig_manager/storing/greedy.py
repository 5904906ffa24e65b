"""Step 1: where each topic would like to be kept (Planning 5.1 and 5.2).

*Greedy* takes one target j, as if all requests went to it, and picks k brokers one after the other,
each the one that saves most. A pick i saves its distance to wherever the requests that flow through
it would have gone: g_ij = p_ij x d_ij in the first round (p_ij is the share of the topic's requests
on whose way i is: a share within the topic, which is not weighed by popularity once more). In later
rounds what earlier picks take already is left out. The target has distance 0 and is never picked in
its own run, nor is a broker that saves nothing.

*Modified greedy* does this for every broker as the target, and counts how often each was picked:
the vector s_t. As many as k_t of N brokers are picked in each run, so it sums to N k_t where
requests come from everywhere, and no count exceeds N - 1. Runs may be weighed by how likely it is
that publications come from their targets.

There are two readings of who uses a pick. `ON_THE_WAY`: requests that pass it on their way to the
target; so the formula. `NEAREST`: all that are nearer to it than to anything else, as the greedy
algorithm of those whom the paper cites has it, and as requests do in the end. The former is taken
where there are ways; between brokers that ask each other directly nobody is on the way, so it is
the latter there.
"""

from __future__ import annotations

import enum

import numpy as np

from reconfig_manager.storing import greedy_kernels
from reconfig_manager.storing.network import Floats
from reconfig_manager.storing.problem import StoringProblem

# Where the nearest are taken each target costs topics x brokers^2 steps. As many as come to this,
# spread evenly, stand for all targets of a large network: 8 of 1,000 if there are 1,000 topics.
NEAREST_STEPS_MAX = 8_000_000_000


class PickUse(enum.StrEnum):
    """Which requests a pick serves."""

    ON_THE_WAY = "on the way"
    NEAREST = "nearest"


def usual_use(problem: StoringProblem) -> PickUse:
    return PickUse.NEAREST if problem.network.parents is None else PickUse.ON_THE_WAY


def pick_counts(problem: StoringProblem, use: PickUse | None = None) -> Floats:
    """[topic, broker] -> how often it was picked (s_t), each run weighed by its target's chance.

    With all targets alike these are whole numbers.
    """
    use = usual_use(problem) if use is None else use
    counts = np.zeros(problem.requests.shape)
    weights = np.ones(problem.brokers)
    if problem.origins is not None and problem.origins.sum() > 0:
        weights = problem.origins / problem.origins.sum() * problem.brokers
    if use is PickUse.ON_THE_WAY:
        _count_on_the_way(problem, weights, counts)
    else:
        _count_nearest(problem, weights, counts)
    return counts


def _count_on_the_way(problem: StoringProblem, weights: Floats, counts: Floats) -> None:
    network, brokers = problem.network, problem.brokers
    assert network.parents is not None, "nobody is on the way where there are no ways"
    eligible = problem.capacity > 0
    order, above, size = (np.empty(brokers, dtype=np.int32) for _ in range(3))
    for target in range(brokers):
        if weights[target] == 0.0:
            continue
        greedy_kernels.preorder(network.parents[target], order, above, size)
        greedy_kernels.count_picks_on_the_way(
            problem.requests,
            problem.replicas,
            eligible,
            network.distances[order, target],
            order,
            above,
            size,
            float(weights[target]),
            counts,
        )


def _count_nearest(problem: StoringProblem, weights: Floats, counts: Floats) -> None:
    distances, brokers = problem.network.distances, problem.brokers
    most = max(1, NEAREST_STEPS_MAX // max(1, problem.topics * brokers * brokers))
    targets = np.linspace(0, brokers - 1, min(brokers, most)).astype(np.int64)
    for target in targets.tolist():
        if weights[target] == 0.0:
            continue
        saved = np.maximum(distances[:, target][:, None] - distances, 0.0)
        gains = problem.requests @ saved
        gains[:, problem.capacity == 0] = 0.0
        greedy_kernels.count_picks_of_the_nearest(
            problem.requests,
            problem.replicas,
            distances,
            target,
            gains,
            float(weights[target]),
            counts,
        )
