"""What clients say while the broker is frozen, kept until it thaws.

Of each connection no more is read once something of it is kept, so little of each is.
"""

from __future__ import annotations

from broker_agent.core.effects import BrokerEffect, ConnectionId, PauseReading
from dynatops.v1.client_pb2 import ClientMessage

# What changes nothing beyond this broker is served all the same.
_SERVED = frozenset({"received", "echo"})


class Holding:
    def __init__(self) -> None:
        self._held: list[tuple[ConnectionId, ClientMessage]] = []
        self._connections: dict[ConnectionId, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def holds_back(self, connection: ConnectionId, message: ClientMessage) -> bool:
        """Whether a message has to wait, like all of its connection after one that has."""
        return connection in self._connections or message.WhichOneof("body") not in _SERVED

    def keep(self, connection: ConnectionId, message: ClientMessage) -> list[BrokerEffect]:
        self._held.append((connection, message))
        if connection in self._connections:
            return []
        self._connections[connection] = None
        return [PauseReading(connection)]

    def release(self) -> tuple[list[tuple[ConnectionId, ClientMessage]], list[ConnectionId]]:
        """What was kept, in order, and the connections that may be read from again."""
        held, self._held = self._held, []
        connections, self._connections = list(self._connections), {}
        return held, connections
