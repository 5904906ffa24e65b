"""The `Selection` that brokers run, one for each broker: the plain twin of `SimilaritySelection`.

Both are to say the same of every change (`tests/property/test_shipped_selection.py`). This one
takes a tenth of a millisecond for each, so it is for small runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np

from broker_agent.core.selection.selection import Selection, User
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.v1.selection_pb2 import BrokerSummary
from experiments.systems.selections import (
    HOUR_S,
    BrokerChange,
    BrokerChanges,
    broker_chance,
    exchange_period_s,
    homes,
)
from experiments.systems.system import Ints
from experiments.workloads.workload import UserChange, UserChanges, Workload
from overlay.base.identifiers import key_of


@cache
def _key(topic: int) -> int:
    return key_of(f"topic {topic}")


class ShippedSelection:
    def __init__(
        self,
        workload: Workload,
        clusters: Sequence[Ints],
        settings: SelectionSettings,
        seed: int,
        *,
        counts_itself: bool = False,
    ) -> None:
        self._counts_itself = counts_itself
        brokers = len(workload.sites)
        self.messages = 0
        self.handovers = 0
        self.broker_of: Ints = np.full(workload.users, -1, dtype=np.int32)
        self.follows: list[frozenset[int]] = [frozenset()] * workload.users
        # [broker] topic -> users there who follow it.
        self._counts: list[Counter[int]] = [Counter() for _ in range(brokers)]
        self._rng = Random(f"selection {seed}")
        self._clusters = [cluster.tolist() for cluster in clusters]
        self._cluster_of = {b: n for n, cluster in enumerate(self._clusters) for b in cluster}
        self._has_places = workload.topics.places is not None
        self._broker_of_cell = workload.broker_of_cell.tolist()
        self._home = homes(workload, len(clusters), self._rng).tolist()
        self.brokers = [
            Selection(f"b{i}", str(i), 1, settings, broker_chance(seed, i)) for i in range(brokers)
        ]
        self._period_s = exchange_period_s(settings)
        self._now_s = 0.0
        self._exchanged_s = float("-inf")

    # ---- summaries ------------------------------------------------------------------------------

    def advance(self, at_h: float) -> None:
        """What is told is heard at once; all brokers tell in the order of their numbers."""
        self._now_s = at_h * HOUR_S
        if self._now_s < self._exchanged_s + self._period_s:
            return
        self._exchanged_s = self._now_s
        for cluster in self._clusters:
            if len(cluster) > 1:
                self._exchange(cluster)

    def _exchange(self, cluster: list[int]) -> None:
        told: list[BrokerSummary] = []
        for broker in cluster:
            summary = self.brokers[broker].summary(self._now_s)
            if summary is not None:
                told.append(summary)
        self.messages += len(told) * (len(cluster) - 1)
        for summary in told:
            for broker in cluster:
                self.brokers[broker].on_summary(summary, self._now_s)

    # ---- users ----------------------------------------------------------------------------------

    def apply(self, changes: UserChanges) -> BrokerChanges:
        return BrokerChanges.of([found for row in changes.rows() for found in self._apply(row)])

    def _apply(self, change: UserChange) -> list[BrokerChange]:
        user, before = change.user, int(self.broker_of[change.user])
        here = self._broker_of_cell[change.cell] if self._has_places else -1
        cluster = self._cluster_of[here] if here >= 0 else self._home[user]
        stays = before >= 0 and self._cluster_of[before] == cluster
        kept = self.follows[user].difference(change.dropped)
        follows = kept.union(change.added)
        if stays:
            asked = before
            # What it drops it has dropped when it asks.
            self.brokers[asked].local.remove(map(_key, change.dropped))
        else:
            asked = here if here >= 0 else self._rng.choice(self._clusters[cluster])
        held = [_key(topic) for topic in kept] if stays and not self._counts_itself else []
        choice = self.brokers[asked].choose(
            User(str(user), [_key(topic) for topic in follows], held), self._now_s
        )
        broker = int(choice.address)
        self._keep_local(change, broker, follows, kept if stays else self.follows[user])
        return self._settle(change, broker, follows)

    def _keep_local(
        self, change: UserChange, broker: int, follows: frozenset[int], left: frozenset[int]
    ) -> None:
        """What each `Selection` knows of its own users, kept as `_settle` keeps the counts."""
        before = int(self.broker_of[change.user])
        if broker == before:
            self.brokers[broker].local.add(map(_key, change.added))
            return
        self.brokers[broker].local.add(map(_key, follows))
        if before >= 0:
            self.brokers[before].local.remove(map(_key, left))

    def _settle(
        self, change: UserChange, broker: int, follows: frozenset[int]
    ) -> list[BrokerChange]:
        """The user is at this broker from now on."""
        user, before = change.user, int(self.broker_of[change.user])
        left = self.follows[user]
        self.follows[user] = follows
        self.broker_of[user] = broker
        if before == broker:
            return [
                *self._remove(broker, change.dropped),
                *self._add(broker, change.added),
            ]
        self.handovers += before >= 0
        found = self._add(broker, sorted(follows))
        return [*found, *self._remove(before, sorted(left))] if before >= 0 else found

    def _add(self, broker: int, topics: Sequence[int]) -> list[BrokerChange]:
        counts = self._counts[broker]
        new = [BrokerChange(broker, topic, True) for topic in topics if not counts[topic]]
        counts.update(topics)
        return new

    def _remove(self, broker: int, topics: Sequence[int]) -> list[BrokerChange]:
        counts = self._counts[broker]
        counts.subtract(topics)
        return [BrokerChange(broker, topic, False) for topic in topics if not counts[topic]]
