"""What happens in one simulated run, worked out from its seed before anything starts.

Ordinary faults keep to what the system promises to survive: after a broker has died or left, or a
partition has begun or ended, the others get a while for repair before the next such event, because
an event that is on two brokers is lost when both die at once. Drastic ones, which do just that, are
drawn less often: what they take away must be told to whoever it was meant for.

A new fault is a name here, how often it is drawn, how long it lasts, and what it does
(`strikes` of a routing; `simulator.faults` has what is done to all).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from types import MappingProxyType

from dynatops.client.core.publications import Ack
from overlay.forwarding.tree.topology import Topology
from simulator.network import Weather

START_S = 8.0
QUIET_S = 45.0
REPAIR_MIN_S = 9.0
REPAIR_MAX_S = 16.0


class Fault(Enum):
    CRASH = "crash"
    CRASH_AND_RESTART = "crash and restart"
    LEAVE = "leave"
    JOIN = "join"
    JOIN_AND_CRASH = "join, and the one before it crashes"
    PARTITION = "partition"
    CUT_LINK = "cut link"
    NEIGHBOURS_CRASH = "two neighbours crash"
    NEIGHBOURS_CRASH_AND_RESTART = "two neighbours crash and restart"
    ALL_STOP = "all stop and start again"
    ALL_CRASH = "all crash and start again"
    STOP_AND_RESTART = "stop and start again"
    CRASH_BEHIND_CUT = "a link is cut, and one of its ends crashes"
    GONE_FOR_GOOD = "a broker is gone for good, and taken out"
    LEAF_ADDED = "a leaf is added"
    LEAF_REMOVED = "a leaf is taken out"
    BROKER_MOVED = "a broker is moved, with all behind it"
    BROKER_BETWEEN = "a broker is put between two"
    READERS_PAUSE = "clients stop reading"


WINDOWS_BYTES = (200, 1_000, 4 << 20)
# How much a broker sends of its topics at once to whoever is to stand by for it: mostly a few.
SYNC_BYTES = (1_000, 4_000, 4 << 20)

# How often each is drawn on a ring, beside the others.
WEIGHTS: Mapping[Fault, float] = MappingProxyType(
    {
        Fault.CRASH: 4,
        Fault.CRASH_AND_RESTART: 4,
        Fault.LEAVE: 4,
        Fault.JOIN: 4,
        Fault.PARTITION: 4,
        Fault.CUT_LINK: 4,
        Fault.NEIGHBOURS_CRASH: 1,
        Fault.NEIGHBOURS_CRASH_AND_RESTART: 1.5,
        Fault.ALL_STOP: 1,
        Fault.ALL_CRASH: 1,
    }
)

# Those that last: about so long, in seconds, each as likely as the others.
DURATIONS_S: Mapping[Fault, tuple[float, ...]] = MappingProxyType(
    {
        Fault.CRASH_AND_RESTART: (0.2, 2.0, 8.0),
        Fault.PARTITION: (1.0, 4.0, 15.0),
        Fault.CUT_LINK: (1.0, 4.0, 15.0),
        Fault.NEIGHBOURS_CRASH_AND_RESTART: (0.2, 2.0, 8.0),
        Fault.ALL_STOP: (0.5, 3.0),
        Fault.ALL_CRASH: (0.5, 3.0),
        Fault.STOP_AND_RESTART: (0.2, 2.0),
        Fault.CRASH_BEHIND_CUT: (1.0, 4.0),
        Fault.GONE_FOR_GOOD: (0.5, 3.0, 8.0),
        Fault.READERS_PAUSE: (2.0, 10.0),
    }
)


@dataclass(frozen=True, slots=True)
class Planned:
    at_s: float
    fault: Fault
    # How long it lasts, where it lasts: a partition, a cut, or the time until a restart.
    lasts_s: float = 0.0
    # Whether connections to a crashed broker are refused (a dead process) or swallowed (a dead
    # host).
    noticed: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    brokers: int
    minutes: float
    weather: Weather
    clients: int
    topics: int
    publications_per_s: float
    faults: tuple[Planned, ...]
    # What may be under way to a kept session: mostly a few events, so that more often waits.
    session_window_bytes: int = 4 << 20
    # Of the topics that a new neighbour is sent: mostly few at once, so that it takes its time.
    sync_bytes_per_tick: int = 4 << 20
    # Of brokers in a tree; None: they are on a ring.
    topology: Topology | None = None
    # What publishers wait for, each as often as the others.
    acks: tuple[Ack, ...] = (Ack.REPLICATED,)

    @property
    def end_s(self) -> float:
        return self.minutes * 60.0

    @property
    def quiet_from_s(self) -> float:
        """From here on the network is whole and calm, and nobody dies."""
        return self.end_s - QUIET_S


def scenario_of(seed: int, brokers: int, minutes: float) -> Scenario:
    """The scenario that this seed stands for, on a ring."""
    # A whole number of minutes is written in two ways, and is one scenario.
    rng = Random(f"{seed} {brokers} {float(minutes)}")
    weather = any_weather(rng)
    topics, publications_per_s = rng.randint(4, 12), rng.uniform(4.0, 15.0)
    faults = faults_until(minutes * 60.0 - QUIET_S, rng, WEIGHTS, (REPAIR_MIN_S, REPAIR_MAX_S))
    return Scenario(
        seed=seed,
        brokers=brokers,
        minutes=minutes,
        weather=weather,
        clients=2 * brokers,
        topics=topics,
        publications_per_s=publications_per_s,
        faults=tuple(_sharpened(faults, seed)),
        session_window_bytes=any_window(seed),
        sync_bytes_per_tick=Random(f"sync {seed}").choice(SYNC_BYTES),
    )


def any_weather(rng: Random) -> Weather:
    return Weather(
        delay_max_s=rng.choice((0.005, 0.02, 0.08)),
        loss=rng.choice((0.0, 0.01, 0.05, 0.1)),
        duplication=rng.choice((0.0, 0.02, 0.1)),
        reordering=rng.choice((0.0, 0.05, 0.2)),
    )


def any_window(seed: int) -> int:
    return Random(f"window {seed}").choice(WINDOWS_BYTES)


def faults_until(
    until_s: float, rng: Random, weights: Mapping[Fault, float], pauses_s: tuple[float, float]
) -> list[Planned]:
    """One after the other, with a pause between these behind each."""
    faults: list[Planned] = []
    at_s = START_S + rng.uniform(2.0, 6.0)
    while at_s < until_s - REPAIR_MAX_S:
        (fault,) = rng.choices(tuple(weights), tuple(weights.values()))
        lasts_s = 0.0
        if fault in DURATIONS_S:
            lasts_s = min(rng.choice(DURATIONS_S[fault]) * rng.uniform(0.5, 1.5), until_s - at_s)
        faults.append(Planned(at_s, fault, lasts_s, noticed=rng.random() < 0.5))
        at_s += lasts_s + rng.uniform(*pauses_s)
    return faults


def _sharpened(faults: list[Planned], seed: int) -> list[Planned]:
    """Every other newcomer sees the broker before it die while that one still copies its topics."""
    rng = Random(f"beside {seed}")
    return [
        replace(planned, fault=Fault.JOIN_AND_CRASH)
        if planned.fault is Fault.JOIN and rng.random() < 0.5
        else planned
        for planned in faults
    ]
