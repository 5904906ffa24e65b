"""Steps 2 to 4: which brokers are stores, and which topic is on which of them (Planning 5.3, 5.5).

Step 2 weighs each topic's counts s_t by its weight w_t, step 3 takes the M brokers with the largest
sums: S. Step 4 gives topics, from the most significant on, to those of S with room that the topic's
own counts like best: it goes by s_t and not by the sums of S.

Taken where the papers are silent. Of equal sums and counts the lower number of a broker comes
first, of equal weights the lower number of a topic. Where fewer stores of S with room are in s_t
than are wanted, the others of S follow in the order of their sums. A topic that finds no room
remains without: `StoringSolution.missing` says how many replicas did.

`seq` gives each topic all its stores at once. `wrr` goes round: a topic gets as many at a time as
its relative weight xi_t says, and fewer if fewer are due; once a single topic is left it gets all
the rest. (The formula as printed has min{xi_t k_t, rest}, which is always the rest. The example
that follows it takes min{xi_t, rest}, and its rounds end as said here; it has k = 6 on M = 3
stores, so it is about rounds alone.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from reconfig_manager.storing.network import ROUNDING, Flags, Floats, Ints
from reconfig_manager.storing.problem import StoringProblem


def weighted_sums(counts: Floats, weights: Floats) -> Floats:
    """[broker] -> the sum of the weighted counts of all topics (step 2, and the sum of step 3)."""
    sums: Floats = weights @ counts
    return sums


def choose_stores(problem: StoringProblem, sums: Floats) -> Ints:
    """Step 3: S, in the order in which they are chosen."""
    order = _descending(sums)
    able = order[problem.capacity[order] > 0]
    return able[: problem.stores].astype(np.int32)


def significance(weights: Floats) -> Ints:
    """Topics from the most significant on."""
    return _descending(weights).astype(np.int32)


def _descending(values: Floats) -> Ints:
    """The lower number first among equals."""
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    steps = np.round(values / (largest * ROUNDING))
    return np.argsort(-steps, kind="stable").astype(np.int32)


def relative_weights(requests: Floats) -> list[int]:
    """xi_t: how many times the requests of the topic that is asked for least, rounded up."""
    by_topic = requests.sum(axis=1)
    asked = by_topic[by_topic > 0]
    if not len(asked):
        return [1] * len(by_topic)
    shares = np.ceil(by_topic / asked.min() - ROUNDING)
    return [max(1, int(share)) for share in shares]


def wrr_rounds(xi: list[int], replicas: list[int]) -> Iterator[list[int]]:
    """How many stores each topic gets in each round (k_t^r)."""
    rest = list(replicas)
    while any(rest):
        left = [topic for topic, due in enumerate(rest) if due]
        round_ = [min(share, due) for share, due in zip(xi, rest, strict=True)]
        if len(left) == 1:
            round_[left[0]] = rest[left[0]]
        yield round_
        rest = [due - got for due, got in zip(rest, round_, strict=True)]


class Assigning:
    """Topics that are given to stores, one replica after the other."""

    def __init__(self, problem: StoringProblem, stores: Ints, counts: Floats, sums: Floats) -> None:
        self.keeps: Flags = np.zeros(problem.requests.shape, dtype=np.bool_)
        self._room = problem.capacity.copy()
        # Stores by sums, and then by counts: those of equal counts stay in the order of sums.
        by_sums = np.sort(stores)[_descending(sums[np.sort(stores)])]
        liked = [by_sums[_descending(counts[topic, by_sums])] for topic in range(problem.topics)]
        self._liked = [order.tolist() for order in liked]

    def give(self, topic: int, wanted: int) -> None:
        """To so many more stores, or as many as have room."""
        for store in self._liked[topic]:
            if wanted == 0:
                return
            if self._room[store] > 0 and not self.keeps[topic, store]:
                self.keeps[topic, store] = True
                self._room[store] -= 1
                wanted -= 1


def assign_in_sequence(
    problem: StoringProblem, stores: Ints, counts: Floats, sums: Floats
) -> Flags:
    assigning = Assigning(problem, stores, counts, sums)
    for topic in significance(problem.weights).tolist():
        assigning.give(topic, int(problem.replicas[topic]))
    return assigning.keeps


def assign_in_rounds(problem: StoringProblem, stores: Ints, counts: Floats, sums: Floats) -> Flags:
    assigning = Assigning(problem, stores, counts, sums)
    order = significance(problem.weights).tolist()
    for round_ in wrr_rounds(relative_weights(problem.requests), problem.replicas.tolist()):
        for topic in order:
            assigning.give(topic, round_[topic])
    return assigning.keeps
