"""What users of a made-up world do, hour by hour: go to work and home, change their minds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynatops.local.made_up_lake.world import Floats, Ints, LakeWorld

HOURS = 24
_HOUR_S = 3_600.0
# Of users who are out on a day: those who go somewhere in their free time.
_LEISURE = 0.3
# To work, home again, and that.
_TRIPS = 2.0 + _LEISURE
# Of users on a day.
_RELOCATIONS = 0.005
# Everybody comes in the first minute of all; nobody goes before the second is over.
_ARRIVALS_S = 60.0
_SETTLED_S = 120.0
# Longest time until a user's former broker has heard that it went.
LEAVE_LAG_MAX_S = 1.0


def busyness(hour_utc: float, longitude: Floats) -> Floats:
    """How much happens, by the local time of day: most at seven in the evening; 1 on average."""
    local = (hour_utc + 0.5 + longitude / 15.0) % HOURS
    return 1.0 + 0.8 * np.cos(2.0 * np.pi * (local - 19.0) / HOURS)


@dataclass(frozen=True, slots=True)
class Hour:
    """Times are seconds since the hour began, in order."""

    # Who goes where: time, user, former broker, next broker.
    moved_s: Floats
    mover: NDArray[np.int64]
    former: Ints
    to: Ints
    # Whose connection breaks and comes back: user, when, when again.
    dozer: NDArray[np.int64]
    dozed_s: Floats
    woke_s: Floats
    # Who changes its mind: time, user; different ones, and none that moves.
    changed_s: Floats
    changer: NDArray[np.int64]


class Days:
    def __init__(self, world: LakeWorld, rng: np.random.Generator) -> None:
        self._world = world
        self._rng = rng

    def arrivals(self) -> tuple[Floats, NDArray[np.int64]]:
        """When everybody comes, since the first hour began."""
        users = self._world.spec.users
        return np.sort(self._rng.uniform(0.0, _ARRIVALS_S, users)), self._rng.permutation(users)

    def day(self, number: int) -> Iterator[Hour]:
        """The hours of a day. Users are where they went once the next hour is asked for."""
        user, at_s, former, to = self._trips(number)
        bounds = np.searchsorted(at_s, np.arange(HOURS + 1) * _HOUR_S)
        for hour in range(HOURS):
            part = slice(bounds[hour], bounds[hour + 1])
            moved_s = np.minimum(at_s[part] - hour * _HOUR_S, _HOUR_S - 2 * LEAVE_LAG_MAX_S)
            yield self._hour(hour, moved_s, user[part], former[part], to[part], number)
            self._world.at[user[part]] = to[part]

    def _trips(self, number: int) -> tuple[NDArray[np.int64], Floats, Ints, Ints]:
        """Of a whole day, in order of time: user, time, former broker, next broker."""
        world, rng, spec = self._world, self._rng, self._world.spec
        if number:
            world.relocate(np.flatnonzero(rng.random(spec.users) < _RELOCATIONS))
        out = np.flatnonzero(rng.random(spec.users) < min(spec.moves_per_day / _TRIPS, 1.0))
        free = out[rng.random(len(out)) < _LEISURE]
        errands = rng.integers(
            spec.users, size=rng.poisson(spec.users * max(spec.moves_per_day - _TRIPS, 0.0))
        )
        # Those who went somewhere come home later.
        home_h = np.full(spec.users, 17.8)
        home_h[free] = 21.0
        user = np.concatenate([out, free, out, errands])
        local_h = np.concatenate(
            [
                rng.normal(8.0, 1.0, len(out)),
                rng.normal(17.5, 0.4, len(free)),
                rng.normal(home_h[out], 0.7),
                rng.uniform(0.0, HOURS, len(errands)),
            ]
        )
        near = world.other_brokers_near(world.home[errands])
        to = np.concatenate([world.work[out], world.leisure[free], world.home[out], near])
        # By the sun, from where they live.
        local_h -= world.broker_longitude[world.home[user]] / 15.0
        at_s = (local_h % HOURS) * _HOUR_S
        if not number:
            at_s = np.maximum(at_s, _SETTLED_S)
        return self._one_after_another(user, at_s, to.astype(np.int32))

    def _one_after_another(
        self, user: NDArray[np.int64], at_s: Floats, to: Ints
    ) -> tuple[NDArray[np.int64], Floats, Ints, Ints]:
        """Where each trip begins: where the user's former one has ended."""
        order = np.lexsort((at_s, user))
        user, at_s, to = user[order], at_s[order], to[order]
        former = np.empty_like(to)
        former[1:] = to[:-1]
        is_first = np.ones(len(user), bool)
        is_first[1:] = user[1:] != user[:-1]
        former[is_first] = self._world.at[user[is_first]]
        goes = np.flatnonzero(former != to)
        goes = goes[np.argsort(at_s[goes], kind="stable")]
        return user[goes], at_s[goes], former[goes], to[goes]

    def _hour(
        self,
        hour: int,
        moved_s: Floats,
        mover: NDArray[np.int64],
        former: Ints,
        to: Ints,
        number: int,
    ) -> Hour:
        world, rng, spec = self._world, self._rng, self._world.spec
        busy = float(busyness(hour, world.city_longitude).mean())
        changers = rng.poisson(spec.users * spec.changes_per_day / HOURS * busy)
        # A quarter as many lose their connection.
        drawn = rng.integers(spec.users, size=changers + changers // 4)
        quiet = np.setdiff1d(drawn, mover)
        rng.shuffle(quiet)
        dozer, changer = quiet[: len(quiet) // 5], quiet[len(quiet) // 5 :]
        earliest_s = 0.0 if number or hour else _SETTLED_S
        dozed_s = np.sort(rng.uniform(earliest_s, _HOUR_S - 400.0, len(dozer)))
        return Hour(
            moved_s=moved_s,
            mover=mover,
            former=former,
            to=to,
            dozer=dozer,
            dozed_s=dozed_s,
            woke_s=dozed_s + rng.uniform(1.0, 300.0, len(dozer)),
            changed_s=np.sort(rng.uniform(earliest_s, _HOUR_S - 1.0, len(changer))),
            changer=changer,
        )
