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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from broker_agent.core.routing.rendezvous.hosting.node_hosting import NodeHosting
from broker_agent.core.routing.rendezvous.ring_context import RingContext
from broker_agent.core.routing.stream_past import StreamPast
from broker_agent.core.sessions.session import Session
from dynatops.kit.bounded import BoundedTable
from dynatops.kit.bundles import EVENT_BYTES, Bundle
from dynatops.v1.client_pb2 import ErrorCode, Refused
from dynatops.v1.overlay_pb2 import (
    AckLevel,
    Acknowledged,
    Acknowledgements,
    Publication,
    Returned,
)
from overlay.base.peers import Peer

_RETRY_PAUSE_FACTOR_MAX = 5.0
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

    @property
    def wants_to_know(self) -> bool:
        """Whether its client waits to hear that it is acknowledged."""
        return self.publication.ack != AckLevel.ACK_LEVEL_NONE and not self.publication.void

    def alone(self) -> _OpenPublication:
        return self


class _OpenEvent:
    """An event of a bundle."""

    __slots__ = ("bundle", "entered_s", "last_number", "nbytes", "place")

    def __init__(self, bundle: Bundle, place: int, entered_s: float) -> None:
        self.bundle = bundle
        self.place = place
        self.entered_s = entered_s
        self.nbytes = bundle.sizes[place]
        self.last_number = bundle.numbers[place]

    @property
    def wants_to_know(self) -> bool:
        return self.bundle.ack != AckLevel.ACK_LEVEL_NONE

    def alone(self) -> _OpenPublication:
        """As it is published by itself. What is counted of it stays the same."""
        return _OpenPublication(self.bundle.publication_at(self.place), self.entered_s, self.nbytes)


@dataclass(slots=True)
class _PublisherStream:
    """Something of it is open."""

    session: Session
    past: StreamPast
    open: deque[_OpenPublication | _OpenEvent] = field(default_factory=deque)
    due_s: float = 0.0
    pause_s: float = 0.0

    def alone(self) -> list[_OpenPublication]:
        """All that is open, each to be published by itself from now on, and what comes behind."""
        entries = [entry.alone() for entry in self.open]
        self.open = deque(entries)
        return entries


