"""Who is here: connections, and the sessions behind them.

A client's id stands for one session. Whoever connects with it gets that session if it is the one
meant (the client remembers no other), and the former connection, if there still is one, is ended.
A client that remembers a session of another broker begins anew here, and tells how far it has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.sessions.session import Session
from dynatops.v1.client_pb2 import Hello

_EXPIRY_PERIOD_S = 1.0
# In one tick; with 100,000 of them, a round takes 5 s.
_LOOKED_AFTER_AT_ONCE = 1_000
_SECRET_BITS = 64


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a hello comes to."""

    session: Session
    resumed: bool
    # A session of the same client that ends because of it.
    ended: Session | None = None
    # A connection that loses its session to this one.
    ousted: ConnectionId | None = None
    # Since when that had been there.
    ousted_since_s: float | None = None


class Registry:
    def __init__(self, context: BrokerContext) -> None:
        # Connections that have said hello, or are told why they may not.
        self.connections: dict[ConnectionId, Session] = {}
        self.clients: dict[str, Session] = {}
        self._name = context.identity.life
        self._settings = context.settings
        self._unsaved = context.unsaved
        self._rng = context.rng
        self._opened = 0
        self._detached: dict[Session, None] = {}
        self._check_s = 0.0
        # Detached sessions that are still to be looked after in this round, and those whose turn
        # it is.
        self._round: Iterator[Session] = iter(())
        self._turn: list[Session] = []

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def generation(self) -> tuple[int, int]:
        """Another one whenever a session has come or gone."""
        return self._opened, len(self.clients)

    @property
    def absent(self) -> int:
        """Sessions that nobody is connected to."""
        return len(self._detached)

    @property
    def is_full(self) -> bool:
        return len(self.clients) >= self._settings.sessions_max

    def count_in_steps(self, counts: BrokerCounts, at_once: int) -> Iterator[None]:
        """Add what waits in sessions to these; a few thousand at a time, as they are many."""
        for number, session in enumerate(list(self.clients.values()), 1):
            queued = session.queued_events
            counts.queued_events += queued
            counts.queued_bytes += session.queued_bytes
            counts.longest_queue_events = max(counts.longest_queue_events, queued)
            counts.untaken_bytes += session.untaken_bytes
            counts.unsettled_bytes += session.unsettled_bytes
            counts.paused += session.paused
            if not number % at_once:
                yield

    def arrive(self, connection: ConnectionId, hello: Hello, now_s: float) -> Arrival:
        client_id = hello.client_id or str(connection)
        present = self.clients.get(client_id)
        ousted = present.connection if present is not None else None
        ousted_since_s = present.attached_s if present is not None else None
        if present is not None and ousted is not None:
            self.depart(ousted, now_s)
        ended = None
        if present is not None and not _is_meant(present, hello):
            ended, present = present, None
            self.remove(ended)
        expiry_s = min(float(hello.expiry_s), self._settings.session_expiry_max_s)
        session = present
        if session is None:
            session = Session(self._new_id(), client_id, hello.slow_policy, self._settings)
            self.clients[client_id] = session
        session.expiry_s = expiry_s
        session.attach(connection, hello.attempt, now_s)
        self._unsaved.session(session)
        self._unsaved.queue(session)
        self._detached.pop(session, None)
        self.connections[connection] = session
        return Arrival(session, present is not None, ended, ousted, ousted_since_s)

    def _new_id(self) -> str:
        """Of a session: nobody can guess it, as whoever knows it may have the session given up."""
        self._opened += 1
        return f"{self._name}/{self._opened}-{self._rng.getrandbits(_SECRET_BITS):016x}"

    def shell(self, connection: ConnectionId) -> Session:
        """A session that is none: only to tell a connection why it has none."""
        shell = Session("", "", 0, self._settings, connection=connection)
        self.connections[connection] = shell
        return shell

    def restore(self, session: Session, now_s: float) -> None:
        """A session kept from before a restart; nobody is connected to it."""
        session.session_id = session.renamed(self._new_id())
        session.detached_s = now_s
        self.clients[session.client_id] = session
        self._detached[session] = None

    def depart(self, connection: ConnectionId, now_s: float) -> Session | None:
        """The connection is gone. The session it had, if that ends with it."""
        session = self.connections.pop(connection, None)
        if session is None or session.connection != connection:
            return None
        session.detach(now_s)
        if self.clients.get(session.client_id) is not session:
            return None
        self._detached[session] = None
        if session.is_kept and not session.closing:
            return None
        self.remove(session)
        return session

    def holds(self, session: Session) -> bool:
        """Whether it is a client's session still, and is to outlive its connection."""
        if not session.is_kept or session.closing:
            return False
        return self.clients.get(session.client_id) is session

    def remove(self, session: Session) -> None:
        self._unsaved.session(session)
        if self.clients.get(session.client_id) is session:
            del self.clients[session.client_id]
        self._detached.pop(session, None)

    # ---- the absent, a few in each tick, as they are many ----------------------------------------

    def is_check_due(self, now_s: float) -> bool:
        """Whether some detached sessions are to be looked after now: it is the turn of others at
        each call, and of all again once a second at most."""
        self._turn = list(islice(self._round, _LOOKED_AFTER_AT_ONCE))
        if not self._turn and now_s >= self._check_s:
            self._check_s = now_s + _EXPIRY_PERIOD_S
            self._round = iter(list(self._detached))
            self._turn = list(islice(self._round, _LOOKED_AFTER_AT_ONCE))
        return bool(self._turn)

    def detached(self) -> Iterable[Session]:
        """Those whose turn it is."""
        return [session for session in self._turn if session in self._detached]

    def expired(self, now_s: float) -> list[Session]:
        """Those whose turn it is, and that nobody came back to in time. They are removed."""
        gone = [s for s in self.detached() if s.detached_s + s.expiry_s <= now_s]
        for session in gone:
            self.remove(session)
        return gone


def _is_meant(present: Session, hello: Hello) -> bool:
    """Whether this is the session that the client wants to go on with."""
    if hello.clean or not present.is_kept or present.closing:
        return False
    return not hello.session_id or present.is_called(hello.session_id)
