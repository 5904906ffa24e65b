"""The Poisson workload (DYNATOPS IV-A2): users replace topics, each at times of a Poisson process.

A hundred steps of an hour. Before the first, every user draws its topics by a pattern:

    uniform     every topic alike
    zipf        topic i, from 1, in proportion to (i + 1) ** -sigma, as printed
    multimodal  a mode of ten topics, then topics of this mode alone

A change replaces one topic by another, drawn by the same pattern; in `multimodal` from the user's
mode, unless the user takes up another mode, and with it other topics altogether (`mode_changes`;
the paper tells of no such change, so it is 0, and an ablation says what it does). Brokers have no
places: any two are a round trip of one apart. Topics are published on alike, by any user.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from experiments.sites import Floats, Ints, Sites, Topics
from experiments.workloads.modes import MODE_TOPICS, modes_of, topic_name
from experiments.workloads.patterns import ZIPF_SIGMA, Pattern, pattern_weights
from experiments.workloads.workload import Step, UserChange, UserChanges, UserPublication

USERS, BROKERS, TOPICS = 50_000, 100, 1_000
HOURS = 100
TOPICS_PER_USER = 5
# The paper does not say how much is published. It decides when moving brokers pays.
EVENTS_PER_TOPIC_AND_HOUR = 100.0
_DRAWS_AT_ONCE = 4096


@dataclass
class PoissonWorkload:
    pattern: Pattern
    # Changes of one user in an hour.
    rate: float
    seed: int
    users: int = USERS
    brokers: int = BROKERS
    topic_count: int = TOPICS
    hours: int = HOURS
    sigma: float = ZIPF_SIGMA
    mode_changes: float = 0.0
    events_per_topic_and_hour: float = EVENTS_PER_TOPIC_AND_HOUR
    sites: Sites = field(init=False)
    topics: Topics = field(init=False)
    settled_h: float = 0.0
    broker_of_cell: Ints = field(init=False)

    def __post_init__(self) -> None:
        # One cell, of no matter.
        self.broker_of_cell = np.zeros(1, dtype=np.int32)
        self.sites = Sites.equal(self.brokers)
        self.topics = Topics(tuple(map(topic_name, range(self.topic_count))))

    @classmethod
    def scaled(
        cls, scale: float, pattern: Pattern, rate: float, seed: int, *, mode_changes: float = 0.0
    ) -> PoissonWorkload:
        """Fewer users, and brokers and topics so that as many of them share a topic at a broker."""
        root = math.sqrt(scale)
        return cls(
            pattern,
            rate,
            seed,
            users=max(1, round(USERS * scale)),
            brokers=max(2, round(BROKERS * root)),
            topic_count=max(1, round(TOPICS * root / MODE_TOPICS)) * MODE_TOPICS,
            mode_changes=mode_changes,
        )

    @property
    def end_h(self) -> float:
        return float(self.hours)

    @property
    def follows_max(self) -> int:
        return TOPICS_PER_USER

    def steps(self) -> Iterator[Step]:
        rng = np.random.default_rng([self.seed, 3])
        interests = _PoissonInterests(self, rng)
        yield Step(0.0, UserChanges.of(map(interests.arrive, range(self.users))))
        for hour in range(1, self.hours + 1):
            many = rng.poisson(self.rate, self.users)
            who = rng.permutation(np.repeat(np.arange(self.users), many))
            changes = (interests.change(user) for user in who.tolist())
            yield Step(float(hour), UserChanges.of(c for c in changes if c.dropped or c.added))

    def rates(self) -> Floats:
        return np.full(len(self.topics), self.events_per_topic_and_hour)

    def publications(self, count: int, rng: np.random.Generator) -> list[UserPublication]:
        who = rng.integers(self.users, size=count).tolist()
        what = rng.integers(len(self.topics), size=count).tolist()
        return [UserPublication(u, 0, t) for u, t in zip(who, what, strict=True)]

    def access_ms(self, cells: Ints, brokers: Ints) -> Floats:
        """Of no matter here: the same for all."""
        return np.zeros(len(brokers))


class _PoissonInterests:
    """What users follow, and the draws."""

    def __init__(self, workload: PoissonWorkload, rng: np.random.Generator) -> None:
        self._pattern = workload.pattern
        self._topics = workload.topic_count
        self._rng = rng
        self._mode_changes = workload.mode_changes
        self._weights = pattern_weights(workload.pattern, workload.topic_count, workload.sigma)
        self._modes = [list(mode) for mode in modes_of(workload.topic_count)]
        self._mode: dict[int, list[int]] = {}
        self._follows: dict[int, list[int]] = {}
        self._drawn: list[int] = []
        self._chances: list[float] = []

    def arrive(self, user: int) -> UserChange:
        if self._pattern is Pattern.MULTIMODAL:
            self._mode[user] = self._modes[int(self._chance() * len(self._modes))]
        follows: list[int] = []
        while len(follows) < min(TOPICS_PER_USER, self._reach(user)):
            follows.append(self._another(user, follows))
        self._follows[user] = follows
        return UserChange(user, 0, (), tuple(follows))

    def change(self, user: int) -> UserChange:
        follows = self._follows[user]
        if self._mode_changes and self._chance() < self._mode_changes:
            before = set(follows)
            now = set(self.arrive(user).added)
            return UserChange(user, 0, tuple(sorted(before - now)), tuple(sorted(now - before)))
        if len(follows) >= self._reach(user):
            return UserChange(user, 0, (), ())
        added = self._another(user, follows)
        place = int(self._chance() * len(follows))
        dropped, follows[place] = follows[place], added
        return UserChange(user, 0, (dropped,), (added,))

    def _reach(self, user: int) -> int:
        return len(self._mode[user]) if user in self._mode else self._topics

    def _another(self, user: int, follows: list[int]) -> int:
        mode = self._mode.get(user)
        while True:
            topic = mode[int(self._chance() * len(mode))] if mode else self._draw()
            if topic not in follows:
                return topic

    def _draw(self) -> int:
        if not self._drawn:
            drawn = self._rng.choice(self._topics, _DRAWS_AT_ONCE, p=self._weights)
            self._drawn = drawn.tolist()
        return self._drawn.pop()

    def _chance(self) -> float:
        if not self._chances:
            self._chances = self._rng.random(_DRAWS_AT_ONCE).tolist()
        return self._chances.pop()
