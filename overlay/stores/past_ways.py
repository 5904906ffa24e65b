"""The way of requests to stores, and of their answers back: source routes, built hop by hop.

    asks here --> 6 --Request by 6--> 5 --by 6 5--> 3 --> store
    asked     <-- 6 <--Response by 6-- 5 <--by 6 5-- 3 <--

As Storing, section III-A, has it: each broker looks up the unit, and nothing else of the filter, in
its Advertisement Table, puts itself at the end of the path, and sends the request to a neighbour
that is nearest to a store. A response carries the path; each broker takes itself off it, and gives
it to the one that is last then. What more may be sent (`PastCredit`) goes to the same store,
whatever tables have become: along the route that the first response has told.

A request that cannot go on is answered by the broker that it has come to. Nothing of it is kept on
the way: what is lost is asked for again by the broker that asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynatops.v1.overlay_pb2 import (
    NodeRef,
    PastCredit,
    PastError,
    PastRequest,
    PastResponse,
    PeerMessage,
)
from overlay.forwarding.tables.held_filters import HERE
from overlay.stores.advertising import Said, StoreAdvertising
from overlay.stores.past_counters import PastCounters
from overlay.stores.past_settings import PastSettings


class PastWays:
    def __init__(
        self,
        me: NodeRef,
        advertising: StoreAdvertising,
        settings: PastSettings,
        counters: PastCounters,
    ) -> None:
        self._me = me
        self._advertising = advertising
        self._hops_max = settings.hops_max
        self._counters = counters
        self._said: list[Said] = []
        # What has come to its end here.
        self._requests: list[PastRequest] = []
        self._responses: list[PastResponse] = []
        self._credits: list[PastCredit] = []

    def take_said(self) -> list[Said]:
        said, self._said = self._said, []
        return said

    @property
    def has_arrived(self) -> bool:
        return bool(self._requests or self._responses or self._credits)

    def take_arrived(
        self,
    ) -> tuple[list[PastRequest], list[PastResponse], list[PastCredit]]:
        """What has come to its end here: requests and credits for the store of this broker, and
        responses for those who asked here."""
        arrived = self._requests, self._responses, self._credits
        self._requests, self._responses, self._credits = [], [], []
        return arrived

    # ---- requests --------------------------------------------------------------------------------

    def send_request(self, request: PastRequest) -> str:
        """One that is asked here, or has come here. Which store it is sent towards, as far as is
        known here; empty if it goes nowhere."""
        me = self._me
        passed = {stop.broker_id for stop in request.path} | {me.broker_id}
        hop = self._advertising.table.next_hop(request.unit, passed, request.avoid)
        if hop is not None and hop.broker == HERE:
            self._requests.append(request)
            return hop.store
        address = self._advertising.address_of(hop.broker) if hop is not None else ""
        if hop is None or not address or len(request.path) >= self._hops_max:
            self._counters.requests_unanswerable += 1
            self._answer(request, f"{me.broker_id} knows of no store of it that is not avoided")
            return ""
        if request.path:
            self._counters.requests_forwarded += 1
        onward = PastRequest()
        onward.CopyFrom(request)
        onward.path.append(me)
        self._said.append((address, PeerMessage(past_request=onward)))
        return hop.store

    def on_request(self, request: PastRequest) -> None:
        me = self._me.broker_id
        if not request.path or any(stop.broker_id == me for stop in request.path):
            self._counters.past_messages_strange += 1
            return
        self.send_request(request)

    def _answer(self, request: PastRequest, message: str) -> None:
        self.send_response(
            PastResponse(
                request=request.request,
                path=request.path,
                number=1,
                error=PastError.PAST_ERROR_NOT_STORED,
                message=message,
            )
        )

    # ---- responses -------------------------------------------------------------------------------

    def send_response(self, response: PastResponse) -> None:
        """To the broker that is last in its path; if there is none, it was asked here."""
        if not response.path:
            self._responses.append(response)
            return
        address = response.path[-1].address
        self._said.append((address, PeerMessage(past_response=response)))

    def on_response(self, response: PastResponse) -> None:
        if not response.path or response.path[-1].broker_id != self._me.broker_id:
            self._counters.past_messages_strange += 1
            return
        del response.path[-1]
        if response.path:
            self._counters.responses_forwarded += 1
        self.send_response(response)

    # ---- credits ---------------------------------------------------------------------------------

    def send_credit(self, credit: PastCredit, route: Sequence[NodeRef]) -> None:
        """Along the route, to the store at its end; if there is none, it is here."""
        if not route:
            self._credits.append(credit)
            return
        onward = PastCredit()
        onward.CopyFrom(credit)
        del onward.route[:]
        onward.route.extend(route)
        onward.path.append(self._me)
        self._said.append((route[0].address, PeerMessage(past_credit=onward)))

    def on_credit(self, credit: PastCredit) -> None:
        if not credit.path or not credit.route or credit.route[0].broker_id != self._me.broker_id:
            self._counters.past_messages_strange += 1
            return
        self.send_credit(credit, credit.route[1:])
