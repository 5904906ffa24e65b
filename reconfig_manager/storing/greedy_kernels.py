"""The inner loops of the greedy algorithm, compiled; `greedy.py` says what they compute, and
`plain_greedy.py` does the same in plain words.

All ways to a target are a tree with the target as its root. Its brokers are numbered so that a
broker comes before those behind it (preorder): the part of the tree behind broker x is then the
`size[x]` numbers from x on. A pick takes what flows through it from its ancestors up to the next
pick, and is the stop nearer than before of all that is behind it.
"""

from __future__ import annotations

import numpy as np

from dynatops.kit.compiled import kernel
from reconfig_manager.storing.network import ROUNDING, Flags, Floats, Ints


@kernel
def preorder(parents: Ints, order: Ints, above: Ints, size: Ints) -> None:
    """Of one target's ways: the brokers in preorder, and by these numbers the parent of each and
    how many are behind it, itself included. Children come in the order of their numbers."""
    brokers = parents.shape[0]
    first_child = np.full(brokers, -1, dtype=np.int32)
    next_child = np.full(brokers, -1, dtype=np.int32)
    root = -1
    for reverse in range(brokers):
        broker = brokers - 1 - reverse
        parent = parents[broker]
        if parent < 0:
            root = broker
        else:
            next_child[broker] = first_child[parent]
            first_child[parent] = broker
    number = np.empty(brokers, dtype=np.int32)
    waiting = np.empty(brokers, dtype=np.int32)
    waiting[0] = root
    ahead, found = 1, 0
    while ahead > 0:
        ahead -= 1
        broker = waiting[ahead]
        order[found] = broker
        number[broker] = found
        above[found] = -1 if broker == root else number[parents[broker]]
        found += 1
        # The last child goes in first, to come out last.
        begin = ahead
        child = first_child[broker]
        while child >= 0:
            waiting[ahead] = child
            ahead += 1
            child = next_child[child]
        low, high = begin, ahead - 1
        while low < high:
            waiting[low], waiting[high] = waiting[high], waiting[low]
            low += 1
            high -= 1
    for at in range(brokers):
        size[at] = 1
    for reverse in range(brokers - 1):
        at = brokers - 1 - reverse
        size[above[at]] += size[at]


@kernel
def count_picks_on_the_way(
    requests: Floats,
    replicas: Ints,
    eligible: Flags,
    depth: Floats,
    order: Ints,
    above: Ints,
    size: Ints,
    weight: float,
    counts: Floats,
) -> None:
    """Add `weight` to counts[topic, pick] for all picks of all topics, with one target.

    `depth` is the distance to the target, by numbers of the preorder.
    """
    brokers = order.shape[0]
    flow = np.empty(brokers)
    left = np.empty(brokers)
    picked = np.empty(brokers, dtype=np.bool_)
    for topic in range(requests.shape[0]):
        for at in range(brokers):
            flow[at] = requests[topic, order[at]]
            left[at] = depth[at] if eligible[order[at]] else 0.0
            picked[at] = False
        for reverse in range(brokers - 1):
            at = brokers - 1 - reverse
            flow[above[at]] += flow[at]
        least = 0.0
        for at in range(1, brokers):
            least = max(least, ROUNDING * flow[at] * left[at])
        for _ in range(replicas[topic]):
            # The first of equals is the broker of the lowest number.
            best, gain = -1, least
            for at in range(1, brokers):
                here = flow[at] * left[at]
                if here > gain or (here == gain and best >= 0 and order[at] < order[best]):
                    best, gain = at, here
            if best < 0:
                break
            counts[topic, order[best]] += weight
            picked[best] = True
            taken = flow[best]
            at = above[best]
            while at > 0:
                flow[at] -= taken
                if picked[at]:
                    break
                at = above[at]
            for at in range(best, best + size[best]):
                nearer = depth[at] - depth[best]
                left[at] = min(left[at], nearer)


@kernel
def count_picks_of_the_nearest(
    requests: Floats,
    replicas: Ints,
    distances: Floats,
    target: int,
    first_gains: Floats,
    weight: float,
    counts: Floats,
) -> None:
    """The same where every request goes to the nearest pick; `first_gains` is [topic, broker].

    A pick changes the gains of others by those requests alone that go to it from then on.
    """
    brokers = distances.shape[0]
    away = np.empty(brokers)
    for topic in range(requests.shape[0]):
        gains = first_gains[topic]
        least = ROUNDING * gains.max()
        for broker in range(brokers):
            away[broker] = distances[broker, target]
        for _ in range(replicas[topic]):
            best, most = -1, least
            for broker in range(brokers):
                if gains[broker] > most:
                    best, most = broker, gains[broker]
            if best < 0:
                break
            counts[topic, best] += weight
            for broker in range(brokers):
                before, after = away[broker], distances[broker, best]
                asked = requests[topic, broker]
                if after < before:
                    away[broker] = after
                    if asked > 0.0:
                        for other in range(brokers):
                            there = distances[broker, other]
                            gains[other] -= asked * (
                                max(0.0, before - there) - max(0.0, after - there)
                            )
            gains[best] = 0.0
