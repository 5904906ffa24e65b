"""What clients with a session ask for: every message goes to the parts that it is for.

Whoever publishes more than can be taken is not read from until it can be again. Whoever has
something new to hear is woken. How clients come and go is `reception`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker_agent.core.clients.gate import Gate
from broker_agent.core.clients.holding import Holding
from broker_agent.core.clients.publication_checks import problem_with, void
from broker_agent.core.clients.reception import Reception
from broker_agent.core.core_settings import CoreSettings
from broker_agent.core.counters import BrokerCounters
from broker_agent.core.effects import (
    BrokerEffect,
    CloseConnection,
    ConnectionId,
    PauseReading,
    ResumeReading,
    SaveNow,
    Wake,
)
from broker_agent.core.publishing.publishing import Publishing
from broker_agent.core.reading.confirming import UnconfirmedRequest
from broker_agent.core.reading.filter_requests import cursors_of, present_filters, sort_filters
from broker_agent.core.reading.subscriptions import Subscriptions
from broker_agent.core.rights.publisher_ids import is_of
from broker_agent.core.selection.cluster import Cluster
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.session import Session
from broker_agent.core.sessions.unsaved import Unsaved
from dynatops.v1.client_pb2 import (
    ClientMessage,
    Echoed,
    ErrorCode,
    ServerMessage,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
)
from dynatops.v1.overlay_pb2 import Publication


class Serving:
    def __init__(
        self,
        settings: CoreSettings,
        counters: BrokerCounters,
        registry: Registry,
        gate: Gate,
        reception: Reception,
        cluster: Cluster,
        subscriptions: Subscriptions,
        publishing: Publishing,
        unsaved: Unsaved,
        effects: list[BrokerEffect],
        is_frozen: Callable[[], bool],
    ) -> None:
        # What clients have published, to be sent on; the broker takes it.
        self.published: list[Publication] = []
        self._settings = settings
        self._counters = counters
        self._registry = registry
        self._gate = gate
        self._reception = reception
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._publishing = publishing
        self._unsaved = unsaved
        # The broker's: what is to be done, in order.
        self._effects = effects
        self._is_frozen = is_frozen
        self._holding = Holding()
        # Sessions that are not read from because they do not read.
        self._unread: dict[Session, None] = {}
        # Sessions not read from because all together have too much open.
        self._waiting_for_others: dict[Session, None] = {}

    # ---- what a client says ---------------------------------------------------------------------

    def take_in(
        self, connection: ConnectionId, session: Session, message: ClientMessage, now_s: float
    ) -> None:
        """Serve it now, or when the broker has thawed."""
        if self._is_frozen() and self._holding.holds_back(connection, message):
            self._effects += self._holding.keep(connection, message)
        else:
            self.serve(session, message, now_s)

    def serve_held(self, now_s: float) -> None:
        """The broker is not frozen: what clients said while it was is served now."""
        held, connections = self._holding.release()
        for connection, message in held:
            session = self._registry.connections.get(connection)
            if session is not None and not session.closing:
                self.serve(session, message, now_s)
        for connection in connections:
            session = self._registry.connections.get(connection)
            if session is not None and self._may_be_read(session):
                self._effects.append(ResumeReading(connection))

    def _may_be_read(self, session: Session) -> bool:
        """Whether nothing speaks against reading what its client says."""
        return not (session.paused or session.unread or self._gate.is_waiting(session))

    def serve(self, session: Session, message: ClientMessage, now_s: float) -> None:
        kind = message.WhichOneof("body")
        if kind == "publication":
            self._publish(session, message.publication, now_s)
        elif kind == "received":
            self._unsaved.queue(session)
            if session.received(message.received):
                self._wake(session)
        elif kind == "subscribe":
            self._subscribe(session, message.subscribe, now_s)
        elif kind == "unsubscribe":
            self._unsubscribe(session, message.unsubscribe, now_s)
        elif kind == "echo":
            session.say(ServerMessage(echoed=Echoed(request=message.echo.request)))
            self._wake(session)
        else:
            self._fail(session, f"unexpected message {kind or '(empty)'}")

    def _fail(self, session: Session, message: str) -> None:
        if session.connection is not None:
            self._reception.fail(session.connection, message)

    def _subscribe(self, session: Session, message: Subscribe, now_s: float) -> None:
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
            self._wake(session)
            return
        self._counters.client_errors += len(problems)
        cursors = None
        if message.resume:
            cursors = cursors_of(message)
        self._subscriptions.subscribe(session, message.request, accepted, problems, cursors, now_s)
        self._gate.count_filters(session)

    def _unsubscribe(self, session: Session, message: Unsubscribe, now_s: float) -> None:
        gone = present_filters(message.filters, session)
        follows_less = self._subscriptions.unsubscribe(session, gone, now_s)
        self._gate.count_filters(session)
        session.say(ServerMessage(unsubscribed=Unsubscribed(request=message.request)))
        if not session.redirected:
            self._cluster.redirect(session, (), now_s, follows_less=follows_less)
        self._wake(session)

    def _publish(self, session: Session, publication: Publication, now_s: float) -> None:
        if not is_of(session.publisher, publication.publisher):
            self._counters.publishers_not_believed += 1
            self._fail(session, "the publisher of a publication is the one that Welcome names")
            return
        problem = (
            self._gate.forbids(session.grant, publication, now_s)
            or problem_with(publication, session.grant.settings)
            or self._gate.overtaxed(session.grant, publication, now_s)
        )
        if problem is not None:
            self._counters.client_errors += 1
            self._publishing.refuse(session, publication, problem.code, problem.message)
            if not problem.uses_up_numbers:
                return
            publication = void(publication)
        self.published.append(self._publishing.accept(session, publication, now_s))
        if not session.paused and self._has_too_much_open(session):
            session.paused = True
            self._counters.publish_pauses += 1
            if session.connection is not None:
                self._effects.append(PauseReading(session.connection))
        if session.connection is not None and self._gate.must_wait(session, now_s):
            self._effects.append(PauseReading(session.connection))

    def _has_too_much_open(self, session: Session) -> bool:
        if session.unsettled_bytes > self._settings.publish_window_bytes:
            return True
        total, total_max = self._publishing.unsettled_bytes, self._settings.publish_total_bytes_max
        # In the second half there is room only for those who have little open.
        has_little = session.unsettled_bytes <= self._settings.publish_window_bytes / 8
        if total <= (total_max if has_little else total_max / 2):
            return False
        # Nothing of its own may become settled that it could be reminded by.
        self._waiting_for_others[session] = None
        return True

    # ---- what follows for clients ---------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        self._refuse_unsaved(now_s)
        for connection in self._gate.due(now_s):
            session = self._registry.connections.get(connection)
            if session is not None and self._may_be_read(session):
                self._effects.append(ResumeReading(connection))
        for session in [session for session in self._unread if self._has_read(session)]:
            del self._unread[session]
            session.unread = False
            if session.connection is not None and self._may_be_read(session):
                self._effects.append(ResumeReading(session.connection))

    def _has_read(self, session: Session) -> bool:
        """Whether a client that did not read has read enough, or is no more."""
        return session.answers_bytes <= self._settings.session_answers_bytes_max / 4

    def confirm(self, requests: Iterable[UnconfirmedRequest]) -> None:
        """What these waited for is on disk, or nobody knows when it will be."""
        confirming = self._subscriptions.confirming
        for request in requests:
            if confirming.must_refuse(request):
                confirming.unsaved.append(request)
            elif confirming.tell(request):
                self._wake(request.session)

    def _refuse_unsaved(self, now_s: float) -> None:
        for request in self._subscriptions.confirming.take_unsaved():
            self._counters.subscriptions_not_saved += 1
            self._subscriptions.unsubscribe(request.session, request.new, now_s)
            self._subscriptions.confirming.refuse(request)
            self._wake(request.session)

    def settle(self) -> None:
        """After each input: see to the sessions that it has touched."""
        touched, slow = self._subscriptions.readers.delivery.take_touched()
        for session in slow:
            self._counters.sessions_closed_slow += 1
            message = "the session's queue is full and its policy is to be disconnected"
            self._reception.end(session, ErrorCode.ERROR_CODE_SLOW_SUBSCRIBER, message)
        for session in touched:
            self._wake(session)
            self._unsaved.queue(session)
        if self._subscriptions.confirming.held:
            self._effects.append(SaveNow())
        for session in self._publishing.take_touched():
            # Most who want no acknowledgement are told nothing.
            if session.has_output:
                self._wake(session)
            self._read_on(session)
        if self._waiting_for_others and self._has_room_for_all:
            waiting, self._waiting_for_others = self._waiting_for_others, {}
            for session in waiting:
                self._read_on(session)

    @property
    def _has_room_for_all(self) -> bool:
        return self._publishing.unsettled_bytes < self._settings.publish_total_bytes_max / 4

    def _read_on(self, session: Session) -> None:
        """It was too far ahead of the rendezvous points, or all were; perhaps it is no longer."""
        if not session.paused or session in self._waiting_for_others:
            return
        if session.unsettled_bytes < self._settings.publish_window_bytes / 2:
            session.paused = False
            if session.connection is not None and self._may_be_read(session):
                self._effects.append(ResumeReading(session.connection))

    def _wake(self, session: Session) -> None:
        connection = session.connection
        if connection is None:
            return
        self._effects.append(Wake(connection))
        if session.answers_bytes > self._settings.session_answers_bytes_max / 2:
            self._mind_unread(session, connection)

    def _mind_unread(self, session: Session, connection: ConnectionId) -> None:
        """The client does not read what it is told: it is not asked for more, and in the end not
        served any longer. A session that is kept waits for the next connection."""
        if not session.unread:
            session.unread = True
            self._unread[session] = None
            self._counters.unread_pauses += 1
            self._effects.append(PauseReading(connection))
        if session.has_unread_too_much:
            self._counters.connections_unread += 1
            bound = self._settings.session_answers_bytes_max
            message = f"this client does not read: over {bound:,} bytes of answers wait for it"
            session.end_unread(ErrorCode.ERROR_CODE_UNSPECIFIED, message)
            self._effects.append(CloseConnection(connection))
