"""Stores in a run: some brokers keep everything on disks, some of which misbehave, and publishers
want that now and then.

Brokers that keep are there to stay: they crash and come back. One disk at most betrays, by syncs
that do nothing, and bits that flip; any of them is full for a while.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from dynatops.client.core.publications import Ack
from dynatops.kit.filters import Filter
from simulator.eventlog.log_disk import SimulatedLogDisk
from simulator.scenario import Fault, Planned, Scenario
from simulator.stores.simulated_store import SimulatedStore, StoreDisk
from simulator.stores.store_checks import check_stores

if TYPE_CHECKING:
    from simulator.run import SimulatedRun

STORES = 4
# What too few stores have by then, its publisher is told: soon enough for the quiet end.
STORED_WITHIN_S = 15.0
# Of publications these shares are to be stored.
_STORED = 0.5
# Brokers that are gone for good, with what they keep.
_FOR_GOOD = frozenset(
    {
        Fault.CRASH,
        Fault.LEAVE,
        Fault.JOIN_AND_CRASH,
        Fault.NEIGHBOURS_CRASH,
        Fault.GONE_FOR_GOOD,
        Fault.LEAF_REMOVED,
    }
)
# Of faults this share is the crash of all.
_ALL_CRASH = 0.3
_BETRAYAL_EVERY_S = 12.0
_FULL_EVERY_S = 25.0
_FULL_S = 4.0


def with_stores(scenario: Scenario) -> Scenario:
    """The same, where nobody is gone for good, and everybody crashes at once more often: that is
    what stores are for."""
    rng = Random(f"stores {scenario.seed}")
    faults = [_with_disks(planned, rng) for planned in scenario.faults]
    return replace(scenario, faults=tuple(faults))


def _with_disks(planned: Planned, rng: Random) -> Planned:
    fault = planned.fault
    if rng.random() < _ALL_CRASH:
        fault = Fault.ALL_CRASH
    elif fault in _FOR_GOOD:
        fault = Fault.CRASH_AND_RESTART
    if fault is planned.fault:
        return planned
    return replace(planned, fault=fault, lasts_s=planned.lasts_s or rng.uniform(0.5, 3.0))


class SimulatedStores:
    def __init__(self, run: SimulatedRun, rng: Random) -> None:
        self._run = run
        self._rng = rng
        everything = [Filter.parse("#")]
        some = [Filter.parse("topic/+")]
        self.disks = {
            f"b{number}": StoreDisk(
                SimulatedLogDisk(Random(rng.getrandbits(64))), some if number % 2 else everything
            )
            for number in range(min(STORES, run.scenario.brokers))
        }
        self.needed = min(2, len(self.disks))
        self._traitor = rng.choice(sorted(self.disks)) if rng.random() < 0.5 else ""
        world = run.world
        world.store_of = self._store_of
        any_ack = world.any_ack
        world.any_ack = lambda: Ack.STORED if rng.random() < _STORED else any_ack()
        run.checks.append(self._check)
        run.later(rng.expovariate(1 / _FULL_EVERY_S), self._fill_up)
        if self._traitor:
            run.later(rng.expovariate(1 / _BETRAYAL_EVERY_S), self._betray)

    def _store_of(self, broker_id: str, life: int) -> SimulatedStore | None:
        kept = self.disks.get(broker_id)
        return SimulatedStore(self._run.world, kept, life) if kept is not None else None

    def _check(self) -> list[str]:
        published = self._run.world.published
        self._run.counted |= {
            "stored": sum(e.ack is Ack.STORED and e.acknowledged_s is not None for e in published),
            "unstored": sum(event.not_stored_s is not None for event in published),
            "betrayals": sum(kept.disk.betrayals for kept in self.disks.values()),
        }
        return list(check_stores(self._run.world, self.disks, self.needed))

    @property
    def _is_calm(self) -> bool:
        return self._run.scheduler.now_s > self._run.scenario.quiet_from_s

    def _fill_up(self) -> None:
        """There is no room for a while."""
        if self._is_calm:
            return
        name = self._rng.choice(sorted(self.disks))
        disk = self.disks[name].disk
        disk.capacity_bytes = 0
        self._run.note_fault(f"the disk of {name} is full")
        self._run.later(_FULL_S, self._make_room, disk)
        self._run.later(_FULL_S + self._rng.expovariate(1 / _FULL_EVERY_S), self._fill_up)

    def _make_room(self, disk: SimulatedLogDisk) -> None:
        disk.capacity_bytes = 1 << 40

    def _betray(self) -> None:
        if self._is_calm:
            return
        disk = self.disks[self._traitor].disk
        segments = sorted(name for name in disk.names() if name.endswith(".segment"))
        if self._rng.random() < 0.5 and segments:
            name = self._rng.choice(segments)
            if size := disk.size(name):
                disk.flip_bit(name, self._rng.randrange(size), self._rng.randrange(8))
                self._run.note_fault(f"a bit flips on the disk of {self._traitor}")
        else:
            disk.lies += self._rng.randint(1, 3)
            self._run.note_fault(f"the disk of {self._traitor} lies about syncs")
        self._run.later(self._rng.expovariate(1 / _BETRAYAL_EVERY_S), self._betray)
