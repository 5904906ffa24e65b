"""What each fault does to a run on a ring: one function each, found by its name in the scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from simulator.faults import Strike, crash, crash_all, kill, partition, stop_all
from simulator.scenario import Fault, Planned

if TYPE_CHECKING:
    from simulator.run import SimulatedRun
    from simulator.world import SimulatedBroker

# A newcomer that is no member of the ring after so long is not waited for.
JOIN_PATIENCE_S = 8.0
# The broker before it crashes at most so long after that: most copying is under way then.
COPYING_S = 0.6


def _join(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    run.start_new_broker()


def _leave(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    run.rng.choice(candidates).leave()


def _join_and_crash(
    run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]
) -> None:
    _await_member(run, planned, run.start_new_broker(), run.scheduler.now_s + JOIN_PATIENCE_S)


def _await_member(run: SimulatedRun, planned: Planned, newcomer: str, deadline_s: float) -> None:
    broker = run.world.brokers.get(newcomer)
    if broker is None or not broker.alive or run.scheduler.now_s >= deadline_s:
        return
    if broker.core.is_member:
        run.later(run.rng.uniform(0.0, COPYING_S), _crash_before, run, planned, broker)
    else:
        run.later(0.02, _await_member, run, planned, newcomer, deadline_s)


def _crash_before(run: SimulatedRun, planned: Planned, newcomer: SimulatedBroker) -> None:
    """The newcomer stands by for this one, or is about to."""
    living = [b for b in run.world.living() if b.core.is_member]
    if newcomer not in living or len(living) < BROKERS_MIN[Fault.CRASH]:
        return
    living.sort(key=lambda broker: ring_of(broker.core).node.me.node_id)
    victim = living[living.index(newcomer) - 1]
    if not victim.leaving:
        kill(run, planned, [victim])


def _cut_link(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    one, other = run.rng.choice(candidates), run.rng.choice(candidates)
    run.network.cut(one.address, other.address)
    run.later(planned.lasts_s, run.heal)


def _crash_neighbours(
    run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]
) -> None:
    on_ring = [b for b in candidates if b.core.is_member]
    on_ring.sort(key=lambda broker: ring_of(broker.core).node.me.node_id)
    at = run.rng.randrange(len(on_ring))
    run.world.taken_away.append(run.scheduler.now_s)
    kill(run, planned, [on_ring[at], on_ring[(at + 1) % len(on_ring)]])


STRIKES: Mapping[Fault, Strike] = MappingProxyType(
    {
        Fault.CRASH: crash,
        Fault.CRASH_AND_RESTART: crash,
        Fault.LEAVE: _leave,
        Fault.JOIN: _join,
        Fault.JOIN_AND_CRASH: _join_and_crash,
        Fault.PARTITION: partition,
        Fault.CUT_LINK: _cut_link,
        Fault.NEIGHBOURS_CRASH: _crash_neighbours,
        Fault.NEIGHBOURS_CRASH_AND_RESTART: _crash_neighbours,
        Fault.ALL_STOP: stop_all,
        Fault.ALL_CRASH: crash_all,
    }
)

# Faults that need more than one broker that is there to stay; without them nothing happens.
BROKERS_MIN: Mapping[Fault, int] = MappingProxyType(
    {
        Fault.CRASH: 3,
        Fault.CRASH_AND_RESTART: 3,
        Fault.JOIN_AND_CRASH: 3,
        Fault.LEAVE: 3,
        Fault.NEIGHBOURS_CRASH: 4,
        Fault.NEIGHBOURS_CRASH_AND_RESTART: 4,
    }
)
