"""How users come to their brokers: by chance, by place, or by the selection that brokers run.

A selection is told each change of a user, and says what it is to brokers: which begin and cease to
subscribe to which topics, in order. It counts what it costs: messages within clusters (subscription
management, DYNATOPS III-B), and handovers, a user who was at one broker and is now at another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from random import Random
from typing import NamedTuple, Protocol

import numpy as np

from broker_agent.core.selection.selection import Selection, User
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.v1.selection_pb2 import BrokerSummary
from experiments.systems.system import Floats, Ints
from experiments.workloads.workload import UserChange
from overlay.base.identifiers import key_of

HOUR_S = 3600.0


class BrokerChange(NamedTuple):
    broker: int
    topic: int
    joins: bool


class UserSelection(Protocol):
    messages: int
    handovers: int
    # [user] -> its broker; -1: it has not come yet.
    broker_of: Ints

    def advance(self, at_h: float) -> None:
        """Time passes until here: brokers tell each other what they tell."""

    def apply(self, change: UserChange) -> list[BrokerChange]:
        """A user changes; perhaps it moves."""

    def loads(self) -> Ints:
        """[broker] -> subscriptions of its users."""

    def interests(self) -> tuple[Ints, Ints]:
        """A user and a topic that it follows, for all of them, by topic."""


class _PairCounts:
    """How many users of each broker subscribe to each topic."""

    def __init__(self, brokers: int) -> None:
        self._counts: list[dict[int, int]] = [{} for _ in range(brokers)]
        self.loads = np.zeros(brokers, dtype=np.int32)

    def add(self, broker: int, topics: Sequence[int], out: list[BrokerChange]) -> None:
        counts = self._counts[broker]
        for topic in topics:
            before = counts.get(topic, 0)
            counts[topic] = before + 1
            if not before:
                out.append(BrokerChange(broker, topic, True))
        self.loads[broker] += len(topics)

    def remove(self, broker: int, topics: Sequence[int], out: list[BrokerChange]) -> None:
        counts = self._counts[broker]
        for topic in topics:
            counts[topic] -= 1
            if not counts[topic]:
                del counts[topic]
                out.append(BrokerChange(broker, topic, False))
        self.loads[broker] -= len(topics)


class _PlacedUsers:
    """Users at brokers, with what they follow; moving is with all of it: first there, then no
    more here, so that nothing is missed."""

    def __init__(self, users: int, brokers: int) -> None:
        self.messages = 0
        self.handovers = 0
        self.broker_of = np.full(users, -1, dtype=np.int32)
        self._counts = _PairCounts(brokers)
        self._follows: list[frozenset[int]] = [frozenset()] * users

    def loads(self) -> Ints:
        return self._counts.loads.copy()

    def interests(self) -> tuple[Ints, Ints]:
        sizes = np.fromiter(map(len, self._follows), dtype=np.int64, count=len(self._follows))
        users = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        topics = np.fromiter(chain.from_iterable(self._follows), dtype=np.int32, count=len(users))
        order = np.argsort(topics, kind="stable")
        return users[order], topics[order]

    def _settle(self, change: UserChange, broker: int) -> list[BrokerChange]:
        """The user is at this broker from now on."""
        out: list[BrokerChange] = []
        user, before = change.user, int(self.broker_of[change.user])
        held = self._follows[user]
        follows = held.difference(change.dropped).union(change.added)
        self._follows[user] = follows
        if before == broker:
            self._counts.remove(broker, change.dropped, out)
            self._counts.add(broker, change.added, out)
            return out
        self._counts.add(broker, sorted(follows), out)
        if before >= 0:
            self._counts.remove(before, sorted(held), out)
            self.handovers += 1
        self.broker_of[user] = broker
        return out


class StaticSelection(_PlacedUsers):
    """Every user has a broker for ever, drawn by chance."""

    def __init__(self, users: int, brokers: int, seed: int) -> None:
        super().__init__(users, brokers)
        rng = np.random.default_rng([seed, 10])
        self._drawn = rng.integers(brokers, size=users).astype(np.int32)

    def advance(self, at_h: float) -> None:
        pass

    def apply(self, change: UserChange) -> list[BrokerChange]:
        return self._settle(change, int(self._drawn[change.user]))


class PlaceSelection(_PlacedUsers):
    """The broker that is responsible for the cell where the user is ('location-based')."""

    def __init__(self, users: int, brokers: int, broker_of_cell: Ints) -> None:
        super().__init__(users, brokers)
        self._broker_of_cell = broker_of_cell.tolist()

    def advance(self, at_h: float) -> None:
        pass

    def apply(self, change: UserChange) -> list[BrokerChange]:
        return self._settle(change, self._broker_of_cell[change.cell])


# ---- similarity ----------------------------------------------------------------------------------

# As published: nothing but utilities decides. `load_weight` is w_l times the cluster's brokers.
PUBLISHED = SelectionSettings(
    update_period_s=6 * HOUR_S,
    stale_after_s=13 * HOUR_S,
    early_share=0.0,
    load_floor=0,
    advice_weight=0.0,
    margin=0.0,
    join_margin=0.0,
    min_stay_s=1e-6,
    moves_per_s=1e9,
    moves_burst=1_000_000_000,
    sent_per_update_max=1_000_000_000,
)
# As shipped: with margins, and summaries before their time; times as in the published line, as the
# workloads go by hours and not by seconds.
SHIPPED = replace(
    SelectionSettings(),
    update_period_s=PUBLISHED.update_period_s,
    stale_after_s=PUBLISHED.stale_after_s,
    early_period_s=HOUR_S,
    min_stay_s=1e-6,
    moves_per_s=1e9,
    moves_burst=1_000_000_000,
    sent_per_update_max=1_000_000_000,
)


def place_clusters(places: Floats, size: int) -> list[Ints]:
    """Brokers in clusters of this size that lie together: the longer side is cut in two, again and
    again. One of them may be smaller."""

    def cut(members: Ints) -> list[Ints]:
        if len(members) <= size:
            return [members]
        spans = np.ptp(places[members], axis=0)
        order = np.lexsort((members, *(places[members][:, [1, 0]] if spans[0] >= spans[1] else
                                       places[members]).T))  # fmt: skip
        clusters = -(-len(members) // size)
        first = members[order][: size * (clusters // 2)]
        return [*cut(first), *cut(members[order][len(first) :])]

    return cut(np.arange(len(places), dtype=np.int32))


def chance_clusters(brokers: int, size: int, seed: int) -> list[Ints]:
    order = np.random.default_rng([seed, 11]).permutation(brokers).astype(np.int32)
    return [order[start : start + size] for start in range(0, brokers, size)]


@cache
def _key(topic: int) -> int:
    return key_of(f"topic {topic}")


class SimilaritySelection(_PlacedUsers):
    """The `Selection` that brokers run, one for each broker (DYNATOPS III-B, Algorithm 1).

    A user belongs to a cluster: that of the broker of the cell where it is or, where there are no
    places, one drawn by chance. It asks its broker, or, when it comes into a cluster, the broker of
    its cell, or any; and that one says where the user had better be. Every update period each
    broker tells the others of its cluster its topics and load: a message to each.
    """

    def __init__(
        self,
        users: int,
        clusters: Sequence[Ints],
        settings: SelectionSettings,
        seed: int,
        broker_of_cell: Ints | None = None,
    ) -> None:
        brokers = sum(map(len, clusters))
        super().__init__(users, brokers)
        self._rng = Random(f"selection {seed}")
        self._settings = settings
        self._clusters = [cluster.tolist() for cluster in clusters]
        self._cluster_of = [0] * brokers
        for number, cluster in enumerate(self._clusters):
            for broker in cluster:
                self._cluster_of[broker] = number
        # None: there are no places.
        self._broker_of_cell = None if broker_of_cell is None else broker_of_cell.tolist()
        self._home = [self._rng.randrange(len(clusters)) for _ in range(users)]
        self._brokers = [
            Selection(f"b{i}", str(i), 1, settings, Random(f"{seed} {i}")) for i in range(brokers)
        ]
        self._now_s = 0.0
        self._told_s = float("-inf")

    def advance(self, at_h: float) -> None:
        """What is told is heard at once; all brokers tell in the order of their numbers."""
        self._now_s = at_h * HOUR_S
        period_s = self._settings.early_period_s if self._settings.early_share else 0.0
        if self._now_s < self._told_s + max(period_s, HOUR_S):
            return
        self._told_s = self._now_s
        for cluster in self._clusters:
            if len(cluster) > 1:
                self._exchange(cluster)

    def _exchange(self, cluster: list[int]) -> None:
        told: list[BrokerSummary] = []
        for broker in cluster:
            summary = self._brokers[broker].summary(self._now_s)
            if summary is not None:
                told.append(summary)
        self.messages += len(told) * (len(cluster) - 1)
        for summary in told:
            for broker in cluster:
                self._brokers[broker].on_summary(summary, self._now_s)

    def apply(self, change: UserChange) -> list[BrokerChange]:
        user, before = change.user, int(self.broker_of[change.user])
        here = self._broker_of_cell[change.cell] if self._broker_of_cell is not None else -1
        cluster = self._cluster_of[here] if here >= 0 else self._home[user]
        stays = before >= 0 and self._cluster_of[before] == cluster
        held = self._follows[user].difference(change.dropped) if stays else frozenset[int]()
        follows = self._follows[user].difference(change.dropped).union(change.added)
        if stays:
            asked = before
            # It is no company to itself: what it drops it has dropped when it asks.
            self._brokers[asked].local.remove(map(_key, change.dropped))
        else:
            asked = here if here >= 0 else self._rng.choice(self._clusters[cluster])
        interests = [_key(topic) for topic in follows]
        choice = self._brokers[asked].choose(
            User(str(user), interests, [_key(topic) for topic in held]), self._now_s
        )
        broker = int(choice.address)
        self._keep_local(change, before, broker, asked if stays else -1, follows)
        return self._settle(change, broker)

    def _keep_local(
        self, change: UserChange, before: int, broker: int, asked: int, follows: frozenset[int]
    ) -> None:
        """What each `Selection` knows of its own users, kept as `_settle` keeps the counts."""
        if broker == before:
            self._brokers[broker].local.add(map(_key, change.added))
            return
        self._brokers[broker].local.add(map(_key, follows))
        if before >= 0:
            held = self._follows[change.user]
            gone = held.difference(change.dropped) if asked == before else held
            self._brokers[before].local.remove(map(_key, gone))
