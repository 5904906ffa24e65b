"""Other brokers as a client may be told of them, and as it tells of them.

A client knows brokers by the names of the door that it came by: one from outside knows none of the
addresses that brokers know each other by. What those names are brokers tell their cluster in
summaries; of a broker that has not been heard there, such a client is told nothing.
"""

from __future__ import annotations

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.routing import KnownBrokers
from broker_agent.core.selection.summaries import Neighbours
from dynatops.v1.overlay_pb2 import PeerFrame, PeerMessage

# Of those that routing knows, which are fewer.
_NEAREST_MAX = 256


class OtherBrokers:
    def __init__(
        self, context: BrokerContext, brokers: KnownBrokers, neighbours: Neighbours
    ) -> None:
        self._identity = context.identity
        self._outbox = context.outbox
        self._alternatives_max = context.settings.alternatives_max
        self._brokers = brokers
        self._neighbours = neighbours

    def alternatives(self, door: str) -> list[str]:
        """To turn to if need be, nearest first, for a client that came by this door."""
        if not door:
            return self._brokers.alternatives(self._alternatives_max)
        named = self._neighbours.named_by(door)
        nearest = self._brokers.alternatives(_NEAREST_MAX)
        near = [named.pop(address) for address in nearest if address in named]
        return [*near, *named.values()][: self._alternatives_max]

    def former(self, broker_id: str, address: str) -> str:
        """Where the broker is that a client comes from, as brokers know it. Empty if it is this
        one, or none of this network: a client could name anyone. Clients of before say no id."""
        if self._identity.broker_id == broker_id or self._identity.address == address:
            return ""
        known = self._brokers.address_of(broker_id) or self._neighbours.address_of(broker_id)
        if known or not self._brokers.has_broker_at(address):
            return known
        return address

    def tell(self, address: str, message: PeerMessage) -> None:
        frame = PeerFrame(sender=self._brokers.me, messages=[message])
        self._outbox.send(address, frame)
