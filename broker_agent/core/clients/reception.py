"""Clients at the door: connections come, say hello, are given a session, and go.

connected --hello--> let in --> session, new or resumed
    `--nothing for long, no proper hello, no right--> told why, and ended
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import CloseConnection, ConnectionId, Wake
from broker_agent.core.base.notices import (
    SessionDetached,
    SessionEnded,
    SessionOpened,
    SessionResumed,
)
from broker_agent.core.clients.gate import Gate
from broker_agent.core.keeping.journal import SessionJournal
from broker_agent.core.rights.access import Access, Refusal
from broker_agent.core.rights.publisher_ids import (
    SECRET_BYTES_MAX,
    SECRET_BYTES_MIN,
    publisher_of,
)
from broker_agent.core.routing.routing import RoutedSubscriptions
from broker_agent.core.selection.other_brokers import OtherBrokers
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.session import Session
from dynatops.lake.fields import CLOSE, LEAVE, OPEN, RESUME
from dynatops.v1.client_pb2 import ClientMessage, ErrorCode, Hello, Welcome
from dynatops.v1.overlay_pb2 import NodeRef, PeerMessage, SessionMoved

CLIENT_PROTOCOL = 1
CLIENT_ID_BYTES_MAX = 256
# Addresses that a client may name to which it is not to be sent.
AVOIDED_MAX = 16
SHUTTING_DOWN = "the broker is shutting down"
# Later than this after its connection a hello is slow.
HELLO_AT_ONCE_S = 0.25
HELLO_FIRST = "the first message must be Hello"


class Reception:
    def __init__(
        self,
        context: BrokerContext,
        registry: Registry,
        gate: Gate,
        subscriptions: RoutedSubscriptions,
        others: OtherBrokers,
        journal: SessionJournal | None,
    ) -> None:
        self._broker_id = context.identity.broker_id
        self._registry = registry
        self._gate = gate
        self._subscriptions = subscriptions
        self._others = others
        self._journal = journal
        self._settings = context.settings
        self._counters = context.counters
        self._outbox = context.outbox
        self._unsaved = context.unsaved
        self._logbook = context.logbook
        self._rng = context.rng
        # Nobody is let in any more.
        self.is_leaving = False
        # Connections that have not said hello, oldest first: since when, and from which host.
        self._unnamed: dict[ConnectionId, tuple[float, str]] = {}
        self._unnamed_by_host: Counter[str] = Counter()
        # The further door that a connection came by, of those that came by one.
        self._doors: dict[ConnectionId, str] = {}

    @property
    def unnamed(self) -> int:
        """Connections that have not said hello."""
        return len(self._unnamed)

    def is_unnamed(self, connection: ConnectionId) -> bool:
        return connection in self._unnamed

    # ---- coming ---------------------------------------------------------------------------------

    def open(self, connection: ConnectionId, host: str, door: str, now_s: float) -> None:
        settings = self._settings
        if door:
            self._doors[connection] = door
        if self._unnamed_by_host.get(host, 0) >= settings.unnamed_per_address_max:
            self._counters.connections_refused_by_host += 1
            limit = f"{settings.unnamed_per_address_max:,}"
            message = f"{limit} connections from {host or 'there'} have not said hello yet"
            rivals = self._unnamed_of(host)
        elif len(self._unnamed) >= settings.unnamed_max:
            message = f"{settings.unnamed_max:,} connections have not said hello yet"
            rivals = self._unnamed_of(
                max(self._unnamed_by_host, key=self._unnamed_by_host.__getitem__)
            )
        else:
            message, rivals = "", iter(())
        if message:
            self._counters.connections_refused += 1
            # Whoever means it says hello at once: the one that has not for longest makes room.
            oldest = next(rivals, connection)
            since_s, _ = self._unnamed.get(oldest, (now_s, host))
            is_new = now_s - since_s < HELLO_AT_ONCE_S
            refused = connection if is_new else oldest
            self._turn_away(refused, ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS, message)
            if is_new:
                return
        self._unnamed[connection] = now_s, host
        self._unnamed_by_host[host] += 1

    def _unnamed_of(self, host: str) -> Iterator[ConnectionId]:
        return (c for c, (_, other) in self._unnamed.items() if other == host)

    def _settle_name(self, connection: ConnectionId) -> None:
        """It has said hello, or never will."""
        _, host = self._unnamed.pop(connection, (0.0, None))
        if host is not None:
            self._unnamed_by_host[host] -= 1
            if not self._unnamed_by_host[host]:
                del self._unnamed_by_host[host]

    def greet(
        self, connection: ConnectionId, message: ClientMessage, now_s: float
    ) -> Session | None:
        """The first message of a connection: the session that it gets, if it gets one."""
        self._settle_name(connection)
        hello = message.hello
        if problem := _problem_with(message):
            self.fail(connection, problem)
            return None
        if self.is_leaving:
            self._turn_away(connection, ErrorCode.ERROR_CODE_SHUTTING_DOWN, SHUTTING_DOWN)
            return None
        present = self._registry.clients.get(hello.client_id)
        if present is None and self._registry.is_full:
            self._counters.sessions_refused += 1
            text = f"this broker has {self._settings.sessions_max:,} sessions already"
            self._turn_away(connection, ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS, text)
            return None
        grant = self._gate.admit(hello, present)
        if isinstance(grant, Refusal):
            self._turn_away(connection, grant.code, grant.message)
            return None
        arrival = self._registry.arrive(connection, hello, now_s)
        if arrival.ended is not None:
            self._end_for_good(arrival.ended, now_s)
        if arrival.ousted is not None:
            self._counters.sessions_taken_over += 1
            text = f"another connection has come with the client id {hello.client_id!r}"
            self._turn_away(arrival.ousted, ErrorCode.ERROR_CODE_TAKEN_OVER, text)
            if arrival.resumed:
                self._note_closed(arrival.session, CLOSE, arrival.ousted_since_s, now_s)
        arrival.session.door = self._doors.get(connection, "")
        self._gate.let_in(arrival.session, grant)
        arrival.session.publisher = publisher_of(
            grant.name, hello.client_id, hello.publisher_secret, self._rng
        )
        self._logbook.place(arrival.session, _place_of(hello))
        if arrival.resumed:
            self._counters.sessions_resumed += 1
        else:
            self._counters.sessions_opened += 1
        self._welcome(connection, arrival.session, resumed=arrival.resumed)
        self._note_opened(arrival.session, resumed=arrival.resumed, now_s=now_s)
        arrival.session.movable = hello.movable
        arrival.session.speaks_bundles = hello.bundles
        arrival.session.avoid(hello.avoid[:AVOIDED_MAX], now_s + self._settings.avoided_for_s)
        self._tell_former_broker(arrival.session, hello)
        return arrival.session

    def _tell_former_broker(self, session: Session, hello: Hello) -> None:
        """The broker that had this client's session need not keep it any longer.

        Only brokers of this network are told: a client could name anyone.
        """
        address = self._others.former(hello.former_broker_id, hello.former_broker)
        if not address:
            return
        moved = SessionMoved(
            client_id=session.client_id,
            session_id=hello.session_id,
            owner=session.owner,
            attempt=hello.attempt,
        )
        self._others.tell(address, PeerMessage(session_moved=moved))

    def _welcome(self, connection: ConnectionId, session: Session, *, resumed: bool) -> None:
        welcome = Welcome(
            broker_id=self._broker_id,
            session_id=session.session_id,
            payload_bytes_max=session.grant.settings.payload_bytes_max,
            topic_bytes_max=self._settings.topic_bytes_max,
            alternatives=self._others.alternatives(session.door),
            resumed=resumed,
            filters=[f.to_wire() for filters in session.filters.values() for f in filters],
            serial=session.acknowledged + 1,
            expiry_s=int(session.expiry_s),
            publisher=session.publisher,
            bundles=True,
            histories=True,
            newest_serial=session.serial,
        )
        session.say_first(welcome)
        self._outbox.do(Wake(connection))

    # ---- going ----------------------------------------------------------------------------------

    def close(self, connection: ConnectionId, now_s: float) -> None:
        """The connection is gone. Its open publications are still seen through."""
        self._settle_name(connection)
        self._doors.pop(connection, None)
        self._gate.disconnected(connection)
        session = self._registry.connections.get(connection)
        ended = self._registry.depart(connection, now_s)
        if ended is not None:
            self._end_for_good(ended, now_s)
        elif session is not None and session.connection is None and self._registry.holds(session):
            self._note_closed(session, CLOSE, session.attached_s, now_s)
            session.attached_s = None

    def tick(self, now_s: float) -> None:
        oldest_s = now_s - self._settings.hello_timeout_s
        for connection in [c for c, (since_s, _) in self._unnamed.items() if since_s <= oldest_s]:
            self._counters.hello_timeouts += 1
            message = f"no hello within {self._settings.hello_timeout_s:g} s"
            # Perhaps the network was slow: the client may try again.
            self._turn_away(connection, ErrorCode.ERROR_CODE_UNSPECIFIED, message)
        if self._registry.is_check_due(now_s):
            self._look_after_the_absent(now_s)

    def _look_after_the_absent(self, now_s: float) -> None:
        for session in self._registry.expired(now_s):
            self._counters.sessions_expired += 1
            self._end_for_good(session, now_s)
        oldest_s = now_s - self._settings.offline_age_max_s
        for session in self._registry.detached():
            taken = session.acknowledged
            self._counters.expired_events += session.expire(oldest_s)
            if session.acknowledged != taken:
                self._unsaved.queue(session)

    def on_session_moved(self, sender: NodeRef, message: SessionMoved, now_s: float) -> None:
        """A client has gone on at another broker: what is kept for it here is of no use."""
        session = self._registry.clients.get(message.client_id)
        if session is None:
            return
        if session.owner != message.owner or not session.is_called(message.session_id):
            self._counters.session_moves_not_believed += 1
            return
        if message.attempt < session.attempt:
            # The client came back before its going was heard of.
            self._counters.session_moves_outdated += 1
            return
        if self._journal is not None:
            self._journal.forget_session(session)
        self._counters.sessions_moved += 1
        connection = session.connection
        if connection is not None:
            self._outbox.do(CloseConnection(connection))
            self._gate.disconnected(connection)
            self._registry.depart(connection, now_s)
        self._registry.remove(session)
        self._end_for_good(session, now_s)

    def replace_access(self, access: Access) -> None:
        """Other rules hold from now on, for the sessions that are here too."""
        for session, refusal in self._gate.replace(access, self._registry.clients.values()):
            self.end(session, refusal.code, refusal.message)

    # ---- for the lake, and the log --------------------------------------------------------------

    def _note_opened(self, session: Session, *, resumed: bool, now_s: float) -> None:
        self._logbook.session(session, RESUME if resumed else OPEN, now_s)
        client, shown_id = session.client_id, session.shown_id
        if resumed:
            self._outbox.do(SessionResumed(client, shown_id, len(session.filters)))
        else:
            self._outbox.do(SessionOpened(client, shown_id))

    def _note_closed(self, session: Session, op: str, since_s: float | None, now_s: float) -> None:
        """`since_s`: since when it has had the connection that is gone; None if it had none."""
        self._logbook.session(session, op, now_s)
        client, shown_id = session.client_id, session.shown_id
        connected_s = now_s - since_s if since_s is not None else None
        delivered, dropped = session.delivered, session.dropped
        if op == LEAVE:
            self._outbox.do(SessionEnded(client, shown_id, connected_s, delivered, dropped))
        else:
            filters = len(session.filters)
            self._outbox.do(
                SessionDetached(client, shown_id, connected_s, delivered, dropped, filters)
            )

    # ---- ending ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """The broker goes: say so to everybody, and let nobody in any more."""
        self.is_leaving = True
        for session in self._registry.clients.values():
            self.end(session, ErrorCode.ERROR_CODE_SHUTTING_DOWN, SHUTTING_DOWN)

    def _turn_away(self, connection: ConnectionId, code: ErrorCode.ValueType, message: str) -> None:
        self._settle_name(connection)
        self.end(self._shell(connection), code, message)

    def _shell(self, connection: ConnectionId) -> Session:
        shell = self._registry.shell(connection)
        shell.door = self._doors.get(connection, "")
        return shell

    def fail(self, connection: ConnectionId, message: str) -> None:
        """The client broke the rules: tell it why, and end the session."""
        self._counters.client_errors += 1
        self._settle_name(connection)
        session = self._registry.connections.get(connection) or self._shell(connection)
        self.end(session, ErrorCode.ERROR_CODE_PROTOCOL, message)

    def fail_session(self, session: Session, message: str) -> None:
        """The same, should it still have its connection."""
        if session.connection is not None:
            self.fail(session.connection, message)

    def end_slow(self, session: Session) -> None:
        """It does not take what it gets, and its policy is to be told so."""
        self._counters.sessions_closed_slow += 1
        message = "the session's queue is full and its policy is to be disconnected"
        self.end(session, ErrorCode.ERROR_CODE_SLOW_SUBSCRIBER, message)

    def end(self, session: Session, code: ErrorCode.ValueType, message: str) -> None:
        """Say goodbye; once that is taken, the connection ends."""
        session.close(code, message, self._others.alternatives(session.door))
        self._unsaved.session(session)
        if session.connection is not None:
            self._outbox.do(Wake(session.connection))
            self._outbox.do(CloseConnection(session.connection))

    def _end_for_good(self, session: Session, now_s: float) -> None:
        session.closing = True
        self._gate.release(session)
        self._subscriptions.end(session, now_s)
        self._note_closed(session, LEAVE, session.attached_s, now_s)
        self._logbook.place(session, None)


def _problem_with(message: ClientMessage) -> str:
    """Why this is no proper hello; empty if it is one."""
    if not message.HasField("hello"):
        return HELLO_FIRST
    hello: Hello = message.hello
    if hello.protocol != CLIENT_PROTOCOL:
        return f"this broker speaks protocol {CLIENT_PROTOCOL}, the client {hello.protocol}"
    if len(hello.client_id.encode()) > CLIENT_ID_BYTES_MAX:
        return f"a client id has at most {CLIENT_ID_BYTES_MAX} bytes"
    if hello.publisher_secret and not (
        SECRET_BYTES_MIN <= len(hello.publisher_secret) <= SECRET_BYTES_MAX
    ):
        return f"a publisher's secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"
    place = _place_of(hello)
    if place is not None and not (abs(place[0]) <= 90.0 and abs(place[1]) <= 180.0):
        return "latitude is from -90 to 90 degrees, longitude from -180 to 180"
    return ""


def _place_of(hello: Hello) -> tuple[float, float] | None:
    """Latitude and longitude of the client, if it says where it is."""
    if hello.HasField("latitude") and hello.HasField("longitude"):
        return hello.latitude, hello.longitude
    return None
