"""What a door is: what clients of one kind say, as messages, and what they are told, as bytes.

One may serve all connections of its kind, as `frames` does, or be made for each, where what is said
depends on what was said before. How bytes come and go is nothing of its own: that is a listener's
(`broker_agent.runtime.listeners`).
"""

from __future__ import annotations

from typing import Protocol

from broker_agent.core.base.effects import BrokerEffect, ConnectionId
from broker_agent.core.broker import Broker


class Door(Protocol):
    def on_client_bytes(
        self, broker: Broker, connection: ConnectionId, raw: bytes, reading_s: float, /
    ) -> list[BrokerEffect]:
        """One message of the client's, whatever is in it."""

    def take_output(self, broker: Broker, connection: ConnectionId, bytes_max: int, /) -> bytes:
        """What is to be said to the client now, about so much of it; empty if that is nothing."""
