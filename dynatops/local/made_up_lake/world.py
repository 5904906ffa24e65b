"""A made-up world for a generated lake: places, brokers, topics, and users with habits.

Brokers stand in cities, and so do users: each has a broker at home, one at work, and one where it
spends its free time, all in its city as a rule. Interests are multimodal (DYNATOPS IV-A, as in
`experiments.workloads`): topics lie in modes of ten, a user follows some topics of
one mode, a few are strays from anywhere; modes belong to cities, too, and most users have one of
their own.
Everything is an array; the same specification makes the same world.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from experiments.workloads.modes import MODE_TOPICS, topic_name
from overlay.base.identifiers import first_node_id, key_of

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

CITIES_MAX = 40
_BROKERS_PER_CITY = 5
# Of users, those whose mode is one of their city's.
_LOCAL = 0.7
_PAYLOAD_BYTES = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSpec:
    users: int = 10_000
    brokers: int = 100
    topics: int = 3_000
    days: int = 7
    # Of publications, about; the other tables are what users do.
    rows: int = 1_000_000
    topics_per_user: int = 5
    # Of one user, on average: to another broker, and of one topic for another.
    moves_per_day: float = 2.0
    changes_per_day: float = 0.5
    # Of changes, those that replace the mode; of topics taken up, those from anywhere.
    mode_changes: float = 0.05
    strays: float = 0.02
    # Modes have weights of 1 / rank ** skew.
    skew: float = 0.8
    # The first day, in UTC.
    start: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("users", "brokers", "topics", "days", "rows", "topics_per_user"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("moves_per_day", "changes_per_day", "mode_changes", "strays", "skew"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.topics % MODE_TOPICS:
            raise ValueError(f"topics come in modes of {MODE_TOPICS}: {self.topics} is no multiple")
        if self.topics_per_user > MODE_TOPICS:
            raise ValueError(f"topics_per_user is at most {MODE_TOPICS}, the topics of a mode")


class LakeWorld:
    def __init__(self, spec: LakeSpec, rng: np.random.Generator) -> None:
        self.spec = spec
        self._rng = rng
        cities = min(CITIES_MAX, max(1, spec.brokers // _BROKERS_PER_CITY))
        popularity = (1.0 + np.arange(cities)) ** -0.7
        self._city_share = popularity / popularity.sum()
        self._place_brokers(cities)
        self._make_topics(cities)
        self._settle_users()

    # ---- brokers --------------------------------------------------------------------------------

    def _place_brokers(self, cities: int) -> None:
        rng, brokers = self._rng, self.spec.brokers
        latitude = rng.uniform(-40.0, 60.0, cities)
        longitude = rng.uniform(-179.0, 179.0, cities)
        # Every city has one; sorted, those of a city are neighbours in the list.
        more = rng.choice(cities, brokers - cities, p=self._city_share)
        self.broker_city = np.sort(np.concatenate([np.arange(cities), more])).astype(np.int32)
        self.city_longitude = longitude
        self._first_broker = np.searchsorted(self.broker_city, np.arange(cities)).astype(np.int32)
        self._city_brokers = np.bincount(self.broker_city, minlength=cities).astype(np.int32)
        self.broker_names = [f"b{i}" for i in range(brokers)]
        offsets = rng.normal(0.0, 0.2, (2, brokers))
        self.broker_latitude = np.round(latitude[self.broker_city] + offsets[0], 4)
        self.broker_longitude = np.round(longitude[self.broker_city] + offsets[1], 4)

    def brokers_in(self, cities: Ints) -> Ints:
        """One of each of these cities, by chance."""
        chance = self._rng.random(len(cities))
        return self._first_broker[cities] + (chance * self._city_brokers[cities]).astype(np.int32)

    def other_brokers_near(self, brokers: Ints) -> Ints:
        """Others in the same city; the same where it is the only one."""
        city = self.broker_city[brokers]
        first, count = self._first_broker[city], self._city_brokers[city]
        step = 1 + (self._rng.random(len(brokers)) * (count - 1)).astype(np.int32)
        return first + (brokers - first + step) % count

    def any_cities(self, count: int) -> Ints:
        cities = len(self._city_share)
        return self._rng.choice(cities, count, p=self._city_share).astype(np.int32)

    # ---- topics ---------------------------------------------------------------------------------

    def _make_topics(self, cities: int) -> None:
        rng, topics = self._rng, self.spec.topics
        modes = topics // MODE_TOPICS
        self.topic_names = [topic_name(i) for i in range(topics)]
        # Rendezvous points, as on a ring that nobody has rearranged.
        ring = sorted((first_node_id(name), i) for i, name in enumerate(self.broker_names))
        nodes = np.array([node for node, _ in ring], np.uint64)
        owners = np.array([broker for _, broker in ring], np.int32)
        keys = np.array([key_of(name) for name in self.topic_names], np.uint64)
        self.topic_broker = owners[np.searchsorted(nodes, keys) % len(owners)]
        rank = rng.permutation(modes)
        self._mode_weight = (1.0 + rank) ** -self.spec.skew
        self._mode_city = self.any_cities(modes)
        # Within a mode, in the same proportions everywhere.
        self._log_weight = -0.5 * np.log(1.0 + np.arange(MODE_TOPICS))
        within = np.exp(self._log_weight)
        chance = rng.lognormal(0.0, 0.5, topics)
        self.topic_rate = (
            np.repeat(self._mode_weight, MODE_TOPICS) * np.tile(within, modes) * chance
        )
        self.topic_longitude = self.city_longitude[np.repeat(self._mode_city, MODE_TOPICS)]
        self.topic_bytes = np.maximum(rng.lognormal(np.log(_PAYLOAD_BYTES), 0.7, topics), 8.0)

    def modes_for(self, cities: Ints) -> Ints:
        """Of users in these cities: one of the city's for most, any for the others."""
        rng = self._rng
        modes = len(self._mode_weight)
        weight = self._mode_weight / self._mode_weight.sum()
        chosen = rng.choice(modes, len(cities), p=weight).astype(np.int32)
        is_local = rng.random(len(cities)) < _LOCAL
        for city in np.unique(cities):
            here = np.flatnonzero(self._mode_city == city)
            who = np.flatnonzero(is_local & (cities == city))
            if len(here) and len(who):
                share = weight[here] / weight[here].sum()
                chosen[who] = rng.choice(here, len(who), p=share)
        return chosen

    def topics_of(self, modes: Ints) -> Ints:
        """As many different topics for each as a user has: a row each."""
        rng, wanted = self._rng, self.spec.topics_per_user
        # The Gumbel trick: the largest are a weighted sample without repeats.
        score = self._log_weight + rng.gumbel(size=(len(modes), MODE_TOPICS))
        within = np.argpartition(-score, wanted - 1, axis=1)[:, :wanted]
        topics = (modes[:, None] * MODE_TOPICS + within).astype(np.int32)
        strays = np.flatnonzero(rng.random(len(modes)) < self.spec.strays * wanted)
        self.replace(topics, strays, rng.integers(self.spec.topics, size=len(strays)))
        return topics

    def replace(self, topics: Ints, rows: NDArray[np.int64], by: NDArray[np.int64]) -> Ints:
        """One topic of each of these rows by another, unless the row has it; the former ones, or
        -1."""
        slots = self._rng.integers(topics.shape[1], size=len(rows))
        former = topics[rows, slots].copy()
        is_new = ~(topics[rows] == by[:, None]).any(axis=1)
        topics[rows[is_new], slots[is_new]] = by[is_new]
        former[~is_new] = -1
        return former

    # ---- users ----------------------------------------------------------------------------------

    def _settle_users(self) -> None:
        users = self.spec.users
        city = self.any_cities(users)
        self.home = self.brokers_in(city)
        self.work = self.other_brokers_near(self.home)
        self.leisure = self.brokers_in(city)
        self.mode = self.modes_for(city)
        self.follows = np.empty((users, self.spec.topics_per_user), np.int32)
        for first in range(0, users, 100_000):
            part = slice(first, first + 100_000)
            self.follows[part] = self.topics_of(self.mode[part])
        # Where everybody is now.
        self.at = self.home.copy()

    def relocate(self, users: NDArray[np.int64]) -> None:
        """They live and work elsewhere from now on."""
        self.home[users] = self.brokers_in(self.any_cities(len(users)))
        self.work[users] = self.other_brokers_near(self.home[users])
        self.leisure[users] = self.other_brokers_near(self.home[users])

    def change_minds(self, users: NDArray[np.int64]) -> tuple[Ints, Ints, Ints]:
        """Each, different ones, gives up topics for others: user, former topic, new topic."""
        rng, spec = self._rng, self.spec
        moved_on = rng.random(len(users)) < spec.mode_changes
        leap, step = users[moved_on], users[~moved_on]
        near = self.mode[step].astype(np.int64) * MODE_TOPICS
        near += rng.integers(MODE_TOPICS, size=len(step))
        anywhere = rng.integers(spec.topics, size=len(step))
        new = np.where(rng.random(len(step)) < spec.strays, anywhere, near)
        former = self.replace(self.follows, step, new)
        done = former >= 0
        before = self.follows[leap].copy()
        self.mode[leap] = self.modes_for(self.broker_city[self.home[leap]])
        after = self.follows[leap] = self.topics_of(self.mode[leap])
        # What they had before and have still stays.
        dropped = ~(before[:, :, None] == after[:, None, :]).any(axis=2)
        added = ~(after[:, :, None] == before[:, None, :]).any(axis=2)
        who = np.concatenate([step[done], np.repeat(leap, dropped.sum(axis=1))])
        return (
            who.astype(np.int32),
            np.concatenate([former[done], before[dropped]]),
            np.concatenate([new[done], after[added]]).astype(np.int32),
        )
