"""The clients of the Mobility paper: publishers that stay, and users who come and go in a city.

85 brokers are a tree of height 4 and degree 4; its 64 leaves stand in a row, half a kilometre
each. Topics are three levels of three: a publisher has one of 27, and the 40 subscriptions are the
27, the 9 of two levels (3 topics each), the 3 of one (9 topics each), and everything.

In the *random* scenario users are connected for 10 to 30 minutes and gone for as long, while they
go east or west at one of three speeds. Taken where the paper is silent: who comes to the edge of
the city turns round; a user begins connected, in the middle of such a period.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from random import Random

DEGREE = 4
HEIGHT = 4
BROKER_KM = 0.5
PUBLISHERS = 100
PERIOD_MIN = (10.0, 30.0)
SPEEDS_KM_H = (5.0, 50.0, 100.0)
PUBLICATION_S = 60.0

_LEVELS = ("a", "b", "c")
TOPICS = tuple("/".join(levels) for levels in product(_LEVELS, repeat=3))
PATTERNS = (
    *TOPICS,
    *("/".join((*levels, "+")) for levels in product(_LEVELS, repeat=2)),
    *(f"{level}/#" for level in _LEVELS),
    "#",
)


def tree_links() -> list[tuple[str, str]]:
    """The parent first; brokers are named by their ways from the root, `r`."""
    links = []
    above = ["r"]
    for _ in range(HEIGHT - 1):
        below = [f"{name}{child}" for name in above for child in range(DEGREE)]
        links += [(name[:-1], name) for name in below]
        above = below
    return links


def leaf_brokers() -> list[str]:
    """From west to east."""
    return ["r" + "".join(map(str, way)) for way in product(range(DEGREE), repeat=HEIGHT - 1)]


@dataclass(frozen=True, slots=True)
class CityPublisher:
    broker: str
    topic: str


@dataclass(frozen=True, slots=True)
class CityMove:
    at_s: float
    user: int
    # None: it is gone.
    broker: str | None


@dataclass(frozen=True, slots=True)
class RandomScenario:
    users: int
    hours: float
    seed: int

    def publishers(self) -> list[CityPublisher]:
        rng = Random(f"publishers {self.seed}")
        leaves = leaf_brokers()
        return [CityPublisher(rng.choice(leaves), rng.choice(TOPICS)) for _ in range(PUBLISHERS)]

    def patterns(self) -> list[str]:
        """Of each user."""
        rng = Random(f"patterns {self.seed}")
        return [rng.choice(PATTERNS) for _ in range(self.users)]

    def moves(self) -> Iterator[CityMove]:
        """In order of time."""
        by_user = (self._moves_of(user) for user in range(self.users))
        for move in heapq.merge(*by_user, key=lambda move: (move.at_s, move.user)):
            if move.at_s > 3_600 * self.hours:
                return
            yield move

    def _moves_of(self, user: int) -> Iterator[CityMove]:
        rng = Random(f"user {user} {self.seed}")
        leaves = leaf_brokers()
        width_km = BROKER_KM * len(leaves)
        place_km, at_s = rng.uniform(0.0, width_km), 0.0
        connected_s = rng.uniform(0.0, _period_s(rng))
        while True:
            yield CityMove(at_s, user, leaves[min(int(place_km / BROKER_KM), len(leaves) - 1)])
            at_s += connected_s
            yield CityMove(at_s, user, None)
            gone_s = _period_s(rng)
            way_km = rng.choice(SPEEDS_KM_H) * gone_s / 3_600 * rng.choice((-1, 1))
            place_km = _turned_round(place_km + way_km, width_km)
            at_s += gone_s
            connected_s = _period_s(rng)


def _period_s(rng: Random) -> float:
    return 60.0 * rng.uniform(*PERIOD_MIN)


def _turned_round(place_km: float, width_km: float) -> float:
    beyond = place_km % (2 * width_km)
    return min(beyond, 2 * width_km - beyond)
