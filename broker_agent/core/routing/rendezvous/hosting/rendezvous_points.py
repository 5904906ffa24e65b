"""Where topics' rendezvous points were found to be, so that most messages need not look for them.

What is remembered may be out of date: whoever does not answer is forgotten, and the next message
looks for it along the overlay.
"""

from __future__ import annotations

from broker_agent.core.base.context import BrokerContext
from dynatops.kit.bounded import BoundedTable
from overlay.base.peers import Peer


class RendezvousPoints:
    def __init__(self, context: BrokerContext) -> None:
        self._peers: BoundedTable[str, Peer] = BoundedTable(
            context.settings.rendezvous_cache_max, context.counters, "rendezvous_forgotten"
        )

    def get(self, topic: str) -> Peer | None:
        return self._peers.get(topic)

    def found(self, topic: str, peer: Peer) -> None:
        if self._peers.get(topic) != peer:
            self._peers[topic] = peer

    def forget_topic(self, topic: str) -> None:
        """It did not answer: perhaps it is another by now. Let the overlay find it."""
        self._peers.pop(topic, None)

    def forget_address(self, address: str) -> None:
        for topic in [t for t, peer in self._peers.items() if peer.address == address]:
            del self._peers[topic]
