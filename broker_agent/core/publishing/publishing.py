"""Publications on their way from this broker's clients to the rendezvous points.

Every publication is kept until the rendezvous point acknowledges it, and sent again meanwhile: in
order, everything that is open for this publisher and topic. The publisher's numbers make that
harmless. A publisher with too much open is made to wait; after a deadline it is told that nobody
took its events.

One stream, (publisher, topic):   open 5 6 7 8  --Acknowledged(6)-->  open 7 8

A stream with nothing open knows no session, which may be gone by then: only what was settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.hosting.rendezvous import RendezvousPoints
from broker_agent.core.publishing.timings import Timings
from broker_agent.core.sessions.session import Session
from dynatops.kit.bounded import BoundedTable
from dynatops.v1.client_pb2 import ErrorCode, Refused
from dynatops.v1.overlay_pb2 import AckLevel, Acknowledged, Publication

_RETRY_PAUSE_FACTOR_MAX = 5.0
# A position acknowledged longer ago may be forgotten with its topic, and says nothing.
_POSITION_KNOWN_S = 60.0
# What a publication takes beside its events.
_OPEN_BYTES = 256
_UINT64_MAX = (1 << 64) - 1


@dataclass(slots=True)
class _OpenPublication:
    publication: Publication
    entered_s: float
    # Of its events: the message makes a copy of them each time it is asked.
    nbytes: int

    @property
    def last_number(self) -> int:
        return self.publication.first_number + self.publication.count - 1


@dataclass(slots=True)
class _Past:
    """What is known of a stream, whether anything is open or not."""

    # Numbers up to here are acknowledged or given up: the rendezvous point must not wait for them.
    settled: int = 0
    # Where the topic stood at the last acknowledgement, and when that was.
    known: tuple[int, int] = (0, 0)
    known_s: float = 0.0

    def known_at(self, now_s: float) -> tuple[int, int]:
        return self.known if now_s - self.known_s < _POSITION_KNOWN_S else (0, 0)


@dataclass(slots=True)
class _PublisherStream:
    """Something of it is open."""

    session: Session
    past: _Past
    open: deque[_OpenPublication] = field(default_factory=deque)
    due_s: float = 0.0
    pause_s: float = 0.0


class Publishing:
    def __init__(self, context: BrokerContext, rendezvous: RendezvousPoints) -> None:
        self.timings = Timings()
        # Bytes of all sessions' publications that their rendezvous points have not taken yet.
        self.unsettled_bytes = 0
        self._settings = context.settings
        self._counters = context.counters
        self._outbox = context.outbox
        self._rendezvous = rendezvous
        # Streams with something open, whose bytes are bounded; and others seen lately.
        self._busy: dict[tuple[int, str], _PublisherStream] = {}
        self._idle: BoundedTable[tuple[int, str], _Past] = BoundedTable(
            context.settings.rendezvous_cache_max, context.counters, "streams_forgotten"
        )

    @property
    def open_streams(self) -> int:
        return len(self._busy)

    def accept(self, session: Session, publication: Publication, now_s: float) -> None:
        """Take a client's publication in, and send it to the rendezvous point."""
        copy = Publication()
        copy.CopyFrom(publication)
        key = (copy.publisher, copy.topic)
        stream = self._busy.get(key)
        if stream is None:
            stream = self._busy[key] = _PublisherStream(session, self._idle.pop(key, _Past()))
            stream.pause_s = self._settings.publish_retry_s
            stream.due_s = now_s + stream.pause_s
        if stream.session is not session:
            self._hand_over(stream, session)
        self._update(copy, stream.past, now_s)
        nbytes = len(copy.events)
        stream.open.append(_OpenPublication(copy, now_s, nbytes))
        self._count_open(session, nbytes + _OPEN_BYTES)
        if not copy.void:
            self._counters.published_events += copy.count
            self._counters.published_bytes += nbytes
        self._outbox.publications.append(copy)

    def _hand_over(self, stream: _PublisherStream, session: Session) -> None:
        """The client has come back, and its session is another: what is open is that one's now."""
        nbytes = sum(entry.nbytes + _OPEN_BYTES for entry in stream.open)
        stream.session.unsettled_bytes -= nbytes
        session.unsettled_bytes += nbytes
        self._outbox.settled[stream.session] = None
        stream.session = session

    def _count_open(self, session: Session, nbytes: int) -> None:
        session.unsettled_bytes += nbytes
        self.unsettled_bytes += nbytes

    def miscounts(self) -> Iterator[str]:
        """Where it counts otherwise than what is open: nowhere."""
        entries = [entry for stream in self._busy.values() for entry in stream.open]
        size = sum(entry.nbytes + _OPEN_BYTES for entry in entries)
        if size != self.unsettled_bytes:
            yield f"{size} bytes of publications are open, and {self.unsettled_bytes} counted"
        idle = sum(not stream.open for stream in self._busy.values())
        if idle:
            yield f"{idle} streams have nothing open, and are among those that have"

    def _update(self, publication: Publication, past: _Past, now_s: float) -> None:
        """Tell the rendezvous point the newest that is known of what came before."""
        past.settled = publication.settled = max(publication.settled, past.settled)
        known = max(past.known_at(now_s), (publication.known_term, publication.known_seq))
        publication.known_term, publication.known_seq = known

    def _rest(self, key: tuple[int, str]) -> None:
        """Nothing of the stream is open any more."""
        self._idle[key] = self._busy.pop(key).past

    def acknowledged(self, ack: Acknowledged, now_s: float) -> None:
        key = (ack.publisher, ack.topic)
        stream = self._busy.get(key)
        if stream is None:
            return
        past = stream.past
        past.settled = max(past.settled, ack.number)
        past.known, past.known_s = (ack.term, ack.seq), now_s
        wants_to_know = False
        while stream.open and stream.open[0].last_number <= ack.number:
            entry = stream.open.popleft()
            publication = entry.publication
            self.timings.acknowledged_s.observe(now_s - entry.entered_s)
            self._count_open(stream.session, -entry.nbytes - _OPEN_BYTES)
            if publication.ack != AckLevel.ACK_LEVEL_NONE and not publication.void:
                wants_to_know = True
        stream.pause_s = self._settings.publish_retry_s
        stream.due_s = now_s + stream.pause_s
        if not stream.open:
            self._rest(key)
        if wants_to_know:
            stream.session.say(ack)
        self._outbox.settled[stream.session] = None

    def tick(self, now_s: float) -> None:
        """Send again what is due; what is past its deadline is refused."""
        again: list[Publication] = []
        for key, stream in list(self._busy.items()):
            if stream.due_s > now_s:
                continue
            self._give_up(stream, now_s)
            if not stream.open:
                self._rest(key)
                continue
            self._rendezvous.forget_topic(key[1])
            stream.pause_s = min(
                2 * stream.pause_s, _RETRY_PAUSE_FACTOR_MAX * self._settings.publish_retry_s
            )
            deadline_s = stream.open[0].entered_s + self._settings.publish_deadline_s
            stream.due_s = min(now_s + stream.pause_s, deadline_s)
            for entry in stream.open:
                self._update(entry.publication, stream.past, now_s)
                again.append(entry.publication)
        self._counters.publish_retries += len(again)
        self._outbox.publish(again)

    def _give_up(self, stream: _PublisherStream, now_s: float) -> None:
        oldest_s = now_s - self._settings.publish_deadline_s
        while stream.open and stream.open[0].entered_s <= oldest_s:
            entry = stream.open.popleft()
            stream.past.settled = entry.last_number
            self._count_open(stream.session, -entry.nbytes - _OPEN_BYTES)
            self.refuse(
                stream.session,
                entry.publication,
                ErrorCode.ERROR_CODE_UNDELIVERABLE,
                f"no rendezvous point took it within {self._settings.publish_deadline_s:g} s",
            )

    def refuse(
        self, session: Session, publication: Publication, code: ErrorCode.ValueType, message: str
    ) -> None:
        """Tell the publisher that these events will not be published."""
        self._counters.publish_refused_events += publication.count
        # It may be refused for these very numbers.
        last_number = publication.first_number + max(publication.count, 1) - 1
        refused = Refused(
            topic=publication.topic,
            publisher=publication.publisher,
            first_number=publication.first_number,
            last_number=min(last_number, _UINT64_MAX),
            code=code,
            message=message,
        )
        session.say(refused)
        self._outbox.settled[session] = None
