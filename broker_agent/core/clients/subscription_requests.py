"""What clients subscribe to: allowed, at this broker or better at another, and confirmed."""

from __future__ import annotations

from collections.abc import Iterable

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.clients.flow import Flow
from broker_agent.core.clients.gate import Gate
from broker_agent.core.routing.confirming import UnconfirmedRequest
from broker_agent.core.routing.routing import RoutedSubscriptions
from broker_agent.core.selection.cluster import Cluster
from broker_agent.core.sessions.filter_requests import present_filters, sort_filters
from broker_agent.core.sessions.session import Session
from dynatops.v1.client_pb2 import Subscribe, Unsubscribe, Unsubscribed


class SubscriptionRequests:
    def __init__(
        self,
        context: BrokerContext,
        gate: Gate,
        cluster: Cluster,
        subscriptions: RoutedSubscriptions,
        flow: Flow,
    ) -> None:
        self._gate = gate
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._flow = flow
        self._confirming = context.confirming
        self._counters = context.counters

    def on_subscribe(self, session: Session, message: Subscribe, now_s: float) -> None:
        accepted, problems = sort_filters(message.filters, session, self._counters)
        accepted, forbidden = self._gate.sort_filters(session, accepted)
        problems += forbidden
        dropped = present_filters(message.drop, session)
        follows_less = self._subscriptions.unsubscribe(session, dropped, now_s)
        self._gate.count_filters(session)
        if session.redirected or self._cluster.redirect(
            session, accepted, now_s, follows_less=follows_less
        ):
            # Whatever else it asks for, it will ask for there: what it goes on with comes first.
            self._flow.wake(session)
            return
        self._counters.client_errors += len(problems)
        cursors = message.cursors if message.resume else None
        self._subscriptions.subscribe(session, message.request, accepted, problems, cursors, now_s)
        self._gate.count_filters(session)

    def on_unsubscribe(self, session: Session, message: Unsubscribe, now_s: float) -> None:
        gone = present_filters(message.filters, session)
        follows_less = self._subscriptions.unsubscribe(session, gone, now_s)
        self._gate.count_filters(session)
        session.say(Unsubscribed(request=message.request))
        if not session.redirected:
            self._cluster.redirect(session, (), now_s, follows_less=follows_less)
        self._flow.wake(session)

    # ---- sessions on disk -----------------------------------------------------------------------

    def confirm(self, requests: Iterable[UnconfirmedRequest]) -> None:
        """What these waited for is on disk, or nobody knows when it will be."""
        confirming = self._confirming
        for request in requests:
            if confirming.must_refuse(request):
                confirming.unsaved.append(request)
            elif confirming.tell_client(request):
                self._flow.wake(request.session)

    def tick(self, now_s: float) -> None:
        """Refuse what is not on disk, and will not be for a while."""
        for request in self._confirming.take_unsaved():
            self._counters.subscriptions_not_saved += 1
            self._subscriptions.unsubscribe(request.session, request.new, now_s)
            self._confirming.refuse(request)
            self._flow.wake(request.session)
