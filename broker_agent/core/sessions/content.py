"""What clients are sent, in no encoding.

A session's queue holds contents; the door that its client came through turns them into what that
client reads, once for all who get the same (`broker_agent.doors`). A run that many sessions get is
one content in many queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

from dynatops.kit.bundles import Bundle
from dynatops.v1 import overlay_pb2
from dynatops.v1.client_pb2 import (
    Echoed,
    Goodbye,
    HistoryEnd,
    HistoryPart,
    Missed,
    Redelivered,
    Redirect,
    Refused,
    ServerFrame,
    Skipped,
    Subscribed,
    Unsubscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import Acknowledged, Acknowledgements, Run

# The bodies of `ServerMessage`.
Delivered: TypeAlias = Run | overlay_pb2.Bundle | Missed | Skipped | Redelivered
Answer: TypeAlias = (
    Welcome
    | Subscribed
    | Unsubscribed
    | Acknowledged
    | Acknowledgements
    | Refused
    | Echoed
    | Goodbye
    | Redirect
    | HistoryPart
    | HistoryEnd
)
Body: TypeAlias = Delivered | Answer

_FIELDS: Mapping[type, str] = MappingProxyType(
    {
        Run: "run", overlay_pb2.Bundle: "bundle", Acknowledgements: "acknowledgements",
        Missed: "missed", Skipped: "skipped", Redelivered: "redelivered",
        Welcome: "welcome", Subscribed: "subscribed", Unsubscribed: "unsubscribed",
        Acknowledged: "acknowledged", Refused: "refused", Echoed: "echoed", Goodbye: "goodbye",
        Redirect: "redirect", HistoryPart: "history_part", HistoryEnd: "history_end",
    }
)  # fmt: skip
# What a message takes beside names and events.
_BODY_BYTES = 64
# What an event in a bundle takes beside its name and its payload.
_COLUMNS_BYTES = 32


class Codec(Protocol):
    """An encoding of contents: a door's, or that of the disk."""

    def encode(self, frame: ServerFrame) -> bytes: ...

    def decode(self, raw: bytes) -> ServerFrame: ...


class Content:
    """Some messages for a client, always together. Nobody changes them any more.

    It is kept as messages until it has been encoded, and as what that came to afterwards: never as
    both, for most are encoded once, and then wait until their client has them. They are copies:
    what comes from another broker is part of a frame, all of which would have to be kept with it.
    """

    __slots__ = ("_codec", "_frame", "_others", "_raw", "nbytes")

    def __init__(self, *bodies: Body) -> None:
        self._frame: ServerFrame | None = ServerFrame()
        # About what it takes, in whichever encoding.
        self.nbytes = 0
        for body in bodies:
            getattr(self._frame.messages.add(), _FIELDS[type(body)]).CopyFrom(body)
            self.nbytes += _size_of(body)
        self._codec: Codec | None = None
        self._raw = b""
        # In further encodings, of which there are few.
        self._others: tuple[tuple[Codec, bytes], ...] = ()

    @classmethod
    def from_encoded(cls, codec: Codec, raw: bytes) -> Content:
        content = cls()
        content._frame, content._codec, content._raw = None, codec, raw
        content.nbytes = len(raw)
        return content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self._messages == other._messages

    # Nobody looks one up.
    __hash__ = None  # type: ignore[assignment]

    @property
    def _messages(self) -> ServerFrame:
        frame = self._frame
        if frame is None:
            assert self._codec is not None
            frame = self._codec.decode(self._raw)
        return frame

    @property
    def bodies(self) -> list[Body]:
        found = ((message, message.WhichOneof("body")) for message in self._messages.messages)
        return [getattr(message, kind) for message, kind in found if kind is not None]

    def encoded(self, codec: Codec) -> bytes:
        """Made once, however many get it."""
        if self._codec is codec:
            return self._raw
        for other, raw in self._others:
            if other is codec:
                return raw
        raw = codec.encode(self._messages)
        if self._codec is None:
            self._raw = raw
            self._codec = codec
            self._frame = None
        else:
            self._others += ((codec, raw),)
        return raw


class RunContent(Content):
    """One run: there are many, and they are in a hurry."""

    __slots__ = ()

    def __init__(self, run: Run) -> None:
        self._frame = frame = ServerFrame()
        frame.messages.add().run.CopyFrom(run)
        self.nbytes = len(run.events) + len(run.topic) + _BODY_BYTES
        self._codec = None
        self._others = ()


class BundleContent(Content):
    """Events of many topics; likewise."""

    __slots__ = ("events",)

    def __init__(self, bundle: Bundle) -> None:
        self._frame = frame = ServerFrame()
        bundle.fill(frame.messages.add().bundle)
        self.events = len(bundle)
        self.nbytes = bundle.nbytes + sum(map(len, bundle.topics)) + _COLUMNS_BYTES * self.events
        self._codec = None
        self._others = ()

    def topics(self) -> list[str]:
        return [
            topic
            for body in self.bodies
            if isinstance(body, overlay_pb2.Bundle)
            for topic in body.topics
        ]


def note_firsts(content: Content, firsts: dict[int, int]) -> None:
    """The number of the first event of each term, where there is none yet."""
    for body in content.bodies:
        if isinstance(body, Run):
            firsts.setdefault(body.term, body.first_seq)
        elif isinstance(body, overlay_pb2.Bundle):
            for term, seq in zip(body.terms, body.seqs, strict=True):
                firsts.setdefault(term, seq)


def _size_of(body: Body) -> int:
    if isinstance(body, Run):
        return len(body.events) + len(body.topic) + _BODY_BYTES
    if isinstance(body, Acknowledged):
        # There are many; to be asked for its size it would be encoded.
        return len(body.topic) + _BODY_BYTES
    return body.ByteSize()
