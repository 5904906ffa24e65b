"""What a broker does about stores, wherever events travel: the part that `Broker` knows.

    publishing --what is to be stored--> StoredPublications --asks--> who stamps it: MarkBoard
                                                   ^-----------marks of stores---------'

A store here tells its marks the same way. What it keeps is advertised once it is subscribed, and
has what other stores had (`readiness.py`), for requests for the past to find it
(`finding_past.py`), if its driver reads its log for them. A manager may say what it keeps
(`assigning.py`), and is told how far it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.routing import Routing
from broker_agent.core.stores.assigning import StoreAssigning
from broker_agent.core.stores.finding_past import FindingPast
from broker_agent.core.stores.log.log_requests import LogOutcome
from broker_agent.core.stores.mark_board import MarkBoard
from broker_agent.core.stores.readiness import KeepingState, StoreReadiness
from broker_agent.core.stores.store_client import StoreClient
from broker_agent.core.stores.store_options import StoreOptions
from broker_agent.core.stores.stored_publications import StoredPublications
from dynatops.v1.manager_pb2 import KeptUnit, StoreReport
from dynatops.v1.overlay_pb2 import (
    FromStamper,
    NodeRef,
    PeerFrame,
    PeerMessage,
    StoreMark,
    ToStamper,
)
from overlay.soundness import is_sound
from overlay.stores.past_settings import PastSettings


class Storing:
    def __init__(
        self,
        context: BrokerContext,
        routing: Routing,
        store: StoreOptions | None,
        past: PastSettings,
    ) -> None:
        self._identity = context.identity
        self._outbox = context.outbox
        self._routing = routing
        self._board = MarkBoard(context)
        self.publications = StoredPublications(context, routing.publishing)
        self.store = StoreClient(context, routing, store) if store is not None else None
        self.past = FindingPast(context, routing, past)
        if self.store is not None:
            self.past.serve(self.store)
        self._readiness: StoreReadiness | None = None
        if store is not None and store.serves:
            self._readiness = self.past.readiness
        self._has_failed = False
        # Where numbers are shared by topics, a log does not know since when it has each of them.
        is_assignable = store is not None and not routing.stamping.shares_numbers
        self.assigning = StoreAssigning(
            context,
            self.store,
            store.capacity if store is not None and is_assignable else 0,
            store.assigned if store is not None else None,
        )
        routing.stamping.heed(self.on_to_stamper)

    def start(self, now_s: float) -> None:
        if self.store is not None:
            self.store.start(now_s)
        if self._readiness is not None:
            self._readiness.start()

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

    @property
    def unready(self) -> str:
        """Why no client should be sent here because of the store; empty if one may."""
        return self.store.unready if self.store is not None else ""

    def on_log_outcome(self, outcome: LogOutcome, now_s: float) -> None:
        assert self.store is not None
        self._tell(self.store.on_outcome(outcome, now_s), now_s)
        for filled in self.store.take_filled():
            self.past.readiness.appended(filled, now_s)

    def tick(self, now_s: float) -> None:
        self._ask(self.publications.tick(now_s), now_s)
        if self.store is not None:
            self._tell(self.store.tick(now_s), now_s)
            if self._readiness is not None:
                self._look_at(self.store, self._readiness, now_s)
        self.past.tick(now_s)

    def _look_at(self, store: StoreClient, readiness: StoreReadiness, now_s: float) -> None:
        """Whether the store can be asked depends on what it keeps, its subscription, its session,
        and its disk."""
        readiness.keep(store.patterns)
        has_missed = store.take_missed()
        if store.failure and not self._has_failed:
            self._has_failed = True
            readiness.disk_failed()
        elif not store.unready:
            for pattern in store.in_place:
                readiness.subscribed(pattern, now_s)
            if has_missed:
                readiness.fell_behind(now_s)

    def report(self) -> StoreReport | None:
        """For the manager; None: this broker is no store, and cannot be one."""
        store = self.store
        if store is None:
            return None
        ready = set(self._ready(store))
        keeps = [
            KeptUnit(pattern=pattern, ready=pattern in ready, events=store.events.get(pattern, 0))
            for pattern in dict.fromkeys(wanted.pattern for wanted in store.filters)
        ]
        return StoreReport(
            capacity=self.assigning.capacity,
            epoch=self.assigning.epoch,
            keeps=keeps,
            failure=store.failure,
        )

    def _ready(self, store: StoreClient) -> Sequence[str]:
        """What can be asked of the store, as far as anybody may ask it."""
        if self._readiness is None:
            return store.in_place
        states = self._readiness.states()
        return [pattern for pattern, state in states if state is KeepingState.READY]

    def settle(self, now_s: float) -> None:
        """After an input, before what it has caused goes out."""
        publishing = self._routing.publishing
        if publishing.has_unstored:
            self._ask(self.publications.take_in(now_s), now_s)
        publishing.tell_stored()
        if self.store is not None:
            self.store.settle()
            for lacked in self.past.readiness.take_lacked():
                self.store.fill(lacked)
        self.past.settle(now_s)

    def _tell(self, marks: list[StoreMark], now_s: float) -> None:
        if marks:
            self._routing.stamping.send(marks, (), now_s)

    def _ask(self, topics: list[str], now_s: float) -> None:
        if topics:
            self._routing.stamping.send((), topics, now_s)
