"""What clients say: every message goes to the part that it is for (`dispatch`), now or when the
broker has thawed. The first one of a connection goes to `reception`, which lets it in or does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.clients.holding import Holding
from broker_agent.core.clients.reception import HELLO_FIRST, Reception
from broker_agent.core.selection.cluster import Cluster
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.session import Session
from dynatops.v1.client_pb2 import ClientFrame, ClientMessage

# Called with the session, the message and the time.
ClientHandler = Callable[[Session, Any, float], None]


class Serving:
    def __init__(
        self,
        registry: Registry,
        reception: Reception,
        cluster: Cluster,
        holding: Holding,
        handlers: Mapping[str, ClientHandler],
    ) -> None:
        self._registry = registry
        self._reception = reception
        self._cluster = cluster
        self._holding = holding
        self._handlers = handlers

    def on_frame(self, connection: ConnectionId, frame: ClientFrame, now_s: float) -> None:
        if not frame.messages and self._reception.is_unnamed(connection):
            self._reception.fail(connection, HELLO_FIRST)
        for message in frame.messages:
            session = self._registry.connections.get(connection)
            if session is None:
                if not self._greet(connection, message, now_s):
                    break
            elif session.closing:
                break
            elif not self._holding.keeps(connection, message):
                self._serve(session, message, now_s)

    def _greet(self, connection: ConnectionId, message: ClientMessage, now_s: float) -> bool:
        """The first message of a connection: whether more of it is listened to."""
        if not self._reception.is_unnamed(connection):
            return False
        session = self._reception.greet(connection, message, now_s)
        if session is None:
            return False
        if message.hello.redirected:
            self._cluster.selection.note_arrival(session.client_id, now_s)
        return True

    def serve_held(self, now_s: float) -> list[ConnectionId]:
        """The broker is not frozen: what clients said while it was is served now. Connections that
        need not wait for that any longer."""
        held, connections = self._holding.release()
        for connection, message in held:
            session = self._registry.connections.get(connection)
            if session is not None and not session.closing:
                self._serve(session, message, now_s)
        return connections

    def _serve(self, session: Session, message: ClientMessage, now_s: float) -> None:
        kind = message.WhichOneof("body")
        handler = self._handlers.get(kind) if kind is not None else None
        if handler is None:
            self._reception.fail_session(session, f"unexpected message {kind or '(empty)'}")
        else:
            handler(session, getattr(message, kind or ""), now_s)
