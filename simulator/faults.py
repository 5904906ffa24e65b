"""What faults do to a run, however its events travel.

A fault that takes acknowledged events away says so (`World.taken_away`): the checkers then ask
whether that was told, and not whether it happened. Which fault is which function is said by each
routing (`simulator.ring`, `simulator.tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simulator.scenario import Planned

if TYPE_CHECKING:
    from simulator.run import SimulatedRun
    from simulator.world import SimulatedBroker

# An orderly stop takes at most so long; who has not stopped by then is killed, as by an operator.
STOP_PATIENCE_S = 8.0
# When all start again: how long after the first one the others may.
STAGGER_S = 1.5

# Called with those that are there to stay.
Strike = Callable[["SimulatedRun", Planned, Sequence["SimulatedBroker"]], None]


def strike(run: SimulatedRun, planned: Planned) -> None:
    """Let it happen, if there are brokers enough."""
    candidates = [broker for broker in run.world.living() if not broker.leaving]
    if len(candidates) >= run.routing.brokers_min.get(planned.fault, 1):
        run.note_fault(planned.fault.value)
        run.routing.strikes[planned.fault](run, planned, candidates)


# ---- one broker ----------------------------------------------------------------------------------


def crash(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    kill(run, planned, [run.rng.choice(candidates)])


def kill(run: SimulatedRun, planned: Planned, victims: Sequence[SimulatedBroker]) -> None:
    """At once; if it lasts, they start again after that time, in this order."""
    if planned.lasts_s:
        run.world.returning.update(victim.broker_id for victim in victims)
        run.later(planned.lasts_s, start_again, run, [victim.broker_id for victim in victims])
    for victim in victims:
        run.world.crash_broker(victim.broker_id, noticed=planned.noticed)


def start_again(run: SimulatedRun, names: Sequence[str]) -> None:
    """One founds a ring if there is none; the others come when it is there."""
    for i, name in enumerate(names):
        run.later(run.rng.uniform(0.1, STAGGER_S) if i else 0.0, run.start_broker, name)


# ---- the network ---------------------------------------------------------------------------------


def partition(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    run.split_network(planned.lasts_s)


# ---- everybody -----------------------------------------------------------------------------------


def crash_all(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    run.world.taken_away.append(run.scheduler.now_s)
    kill(run, planned, run.world.living())
    run.is_whole_from_now()


def stop_all(run: SimulatedRun, planned: Planned, candidates: Sequence[SimulatedBroker]) -> None:
    """As somebody does who stops every process, and starts them again when all have ended."""
    names = [broker.broker_id for broker in run.world.living()]
    run.world.returning.update(names)
    for name in names:
        run.world.brokers[name].leave()
    run.is_broken_from_now()
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
    run.later(planned.lasts_s, start_again, run, names)
