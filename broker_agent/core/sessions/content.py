"""What clients are sent, in no encoding.

A session's queue holds contents; the door that its client came through turns them into what that
client reads, once for all who get the same (`broker_agent.doors`). A run that many sessions get is
one content in many queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dynatops.v1.client_pb2 import (
    Echoed,
    Goodbye,
    Missed,
    Redelivered,
    Redirect,
    Refused,
    Skipped,
    Subscribed,
    Unsubscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import Acknowledged, Run

# The bodies of `ServerMessage`.
Delivered: TypeAlias = Run | Missed | Skipped | Redelivered
Answer: TypeAlias = (
    Welcome | Subscribed | Unsubscribed | Acknowledged | Refused | Echoed | Goodbye | Redirect
)
Body: TypeAlias = Delivered | Answer
Encoder = Callable[["Content"], bytes]

# What a message takes beside names and events.
_BODY_BYTES = 64


class Content:
    """Some messages for a client, always together. Nobody changes them any more."""

    __slots__ = ("_encoded", "bodies", "nbytes")

    def __init__(self, *bodies: Body) -> None:
        self.bodies = bodies
        # About what it takes, in whichever encoding.
        self.nbytes = sum(map(_size_of, bodies))
        self._encoded: dict[Encoder, bytes] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.bodies == other.bodies

    # Nobody looks one up.
    __hash__ = None  # type: ignore[assignment]

    def encoded(self, encode: Encoder) -> bytes:
        """As this door says it: made once."""
        if self._encoded is None:
            self._encoded = {}
        encoded = self._encoded.get(encode)
        if encoded is None:
            encoded = self._encoded[encode] = encode(self)
        return encoded


def _size_of(body: Body) -> int:
    if isinstance(body, Run):
        return len(body.events) + len(body.topic) + _BODY_BYTES
    if isinstance(body, Acknowledged):
        # There are many; to be asked for its size it would be encoded.
        return len(body.topic) + _BODY_BYTES
    return body.ByteSize()
