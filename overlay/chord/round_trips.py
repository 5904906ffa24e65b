"""How long other brokers take to answer, from pings that are sent anyway and a few more.

What is known is of brokers, not of nodes: it goes with the broker to its next node.
"""

from __future__ import annotations

from collections import OrderedDict

from dynatops.v1.overlay_pb2 import Pong
from overlay.base.context import Context
from overlay.base.identifiers import NodeId
from overlay.base.peers import Peer

# Of a new measurement; the rest is what was known.
_WEIGHT = 0.3
_OPEN_MAX = 256
# A broker answers a ping when it comes to it: of what is shorter only the noise differs.
FLOOR_MS = 1.0


class RoundTrips:
    def __init__(self, context: Context) -> None:
        # Whether somebody wants to know, and peers are pinged for it.
        self.measuring = False
        self._directory = context.directory
        self._rng = context.rng
        self._period_s = context.settings.rtt_period_s
        self._known_max = context.settings.peers_known_max
        self._nonce = context.rng.getrandbits(32)
        self._open: OrderedDict[int, tuple[NodeId, float]] = OrderedDict()
        self._seconds: OrderedDict[str, float] = OrderedDict()
        # Measured since somebody was told.
        self._news: dict[str, float] = {}
        self._due_s = 0.0

    def take_measured(self, *, everything: bool) -> dict[str, float]:
        """Seconds by broker: all that is known, or what was measured since the last call."""
        news, self._news = self._news, {}
        return dict(self._seconds) if everything else news

    def take_over(self, former: RoundTrips) -> None:
        """From the node that the broker hosted before."""
        self.measuring = former.measuring
        self._seconds, self._news = former._seconds, former._news

    def way_us(self, broker_id: str) -> int:
        """What a link to this broker counts for events that come along it; 0 if nobody measures."""
        if not self.measuring:
            return 0
        return round(1_000 * max(1_000.0 * self._seconds.get(broker_id, 0.0), FLOOR_MS))

    def due(self, now_s: float) -> list[Peer]:
        """Whom to ping for the sake of measuring: those not measured yet, then anyone."""
        if not self.measuring or now_s < self._due_s:
            return []
        self._due_s = now_s + self._period_s
        peers = list(self._directory)
        unknown = [peer for peer in peers if peer.broker_id not in self._seconds]
        return [self._rng.choice(unknown or peers)] if peers else []

    def begin(self, peer: Peer, now_s: float) -> int:
        """A ping is sent: its number."""
        self._nonce += 1
        self._open[self._nonce] = (peer.node_id, now_s)
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)
        return self._nonce

    def on_pong(self, sender: Peer, message: Pong, now_s: float) -> None:
        node_id, sent_s = self._open.pop(message.nonce, (None, 0.0))
        if node_id != sender.node_id:
            return
        took_s = now_s - sent_s
        former_s = self._seconds.pop(sender.broker_id, took_s)
        self._seconds[sender.broker_id] = former_s + _WEIGHT * (took_s - former_s)
        self._news[sender.broker_id] = self._seconds[sender.broker_id]
        if len(self._seconds) > self._known_max:
            forgotten, _ = self._seconds.popitem(last=False)
            self._news.pop(forgotten, None)
