"""What clients ask of the past: allowed, asked of stores, and told as far as there is credit.

    History -------> PastRequests --> stores
    HistoryCredit -> more, but no more under way than the broker's window
    HistoryPart, ..., HistoryEnd <-- what comes of it

A history is of one connection: when that is gone so is the history. The client asks for the rest
where it goes on, by its cursors. A client that does not read what it is told is sent no more of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.clients.flow import Flow
from broker_agent.core.routing.routing import RoutingMeasures
from broker_agent.core.sessions.session import Session
from broker_agent.core.stores.past_requests import (
    PastArrived,
    PastEnded,
    PastNews,
    PastRequests,
)
from dynatops.kit.filters import Filter, FilterError
from dynatops.v1.client_pb2 import History, HistoryCredit, HistoryEnd, HistoryPart
from dynatops.v1.overlay_pb2 import PastError, PastPlace, PastRange
from overlay.forwarding.streams.portions import put_portion

_ClientRequest = tuple[Session, int]


@dataclass(slots=True)
class _OpenHistory:
    session: Session
    # It ends with this connection.
    connection: ConnectionId | None
    request: int
    # Bytes that the client lets come, that stores have been granted, that have come.
    credit: int
    granted: int
    spent: int = 0

    @property
    def is_wanted(self) -> bool:
        session = self.session
        return session.connection == self.connection and not session.closing


class HistoryRequests:
    def __init__(
        self,
        context: BrokerContext,
        requests: PastRequests,
        flow: Flow,
        measures: RoutingMeasures,
    ) -> None:
        self._logbook = context.logbook
        self._measures = measures
        self._settings = context.settings
        self._counters = context.counters
        self._requests = requests
        self._flow = flow
        # By what the client calls it; and by the number of the question.
        self._asks: dict[_ClientRequest, int] = {}
        self._open: dict[int, _OpenHistory] = {}

    # ---- what clients say ------------------------------------------------------------------------

    def on_history(self, session: Session, message: History, now_s: float) -> None:
        problem = self._why_not(session, message)
        if problem is not None:
            error, text = problem
            self._counters.client_errors += 1
            self._end(session, message.request, error, text)
            return
        wanted = Filter.from_wire(message.filter)
        credit = message.credit_bytes
        granted = min(credit, self._settings.history_window_bytes)
        number = self._requests.ask(wanted, _range_of(message), granted, now_s)
        self._count(wanted)
        self._asks[session, message.request] = number
        self._open[number] = _OpenHistory(
            session, session.connection, message.request, credit, granted
        )

    def _count(self, wanted: Filter) -> None:
        """A user's request, once: here, whoever answers it and however often it is asked. Of a
        filter with wildcards, for each of the topics that stores are known to keep of it."""
        topics = self._requests.topics_of(wanted)
        for topic in topics:
            self._logbook.requested(topic)
        self._measures.requested(topics)

    def _why_not(
        self, session: Session, message: History
    ) -> tuple[PastError.ValueType, str] | None:
        settings = session.grant.settings
        pattern = message.filter.pattern
        try:
            wanted = Filter.from_wire(message.filter, settings.topic_bytes_max)
        except FilterError as error:
            return PastError.PAST_ERROR_INVALID, str(error)
        if wanted.tests > settings.condition_tests_max:
            limit = settings.condition_tests_max
            text = f"its condition has {wanted.tests:,} tests; the limit is {limit:,}"
            return PastError.PAST_ERROR_INVALID, text
        if (session, message.request) in self._asks:
            text = f"another history of this client has the number {message.request}"
            return PastError.PAST_ERROR_INVALID, text
        if not session.grant.may_subscribe(pattern):
            self._counters.subscribe_not_allowed += 1
            text = f"the token {session.grant.name!r} does not allow subscribing to {pattern!r}"
            return PastError.PAST_ERROR_FORBIDDEN, text
        limit = self._settings.histories_per_session_max
        if sum(asking is session for asking, _ in self._asks) >= limit:
            text = f"a client has {limit:,} histories open at most"
            return PastError.PAST_ERROR_OVERLOADED, text
        return None

    def on_credit(self, session: Session, message: HistoryCredit, now_s: float) -> None:
        number = self._asks.get((session, message.request))
        if number is None:
            # It has ended meanwhile.
            return
        if message.cancel:
            self._forget(number)
            self._requests.cancel(number)
            return
        history = self._open[number]
        history.credit += message.credit_bytes
        self._grant(number, history, now_s)

    # ---- what comes of it ------------------------------------------------------------------------

    def on_news(self, news: PastNews, now_s: float) -> None:
        """What stores have answered, or that there is no answer."""
        history = self._open.get(news.ask)
        if history is None:
            # The client wants it no more.
            return
        if isinstance(news, PastEnded):
            self._forget(news.ask)
            if history.is_wanted:
                self._end(history.session, history.request, news.error, news.message)
        elif history.is_wanted:
            self._tell(news, history)
            self._grant(news.ask, history, now_s)

    def tick(self, now_s: float) -> None:
        for number, history in list(self._open.items()):
            if history.is_wanted:
                self._grant(number, history, now_s)
            else:
                self._forget(number)
                self._requests.cancel(number)

    def _tell(self, arrived: PastArrived, history: _OpenHistory) -> None:
        history.spent = arrived.spent_bytes
        part = HistoryPart(
            request=history.request, lossy=arrived.is_lossy, spent_bytes=arrived.spent_bytes
        )
        # What comes together is in runs, or in bundles.
        for portion in arrived.portions:
            put_portion(part.events, portion)
        history.session.say(part)
        self._flow.wake(history.session)

    def _grant(self, number: int, history: _OpenHistory, now_s: float) -> None:
        """As much as the client lets come, a window of it at a time, while it reads."""
        window = self._settings.history_window_bytes
        if history.session.answers_bytes > window:
            return
        more = min(history.credit, history.spent + window) - history.granted
        if more > 0:
            history.granted += more
            self._requests.grant(number, more, now_s)

    def _end(
        self, session: Session, request: int, error: PastError.ValueType, message: str
    ) -> None:
        session.say(HistoryEnd(request=request, error=error, message=message))
        self._flow.wake(session)

    def _forget(self, number: int) -> None:
        history = self._open.pop(number)
        del self._asks[history.session, history.request]

    def __len__(self) -> int:
        return len(self._open)


def _range_of(message: History) -> PastRange:
    """Where it goes on at a store is for brokers alone to say."""
    places = [PastPlace(topic=cursor.topic, seen=cursor.seen) for cursor in message.after]
    return PastRange(
        after=places,
        since_us=message.since_us,
        last=message.last,
        with_loss=message.with_loss,
        upto=[PastPlace(topic=cursor.topic, seen=cursor.seen) for cursor in message.upto],
    )
