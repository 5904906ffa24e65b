"""What each fault does to a run in a tree: one method each, found by its name in the scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from overlay.forwarding.tree.topology import Topology
from simulator.faults import Strike, crash_all, kill, partition, start_again, stop_all
from simulator.scenario import Fault, Planned
from simulator.tree.tree_changes import (
    leaves_of,
    with_broker_between,
    with_broker_moved,
    with_leaf,
    without,
)
from simulator.tree.tree_operator import TreeOperator
from simulator.tree.troubles import Troubles

if TYPE_CHECKING:
    from simulator.run import SimulatedRun
    from simulator.world import SimulatedBroker

# A broker that starts, or is to stop, because of another topology does so within this.
CHANGE_MAX_S = 3.0
# The end of a cut link that crashes is back after this.
BACK_S = 1.0

Candidates = Sequence["SimulatedBroker"]


class TreeFaults:
    def __init__(self, operator: TreeOperator, troubles: Troubles) -> None:
        self._operator = operator
        self._troubles = troubles
        self.strikes: Mapping[Fault, Strike] = {
            Fault.CRASH_AND_RESTART: self._crash,
            Fault.STOP_AND_RESTART: self._stop,
            Fault.CUT_LINK: self._cut_link,
            Fault.PARTITION: self._partition,
            Fault.CRASH_BEHIND_CUT: self._crash_behind_cut,
            Fault.LEAF_ADDED: self._add_leaf,
            Fault.LEAF_REMOVED: self._remove_leaf,
            Fault.BROKER_MOVED: self._move_broker,
            Fault.BROKER_BETWEEN: self._put_between,
            Fault.GONE_FOR_GOOD: self._gone_for_good,
            Fault.READERS_PAUSE: self._pause_readers,
            Fault.NEIGHBOURS_CRASH_AND_RESTART: self._crash_neighbours,
            Fault.ALL_STOP: self._stop_all,
            Fault.ALL_CRASH: self._crash_all,
        }

    @property
    def _topology(self) -> Topology:
        return self._operator.topology

    # ---- brokers that come back -----------------------------------------------------------------

    def _crash(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        self._troubles.note(run, planned.lasts_s)
        kill(run, planned, [run.rng.choice(candidates)])

    def _stop(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        """As when it is brought up to date."""
        self._troubles.note(run, planned.lasts_s)
        broker = run.rng.choice(candidates)
        run.world.returning.add(broker.broker_id)
        broker.leave()
        run.later(planned.lasts_s, start_again, run, [broker.broker_id])

    def _crash_neighbours(
        self, run: SimulatedRun, planned: Planned, candidates: Candidates
    ) -> None:
        link = run.rng.choice(self._topology.links)
        self._troubles.note(run, planned.lasts_s, is_drastic=True)
        kill(run, planned, [b for b in candidates if b.broker_id in (link.one, link.other)])

    def _stop_all(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        self._troubles.note(run, planned.lasts_s, is_drastic=True)
        stop_all(run, planned, candidates)

    def _crash_all(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        self._troubles.note(run, planned.lasts_s, is_drastic=True)
        crash_all(run, planned, candidates)

    # ---- links ----------------------------------------------------------------------------------

    def _cut_link(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        self._troubles.note(run, planned.lasts_s)
        self._cut(run, planned)

    def _cut(self, run: SimulatedRun, planned: Planned) -> tuple[str, str]:
        link = run.rng.choice(self._topology.links)
        run.network.cut(link.one, link.other)
        run.trace.note(f"CUT {link}")
        run.later(planned.lasts_s, run.heal)
        return link.one, link.other

    def _partition(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        self._troubles.note(run, planned.lasts_s)
        partition(run, planned, candidates)

    def _crash_behind_cut(
        self, run: SimulatedRun, planned: Planned, candidates: Candidates
    ) -> None:
        self._troubles.note(run, planned.lasts_s + BACK_S)
        victim = run.rng.choice(self._cut(run, planned))
        run.later(run.rng.uniform(0.0, planned.lasts_s), self._crash_end, run, planned, victim)

    def _crash_end(self, run: SimulatedRun, planned: Planned, victim: str) -> None:
        broker = run.world.brokers[victim]
        if broker.alive and not broker.leaving:
            run.world.returning.add(victim)
            run.later(BACK_S, run.start_broker, victim)
            run.world.crash_broker(victim, noticed=planned.noticed)

    # ---- another topology -----------------------------------------------------------------------

    def _add_leaf(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        name = run.new_name()
        self._change(run, with_leaf(self._topology, name, run.rng), newcomer=name)

    def _put_between(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        name = run.new_name()
        self._change(run, with_broker_between(self._topology, name, run.rng), newcomer=name)

    def _move_broker(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        self._change(run, with_broker_moved(self._topology, run.rng))

    def _change(self, run: SimulatedRun, newer: Topology | None, newcomer: str = "") -> None:
        """Whoever is new brings it along, or comes when others have it."""
        if newer is None:
            return
        self._troubles.note(run, 0.0)
        self._operator.decide(run, newer)
        if newcomer:
            brings_it = run.rng.random() < 0.5
            run.later(
                0.0 if brings_it else run.rng.uniform(0.0, CHANGE_MAX_S), run.start_broker, newcomer
            )
            if brings_it:
                return
        self._operator.hand_out(run)

    def _remove_leaf(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        """It is stopped before it is taken out, or after that."""
        leaves = leaves_of(self._topology)
        there = [broker for broker in candidates if broker.broker_id in leaves]
        victim = run.rng.choice(there) if there else None
        newer = without(self._topology, victim.broker_id) if victim is not None else None
        if victim is None or newer is None:
            return
        self._troubles.note(run, 0.0)
        later_s = run.rng.uniform(0.0, CHANGE_MAX_S)
        if run.rng.random() < 0.5:
            victim.leave()
            run.later(later_s, self._take_out, run, victim.broker_id)
        else:
            self._take_out(run, victim.broker_id)
            run.later(later_s, self._stop_if_alive, victim)

    def _stop_if_alive(self, broker: SimulatedBroker) -> None:
        if broker.alive and not broker.leaving:
            broker.leave()

    def _gone_for_good(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        there = [b for b in candidates if without(self._topology, b.broker_id) is not None]
        if there:
            self._troubles.note(run, planned.lasts_s)
            victim = run.rng.choice(there)
            run.world.crash_broker(victim.broker_id, noticed=planned.noticed)
            run.later(planned.lasts_s, self._take_out, run, victim.broker_id)

    def _take_out(self, run: SimulatedRun, broker_id: str) -> None:
        newer = without(self._topology, broker_id)
        if newer is not None:
            self._operator.decide(run, newer)
            self._operator.hand_out(run)

    # ---- clients --------------------------------------------------------------------------------

    def _pause_readers(self, run: SimulatedRun, planned: Planned, candidates: Candidates) -> None:
        clients = run.world.clients
        for client in run.rng.sample(clients, len(clients) // 2):
            client.pause_reading(planned.lasts_s)
