"""Fingers and the routing table made of them.

Finger k is the first node at or after me + 2^k. Those up to the successor are the successor itself;
the others are made sure of again and again, soon after a change and seldom while nothing changes.
A finger is right as long as its key lies in its range, and where that begins is in its pongs:
it is pinged anyway, as routes rely on it. So only fingers that are missing, or whose range does not
have their key any more, or that do not say, are looked up, which takes a route each. The ring sends
the lookups; what they find is kept here.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlay.base.context import Context
from overlay.base.identifiers import RING_BITS, RING_MASK, Key, NodeId, distance, within
from overlay.base.peers import Peer
from overlay.chord.routing import RoutingTable


class Fingers:
    def __init__(self, context: Context) -> None:
        self.routes = RoutingTable(context.me.node_id)
        # Raised whenever a route has changed: readers compare.
        self.version = 0
        self._me = context.me.node_id
        self._settings = context.settings
        self._liveness = context.liveness
        self._rng = context.rng
        self._successor: Peer | None = None
        self._fingers: dict[int, Peer] = {}
        # Since the last round: fingers that were right when last heard of, those that were not.
        self._confirmed: set[int] = set()
        self._strayed: set[int] = set()
        # Those that in the last round were not known to be right.
        self._doubted: set[int] = set()
        self._due_s = 0.0
        self._asked_s = 0.0
        self._period_s = context.settings.finger_period_min_s

    def due(self, now_s: float) -> list[tuple[int, Key]]:
        """Fingers to look up now, each with the key that it is the successor of. Others, that have
        not said lately where their range begins, are to be pinged for it."""
        if now_s < self._due_s:
            return []
        self._asked_s = now_s
        self._due_s = now_s + self._period_s * self._rng.uniform(0.8, 1.2)
        self._period_s = min(2 * self._period_s, self._settings.finger_period_max_s)
        doubted = [
            exponent
            for exponent in reversed(range(RING_BITS))
            if not (exponent in self._confirmed or self._is_covered(exponent))
        ]
        unknown = [exponent for exponent in doubted if not self._may_say(exponent)]
        for exponent in doubted:
            if exponent in self._fingers:
                self._liveness.want_pong(self._fingers[exponent].node_id)
        self._doubted = set(doubted)
        self._confirmed.clear()
        self._strayed.clear()
        return [(exponent, self._key(exponent)) for exponent in unknown]

    def _key(self, exponent: int) -> Key:
        return Key((self._me + (1 << exponent)) & RING_MASK)

    def _may_say(self, exponent: int) -> bool:
        """Whether there is a finger, which has not just been asked for its range in vain."""
        is_known = exponent in self._fingers and exponent not in self._strayed
        return is_known and exponent not in self._doubted

    def range_told(self, node_id: NodeId, low: NodeId) -> None:
        """A node says where its range begins: it is no finger for a key before that."""
        for exponent, finger in self._fingers.items():
            if finger.node_id != node_id:
                continue
            if within(self._key(exponent), low, node_id):
                self._confirmed.add(exponent)
            else:
                self._confirmed.discard(exponent)
                self._strayed.add(exponent)
                soonest_s = self._asked_s + self._settings.finger_period_min_s
                self._due_s = min(self._due_s, soonest_s)

    def _is_covered(self, exponent: int) -> bool:
        """Whether this finger is the successor, without being looked up."""
        if self._successor is None:
            return True
        return 1 << exponent <= distance(self._me, self._successor.node_id)

    def found(self, exponent: int, peer: Peer) -> None:
        if peer.node_id == self._me or self._is_covered(exponent):
            self._fingers.pop(exponent, None)
        elif not self._liveness.is_condemned(peer.node_id):
            self._fingers[exponent] = peer
            self._confirmed.add(exponent)
            self._strayed.discard(exponent)
        self._rebuild()

    def set_successor(self, successor: Peer | None) -> None:
        self._successor = successor
        for exponent in [k for k in self._fingers if self._is_covered(k)]:
            del self._fingers[exponent]
        self._rebuild()

    def lost(self, node_id: NodeId) -> None:
        self._fingers = {k: p for k, p in self._fingers.items() if p.node_id != node_id}
        self._rebuild()

    def moved(self, peer: Peer) -> None:
        """Another broker hosts it now: routes are the same, through the same nodes."""
        self._fingers = {
            k: peer if p.node_id == peer.node_id else p for k, p in self._fingers.items()
        }
        if self._successor is not None and self._successor.node_id == peer.node_id:
            self._successor = peer
        self.routes.replace(self._targets())

    def items(self) -> Iterable[tuple[int, Peer]]:
        return self._fingers.items()

    def load(self, fingers: Iterable[tuple[int, Peer]], successor: Peer | None) -> None:
        self._fingers = dict(fingers)
        self.set_successor(successor)

    def _targets(self) -> list[Peer]:
        successor = [self._successor] if self._successor is not None else []
        return [*successor, *self._fingers.values()]

    def _rebuild(self) -> None:
        if self.routes.replace(self._targets()):
            self.version += 1
            self._period_s = self._settings.finger_period_min_s
            self._due_s = min(self._due_s, self._asked_s + self._period_s)
