"""The routing table: which neighbour is next on the way to a point of the ring.

The rule, from which everything else follows: from node u towards point v goes the finger farthest
clockwise in (u, v]. `overlay/placement/geometry.py` has the same rule for a whole ring at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from overlay.base.identifiers import NodeId, distance
from overlay.base.peers import Peer


class RoutingTable:
    """Distinct routing targets, by clockwise distance from this node."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._distances: list[int] = []
        self._peers: list[Peer] = []

    def replace(self, peers: Iterable[Peer]) -> bool:
        """Take these targets; whether any route has changed."""
        by_distance = {distance(self._me, peer.node_id): peer for peer in peers}
        by_distance.pop(0, None)
        distances = sorted(by_distance)
        targets = [by_distance[d] for d in distances]
        if targets == self._peers:
            return False
        self._distances, self._peers = distances, targets
        return True

    def towards(self, point: int) -> Peer | None:
        """The farthest target in (me, point]; None where no target is."""
        index = bisect_right(self._distances, distance(self._me, point))
        return self._peers[index - 1] if index else None

    def before(self, point: int) -> Peer | None:
        """The farthest target in (me, point): on the way to the point's predecessor."""
        index = bisect_left(self._distances, distance(self._me, point))
        return self._peers[index - 1] if index else None

    @property
    def targets(self) -> tuple[Peer, ...]:
        return tuple(self._peers)
