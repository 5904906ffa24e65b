"""On how many stores a topic is (k_t), and how many stores that takes (M).

Planning has k_t in proportion to the topic's weight, and lost in print whether it is rounded up or
down: down is taken, as that is what never exceeds the places that there are (eq. 4). Unbounded,
k_t exceeds M as soon as one topic is much more popular than others: it is bounded by M, and what is
left over so goes to nobody.
"""

from __future__ import annotations

import math

import numpy as np

from reconfig_manager.storing.network import ROUNDING, Floats, Ints


def replicas_by_minimum(weights: Floats, least: int, most: int) -> Ints:
    """k_t = floor(w_t / w_t' x min_k), t' the topic of the least weight; `most` at most."""
    asked = weights[weights > 0]
    if not len(asked):
        return np.full(len(weights), min(least, most), dtype=np.int32)
    shares = np.floor(weights / asked.min() * least + ROUNDING)
    replicas: Ints = np.clip(shares, min(least, most), most).astype(np.int32)
    return replicas


def replicas_by_places(weights: Floats, places: int, least: int, most: int) -> Ints:
    """Each topic's share of the places that M stores have, between `least` and `most`.

    Should the least of all not fit, those with most give up one after the other.
    """
    shares = np.floor(weights * places + ROUNDING)
    replicas: Ints = np.clip(shares, min(least, most), most).astype(np.int32)
    while int(replicas.sum()) > places and int(replicas.max()) > 1:
        replicas[int(np.argmax(replicas))] -= 1
    return replicas


def stores_needed(replicas: Ints, capacity: int) -> int:
    """The least M that has places for all replicas, with those of one topic on different stores."""
    return max(math.ceil(int(replicas.sum()) / capacity), int(replicas.max()))
