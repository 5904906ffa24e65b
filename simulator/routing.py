"""What is different in a run with how events travel: the seam to `simulator.ring` and
`simulator.tree`.

Who publishes what, who moves where, what is heard, and whether that is right, is the same for all
(`simulator.run`, `simulator.checkers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from broker_agent.core.routing.routing import RoutingFactory
from simulator.clients import PublishedEvent
from simulator.faults import Strike
from simulator.scenario import Fault

if TYPE_CHECKING:
    from simulator.run import SimulatedRun


class SimulatedRouting(Protocol):
    # What the command is to be told to have it so.
    option: str
    # What each fault does; and how many brokers that are there to stay it needs, if not one:
    # without them nothing happens.
    strikes: Mapping[Fault, Strike]
    brokers_min: Mapping[Fault, int]

    def routing_of(self, broker_id: str) -> RoutingFactory:
        """For a life of the broker that begins now."""

    def may_start(self, broker_id: str) -> bool:
        """Whether there is a place for it, when it is its turn to start again."""

    def begin(self, run: SimulatedRun) -> None:
        """Before anything happens: plan what is to happen, beside faults."""

    # ---- what must hold, as sentences about what does not

    def check_acknowledged(self, run: SimulatedRun, event: PublishedEvent) -> list[str]:
        """A publisher has just been told that it is safe."""

    def check_now(self, run: SimulatedRun) -> list[str]:
        """Every second."""

    def check_end(self, run: SimulatedRun) -> list[str]:
        """After a long quiet time."""

    def counted(self, run: SimulatedRun) -> dict[str, int]:
        """What it took, for whoever reads the verdict."""