class Publishing:
    def __init__(self, context: RingContext, hosting: NodeHosting) -> None:
        # Bytes of all sessions' publications that their rendezvous points have not taken yet.
        self.unsettled_bytes = 0
        self._settings = context.settings
        self._counters = context.counters
        self._outbox = context.outbox
        self._ring = context.ring
        self._timings = context.timings
        self._hosting = hosting
        self._rendezvous = hosting.rendezvous
        # Streams with something open, whose bytes are bounded; and others seen lately.
        self._busy: dict[tuple[int, str], _PublisherStream] = {}
        self._idle: BoundedTable[tuple[int, str], StreamPast] = BoundedTable(
            context.settings.rendezvous_cache_max, context.counters, "streams_forgotten"
        )

    @property
    def open_streams(self) -> int:
        return len(self._busy)

    def publish_own(self, publication: Publication) -> None:
        """An event of the broker's own, which nobody acknowledges."""
        self._ring.publications.append(publication)

    def accept(self, session: Session, publication: Publication, now_s: float) -> None:
        """Take a client's publication in, and send it to the rendezvous point."""
        copy = Publication()
        copy.CopyFrom(publication)
        nbytes = len(copy.events)
        if not copy.void:
            self._counters.published_events += copy.count
            self._counters.published_bytes += nbytes
        self._open(session, copy, nbytes, now_s)

    def _open(self, session: Session, publication: Publication, nbytes: int, now_s: float) -> None:
        stream = self._stream((publication.publisher, publication.topic), session, now_s)
        self._update(publication, stream.past, now_s)
        stream.open.append(_OpenPublication(publication, now_s, nbytes))
        self._count_open(session, nbytes + _OPEN_BYTES)
        self._ring.publications.append(publication)

    def _stream(self, key: tuple[int, str], session: Session, now_s: float) -> _PublisherStream:
        """Something of it is about to be open."""
        stream = self._busy.get(key)
        if stream is None:
            stream = self._busy[key] = _PublisherStream(session, self._idle.pop(key, StreamPast()))
            stream.pause_s = self._settings.publish_retry_s
            stream.due_s = now_s + stream.pause_s
        if stream.session is not session:
            self._hand_over(stream, session)
        return stream

    def pasts_of(self, bundle: Bundle) -> list[StreamPast | None]:
        """What is known of the streams that its events are of, none of which is open; None of
        others, which may be."""
        publisher, get = bundle.publisher, self._idle.get
        return [get((publisher, topic)) for topic in bundle.topics]

    def accept_bundle(
        self,
        session: Session,
        bundle: Bundle,
        pasts: Sequence[StreamPast | None],
        now_s: float,
    ) -> None:
        """The same of a bundle: what can go together to its rendezvous point does, and goes now.
        Behind a publication that is open an event goes as one, too."""
        self._counters.published_events += len(bundle)
        self._counters.published_bytes += bundle.nbytes + EVENT_BYTES * len(bundle)
        publisher, busy, rendezvous = bundle.publisher, self._busy, self._rendezvous
        by_destination: dict[Peer, list[int]] = {}
        # The last one, and its places: to look it up costs more than to see that it is the same.
        last: Peer | None = None
        places: list[int] = []
        for place, topic in enumerate(bundle.topics):
            via = rendezvous.get(topic)
            stream = busy.get((publisher, topic)) if busy else None
            behind = stream is not None and isinstance(stream.open[-1], _OpenPublication)
            if via is None or behind:
                # From here on whatever comes on its topic goes singly.
                self._open_singly(session, bundle, place, now_s)
            elif via is last:
                places.append(place)
            else:
                last, places = via, by_destination.setdefault(via, [])
                places.append(place)
        for via, places in by_destination.items():
            together = bundle.pick(places)
            stamping = self._hosting.publish_bundle(together, via, now_s)
            if stamping.waiting is not None:
                self._open_events(session, stamping.waiting, now_s)
            if stamping.done is together is bundle:
                self._done_at_once(session, bundle, pasts, now_s)
            elif stamping.done is not None:
                self._done_at_once(session, stamping.done, self.pasts_of(stamping.done), now_s)
            for place in stamping.rest:
                self._open_singly(session, together, place, now_s)

    def _open_singly(self, session: Session, bundle: Bundle, place: int, now_s: float) -> None:
        publication = bundle.publication_at(place)
        self._open(session, publication, bundle.sizes[place], now_s)

    def _past_of(self, key: tuple[int, str]) -> StreamPast:
        stream = self._busy.get(key)
        past = stream.past if stream is not None else self._idle.get(key)
        if past is None:
            past = self._idle[key] = StreamPast()
        return past

    def _open_events(self, session: Session, bundle: Bundle, now_s: float) -> None:
        for place, topic in enumerate(bundle.topics):
            stream = self._stream((bundle.publisher, topic), session, now_s)
            stream.open.append(_OpenEvent(bundle, place, now_s))
        self._count_open(session, bundle.nbytes + _OPEN_BYTES * len(bundle))

    def _done_at_once(
        self,
        session: Session,
        bundle: Bundle,
        pasts: Sequence[StreamPast | None],
        now_s: float,
    ) -> None:
        """This broker's own node has stamped them, and that is all that was asked for."""
        publisher, topics, numbers = bundle.publisher, bundle.topics, bundle.numbers
        terms, seqs = bundle.terms, bundle.seqs
        for place, known in enumerate(pasts):
            past = known or self._past_of((publisher, topics[place]))
            past.settled = max(past.settled, numbers[place])
            past.known, past.known_s = (terms[place], seqs[place]), now_s
        self._timings.acknowledged_s.observe(0.0, len(bundle))
        if bundle.ack != AckLevel.ACK_LEVEL_NONE:
            session.say_acknowledged(
                publisher, bundle.topics, bundle.numbers, bundle.terms, bundle.seqs
            )
        self._outbox.settled[session] = None

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

    def _update(self, publication: Publication, past: StreamPast, now_s: float) -> None:
        """Tell the rendezvous point the newest that is known of what came before."""
        past.settled = publication.settled = max(publication.settled, past.settled)
        known = past.known_at(now_s)
        said = (publication.known_term, publication.known_seq)
        if said > known:
            # What comes behind it, in a bundle, does not say so.
            known = past.known = said
            past.known_s = now_s
        publication.known_term, publication.known_seq = known

    def _rest(self, key: tuple[int, str]) -> None:
        """Nothing of the stream is open any more."""
        self._idle[key] = self._busy.pop(key).past

    def acknowledged(self, ack: Acknowledged, now_s: float) -> None:
        key = (ack.publisher, ack.topic)
        stream = self._busy.get(key)
        if stream is None:
            return
        if self._settle(key, stream, ack.number, (ack.term, ack.seq), now_s):
            stream.session.say(ack)
        self._outbox.settled[stream.session] = None

    def acknowledged_columns(self, columns: Acknowledgements, by: Peer, now_s: float) -> None:
        """The same of many topics, by their rendezvous point."""
        publisher = columns.publisher
        # For whom: topics, numbers, terms, and numbers in them.
        told: dict[Session, tuple[list[str], list[int], list[int], list[int]]] = {}
        for topic, number, term, seq in zip(
            columns.topics, columns.numbers, columns.terms, columns.seqs, strict=True
        ):
            self._rendezvous.found(topic, by)
            key = (publisher, topic)
            stream = self._busy.get(key)
            if stream is None:
                continue
            session = stream.session
            wants_to_know = self._settle(key, stream, number, (term, seq), now_s)
            if wants_to_know:
                lists = told.get(session)
                if lists is None:
                    lists = told[session] = ([], [], [], [])
                lists[0].append(topic)
                lists[1].append(number)
                lists[2].append(term)
                lists[3].append(seq)
            self._outbox.settled[session] = None
        for session, (topics, numbers, terms, seqs) in told.items():
            session.say_acknowledged(publisher, topics, numbers, terms, seqs)

    def _settle(
        self,
        key: tuple[int, str],
        stream: _PublisherStream,
        number: int,
        known: tuple[int, int],
        now_s: float,
    ) -> bool:
        """All up to this number is acknowledged; whether the client waits to hear of it."""
        past = stream.past
        past.settled = max(past.settled, number)
        past.known, past.known_s = known, now_s
        wants_to_know = False
        while stream.open and stream.open[0].last_number <= number:
            entry = stream.open.popleft()
            self._timings.acknowledged_s.observe(now_s - entry.entered_s)
            self._count_open(stream.session, -entry.nbytes - _OPEN_BYTES)
            wants_to_know = wants_to_know or entry.wants_to_know
        if stream.open:
            stream.pause_s = self._settings.publish_retry_s
            stream.due_s = now_s + stream.pause_s
        else:
            self._rest(key)
        return wants_to_know

    def returned(self, returned: Returned, now_s: float) -> None:
        """The rendezvous point, if it is that, cannot take these from a bundle: as publications
        they say more, and travel along the overlay."""
        for topic in returned.topics:
            self._rendezvous.forget_topic(topic)
            stream = self._busy.get((returned.publisher, topic))
            if stream is None:
                continue
            for entry in stream.alone():
                self._update(entry.publication, stream.past, now_s)
                self._ring.publications.append(entry.publication)

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
            for entry in stream.alone():
                self._update(entry.publication, stream.past, now_s)
                again.append(entry.publication)
        self._counters.publish_retries += len(again)
        self._ring.publish(again)

    def _give_up(self, stream: _PublisherStream, now_s: float) -> None:
        oldest_s = now_s - self._settings.publish_deadline_s
        while stream.open and stream.open[0].entered_s <= oldest_s:
            entry = stream.open.popleft()
            stream.past.settled = entry.last_number
            self._count_open(stream.session, -entry.nbytes - _OPEN_BYTES)
            self.refuse(
                stream.session,
                entry.alone().publication,
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
