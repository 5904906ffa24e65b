"""What operators are told of sessions: a list in pages, and one session in detail.

Pages are in the order of client ids, which nothing else here needs. So names are put in order when
somebody asks, and that order serves until sessions have come or gone and a list is begun anew: a
page costs as much as what is on it, however many sessions there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice

from broker_agent.core.routing.routing import RoutedSubscriptions
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.session import Session
from dynatops.v1.inspection_pb2 import (
    DescribeSessionRequest,
    ListSessionsRequest,
    SessionDetails,
    SessionReport,
    SessionsReport,
)

SESSIONS_PER_PAGE_MAX = 1_000
# Answers stay far below what a message may have, were every name as long as it may be.
DETAILS_MAX = 1_000


class SessionReports:
    def __init__(self, registry: Registry, subscriptions: RoutedSubscriptions) -> None:
        self._registry = registry
        self._subscriptions = subscriptions
        self._names: list[str] = []
        self._names_as_of: tuple[int, int] | None = None

    def page(self, request: ListSessionsRequest, now_s: float) -> SessionsReport:
        if not request.after or self._names_as_of is None:
            self._put_in_order()
        first = bisect_left(self._names, request.prefix)
        if request.after:
            first = max(first, bisect_right(self._names, request.after))
        limit = min(request.limit or SESSIONS_PER_PAGE_MAX, SESSIONS_PER_PAGE_MAX)
        found: list[Session] = []
        for name in islice(self._names, first, None):
            if not name.startswith(request.prefix):
                break
            # It may have gone since the list was begun.
            session = self._registry.clients.get(name)
            if session is None:
                continue
            if len(found) == limit:
                return SessionsReport(sessions=_reports_on(found, now_s), more=True)
            found.append(session)
        return SessionsReport(sessions=_reports_on(found, now_s))

    def describe(self, request: DescribeSessionRequest, now_s: float) -> SessionDetails:
        session = self._registry.clients.get(request.client_id)
        if session is None:
            return SessionDetails()
        filters = (f for several in session.filters.values() for f in several)
        return SessionDetails(
            session=_report_on(session, now_s),
            filters=[wanted.to_wire() for wanted in islice(filters, DETAILS_MAX)],
            catching_up=islice(self._subscriptions.catching_up(session), DETAILS_MAX),
        )

    def _put_in_order(self) -> None:
        as_of = self._registry.generation
        if self._names_as_of != as_of:
            self._names, self._names_as_of = sorted(self._registry.clients), as_of


def _reports_on(sessions: list[Session], now_s: float) -> list[SessionReport]:
    return [_report_on(session, now_s) for session in sessions]


def _report_on(session: Session, now_s: float) -> SessionReport:
    connected = session.connection is not None
    absent_s = 0.0 if connected else max(0.0, now_s - session.detached_s)
    return SessionReport(
        client_id=session.client_id,
        session_id=session.shown_id,
        connected=connected,
        absent_s=absent_s,
        keep_s=session.expiry_s,
        expires_in_s=max(0.0, session.expiry_s - absent_s),
        filters=sum(len(several) for several in session.filters.values()),
        followed_topics=len(session.followed or ()),
        queued_events=session.queued_events,
        queued_bytes=session.queued_bytes,
        untaken_bytes=session.untaken_bytes,
        delivered_events=session.delivered,
        dropped_events=session.dropped,
        token=session.owner,
    )
