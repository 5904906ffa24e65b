"""What clients are sent, in no encoding.

A session's queue holds contents; the door that its client came through turns them into what that
client reads, once for all who get the same (`broker_agent.doors`). A run that many sessions get is
one content in many queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

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

# What a message takes beside names and events.
_BODY_BYTES = 64


class Codec(Protocol):
    """An encoding of contents: a door's, or that of the disk."""

    def encode(self, bodies: Sequence[Body]) -> bytes: ...

    def decode(self, raw: bytes) -> Sequence[Body]: ...


class Content:
    """Some messages for a client, always together. Nobody changes them any more.

    It is kept as bodies until it has been encoded, and as what that came to afterwards: never as
    both, for most are encoded once, and then wait until their client has them.
    """

    __slots__ = ("_bodies", "_codec", "_others", "_raw", "nbytes")

    def __init__(self, *bodies: Body) -> None:
        self._bodies: Sequence[Body] | None = bodies
        # About what it takes, in whichever encoding.
        self.nbytes = sum(map(_size_of, bodies))
        self._codec: Codec | None = None
        self._raw = b""
        # In further encodings, of which there are few.
        self._others: tuple[tuple[Codec, bytes], ...] = ()

    @classmethod
    def from_encoded(cls, codec: Codec, raw: bytes) -> Content:
        content = cls()
        content._bodies, content._codec, content._raw = None, codec, raw
        content.nbytes = len(raw)
        return content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and list(self.bodies) == list(other.bodies)

    # Nobody looks one up.
    __hash__ = None  # type: ignore[assignment]

    @property
    def bodies(self) -> Sequence[Body]:
        bodies = self._bodies
        if bodies is None:
            assert self._codec is not None
            bodies = self._codec.decode(self._raw)
        return bodies

    def encoded(self, codec: Codec) -> bytes:
        """Made once, however many get it."""
        if self._codec is codec:
            return self._raw
        for other, raw in self._others:
            if other is codec:
                return raw
        raw = codec.encode(self.bodies)
        if self._codec is None:
            self._raw = raw
            self._codec = codec
            self._bodies = None
        else:
            self._others += ((codec, raw),)
        return raw


def _size_of(body: Body) -> int:
    if isinstance(body, Run):
        return len(body.events) + len(body.topic) + _BODY_BYTES
    if isinstance(body, Acknowledged):
        # There are many; to be asked for its size it would be encoded.
        return len(body.topic) + _BODY_BYTES
    return body.ByteSize()
