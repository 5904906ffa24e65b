"""A client's session: what it subscribes to, and what waits to be sent to it.

Output is kept as serialised pieces of `ServerFrame`s: pieces laid end to end are a frame again, so
an event is serialised once however many sessions get it. The queue is bounded; what happens past
the bound is the session's choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from broker_agent.core.access import Grant
from broker_agent.core.effects import SessionId
from broker_agent.core.settings import CoreSettings
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


class Session:
    def __init__(self, session_id: SessionId, client_id: str, policy: int, settings: CoreSettings):
        self.session_id = session_id
        self.client_id = client_id
        # Nothing, until it has been let in.
        self.grant = Grant(settings)
        self.topics: dict[str, None] = {}
        self.closing = False
        # Bytes of publications that their rendezvous points have not taken yet.
        self.unsettled_bytes = 0
        self.paused = False
        self.delivered = 0
        self.dropped = 0
        self._closes_when_slow = policy == SlowPolicy.SLOW_POLICY_DISCONNECT
        self._settings = settings
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        self._events = 0
        # Events dropped since the subscriber was last told, by topic.
        self._untold: dict[str, int] = {}

    @property
    def queued_events(self) -> int:
        return self._events

    @property
    def has_output(self) -> bool:
        return bool(self._pieces or self._untold)

    def say(self, message: ServerMessage) -> None:
        """Queue a control message. These are few, and bounded by what the client asked."""
        if not self.closing:
            self._append(piece_of(message), 0)

    def offer(self, topic: str, piece: bytes, events: int) -> bool | None:
        """Queue events; False if they were dropped, None if the session is too slow to go on."""
        if self.closing:
            return False
        if (
            self._events + events > self._settings.session_queue_events_max
            or self._bytes + len(piece) > self._settings.session_queue_bytes_max
        ) and self._pieces:
            if self._closes_when_slow:
                return None
            self._untold[topic] = self._untold.get(topic, 0) + events
            self.dropped += events
            return False
        if topic in self._untold:
            self._tell([topic])
        self._append(piece, events)
        self.delivered += events
        return True

    def take(self, bytes_max: int) -> bytes:
        """Remove and return output, a whole frame; at least one piece if there is any."""
        if not self._pieces and self._untold:
            self._tell(list(self._untold))
        taken: list[bytes] = []
        size = 0
        while self._pieces and (not taken or size + len(self._pieces[0][0]) <= bytes_max):
            piece, events = self._pieces.popleft()
            self._events -= events
            size += len(piece)
            taken.append(piece)
        self._bytes -= size
        return b"".join(taken)

    def close(self, code: ErrorCode.ValueType, message: str, alternatives: Iterable[str]) -> None:
        """Say goodbye after what is queued; nothing more is queued."""
        if not self.closing:
            goodbye = Goodbye(code=code, message=message, alternatives=alternatives)
            self.say(ServerMessage(goodbye=goodbye))
            self.closing = True

    def _append(self, piece: bytes, events: int) -> None:
        self._pieces.append((piece, events))
        self._bytes += len(piece)
        self._events += events

    def _tell(self, topics: Iterable[str]) -> None:
        for topic in topics:
            count = self._untold.pop(topic)
            cause = MissCause.MISS_CAUSE_SLOW_SUBSCRIBER
            self.say(ServerMessage(missed=Missed(topic=topic, cause=cause, count=count)))
