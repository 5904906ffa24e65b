"""Whoever runs the brokers of a tree: which topology is the newest, and who has been given it.

A newer version is given to one broker, which hands it on. Some brokers have it in their file, too,
when they start again; others learn it from their neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynatops.v1.overlay_pb2 import NodeRef, PeerFrame
from overlay.forwarding.tree.topology import Topology

if TYPE_CHECKING:
    from simulator.run import SimulatedRun

# This share of files is brought up to date with a change.
FILES_CHANGED = 0.5
RETRY_S = 0.5


class TreeOperator:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._files: dict[str, Topology] = {}

    def file_of(self, broker_id: str) -> Topology:
        """What the broker reads when it starts."""
        return self._files.setdefault(broker_id, self.topology)

    def decide(self, run: SimulatedRun, topology: Topology) -> None:
        """From now on it is to be this one."""
        self.topology = topology
        run.trace.note(f"TOPOLOGY {topology.version}: {' '.join(map(str, topology.links))}")
        for broker_id in self._files:
            if run.rng.random() < FILES_CHANGED:
                self._files[broker_id] = topology

    def hand_out(self, run: SimulatedRun) -> None:
        """Give the newest to one broker that is in it."""
        living = [b for b in run.world.living() if b.broker_id in self.topology and not b.leaving]
        if not living:
            run.later(RETRY_S, self.hand_out, run)
            return
        broker = run.rng.choice(living)
        self._files[broker.broker_id] = self.topology
        run.trace.note(f"{broker.broker_id} is given topology {self.topology.version}")
        frame = PeerFrame(sender=NodeRef(broker_id="operator"))
        frame.messages.add().topology_offer.topology = self.topology.to_text()
        broker.on_peer_frame(frame)
