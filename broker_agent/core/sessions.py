"""A client's session: what it subscribes to, and what waits to be sent to it.

    attached --connection lost--> detached --same client id--> attached
                                     `--expiry, or none wished for--> gone

Output is kept as serialised pieces of `ServerFrame`s: pieces laid end to end are a frame again, so
an event is serialised once however many sessions get it. The queue is bounded; what happens past
the bound is the session's choice. Deliveries (runs of events, and notices of what was missed) are
numbered with serials. A session that outlives its connections keeps deliveries until the client
says that its application took them, and sends those again that a broken connection may have lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from broker_agent.core.effects import ConnectionId
from broker_agent.core.settings import CoreSettings
from dynatops.filters import Filter, pattern_matches
from dynatops.v1.client_pb2 import (
    ErrorCode,
    Goodbye,
    MissCause,
    Missed,
    ServerFrame,
    ServerMessage,
    SlowPolicy,
)


def piece_of(message: ServerMessage) -> bytes:
    """The message as a frame of its own, which is also a piece of a longer one."""
    return ServerFrame(messages=[message]).SerializeToString()


class Piece(NamedTuple):
    data: bytes
    events: int
    # Of a delivery; 0 for an answer, which concerns one connection only.
    serial: int
    topic: str
    queued_s: float


class Session:
    __slots__ = (
        "_bytes", "_closes_when_slow", "_events", "_pieces", "_sent", "_sent_bytes", "_settings",
        "_untold", "acknowledged", "client_id", "closing", "connection", "delivered", "detached_s",
        "dropped", "expiry_s", "filters", "followed", "moved_s", "origin_id",
        "paused", "policy", "saved", "serial", "session_id", "unsettled_bytes", "wildcards",
    )  # fmt: skip

    def __init__(
        self,
        session_id: str,
        client_id: str,
        policy: int,
        settings: CoreSettings,
        *,
        connection: ConnectionId | None = None,
        expiry_s: float = 0.0,
    ) -> None:
        self.session_id = session_id
        self.client_id = client_id
        self.policy = policy
        self.connection = connection
        # How long it outlives its connection.
        self.expiry_s = expiry_s
        self.detached_s = 0.0
        # As it was called when it was opened, and is called on disk. Each later life of the broker
        # has a name of its own for it, because serials may stand for other deliveries than before.
        self.origin_id = session_id
        # When it was last sent to another broker, or came from one.
        self.moved_s = float("-inf")
        # By pattern; one pattern may come with several conditions.
        self.filters: dict[str, tuple[Filter, ...]] = {}
        self.wildcards: tuple[Filter, ...] = ()
        # Topics that its wildcards have brought in.
        self.followed: dict[str, None] | None = None
        self.closing = False
        # Bytes of publications that their rendezvous points have not taken yet.
        self.unsettled_bytes = 0
        self.paused = False
        self.delivered = 0
        self.dropped = 0
        # Serial of the newest delivery, of the newest that the application took, and of the newest
        # that is on disk.
        self.serial = 0
        self.acknowledged = 0
        self.saved = 0
        self._closes_when_slow = policy == SlowPolicy.SLOW_POLICY_DISCONNECT
        self._settings = settings
        # Queues exist while there is something in them: most sessions are quiet most of the time.
        self._pieces: deque[Piece] | None = None
        self._bytes = 0
        self._events = 0
        self._sent: deque[Piece] | None = None
        self._sent_bytes = 0
        # Events dropped since the subscriber was last told, by topic and cause.
        self._untold: dict[tuple[str, MissCause.ValueType], int] | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_s > 0

    @property
    def queued_events(self) -> int:
        return self._events

    @property
    def has_output(self) -> bool:
        return bool(self._pieces or self._untold)

    def renamed(self, life: str) -> str:
        """What this life of the broker calls it."""
        return f"{self.origin_id}~{life}"

    def is_called(self, session_id: str) -> bool:
        """Whether any life of the broker has called it so."""
        return session_id == self.origin_id or session_id.startswith(self.renamed(""))

    def add_filter(self, wanted: Filter) -> bool:
        """Whether its pattern is new to the session."""
        present = self.filters.get(wanted.pattern, ())
        if wanted not in present:
            self.filters[wanted.pattern] = (*present, wanted)
            if wanted.is_wildcard:
                self.wildcards = (*self.wildcards, wanted)
        return not present

    def remove_filter(self, unwanted: Filter) -> bool:
        """Whether its pattern is gone with it."""
        present = self.filters.pop(unwanted.pattern, ())
        remaining = tuple(f for f in present if f != unwanted)
        self.wildcards = tuple(f for f in self.wildcards if f != unwanted)
        if remaining:
            self.filters[unwanted.pattern] = remaining
        return bool(present) and not remaining

    def filters_on(self, topic: str) -> list[Filter]:
        """Those that want something of this topic."""
        by_wildcard = [f for f in self.wildcards if pattern_matches(f.pattern, topic)]
        return [*self.filters.get(topic, ()), *by_wildcard]

    # ---- connections ----------------------------------------------------------------------------

    def attach(self, connection: ConnectionId) -> None:
        self.connection = connection
        self.closing = False

    def detach(self, now_s: float) -> None:
        """The connection is gone: answers are void, deliveries not yet taken go out again."""
        self.connection = None
        self.detached_s = now_s
        self.paused = False
        pieces = [*(self._sent or ()), *(self._pieces or ())]
        self._sent, self._sent_bytes = None, 0
        # A client may have said that it has what it was about to be sent again.
        self._pieces = deque(p for p in pieces if p.serial > self.acknowledged) or None
        self._events = sum(piece.events for piece in self._pieces or ())
        self._bytes = sum(len(piece.data) for piece in self._pieces or ())

    def received(self, serial: int) -> bool:
        """The application took deliveries up to this serial; whether that makes room to send."""
        self.acknowledged = max(self.acknowledged, min(serial, self.serial))
        was_full = self._is_waiting
        sent = self._sent
        while sent and sent[0].serial <= serial:
            self._sent_bytes -= len(sent.popleft().data)
        if not sent:
            self._sent = None
        return was_full and not self._is_waiting

    @property
    def _is_waiting(self) -> bool:
        """Whether too much is on its way to the application to send it more."""
        return self._sent_bytes > self._settings.session_window_bytes

    def unconfirmed(self, after: int, upto: int) -> list[Piece]:
        """Deliveries that the application has not taken, newer than the one serial, not newer than
        the other."""
        newest_first: list[Piece] = []
        for pieces in (self._pieces, self._sent):
            # From the end: what is older has been asked for before, and may be long.
            for piece in reversed(pieces or ()):
                if 0 < piece.serial <= after:
                    break
                if 0 < piece.serial <= upto:
                    newest_first.append(piece)
        return newest_first[::-1]

    def untold(self) -> list[Missed]:
        """What was dropped since the subscriber was last told."""
        return [
            Missed(topic=topic, cause=cause, count=count)
            for (topic, cause), count in (self._untold or {}).items()
        ]

    def restore(self, pieces: Iterable[Piece], untold: Iterable[Missed]) -> None:
        """What waited before the broker restarted. To be said before anything has come."""
        for piece in pieces:
            if not self.serial:
                self.acknowledged = piece.serial - 1
            self._queue.append(piece)
            self._bytes += len(piece.data)
            self._events += piece.events
            self.serial = self.saved = piece.serial
        if not self._pieces:
            self._pieces = None
        for missed in untold:
            self._note_dropped(missed.topic, missed.cause, missed.count)

    # ---- output ---------------------------------------------------------------------------------

    @property
    def _queue(self) -> deque[Piece]:
        if self._pieces is None:
            self._pieces = deque()
        return self._pieces

    def say(self, message: ServerMessage) -> None:
        """Queue an answer. These are few, and bounded by what the client asked."""
        if not self.closing and self.connection is not None:
            self._append(piece_of(message), 0, "", 0.0, serial=0)

    def say_first(self, message: ServerMessage) -> None:
        """An answer that goes before whatever waits."""
        data = piece_of(message)
        self._queue.appendleft(Piece(data, 0, 0, "", 0.0))
        self._bytes += len(data)

    def tell(self, topic: str, piece: bytes, now_s: float) -> None:
        """Queue a notice about a topic, in its place among the events."""
        if not self.closing:
            self.serial += 1
            self._append(piece, 0, topic, now_s, serial=self.serial)

    def offer(self, topic: str, piece: bytes, events: int, now_s: float) -> bool | None:
        """Queue events; False if they were dropped, None if the session is too slow to go on."""
        if self.closing:
            return False
        if (
            self._events + events > self._settings.session_queue_events_max
            or self._bytes + len(piece) > self._settings.session_queue_bytes_max
        ) and self._pieces:
            if self._closes_when_slow:
                return None
            self._note_dropped(topic, MissCause.MISS_CAUSE_SLOW_SUBSCRIBER, events)
            return False
        if self._untold is not None:
            self._tell_dropped(now_s, topic)
        self.serial += 1
        self._append(piece, events, topic, now_s, serial=self.serial)
        self.delivered += events
        return True

    def take(self, bytes_max: int, now_s: float) -> bytes:
        """Remove and return output, a whole frame; at least one piece if there is any."""
        if self._untold is not None and not self._pieces:
            self._tell_dropped(now_s)
        pieces = self._pieces
        if not pieces or self._is_waiting:
            return b""
        keep = self.is_kept
        taken: list[bytes] = []
        size = 0
        while pieces and (not taken or size + len(pieces[0].data) <= bytes_max):
            piece = pieces.popleft()
            self._events -= piece.events
            size += len(piece.data)
            taken.append(piece.data)
            if keep and piece.serial:
                if self._sent is None:
                    self._sent = deque()
                self._sent.append(piece)
                self._sent_bytes += len(piece.data)
        self._bytes -= size
        if not pieces:
            self._pieces = None
        return b"".join(taken)

    def expire(self, before_s: float) -> int:
        """Drop what has waited since before this time for an absent client; how many events."""
        dropped = 0
        pieces = self._pieces
        while pieces and pieces[0].queued_s < before_s:
            piece = pieces.popleft()
            # The client counts from here on.
            self.acknowledged = max(piece.serial, self.acknowledged)
            self._bytes -= len(piece.data)
            self._events -= piece.events
            dropped += piece.events
            if piece.events:
                self._note_dropped(piece.topic, MissCause.MISS_CAUSE_EXPIRED, piece.events)
        if not pieces:
            self._pieces = None
        return dropped

    def close(self, code: ErrorCode.ValueType, message: str, alternatives: Iterable[str]) -> None:
        """Say goodbye after what is queued; nothing more is queued."""
        if not self.closing:
            goodbye = Goodbye(code=code, message=message, alternatives=alternatives)
            self.say(ServerMessage(goodbye=goodbye))
            self.closing = True

    def _append(self, data: bytes, events: int, topic: str, now_s: float, *, serial: int) -> None:
        self._queue.append(Piece(data, events, serial, topic, now_s))
        self._bytes += len(data)
        self._events += events

    def _note_dropped(self, topic: str, cause: MissCause.ValueType, events: int) -> None:
        if self._untold is None:
            self._untold = {}
        self._untold[topic, cause] = self._untold.get((topic, cause), 0) + events
        self.dropped += events

    def _tell_dropped(self, now_s: float, topic: str | None = None) -> None:
        """Say what was dropped, of this topic or of all."""
        untold = self._untold or {}
        for key in [key for key in untold if topic is None or key[0] == topic]:
            missed = Missed(topic=key[0], cause=key[1], count=untold.pop(key))
            self.tell(key[0], piece_of(ServerMessage(missed=missed)), now_s)
        if not untold:
            self._untold = None
