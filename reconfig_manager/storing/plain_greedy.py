"""Step 1 in plain words, every gain worked out from nothing: for tests."""

from __future__ import annotations

import numpy as np

from reconfig_manager.storing.greedy import PickUse
from reconfig_manager.storing.network import ROUNDING, Floats, StoreNetwork
from reconfig_manager.storing.problem import StoringProblem


def plain_pick_counts(problem: StoringProblem, use: PickUse) -> Floats:
    counts = np.zeros(problem.requests.shape)
    for topic in range(problem.topics):
        for target in range(problem.brokers):
            for pick in plain_picks(problem, topic, target, use):
                counts[topic, pick] += 1
    return counts


def plain_picks(problem: StoringProblem, topic: int, target: int, use: PickUse) -> list[int]:
    """In the order in which they are picked; the lowest number among equals."""
    requests = problem.requests[topic]
    picks: list[int] = []
    least = 0.0
    for _ in range(int(problem.replicas[topic])):
        before = _traffic(problem.network, requests, target, picks, use)
        gains = {
            broker: before - _traffic(problem.network, requests, target, [*picks, broker], use)
            for broker in range(problem.brokers)
            if broker not in picks and broker != target and problem.capacity[broker] > 0
        }
        best = max(gains, key=lambda broker: (gains[broker], -broker), default=None)
        least = ROUNDING * max(gains.values(), default=0.0) if not picks else least
        if best is None or gains[best] <= least:
            break
        picks.append(best)
    return picks


def _traffic(
    network: StoreNetwork, requests: Floats, target: int, picks: list[int], use: PickUse
) -> float:
    total = 0.0
    for broker, asked in enumerate(requests.tolist()):
        if use is PickUse.NEAREST:
            stop = min([target, *picks], key=lambda store: float(network.distances[broker, store]))
        else:
            assert network.parents is not None
            stop = broker
            while stop != target and stop not in picks:
                stop = int(network.parents[target, stop])
        total += asked * float(network.distances[broker, stop])
    return total
