"""What a broker does about stores, wherever events travel: the part that `Broker` knows.

    publishing --what is to be stored--> StoredPublications --asks--> who stamps it: MarkBoard
                                                   ^-----------marks of stores---------'

A store here tells its marks the same way.
"""

from __future__ import annotations

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.routing import Routing
from broker_agent.core.stores.mark_board import MarkBoard
from broker_agent.core.stores.stored_publications import StoredPublications
from dynatops.v1.overlay_pb2 import FromStamper, NodeRef, PeerFrame, PeerMessage, ToStamper
from overlay.soundness import is_sound


class Storing:
    def __init__(self, context: BrokerContext, routing: Routing) -> None:
        self._identity = context.identity
        self._outbox = context.outbox
        self._routing = routing
        self._board = MarkBoard(context)
        self.publications = StoredPublications(context, routing.publishing)
        routing.stamping.heed(self.on_to_stamper)

    def on_to_stamper(self, message: ToStamper, now_s: float) -> None:
        """A store, or a publisher's broker, takes this one for who stamps these topics."""
        if not is_sound(message):
            return
        me = self._routing.brokers.me
        for address, answer in self._board.on_message(message, now_s).items():
            if address == self._identity.address:
                self.on_from_stamper(me, answer, now_s)
            else:
                frame = PeerFrame(sender=me, messages=[PeerMessage(from_stamper=answer)])
                self._outbox.send(address, frame)

    def on_from_stamper(self, sender: NodeRef, message: FromStamper, now_s: float) -> None:
        if is_sound(message):
            self._routing.stamping.found(message.found, sender)
            self.publications.on_marks(message, now_s)

    def tick(self, now_s: float) -> None:
        self._ask(self.publications.tick(now_s), now_s)

    def settle(self, now_s: float) -> None:
        """After an input, before what it has caused goes out."""
        self._ask(self.publications.take_in(now_s), now_s)
        self._routing.publishing.tell_stored()

    def _ask(self, topics: list[str], now_s: float) -> None:
        if topics:
            self._routing.stamping.send((), topics, now_s)
