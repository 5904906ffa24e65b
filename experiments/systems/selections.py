"""How users come to their brokers: by chance, by place, or by the selection that brokers run.

A selection is told each change of a user, and says what it is to brokers: which begin and cease to
subscribe to which topics, in order. It counts what it costs: messages within clusters (subscription
management, DYNATOPS III-B), and handovers, a user who was at one broker and is now at another.

There are millions of changes at full scale: they are gone through by kernels. Of the selection that
brokers run, `shipped_selection.py` is the plain twin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from broker_agent.core.selection.selection_settings import SelectionSettings
from experiments.systems import selection_kernels as kernels
from experiments.systems.selection_kernels import Flags, Randoms
from experiments.systems.system import Floats, Ints
from experiments.workloads.workload import UserChanges, Workload

HOUR_S = 3600.0


class BrokerChange(NamedTuple):
    broker: int
    topic: int
    joins: bool


class BrokerChanges(NamedTuple):
    """Changes one after the other, in columns."""

    brokers: Ints
    topics: Ints
    joins: Flags

    @classmethod
    def of(cls, rows: Sequence[BrokerChange]) -> BrokerChanges:
        return cls(
            np.array([row.broker for row in rows], dtype=np.int32),
            np.array([row.topic for row in rows], dtype=np.int32),
            np.array([row.joins for row in rows], dtype=np.bool_),
        )

    def taken(self, which: slice | NDArray[np.int64]) -> BrokerChanges:
        return BrokerChanges(self.brokers[which], self.topics[which], self.joins[which])

    @property
    def size(self) -> int:
        return len(self.brokers)

    def rows(self) -> Iterator[BrokerChange]:
        columns = (column.tolist() for column in self)
        return (BrokerChange(*row) for row in zip(*columns, strict=True))


class UserSelection(Protocol):
    messages: int

    @property
    def handovers(self) -> int: ...

    @property
    def broker_of(self) -> Ints:
        """[user] -> its broker; -1: it has not come yet."""

    def advance(self, at_h: float) -> None:
        """Time passes until here: brokers tell each other what they tell."""

    def apply(self, changes: UserChanges) -> BrokerChanges:
        """Users change, one after the other; perhaps they move."""

    def loads(self) -> Ints:
        """[broker] -> subscriptions of its users."""

    def interests(self) -> tuple[Ints, Ints]:
        """A user and a topic that it follows, for all of them, by topic."""


class _PlacedUsers:
    """Users at brokers, with what they follow; moving is with all of it: first there, then no
    more here, so that nothing is missed."""

    def __init__(self, workload: Workload) -> None:
        users, brokers, topics = workload.users, len(workload.sites), len(workload.topics)
        self.messages = 0
        self._placed = kernels.Placed(
            broker_of=np.full(users, -1, dtype=np.int32),
            follows=np.zeros((users, workload.follows_max), dtype=np.int32),
            sizes=np.zeros(users, dtype=np.int32),
            counts=np.zeros((brokers, topics), dtype=np.int32),
            loads=np.zeros(brokers, dtype=np.int32),
            held=np.zeros(brokers, dtype=np.int32),
            changes=np.zeros(brokers, dtype=np.int32),
            handovers=np.zeros(1, dtype=np.int32),
        )

    @property
    def handovers(self) -> int:
        return int(self._placed.handovers[0])

    @property
    def broker_of(self) -> Ints:
        return self._placed.broker_of

    def advance(self, at_h: float) -> None:
        """Nobody tells anybody anything."""

    def loads(self) -> Ints:
        return self._placed.loads.copy()

    def interests(self) -> tuple[Ints, Ints]:
        follows, sizes = self._placed.follows, self._placed.sizes
        is_one = np.arange(follows.shape[1])[None, :] < sizes[:, None]
        users, topics = np.nonzero(is_one)[0].astype(np.int32), follows[is_one]
        order = np.argsort(topics, kind="stable")
        return users[order], topics[order]

    def _found(self, changes: UserChanges) -> kernels.ChangeLog:
        """Room for all that can come of these."""
        most = 2 * self._placed.follows.shape[1] * changes.size
        return kernels.ChangeLog(
            np.empty(most, dtype=np.int32),
            np.empty(most, dtype=np.int32),
            np.empty(most, dtype=np.bool_),
            np.zeros(1, dtype=np.int32),
        )

    def _settle(self, changes: UserChanges, brokers: Ints) -> BrokerChanges:
        """Each user that changes is at the broker named for it from now on."""
        found = self._found(changes)
        kernels.settle_all(self._placed, found, changes.users, brokers, *changes[2:])
        return _told(found)


def _told(found: kernels.ChangeLog) -> BrokerChanges:
    size = int(found.size[0])
    return BrokerChanges(
        found.brokers[:size].copy(), found.topics[:size].copy(), found.joins[:size].copy()
    )


class StaticSelection(_PlacedUsers):
    """Every user has a broker for ever, drawn by chance."""

    def __init__(self, workload: Workload, seed: int) -> None:
        super().__init__(workload)
        rng = np.random.default_rng([seed, 10])
        self._drawn = rng.integers(len(workload.sites), size=workload.users).astype(np.int32)

    def apply(self, changes: UserChanges) -> BrokerChanges:
        return self._settle(changes, self._drawn[changes.users])


class PlaceSelection(_PlacedUsers):
    """The broker that is responsible for the cell where the user is ('location-based')."""

    def __init__(self, workload: Workload, broker_of_cell: Ints) -> None:
        super().__init__(workload)
        self._broker_of_cell = broker_of_cell

    def apply(self, changes: UserChanges) -> BrokerChanges:
        return self._settle(changes, self._broker_of_cell[changes.cells])


# ---- similarity ----------------------------------------------------------------------------------

# As published: nothing but utilities decides, and who was moved may move again at once.
# `load_weight` is w_l times the cluster's brokers.
PUBLISHED = SelectionSettings(
    update_period_s=6 * HOUR_S,
    stale_after_s=13 * HOUR_S,
    early_share=0.0,
    load_floor=0,
    advice_weight=0.0,
    margin=0.0,
    join_margin=0.0,
    min_stay_s=math.ulp(0.0),
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
    min_stay_s=math.ulp(0.0),
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


def check_settings(settings: SelectionSettings, workload: Workload, cluster_size: int) -> None:
    """`ValueError` where the kernels would say something else than `Selection`."""
    unlimited = 1_000_000_000
    if not (
        settings.enabled
        and settings.min_stay_s < 1e-9
        and min(settings.moves_per_s, settings.moves_burst) >= unlimited
        and settings.sent_per_update_max >= unlimited
        and settings.summary_keys_max >= len(workload.topics)
        and settings.interests_max >= workload.follows_max
        and settings.cluster_size_max >= cluster_size
        and settings.stale_after_s >= settings.update_period_s + HOUR_S
    ):
        raise ValueError(f"limits that are not computed here: {settings}")


def homes(workload: Workload, clusters: int, rng: Random) -> Ints:
    """[user] -> its cluster, where there are no places."""
    return np.array([rng.randrange(clusters) for _ in range(workload.users)], dtype=np.int32)


def exchange_period_s(settings: SelectionSettings) -> float:
    """How often it is looked at who has something to tell."""
    return max(settings.early_period_s if settings.early_share else 0.0, HOUR_S)


class SimilaritySelection(_PlacedUsers):
    """What the `Selection` that brokers run says, at each of them (DYNATOPS III-B, Algorithm 1).

    A user belongs to a cluster: that of the broker of the cell where it is or, where there are no
    places, one drawn by chance. It asks its broker, or, when it comes into a cluster, the broker of
    its cell, or any; and that one says where the user had better be. Every update period each
    broker tells the others of its cluster its topics and load: a message to each.

    S_b of the paper is what b subscribes to: of the broker where the user is already, its own
    topics are among that, and so is its load (`counts_itself`). Brokers that ship leave both out,
    and have margins instead.
    """

    def __init__(
        self,
        workload: Workload,
        clusters: Sequence[Ints],
        settings: SelectionSettings,
        seed: int,
        *,
        counts_itself: bool = False,
    ) -> None:
        super().__init__(workload)
        self._counts_itself = counts_itself
        check_settings(settings, workload, max(map(len, clusters)))
        self._rules = kernels.Rules(
            *(settings.load_weight, float(settings.load_floor)),
            *(settings.margin, settings.join_margin),
            *(settings.update_period_s, settings.early_share, settings.early_period_s),
        )
        self._has_places = workload.topics.places is not None
        self._broker_of_cell = workload.broker_of_cell
        rng = Random(f"selection {seed}")
        self._home = homes(workload, len(clusters), rng)
        self._chance = _states([rng])[0]
        self._told = _untold(clusters, len(workload.topics), seed)
        self._period_s = exchange_period_s(settings)
        self._exchanged_s = float("-inf")

    def advance(self, at_h: float) -> None:
        """What is told is heard at once."""
        now_s = at_h * HOUR_S
        if now_s >= self._exchanged_s + self._period_s:
            self._exchanged_s = now_s
            self.messages += kernels.exchange(self._told, self._placed, self._rules, now_s)

    def apply(self, changes: UserChanges) -> BrokerChanges:
        found = self._found(changes)
        if self._has_places:
            here = self._broker_of_cell[changes.cells]
        else:
            here = np.full(changes.size, -1, dtype=np.int32)
        kernels.select_all(
            self._placed,
            self._told,
            self._rules,
            found,
            changes.users,
            here,
            self._home,
            self._chance,
            self._counts_itself,
            *changes[2:],
        )
        return _told(found)


def _untold(clusters: Sequence[Ints], topics: int, seed: int) -> kernels.Told:
    brokers, most = sum(map(len, clusters)), max(map(len, clusters))
    members = np.full((len(clusters), most), -1, dtype=np.int32)
    cluster_of, index_of = np.zeros((2, brokers), dtype=np.int32)
    for number, cluster in enumerate(clusters):
        members[number, : len(cluster)] = cluster
        cluster_of[cluster] = number
        index_of[cluster] = np.arange(len(cluster))
    return kernels.Told(
        members=members,
        sizes=np.array([len(cluster) for cluster in clusters], dtype=np.int32),
        cluster_of=cluster_of,
        index_of=index_of,
        topics=np.zeros((len(clusters), topics, most), dtype=np.bool_),
        loads=np.zeros(brokers, dtype=np.int32),
        told_s=np.full(brokers, -np.inf),
        number=np.zeros(brokers, dtype=np.int32),
        changes=np.zeros(brokers, dtype=np.int32),
        sent=np.zeros((brokers, topics, most), dtype=np.int32),
        sent_loads=np.zeros((brokers, most), dtype=np.int32),
        random=_states([broker_chance(seed, broker) for broker in range(brokers)]),
    )


def broker_chance(seed: int, broker: int) -> Random:
    return Random(f"{seed} {broker}")


def _states(generators: Sequence[Random]) -> Randoms:
    return np.array([rng.getstate()[1] for rng in generators], dtype=np.uint32)
