"""What each fault does to a run: one function each, found by its name in the scenario.

A fault that takes acknowledged events away says so (`World.taken_away`): the checkers then ask
whether that was told, and not whether it happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from simulator.scenario import Fault, Planned

if TYPE_CHECKING:
    from simulator.run import SimulatedRun
    from simulator.world import SimulatedBroker

# An orderly stop takes at most so long; who has not stopped by then is killed, as by an operator.
STOP_PATIENCE_S = 8.0
# A newcomer that is no member of the ring after so long is not waited for.
JOIN_PATIENCE_S = 8.0
# The broker before it crashes at most so long after that: most copying is under way then.
COPYING_S = 0.6
# When all start again: how long after the first one the others may.
STAGGER_S = 1.5


def strike(run: SimulatedRun, planned: Planned) -> None:
    """Let it happen, if there are brokers enough."""
    candidates = [broker for broker in run.world.living() if not broker.leaving]
    if len(candidates) >= _BROKERS_MIN.get(planned.fault, 1):
        run.note_fault(planned.fault.value)
        STRIKES[planned.fault](run, planned, candidates)


# ---- one broker ----------------------------------------------------------------------------------


def _join(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    run.start_new_broker()


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
    if newcomer not in living or len(living) < _BROKERS_MIN[Fault.CRASH]:
        return
    living.sort(key=lambda broker: ring_of(broker.core).node.me.node_id)
    victim = living[living.index(newcomer) - 1]
    if not victim.leaving:
        _kill(run, planned, [victim])


def _leave(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    run.rng.choice(candidates).leave()


def _crash(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    _kill(run, planned, [run.rng.choice(candidates)])


def _kill(run: SimulatedRun, planned: Planned, victims: Sequence[SimulatedBroker]) -> None:
    """At once; if it lasts, they start again after that time, in this order."""
    if planned.lasts_s:
        run.world.returning.update(victim.broker_id for victim in victims)
        run.later(planned.lasts_s, _start_again, run, [victim.broker_id for victim in victims])
    for victim in victims:
        run.world.crash_broker(victim.broker_id, noticed=planned.noticed)


def _start_again(run: SimulatedRun, names: Sequence[str]) -> None:
    """One founds a ring if there is none; the others come when it is there."""
    for i, name in enumerate(names):
        run.later(run.rng.uniform(0.1, STAGGER_S) if i else 0.0, run.start_broker, name)


# ---- the network ---------------------------------------------------------------------------------


def _partition(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    run.split_network(planned.lasts_s)


def _cut_link(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    one, other = run.rng.choice(candidates), run.rng.choice(candidates)
    run.network.cut(one.address, other.address)
    run.later(planned.lasts_s, run.heal)


# ---- both copies at once -------------------------------------------------------------------------


def _crash_neighbours(
    run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]
) -> None:
    on_ring = [b for b in candidates if b.core.is_member]
    on_ring.sort(key=lambda broker: ring_of(broker.core).node.me.node_id)
    at = run.rng.randrange(len(on_ring))
    run.world.taken_away.append(run.scheduler.now_s)
    _kill(run, planned, [on_ring[at], on_ring[(at + 1) % len(on_ring)]])


def _crash_all(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    run.world.taken_away.append(run.scheduler.now_s)
    _kill(run, planned, run.world.living())
    run.is_whole_from_now()


def _stop_all(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    """As somebody does who stops every process, and starts them again when all have ended."""
    names = [broker.broker_id for broker in run.world.living()]
    run.world.returning.update(names)
    for name in names:
        run.world.brokers[name].leave()
    run.ignore_ring()
    _await_stop(run, planned, names, run.scheduler.now_s + STOP_PATIENCE_S)


def _await_stop(
    run: SimulatedRun, planned: Planned, names: Sequence[str], deadline_s: float
) -> None:
    # One that was on its way already may have come meanwhile.
    living = run.world.living()
    if living and run.scheduler.now_s < deadline_s:
        run.later(0.1, _await_stop, run, planned, names, deadline_s)
        return
    for broker in living:
        run.world.crash_broker(broker.broker_id, noticed=True)
    run.world.taken_away.append(run.scheduler.now_s)
    run.is_whole_from_now()
    run.later(planned.lasts_s, _start_again, run, names)


Strike = Callable[["SimulatedRun", Planned, Sequence["SimulatedBroker"]], None]

STRIKES: Mapping[Fault, Strike] = MappingProxyType(
    {
        Fault.CRASH: _crash,
        Fault.CRASH_AND_RESTART: _crash,
        Fault.LEAVE: _leave,
        Fault.JOIN: _join,
        Fault.JOIN_AND_CRASH: _join_and_crash,
        Fault.PARTITION: _partition,
        Fault.CUT_LINK: _cut_link,
        Fault.NEIGHBOURS_CRASH: _crash_neighbours,
        Fault.NEIGHBOURS_CRASH_AND_RESTART: _crash_neighbours,
        Fault.ALL_STOP: _stop_all,
        Fault.ALL_CRASH: _crash_all,
    }
)

# Faults that need more than one broker that is there to stay; without them nothing happens.
_BROKERS_MIN: Mapping[Fault, int] = MappingProxyType(
    {
        Fault.CRASH: 3,
        Fault.CRASH_AND_RESTART: 3,
        Fault.JOIN_AND_CRASH: 3,
        Fault.LEAVE: 3,
        Fault.NEIGHBOURS_CRASH: 4,
        Fault.NEIGHBOURS_CRASH_AND_RESTART: 4,
    }
)
