"""A topic-connected overlay that is mended whenever some topic is no longer connected (TCO).

DYNATOPS (IV-B) mends it 'by running the DCB-M algorithm for partitions of nodes having changed
subscriptions', and takes the number of links that change as the cost. Read so: brokers are divided
at random, once; when changes of one instant leave a topic in pieces, all links that end in a part
with a broker whose subscriptions changed since the last time, or at such a broker that belongs to
no part, are found anew (`greedy_merge.divide_and_conquer`); all others stay.

Choices:

- How many parts, and from which share of all topics on a broker is bulk: not in DYNATOPS. Ten
  parts, half of the topics. With as many parts as brokers nothing but the changed brokers' own
  links is found anew, which is the other way to read that sentence. Where users are on brokers by
  chance, as in the Poisson workload, nearly every broker is bulk: without bulk is another system.
- No links are taken away while everything is connected: they would be counted, and help nobody.
- A broker has to know what its neighbours subscribe to, or it could not tell whom to hand an event
  to: each change is told to every neighbour of the broker, and this is all its subscription
  management, since the links are computed by somebody who knows everything.
- An event goes along the tree of first arrivals: each subscribing broker gets one copy, the
  soonest that links among subscribers allow. `flooding` counts every copy that goes out instead:
  each broker sends to all neighbours who subscribe, but not back to where its first came from.
- A publisher that does not subscribe sends to the nearest broker that does: TCO has no way for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.systems.greedy_merge import ALONE, all_connected, divide_and_conquer
from experiments.systems.greedy_merge_kernels import Links, earliest
from experiments.systems.subscriptions import SubscribedPairs
from experiments.systems.system import Dissemination, Ints, Pairs, Sites, Topics, Upkeep


@dataclass(frozen=True, slots=True)
class Division:
    """How brokers are divided when links are found. One part without bulk: plain Greedy Merge."""

    parts: int = 10
    # A broker that subscribes to more than this share of all topics is in no part; 1: none is.
    bulk_share: float = 0.5
    representatives: bool = False


class TopicConnected:
    def __init__(
        self,
        sites: Sites,
        topics: Topics,
        seed: int = 0,
        *,
        division: Division | None = None,
        flooding: bool = False,
    ) -> None:
        size = len(sites)
        self._sites = sites
        self._subscriptions = SubscribedPairs(size, len(topics))
        self._division = division or Division()
        # Parts differ by one broker at most.
        shuffled = np.random.default_rng(seed).permutation(size)
        self._parts: Ints = (shuffled % self._division.parts).astype(np.int32)
        self._flooding = flooding
        # Whose subscriptions changed since links were last found.
        self._changed: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        # [a, b], symmetric.
        self.links: Links = np.zeros((size, size), dtype=np.bool_)

    def change(self, joins: Pairs, leaves: Pairs) -> Upkeep:
        changes = list(self._subscriptions.changes(joins, leaves))
        self._changed[[broker for broker, _topic, _joining in changes]] = True
        touched = np.unique(np.array([t for _broker, t, _joining in changes], dtype=np.int32))
        links_changed = 0
        if not all_connected(self._subscriptions.table, self.links, touched):
            links_changed = self._mend()
        degrees = self.links.sum(axis=0)
        told = sum(int(degrees[broker]) for broker, _topic, _joining in changes)
        return Upkeep(told, links_changed)

    def _mend(self) -> int:
        table = self._subscriptions.table
        # Its part is found anew, too, if a broker is bulk from now on, or no longer.
        anew = self._changed | np.isin(self._parts, self._parts[self._changed])
        bulk = table.sum(axis=0) > self._division.bulk_share * len(table)
        anew &= ~bulk | self._changed
        found = divide_and_conquer(
            table,
            np.where(bulk, ALONE, self._parts).astype(np.int32),
            anew,
            self.links,
            representatives=self._division.representatives,
        )
        changed = int(np.triu(found ^ self.links).sum())
        self.links = found
        self._changed[:] = False
        return changed

    def publish(self, publisher: int, topic: int) -> Dissemination:
        members = self._subscriptions.table[topic]
        brokers = self._subscriptions.of_topic(topic)
        if not brokers.size:
            return Dissemination(0, 0, brokers, np.zeros(0))
        first, away = publisher, 0.0
        if not members[publisher]:
            first = int(brokers[self._sites.rtt_ms[publisher, brokers].argmin()])
            away = float(self._sites.rtt_ms[publisher, first])
        when = earliest(members, self.links, self._sites.rtt_ms, first)
        spread = len(brokers) - 1
        if self._flooding:
            spread = int(self.links[np.ix_(brokers, brokers)].sum()) - spread
        return Dissemination(int(first != publisher), spread, brokers, away + when[brokers])

    @property
    def greatest_degree(self) -> int:
        return int(self.links.sum(axis=0).max())
