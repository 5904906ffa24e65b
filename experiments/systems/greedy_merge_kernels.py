"""Greedy Merge, and the way of an event through a topic-connected overlay, compiled.

What is merged is counted in `gains[a, b]`: in how many topics a link between a and b would join two
components. It only ever falls, and only for pairs in the two components that a new link joined. So
links of the greatest gain can be taken in one go over all pairs: whoever has fallen behind by the
time it is looked at is found again with what is left to it. That is O(V^2 T) in all, as with the
buckets of the paper, in less memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynatops.kit.compiled import kernel
from experiments.systems.system import Floats, Ints

Links = NDArray[np.bool_]
_NONE = -1


@kernel
def merge(table: Links, links: Links, allowed: Links, preferred: Links) -> None:
    """Add to `links` until no pair that is allowed joins components of any topic.

    `table[topic, broker]` says who subscribes. The pair of the greatest gain is next; of equals the
    preferred, and of these the first.
    """
    components = _components(table, links)
    gains = _gains(components, allowed)
    brokers = links.shape[0]
    while True:
        greatest = gains.max()
        if greatest == 0:
            return
        for preferring in (True, False):
            for a in range(brokers):
                for b in range(a + 1, brokers):
                    if gains[a, b] == greatest and preferred[a, b] == preferring:
                        links[a, b] = links[b, a] = True
                        _join(components, gains, allowed, a, b)


@kernel
def _components(table: Links, links: Links) -> Ints:
    """[broker, topic] -> a number that brokers share whom links of this topic connect; -1 where the
    broker does not subscribe."""
    topics, brokers = table.shape
    components = np.full((brokers, topics), _NONE, dtype=np.int32)
    waiting = np.empty(brokers, dtype=np.int32)
    for topic in range(topics):
        for first in range(brokers):
            if not table[topic, first] or components[first, topic] != _NONE:
                continue
            components[first, topic] = first
            waiting[0] = first
            depth = 1
            while depth > 0:
                depth -= 1
                broker = waiting[depth]
                for other in range(brokers):
                    if not links[broker, other] or not table[topic, other]:
                        continue
                    if components[other, topic] == _NONE:
                        components[other, topic] = first
                        waiting[depth] = other
                        depth += 1
    return components


@kernel
def _gains(components: Ints, allowed: Links) -> Ints:
    """[a, b], a < b; 0 where the pair is not allowed."""
    brokers, topics = components.shape
    gains = np.zeros((brokers, brokers), dtype=np.int32)
    for a in range(brokers):
        for b in range(a + 1, brokers):
            if allowed[a, b]:
                gain = 0
                for topic in range(topics):
                    of_a, of_b = components[a, topic], components[b, topic]
                    if of_a != of_b and of_a != _NONE and of_b != _NONE:
                        gain += 1
                gains[a, b] = gain
    return gains


@kernel
def _join(components: Ints, gains: Ints, allowed: Links, a: int, b: int) -> None:
    brokers, topics = components.shape
    for topic in range(topics):
        of_a, of_b = components[a, topic], components[b, topic]
        if of_a == of_b or _NONE in (of_a, of_b):
            continue
        for one in range(brokers):
            if components[one, topic] != of_a:
                continue
            for other in range(brokers):
                if components[other, topic] == of_b:
                    low, high = min(one, other), max(one, other)
                    if allowed[low, high]:
                        gains[low, high] -= 1
        for other in range(brokers):
            if components[other, topic] == of_b:
                components[other, topic] = of_a


@kernel
def connected(members: Links, links: Links) -> bool:
    """Whether links among these brokers connect all of them."""
    brokers = links.shape[0]
    reached = np.zeros(brokers, dtype=np.bool_)
    waiting = np.empty(brokers, dtype=np.int32)
    depth = 0
    left = 0
    for broker in range(brokers):
        if members[broker]:
            left += 1
            if depth == 0:
                waiting[0] = broker
                reached[broker] = True
                depth = 1
    while depth > 0:
        depth -= 1
        left -= 1
        broker = waiting[depth]
        for other in range(brokers):
            if links[broker, other] and members[other] and not reached[other]:
                reached[other] = True
                waiting[depth] = other
                depth += 1
    return left == 0


@kernel
def earliest(members: Links, links: Links, rtt_ms: Floats, start: int) -> Floats:
    """[broker] -> when an event that `start` has at 0 is there, over links among members; infinite
    where it never is (Dijkstra)."""
    brokers = links.shape[0]
    when = np.full(brokers, np.inf)
    settled = np.zeros(brokers, dtype=np.bool_)
    when[start] = 0.0
    while True:
        nearest = -1
        for broker in range(brokers):
            if settled[broker] or when[broker] == np.inf:
                continue
            if nearest < 0 or when[broker] < when[nearest]:
                nearest = broker
        if nearest < 0:
            return when
        settled[nearest] = True
        for other in range(brokers):
            if links[nearest, other] and members[other] and not settled[other]:
                when[other] = min(when[other], when[nearest] + rtt_ms[nearest, other])
