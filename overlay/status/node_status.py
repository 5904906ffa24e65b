"""What a node says of itself: to its broker, to metrics and probes, and to tests.

A value, made by `Node.status` without walking topics: what takes longer is counted in steps
(`Node.count_in_steps`), or asked for by name (`node_reports`).
"""

from __future__ import annotations

from dataclasses import dataclass

from overlay.base.counters import OverlayCounters
from overlay.base.identifiers import NodeId, distance
from overlay.base.membership import Status
from overlay.base.peers import Peer

_RING = 1 << 64


@dataclass(frozen=True, slots=True)
class NodeStatus:
    # Its id, its host, and the epoch since which that hosts it.
    me: Peer
    ring: Status
    # Whether it has the state of its whole range.
    is_ready: bool
    # Whether its state is on its way to another host, and nothing may change it.
    is_sealed: bool
    # As a member it is responsible for the keys in (range_low, me].
    range_low: NodeId
    predecessor: Peer | None
    # Nearest first; none if it is alone.
    successors: tuple[Peer, ...]
    # Different nodes in its routing table, nearest first.
    fingers: tuple[Peer, ...]
    # Peers that it takes for dead.
    condemned: tuple[Peer, ...]
    # Nodes that trees lead to from here.
    tree_children: int
    # Topics that its broker has subscribed to (or ceased to) and whose trees do not know yet.
    unsettled_interests: int
    # Topics whose state the successor is still to be sent, and those of which it has not confirmed
    # everything.
    unsent_topics: int
    unconfirmed_topics: int
    # Of recent events, all topics together.
    retained_bytes: int
    # They go on counting.
    counters: OverlayCounters

    @property
    def successor(self) -> Peer | None:
        return self.successors[0] if self.successors else None

    @property
    def range_share(self) -> float:
        """Of all keys, 0 to 1."""
        if self.ring is not Status.MEMBER:
            return 0.0
        return (distance(self.range_low, self.me.node_id) or _RING) / _RING
