"""Bayeux (Zhuang, Zhao, Joseph, Katz, Kubiatowicz, NOSSDAV 2001): one tree for each topic on
Tapestry's mesh, with ids that never change.

A member's JOIN is routed to the topic's root, which answers with a TREE along its own route to the
member: the forward path. Every broker on it keeps the member's id, and hands a copy of each event
on for each next digit that some member's id needs, so copies part where ids part. A LEAVE goes to
the root in the same way and comes back as a PRUNE. Nothing is cut short where a branch exists
already: the root has to hear of every member. Hence a change costs the route there and the route
back, whatever the tree looks like.

Choices that the paper leaves open:

- A publisher is any broker, not the root alone (Bayeux is for one source, at the root): its event
  is routed to the root first, as in DYNATOPS.
- No replicated roots, and no clustering of members by identifier: DYNATOPS mentions neither.
- Broker ids are hashes of a name and of the seed; topics' keys are hashes of their names.
- Which broker a user is at is the selection's business: static and location-based users see the
  same network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.systems.route_trees import RouteTrees
from experiments.systems.system import Dissemination, Pairs, Sites, Topics, Upkeep
from experiments.systems.tapestry import Ids, ids_of_keys, next_hops, surrogate_root
from overlay.base.identifiers import key_of


class Bayeux:
    """`proximity`: tables hold the nearest candidates (PNS) instead of any."""

    def __init__(
        self, sites: Sites, topics: Topics, seed: int = 0, *, proximity: bool = False
    ) -> None:
        ids = _ids([f"{seed}/broker/{broker}" for broker in range(len(sites))])
        keys = _ids(topics.names)
        roots = np.array([surrogate_root(ids, key) for key in keys], dtype=np.int32)
        drawn = np.random.default_rng(seed).random((len(sites), len(sites)))
        self._trees = RouteTrees(next_hops(ids, sites.rtt_ms if proximity else drawn), roots, sites)

    def change(self, joins: Pairs, leaves: Pairs) -> Upkeep:
        hops, messages = self._trees.hops, 0
        for broker, topic, _links in self._trees.changes(joins, leaves):
            root = self._trees.root_of(topic)
            messages += int(hops[broker, root] + hops[root, broker])
        return Upkeep(messages)

    def publish(self, publisher: int, topic: int) -> Dissemination:
        return self._trees.publish(publisher, topic)

    @property
    def greatest_degree(self) -> int:
        return self._trees.greatest_degree


def _ids(names: Sequence[str]) -> Ids:
    return ids_of_keys(np.array([key_of(name) for name in names], dtype=np.uint64))
