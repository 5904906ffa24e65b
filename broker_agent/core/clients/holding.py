"""What clients say while the broker is frozen, kept until it thaws.

Of each connection no more is read once something of it is kept, so little of each is.
"""

from __future__ import annotations

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import ConnectionId, PauseReading
from broker_agent.core.routing.routing import RoutingPlans
from dynatops.v1.client_pb2 import ClientMessage

# What changes nothing beyond this broker is served all the same.
_SERVED = frozenset({"received", "echo"})


class Holding:
    def __init__(self, context: BrokerContext, plans: RoutingPlans) -> None:
        self._outbox = context.outbox
        self._plans = plans
        self.held: list[tuple[ConnectionId, ClientMessage]] = []
        self._connections: dict[ConnectionId, None] = {}

    def keeps(self, connection: ConnectionId, message: ClientMessage) -> bool:
        """Whether a message has to wait, like all of its connection after one that has; it is kept
        then."""
        if not self._plans.is_frozen:
            return False
        if connection not in self._connections:
            if message.WhichOneof("body") in _SERVED:
                return False
            self._connections[connection] = None
            self._outbox.do(PauseReading(connection))
        self.held.append((connection, message))
        return True

    def release(self) -> tuple[list[tuple[ConnectionId, ClientMessage]], list[ConnectionId]]:
        """What was kept, in order, and the connections that may be read from again."""
        held, self.held = self.held, []
        connections, self._connections = list(self._connections), {}
        return held, connections
