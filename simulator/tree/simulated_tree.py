"""Runs in a tree: what must hold of it, and when."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from broker_agent.core.routing.forwarding.forwarding import in_tree, tree_of
from broker_agent.core.routing.routing import RoutingFactory
from dynatops.client.core.publications import Ack
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.tree.topology import Topology
from simulator.clients import PublishedEvent
from simulator.scenario import Fault
from simulator.tree.tree_checkers import Positions, check_tree, own_positions, quiet_brokers
from simulator.tree.tree_faults import TreeFaults
from simulator.tree.tree_operator import TreeOperator
from simulator.tree.troubles import Troubles

if TYPE_CHECKING:
    from simulator.run import SimulatedRun

# In the last seconds nothing may be under way at each broker for a moment, at least once; looked
# for so often, out of step with what brokers tell each other every second.
QUIET_WITHIN_S = 6.0
_LOOKED_EVERY_S = 0.13
# What a broker published that long before the end, everybody must have.
KNOWN_S = 10.0
# The keeper has what only its publisher's broker had, unless it is out of reach.
COPIED_S = 30.0

_BROKERS_MIN: Mapping[Fault, int] = MappingProxyType(
    {
        Fault.CRASH_AND_RESTART: 2,
        Fault.STOP_AND_RESTART: 2,
        Fault.NEIGHBOURS_CRASH_AND_RESTART: 2,
        Fault.CUT_LINK: 2,
        Fault.PARTITION: 2,
        Fault.CRASH_BEHIND_CUT: 2,
        Fault.BROKER_BETWEEN: 2,
        Fault.BROKER_MOVED: 3,
        Fault.LEAF_REMOVED: 3,
        Fault.GONE_FOR_GOOD: 3,
    }
)


class SimulatedTree:
    option = " --routing forwarding"
    brokers_min = _BROKERS_MIN

    def __init__(self, topology: Topology, settings: ForwardingSettings) -> None:
        self._settings = settings
        self._operator = TreeOperator(topology)
        self.troubles = Troubles(settings)
        self.strikes = TreeFaults(self._operator, self.troubles).strikes
        # Brokers at which nothing was under way at some moment of the last seconds.
        self._were_quiet: set[str] = set()
        self._known: Positions = {}

    @property
    def topology(self) -> Topology:
        return self._operator.topology

    def routing_of(self, broker_id: str) -> RoutingFactory:
        return in_tree(self._operator.file_of(broker_id), self._settings)

    def may_start(self, broker_id: str) -> bool:
        """It may have been taken out while it was away."""
        return broker_id in self.topology

    def begin(self, run: SimulatedRun) -> None:
        world = run.world
        world.any_ack = lambda: run.rng.choice(run.scenario.acks)
        world.stamps_anew = True
        world.is_owed = lambda event: _is_owed(run, event)
        run.later(run.scenario.end_s - KNOWN_S, self._note_positions, run)
        run.later(run.scenario.end_s - QUIET_WITHIN_S, self._note_quiet, run)

    def _note_positions(self, run: SimulatedRun) -> None:
        self._known = own_positions(run.world.brokers.values())

    def _note_quiet(self, run: SimulatedRun) -> None:
        self._were_quiet.update(quiet_brokers(run.world.brokers.values()))
        run.later(_LOOKED_EVERY_S, self._note_quiet, run)

    def check_acknowledged(self, run: SimulatedRun, event: PublishedEvent) -> list[str]:
        return []

    def check_now(self, run: SimulatedRun) -> list[str]:
        return []

    def check_end(self, run: SimulatedRun) -> list[str]:
        brokers = list(run.world.brokers.values())
        found = check_tree(self.topology, brokers, self._known)
        found += [
            f"something is always under way at {broker.broker_id}"
            for broker in brokers
            if broker.alive and broker.broker_id not in self._were_quiet
        ]
        return [*found, *self.troubles.check_gaps(run)]

    def counted(self, run: SimulatedRun) -> dict[str, int]:
        counters = [tree_of(b.core).forwarder.counters for b in run.world.brokers.values()]
        return {
            "repairs": sum(each.tree_fetches for each in counters),
            "gaps": len(run.world.gaps),
            "topologies": self.topology.version,
        }


def _is_owed(run: SimulatedRun, event: PublishedEvent) -> bool:
    """What only its broker had is gone with it."""
    acknowledged_s = event.acknowledged_s
    if event.ack is not Ack.RP or acknowledged_s is None:
        return True
    return not any(
        broker_id == event.broker and at_s - COPIED_S <= acknowledged_s <= at_s + 0.1
        for broker_id, at_s in run.world.ended
    )
