"""Whose messages are read, and who is woken to hear something.

A client that publishes more than the network takes, more than its token may, or that does not
read what it is told, is not read from until it can be again. So with one that publishes faster than
anybody reads it: while all sessions that its events go to are here and have more than half of what
may wait for them still to read, nobody is slowed if it waits, and nothing need be dropped. If one
of them keeps up, it does not wait for the others: they are too slow, and drop. Nor does it wait
for long for a client that reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import (
    CloseConnection,
    ConnectionId,
    PauseReading,
    ResumeReading,
    Wake,
)
from broker_agent.core.clients.gate import Gate
from broker_agent.core.routing.routing import RoutedPublishing
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.session import Session
from dynatops.v1.client_pb2 import Echo, Echoed, ErrorCode, Received


class Flow:
    def __init__(
        self, context: BrokerContext, registry: Registry, gate: Gate, publishing: RoutedPublishing
    ) -> None:
        self._registry = registry
        self._gate = gate
        self._publishing = publishing
        self._settings = context.settings
        self._counters = context.counters
        self._outbox = context.outbox
        self._unsaved = context.unsaved
        # Sessions that are not read from because they do not read.
        self._unread: dict[Session, None] = {}
        # Sessions not read from because all together have too much open.
        self._waiting_for_others: dict[Session, None] = {}
        # Sessions that have published since the last input was dealt with.
        self._published: dict[Session, float] = {}
        # Those that wait for readers: for whom, and until when at most.
        self._waiting_for_readers: dict[Session, tuple[tuple[Session, ...], float]] = {}

    # ---- what a client says ---------------------------------------------------------------------

    def on_received(self, session: Session, message: Received, now_s: float) -> None:
        self._unsaved.queue(session)
        if session.received(message):
            self.wake(session)

    def on_echo(self, session: Session, message: Echo, now_s: float) -> None:
        session.say(Echoed(request=message.request))
        self.wake(session)

    # ---- reading --------------------------------------------------------------------------------

    def published(self, session: Session, now_s: float) -> None:
        """The session has published: is it to be read on?"""
        self._published[session] = now_s
        if not session.paused and self._has_too_much_open(session):
            session.paused = True
            self._counters.publish_pauses += 1
            if session.connection is not None:
                self._outbox.do(PauseReading(session.connection))
        if session.connection is not None and self._gate.must_wait(session, now_s):
            self._outbox.do(PauseReading(session.connection))

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

    def read_again(self, connections: Iterable[ConnectionId]) -> None:
        """One reason not to read from these is gone."""
        for connection in connections:
            session = self._registry.connections.get(connection)
            if session is not None and self._may_be_read(session):
                self._outbox.do(ResumeReading(connection))

    def _may_be_read(self, session: Session) -> bool:
        """Whether nothing speaks against reading what its client says."""
        waits = session in self._waiting_for_readers or self._gate.is_waiting(session)
        return not (session.paused or session.unread or waits)

    def _wait_for_readers(self) -> None:
        """Whoever has just published for sessions that all have enough to read waits."""
        crowds, published = self._outbox.take_crowds(), self._published
        if not published:
            return
        self._published = {}
        for session, now_s in published.items():
            crowd = crowds.get(session.publisher & ~1)
            if not crowd or session.connection is None or session in crowd:
                continue
            if session not in self._waiting_for_readers:
                until_s = now_s + self._settings.reader_patience_s
                self._waiting_for_readers[session] = tuple(crowd), until_s
                self._counters.reader_pauses += 1
                self._outbox.do(PauseReading(session.connection))

    def _look_for_readers(self, now_s: float) -> None:
        """Read on from publishers whose readers, one of them at least, have little left to read."""
        for session, (crowd, until_s) in list(self._waiting_for_readers.items()):
            if now_s < until_s and not any(reader.has_little for reader in crowd):
                continue
            for reader in crowd:
                reader.outwaited = now_s >= until_s and not reader.has_little
            del self._waiting_for_readers[session]
            if session.connection is not None:
                self.read_again([session.connection])

    def tick(self, now_s: float) -> None:
        self.read_again(self._gate.due(now_s))
        self._look_for_readers(now_s)
        for session in [session for session in self._unread if self._has_read(session)]:
            del self._unread[session]
            session.unread = False
            if session.connection is not None:
                self.read_again([session.connection])

    def _has_read(self, session: Session) -> bool:
        """Whether a client that did not read has read enough, or is no more."""
        return session.answers_bytes <= self._settings.session_answers_bytes_max / 4

    def settle(self) -> None:
        """Once an input has been dealt with: see to the sessions that it has touched."""
        outbox = self._outbox
        if outbox.crowds or self._published:
            self._wait_for_readers()
        if outbox.touched:
            for session in outbox.take_touched():
                self.wake(session)
                self._unsaved.queue(session)
        if outbox.settled:
            for session in outbox.take_settled():
                # Most who want no acknowledgement are told nothing.
                if session.has_output:
                    self.wake(session)
                self._read_on(session)
        if self._waiting_for_others and self._has_room_for_all:
            waiting, self._waiting_for_others = self._waiting_for_others, {}
            for session in waiting:
                self._read_on(session)

    @property
    def _has_room_for_all(self) -> bool:
        return self._publishing.unsettled_bytes < self._settings.publish_total_bytes_max / 4

    def _read_on(self, session: Session) -> None:
        """It was too far ahead of what is taken, or all were; perhaps it is no longer."""
        if not session.paused or session in self._waiting_for_others:
            return
        if session.unsettled_bytes < self._settings.publish_window_bytes / 2:
            session.paused = False
            if session.connection is not None:
                self.read_again([session.connection])

    # ---- waking ---------------------------------------------------------------------------------

    def wake(self, session: Session) -> None:
        """There is something for it to hear."""
        connection = session.connection
        if connection is None:
            return
        self._outbox.do(Wake(connection))
        if session.answers_bytes > self._settings.session_answers_bytes_max / 2:
            self._mind_unread(session, connection)

    def _mind_unread(self, session: Session, connection: ConnectionId) -> None:
        """The client does not read what it is told: it is not asked for more, and in the end not
        served any longer. A session that is kept waits for the next connection."""
        if not session.unread:
            session.unread = True
            self._unread[session] = None
            self._counters.unread_pauses += 1
            self._outbox.do(PauseReading(connection))
        if session.has_unread_too_much:
            self._counters.connections_unread += 1
            bound = self._settings.session_answers_bytes_max
            message = f"this client does not read: over {bound:,} bytes of answers wait for it"
            session.end_unread(ErrorCode.ERROR_CODE_UNSPECIFIED, message)
            self._outbox.do(CloseConnection(connection))
