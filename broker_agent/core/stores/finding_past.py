"""Finding the past in the network: what a broker tells and hears of stores, asks, and passes on.

    neighbours --StoreAdvertisement--> advertising --> table
    asked here --> requests --> ways --PastRequest--> towards a store ... --> serving --> its log
    asked here <-- requests <-- ways <--PastResponse-- back along the path <-- serving <--'

Whom it tells is the routing's to say (`KnownBrokers.neighbours`): links of the tree that are up, or
links of the overlay on a ring, by broker, wherever its node is placed. After a reconfiguration, or
another topology, those are others, and tables follow.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import ReadPast
from broker_agent.core.routing.routing import PeerHandler, Routing
from broker_agent.core.stores.past_requests import PastNews, PastRequests
from broker_agent.core.stores.past_serving import PastServing
from broker_agent.core.stores.readiness import StoreReadiness
from broker_agent.core.stores.store_reader import ReadOrder, ServedKey, StorePortion, StoreStanding
from dynatops.kit.filters import check_pattern
from dynatops.v1.inspection_pb2 import ListStoresRequest, StoresReport
from dynatops.v1.overlay_pb2 import NodeRef, PeerFrame
from overlay.stores.advertisement_table import AdvertisementTable
from overlay.stores.advertising import Said, StoreAdvertising
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings
from overlay.stores.past_ways import PastWays
from overlay.stores.store_reports import list_stores


class FindingPast:
    def __init__(self, context: BrokerContext, routing: Routing, settings: PastSettings) -> None:
        identity = context.identity
        me = NodeRef(
            broker_id=identity.broker_id,
            address=identity.address,
            incarnation=identity.incarnation,
        )
        self.counters = counters = PastCounters()
        self._me = identity.broker_id
        self._brokers = routing.brokers
        self._outbox = context.outbox
        self._advertising = StoreAdvertising(identity.broker_id, settings, counters)
        self._ways = PastWays(me, self._advertising, settings, counters)
        self._serving = PastServing(me, self._ways, settings, counters)
        self.requests = PastRequests(self.table, self._ways, settings, counters)
        # Of the store here; it asks for nothing where nothing is assigned to it.
        self.readiness = StoreReadiness(
            identity.broker_id, self.table, self._serving, self.requests, settings, counters,
            self.begin_read,
        )  # fmt: skip

    @property
    def table(self) -> AdvertisementTable:
        return self._advertising.table

    @property
    def open_serves(self) -> int:
        """Requests that the store here has open."""
        return len(self._serving)

    def reported_counters(self) -> dict[str, int]:
        """What a manager learns from, what an assignment of stores is worth."""
        counters = self.counters
        return {
            "past_answers": counters.past_answers,
            "past_answer_hops": counters.past_answer_hops,
            "past_events_received": counters.past_events_received,
        }

    def list_stores(self, request: ListStoresRequest) -> StoresReport:
        """Raises FilterError."""
        if request.about:
            check_pattern(request.about)
        return list_stores(self.table, request, self._me)

    def handlers(self) -> Mapping[str, PeerHandler]:
        """What brokers say to each other of it, by kind."""
        advertising, ways = self._advertising, self._ways
        return {
            "store_advertisement": advertising.on_advertisement,
            "want_store_advertisement": advertising.on_want,
            "past_request": lambda sender, message, now_s: ways.on_request(message),
            "past_response": lambda sender, message, now_s: ways.on_response(message),
            "past_credit": lambda sender, message, now_s: ways.on_credit(message),
        }

    # ---- the store here --------------------------------------------------------------------------

    def serve(self, store: StoreStanding) -> None:
        """It is here, and its driver reads its log."""
        self._serving.standing = store

    def on_read(self, key: ServedKey, portion: StorePortion, now_s: float) -> None:
        """What `ReadPast` came to."""
        if not self.readiness.on_read(key, portion, now_s):
            self._serving.on_portion(key, portion, now_s)

    def begin_read(self, order: ReadOrder) -> None:
        self._outbox.do(ReadPast(order))

    # ---- time, and after each input --------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        brokers = self._brokers
        self._advertising.meet(brokers.neighbours())
        self._advertising.tick(brokers.is_gone, now_s)
        self.requests.tick(now_s)
        self._serving.tick(now_s)
        self.readiness.tick(now_s)
        self._send(self._advertising.take_said(now_s))

    def settle(self, now_s: float) -> None:
        """What is to be said because of the input is said."""
        ways = self._ways
        while ways.has_arrived:
            self._deal_with_arrivals(now_s)
        self._serving.begin_reads(self)
        if self._advertising.has_news:
            self._send(self._advertising.take_said(now_s))
        if said := ways.take_said():
            self._send(said)

    @property
    def has_news(self) -> bool:
        """Whether anything came for those who asked here, clients or the store."""
        return self.requests.has_news

    def take_news(self, now_s: float) -> list[PastNews]:
        """What came for clients that asked here."""
        news = self.requests.take_news()
        return [each for each in news if not self.readiness.on_news(each, now_s)]

    def _deal_with_arrivals(self, now_s: float) -> None:
        requests, responses, granted = self._ways.take_arrived()
        for request in requests:
            self._serving.on_request(request, now_s)
        for credit in granted:
            self._serving.on_credit(credit, now_s)
        for response in responses:
            self.requests.on_response(response, now_s)

    def _send(self, said: list[Said]) -> None:
        frames: dict[str, PeerFrame] = {}
        for address, message in said:
            frame = frames.get(address)
            if frame is None:
                frame = frames[address] = PeerFrame(sender=self._brokers.me)
            frame.messages.append(message)
        for address, frame in frames.items():
            if address:
                self._outbox.send(address, frame)
