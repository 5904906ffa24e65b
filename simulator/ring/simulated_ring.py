"""Runs on a ring: what must hold of it, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_agent.core.routing.rendezvous.rendezvous import on_ring, ring_of
from broker_agent.core.routing.routing import RoutingFactory
from overlay.base.overlay_settings import OverlaySettings
from simulator.clients import PublishedEvent
from simulator.ring.ring_checkers import check_catalogue, check_listed, check_rest, check_ring
from simulator.ring.ring_faults import BROKERS_MIN, STRIKES

if TYPE_CHECKING:
    from simulator.run import SimulatedRun

# After a partition has healed, the two rings need this long to become one.
MERGE_S = 12.0


class SimulatedRing:
    option = ""
    strikes = STRIKES
    brokers_min = BROKERS_MIN

    def __init__(self, settings: OverlaySettings) -> None:
        self._settings = settings
        # Topics that are known to be in the catalogue.
        self._listed: set[str] = set()

    def routing_of(self, broker_id: str) -> RoutingFactory:
        return on_ring(self._settings)

    def may_start(self, broker_id: str) -> bool:
        return True

    def begin(self, run: SimulatedRun) -> None:
        """Whoever starts finds the others by itself."""

    def check_acknowledged(self, run: SimulatedRun, event: PublishedEvent) -> list[str]:
        """Once for each topic: it was announced before anything of it was acknowledged."""
        if event.topic in self._listed:
            return []
        self._listed.add(event.topic)
        return check_listed(run.world, event)

    def check_now(self, run: SimulatedRun) -> list[str]:
        whole_for_s = run.scheduler.now_s - run.whole_since_s
        if run.network.is_whole and (whole_for_s >= MERGE_S or run.whole_since_s == 0.0):
            return check_ring(run.world.brokers.values())
        return []

    def check_end(self, run: SimulatedRun) -> list[str]:
        return [*check_rest(list(run.world.brokers.values())), *check_catalogue(run.world)]

    def counted(self, run: SimulatedRun) -> dict[str, int]:
        counters = [ring_of(b.core).node.counters for b in run.world.brokers.values()]
        return {
            "takeovers": sum(each.takeovers for each in counters),
            "merges": sum(each.merges for each in counters),
        }
