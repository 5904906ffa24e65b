"""Trees that are unions of routes from one root for each topic, on an overlay that does not change.

All that such a system needs to say is the next hop from each broker towards each other one, and
the root of each topic. Routes from one broker must form a tree: if the route to b passes a, then
the route to a is the beginning of it. `RouteTrees` refuses tables in which they do not.

What a change of a tree costs is the protocol's business: `changes` says how many links the tree
gained or lost, and `hops` how long routes are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from experiments.systems.route_tree_kernels import join, leave
from experiments.systems.subscriptions import SubscribedPairs
from experiments.systems.system import Dissemination, Floats, Ints, Pairs, Sites

Hops = NDArray[np.int32]


class RouteTrees:
    def __init__(self, next_hop: Ints, roots: Ints, sites: Sites) -> None:
        """`next_hop[here, target]` is `here` on the diagonal; `roots[topic]` is a broker."""
        self._next_hop = next_hop
        self._roots = roots
        # [from, to]
        self.hops, self._delays = _routes(next_hop, sites)
        distinct, self._row = np.unique(roots, return_inverse=True)
        self._parents = _parents(next_hop, distinct.astype(np.int32), self.hops)
        # [topic, broker] -> subscribing brokers whose route from the root ends there or passes it.
        self._counts: Ints = np.zeros((len(roots), len(sites)), dtype=np.int32)
        self._links = np.zeros(len(roots), dtype=np.int64)
        self._subscriptions = SubscribedPairs(len(sites), len(roots))

    def root_of(self, topic: int) -> int:
        return int(self._roots[topic])

    def route(self, start: int, end: int) -> list[int]:
        """The brokers from start to end, both included."""
        path = [start]
        while path[-1] != end:
            path.append(int(self._next_hop[path[-1], end]))
        return path

    def changes(self, joins: Pairs, leaves: Pairs) -> Iterator[tuple[int, int, int]]:
        """Broker, topic, and how many links its tree gained or lost: in the order of rule 2."""
        for broker, topic, joining in self._subscriptions.changes(joins, leaves):
            walk = join if joining else leave
            links = walk(self._counts[topic], self._parents[self._row[topic]], broker)
            self._links[topic] += links if joining else -links
            yield broker, topic, links

    def publish(self, publisher: int, topic: int) -> Dissemination:
        """To the root, and from there down the whole tree: back to the publisher, too, if it
        subscribes."""
        root = self.root_of(topic)
        brokers = self._subscriptions.of_topic(topic)
        delays = self._delays[publisher, root] + self._delays[root, brokers]
        return Dissemination(
            int(self.hops[publisher, root]), int(self._links[topic]), brokers, np.asarray(delays)
        )

    @property
    def greatest_degree(self) -> int:
        """By whom a broker knows: links that only the other end has a use for are not counted."""
        return max(len(np.unique(row[row != here])) for here, row in enumerate(self._next_hop))


def _routes(next_hop: Ints, sites: Sites) -> tuple[Hops, Floats]:
    """Hops and delays of all routes."""
    size = len(sites)
    everybody = np.arange(size, dtype=np.int32)
    target = np.broadcast_to(everybody, (size, size))
    at = np.broadcast_to(everybody[:, None], (size, size)).copy()
    hops = np.zeros((size, size), dtype=np.int32)
    delays = np.zeros((size, size))
    under_way = at != target
    for _ in range(size):
        if not under_way.any():
            return hops, delays
        here, there = at[under_way], target[under_way]
        onward = next_hop[here, there]
        delays[under_way] += sites.delays(here, onward)
        hops[under_way] += 1
        at[under_way] = onward
        under_way = at != target
    raise ValueError("some route never arrives")


def _parents(next_hop: Ints, roots: Ints, hops: Hops) -> Ints:
    """[row of the root, broker] -> the last broker before it on the route from the root; -1 at
    the root."""
    size = next_hop.shape[0]
    target = np.broadcast_to(np.arange(size, dtype=np.int32), (len(roots), size))
    at = np.broadcast_to(roots[:, None], (len(roots), size)).copy()
    parents = np.full((len(roots), size), -1, dtype=np.int32)
    under_way = at != target
    while under_way.any():
        here = at[under_way]
        parents[under_way] = here
        at[under_way] = next_hop[here, target[under_way]]
        under_way = at != target
    rows, brokers = np.nonzero(parents >= 0)
    above = parents[rows, brokers]
    # A route that is no longer than that of its last broker but one has another beginning.
    if (hops[roots[rows], brokers] != hops[roots[rows], above] + 1).any():
        raise ValueError("routes from one broker do not form a tree")
    return parents
