"""What a client publishes: numbered for each topic, kept until acknowledged, sent again if need be.

Events that are to be acknowledged and events that are not are numbered apart, as two publishers:
the former are sent again until they are, the latter never.

Events gathered for a frame go in runs, one for each topic, or, where few are on each, together in
bundles. The first on a topic goes in a run on each connection: that says what a bundle does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

from google.protobuf.message import DecodeError

from dynatops.kit.bundles import EVENT_BYTES, Bundle, events_with
from dynatops.v1.client_pb2 import ClientFrame, Refused
from dynatops.v1.overlay_pb2 import (
    AckLevel,
    Acknowledged,
    Acknowledgements,
    Attribute,
    Events,
    Publication,
)

# Events of one topic are put together up to these bounds.
RUN_EVENTS_MAX = 500
RUN_BYTES_MAX = 128 << 10
# And of many topics up to these; of one topic no more than so many go in a bundle.
BUNDLE_EVENTS_MAX = 4_096
BUNDLE_BYTES_MAX = 256 << 10
_BUNDLED_OF_TOPIC_MAX = 8
# What an event takes beside its payload.
_EVENT_BYTES = 32
# What is farther back than this, and open all the same, nobody waits for: it fits the wire.
_PENDING_MAX = (1 << 32) - 1
# A frame is worth its cost with this much of what is to be acknowledged, or with so many bytes.
_SHARES = 4
_LARGE_BYTES = 64 << 10
# Fewer go by themselves.
_BUNDLE_EVENTS_MIN = 2
# Brokers take four times as many by default.
FRAME_MESSAGES_MAX = 4_096
# A position acknowledged longer ago may be forgotten with its topic, and says nothing.
_POSITION_KNOWN_US = 60_000_000


class Ack(IntEnum):
    """When a publication counts as done: taken in for sending (NONE), stamped by the topic's
    rendezvous point (RP), stamped and on two brokers (REPLICATED), or, beyond that, on the disks of
    as many stores as brokers are told to wait for (STORED)."""

    NONE = AckLevel.ACK_LEVEL_NONE
    RP = AckLevel.ACK_LEVEL_RP
    REPLICATED = AckLevel.ACK_LEVEL_REPLICATED
    STORED = AckLevel.ACK_LEVEL_STORED

    def __repr__(self) -> str:
        return f"Ack.{self.name}"


# As they may be written in a call.
AckName = Literal["none", "rp", "replicated", "stored"]
Payload = bytes | bytearray | memoryview

_WIRE_LEVELS = {
    Ack.NONE: AckLevel.ACK_LEVEL_NONE,
    Ack.RP: AckLevel.ACK_LEVEL_RP,
    Ack.REPLICATED: AckLevel.ACK_LEVEL_REPLICATED,
    Ack.STORED: AckLevel.ACK_LEVEL_STORED,
}


@dataclass(frozen=True, slots=True)
class Confirmed:
    """All events on this topic up to this number have reached their level."""

    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """These events were not published, and will not be."""

    topic: str
    first_number: int
    last_number: int
    code: int
    message: str


class ConfirmedColumns(NamedTuple):
    """The same of many topics."""

    topics: Sequence[str]
    numbers: Sequence[int]


class _BundledEvent:
    """An event that awaits acknowledgement, of a bundle."""

    __slots__ = ("ack", "first_number", "payload", "published_us", "stream")

    count = 1

    def __init__(
        self, stream: _TopicStream, number: int, payload: bytes, published_us: int, ack: Ack
    ) -> None:
        self.stream = stream
        self.first_number = number
        self.payload = payload
        self.published_us = published_us
        self.ack = ack

    def to_publication(self) -> Publication:
        """As it goes by itself, on another connection."""
        return Publication(
            topic=self.stream.topic,
            publisher=self.stream.publisher,
            first_number=self.first_number,
            count=1,
            ack=_WIRE_LEVELS[self.ack],
            events=events_with(self.payload, self.published_us),
            known_term=self.stream.known[0],
            known_seq=self.stream.known[1],
        )


def _size_of(unacknowledged: Publication | _BundledEvent) -> int:
    if isinstance(unacknowledged, _BundledEvent):
        return len(unacknowledged.payload) + EVENT_BYTES
    return len(unacknowledged.events)


class _Gathered:
    """A bundle that is being put together, in columns."""

    __slots__ = ("ack", "nbytes", "numbers", "payloads", "published_us", "streams")

    def __init__(self, ack: Ack) -> None:
        self.ack = ack
        self.streams: list[_TopicStream] = []
        self.numbers: list[int] = []
        self.published_us: list[int] = []
        self.payloads: list[bytes] = []
        self.nbytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.streams) >= BUNDLE_EVENTS_MAX or self.nbytes >= BUNDLE_BYTES_MAX

    def add_to(self, frame: ClientFrame) -> None:
        streams = self.streams
        if len(streams) < _BUNDLE_EVENTS_MIN:
            for publication in self.publications():
                frame.messages.add(publication=publication)
            return
        bundle = Bundle(
            streams[0].publisher,
            [stream.topic for stream in streams],
            self.numbers,
            self.published_us,
            self.payloads,
        )
        bundle.ack = _WIRE_LEVELS[self.ack]
        bundle.pending = [
            min(number - 1 - stream.settled_before(number), _PENDING_MAX)
            for stream, number in zip(streams, self.numbers, strict=True)
        ]
        bundle.fill(frame.messages.add().bundle)

    def publications(self) -> Iterator[Publication]:
        """Each event by itself."""
        for stream, number, published_us, payload in zip(
            self.streams, self.numbers, self.published_us, self.payloads, strict=True
        ):
            event = _BundledEvent(stream, number, payload, published_us, self.ack)
            publication = event.to_publication()
            publication.settled = stream.settled_before(publication.first_number)
            yield publication


@dataclass(slots=True)
class _TopicStream:
    """One publisher's events on one topic."""

    topic: str
    publisher: int
    next_number: int = 1
    # Sent without wish for acknowledgement on a connection that is gone: nobody waits for them.
    given_up: int = 0
    # Where the topic stood at the last acknowledgement, and when the last event was published.
    known: tuple[int, int] = (0, 0)
    published_us: int = 0
    unacknowledged: deque[Publication | _BundledEvent] = field(default_factory=deque)
    # The connection that it was last published on in a run, and how many of its events are in the
    # bundle that is being gathered.
    begun_on: int = 0
    bundled: int = 0
    # Events gathered for the next frame.
    open: Events | None = None
    open_first: int = 0
    open_count: int = 0
    open_bytes: int = 0
    open_ack: Ack = Ack.NONE

    @property
    def settled(self) -> int:
        if self.unacknowledged:
            return self.unacknowledged[0].first_number - 1
        return self.given_up

    def settled_before(self, number: int) -> int:
        """The same, to be said with this event: brokers may acknowledge what was not sent."""
        return min(self.settled, number - 1)


class Publications:
    def __init__(self) -> None:
        # Even, for acknowledged events; the next number is for the others. A broker says which.
        self.publisher = 0
        # Bytes gathered, and bytes awaiting acknowledgement.
        self.open_bytes = 0
        self.unsettled_bytes = 0
        self._acknowledged: dict[str, _TopicStream] = {}
        self._unacknowledged: dict[str, _TopicStream] = {}
        self._open: list[_TopicStream] = []
        self._unsent: list[Publication | _Gathered] = []
        # What is gathered in bundles, for acknowledged events and for the others.
        self._gathered: dict[bool, _Gathered] = {}
        # Which connection to a broker that understands bundles this is; 0: none.
        self._connections = 0
        self._connection = 0

    # ---- the connection -------------------------------------------------------------------------

    def disconnected(self) -> None:
        """What was not sent yet waits for the next broker; what was, and needs no acknowledgement,
        is not sent again."""
        self._connection = 0
        waiting = self._waiting_publications()
        unsent = {publication.topic: publication for publication in reversed(waiting)}
        for stream in self._unacknowledged.values():
            oldest = unsent.get(stream.topic)
            next_unsent = stream.next_number - stream.open_count
            stream.given_up = (oldest.first_number if oldest else next_unsent) - 1
        for publication in waiting:
            publication.settled = self._unacknowledged[publication.topic].given_up
        self._unsent = [*waiting]

    def _waiting_publications(self) -> list[Publication]:
        """What is not sent yet, and needs no acknowledgement; what does is kept in its stream."""
        self._close_gathered()
        waiting: list[Publication] = []
        for unsent in self._unsent:
            if isinstance(unsent, Publication):
                waiting.append(unsent)
            else:
                waiting += unsent.publications()
        return [p for p in waiting if p.publisher != self.publisher]

    def greeted(self, publisher: int, *, bundles: bool = False) -> None:
        """There is a broker: it is told all that is unacknowledged, under this number. Whether it
        understands bundles."""
        if publisher != self.publisher:
            self._rename(publisher)
        waiting = self._waiting_publications()
        for stream in self._acknowledged.values():
            for entry in stream.unacknowledged:
                alone = entry if isinstance(entry, Publication) else entry.to_publication()
                alone.settled = stream.settled_before(alone.first_number)
                waiting.append(alone)
        self._unsent = [*waiting]
        self._connections += 1
        self._connection = self._connections if bundles else 0

    def _rename(self, publisher: int) -> None:
        self.publisher = publisher
        for streams, number in (
            (self._acknowledged, publisher),
            (self._unacknowledged, publisher | 1),
        ):
            for stream in streams.values():
                stream.publisher = number
                for entry in stream.unacknowledged:
                    if isinstance(entry, Publication):
                        entry.publisher = number
        for unsent in self._unsent:
            if isinstance(unsent, Publication):
                unsent.publisher = publisher | (unsent.ack == AckLevel.ACK_LEVEL_NONE)

    # ---- publishing -----------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payloads: Sequence[bytes],
        ack: Ack,
        now_us: int,
        attributes: list[Attribute] | None,
    ) -> int:
        """Take events in for the next frame; the number of the last on this topic."""
        streams = self._unacknowledged if ack is Ack.NONE else self._acknowledged
        stream = streams.get(topic)
        if stream is None:
            publisher = self.publisher | (ack is Ack.NONE)
            stream = streams[topic] = _TopicStream(topic, publisher)
        if now_us - stream.published_us > _POSITION_KNOWN_US:
            stream.known = (0, 0)
        stream.published_us = now_us
        if (
            len(payloads) == 1
            and stream.begun_on == self._connection
            and stream.open is None
            and stream.bundled < _BUNDLED_OF_TOPIC_MAX
            and self._connection
            and not attributes
        ):
            return self._gather(stream, payloads[0], ack, now_us)
        taken = 0
        while taken < len(payloads):
            events = self._open_run(stream, ack)
            if attributes:
                events.attributed = True
            add = events.events.add
            count = nbytes = 0
            room_bytes = RUN_BYTES_MAX - stream.open_bytes
            for payload in payloads[taken : taken + RUN_EVENTS_MAX - stream.open_count]:
                event = add()
                event.payload = payload
                event.published_us = now_us
                if attributes:
                    event.attributes.extend(attributes)
                count += 1
                nbytes += len(payload)
                if nbytes >= room_bytes:
                    break
            stream.open_count += count
            stream.open_bytes += nbytes
            stream.next_number += count
            self.open_bytes += nbytes + _EVENT_BYTES * count
            taken += count
        return stream.next_number - 1

    def publish_each(
        self,
        topics: Sequence[str],
        payloads: Sequence[bytes],
        ack: Ack,
        now_us: int,
        attributes: list[Attribute] | None,
    ) -> dict[str, int]:
        """Take one event of each topic in, in this order, as if each were published by itself; the
        number of the last on each topic."""
        is_acknowledged = ack is not Ack.NONE
        streams = self._acknowledged if is_acknowledged else self._unacknowledged
        connection = 0 if attributes else self._connection
        last: dict[str, int] = {}
        gathered: _Gathered | None = None
        taken = taken_bytes = 0
        # What `publish` and `_gather` do of an event that goes in a bundle, without their calls.
        for topic, payload in zip(topics, payloads, strict=True):
            stream = streams.get(topic)
            if (
                not connection
                or stream is None
                or stream.begun_on != connection
                or stream.open is not None
                or stream.bundled >= _BUNDLED_OF_TOPIC_MAX
            ):
                last[topic] = self.publish(topic, (payload,), ack, now_us, attributes)
                # It may have closed the bundle.
                gathered = None
                continue
            if now_us - stream.published_us > _POSITION_KNOWN_US:
                stream.known = (0, 0)
            stream.published_us = now_us
            if gathered is None or gathered.is_full:
                gathered = self._bundle_with_room(ack)
            last[topic] = number = stream.next_number
            stream.next_number = number + 1
            stream.bundled += 1
            gathered.streams.append(stream)
            gathered.numbers.append(number)
            gathered.published_us.append(now_us)
            gathered.payloads.append(payload)
            nbytes = len(payload)
            gathered.nbytes += nbytes + EVENT_BYTES
            taken += 1
            taken_bytes += nbytes
            if is_acknowledged:
                stream.unacknowledged.append(_BundledEvent(stream, number, payload, now_us, ack))
        self.open_bytes += taken_bytes + _EVENT_BYTES * taken
        if is_acknowledged:
            self.unsettled_bytes += taken_bytes + EVENT_BYTES * taken
        return last

    def _bundle_with_room(self, ack: Ack) -> _Gathered:
        """Where the next event goes that goes in a bundle."""
        is_acknowledged = ack is not Ack.NONE
        gathered = self._gathered.get(is_acknowledged)
        if gathered is None or gathered.is_full or gathered.ack is not ack:
            self._close_gathered()
            gathered = self._gathered[is_acknowledged] = _Gathered(ack)
        return gathered

    def _gather(self, stream: _TopicStream, payload: bytes, ack: Ack, now_us: int) -> int:
        """Take an event in for a bundle; its number."""
        is_acknowledged = ack is not Ack.NONE
        gathered = self._bundle_with_room(ack)
        number = stream.next_number
        stream.next_number = number + 1
        stream.bundled += 1
        gathered.streams.append(stream)
        gathered.numbers.append(number)
        gathered.published_us.append(now_us)
        gathered.payloads.append(payload)
        nbytes = len(payload)
        gathered.nbytes += nbytes + EVENT_BYTES
        self.open_bytes += nbytes + _EVENT_BYTES
        if is_acknowledged:
            stream.unacknowledged.append(_BundledEvent(stream, number, payload, now_us, ack))
            self.unsettled_bytes += nbytes + EVENT_BYTES
        return number

    def _close_gathered(self) -> None:
        """What is gathered goes before what comes from now on."""
        if not self._gathered:
            return
        for gathered in self._gathered.values():
            self._unsent.append(gathered)
            for stream in gathered.streams:
                stream.bundled = 0
        self._gathered = {}

    def _open_run(self, stream: _TopicStream, ack: Ack) -> Events:
        """Where the stream's next event goes: there is room for one at least."""
        events = stream.open
        if events is not None:
            if (
                stream.open_count < RUN_EVENTS_MAX
                and stream.open_bytes < RUN_BYTES_MAX
                and stream.open_ack == ack
            ):
                return events
            self._close_gathered()
            self._open.remove(stream)
            self._unsent.append(self._publication_of(stream))
        events = stream.open = Events()
        stream.open_first = stream.next_number
        stream.open_ack = ack
        self._open.append(stream)
        return events

    def _publication_of(self, stream: _TopicStream) -> Publication:
        """The gathered events, as a publication."""
        events = stream.open.SerializeToString() if stream.open is not None else b""
        publication = Publication(
            topic=stream.topic,
            publisher=stream.publisher,
            first_number=stream.open_first,
            count=stream.open_count,
            settled=stream.settled_before(stream.open_first),
            ack=_WIRE_LEVELS[stream.open_ack],
            events=events,
            known_term=stream.known[0],
            known_seq=stream.known[1],
        )
        stream.open = None
        stream.begun_on = self._connection
        stream.open_count = stream.open_bytes = 0
        if stream.open_ack != Ack.NONE:
            stream.unacknowledged.append(publication)
            self.unsettled_bytes += len(events)
        return publication

    @property
    def awaits_acknowledgements(self) -> bool:
        """Whether anything has been sent that is to be acknowledged, and is not."""
        gathered = self._gathered.get(True)
        return self.unsettled_bytes > (gathered.nbytes if gathered is not None else 0)

    @property
    def is_worth_a_frame(self) -> bool:
        """Whether what has been gathered is a fair share of all that is to be acknowledged, or
        much in itself; or none of it is to be acknowledged."""
        gathered = self._gathered.get(True)
        if gathered is None or gathered.nbytes >= _LARGE_BYTES:
            return True
        return gathered.nbytes * _SHARES >= self.unsettled_bytes

    @property
    def has_output(self) -> bool:
        return bool(self._unsent or self._gathered or self._open)

    def fill(self, frame: ClientFrame, bytes_max: int) -> bool:
        """Add what is to be sent; whether that was all."""
        self._close_gathered()
        size = 0
        sent = 0
        room = FRAME_MESSAGES_MAX - len(frame.messages)
        while sent < min(len(self._unsent), room) and size < bytes_max:
            unsent = self._unsent[sent]
            if isinstance(unsent, Publication):
                frame.messages.add(publication=unsent)
                size += len(unsent.events)
            else:
                unsent.add_to(frame)
                size += unsent.nbytes
            sent += 1
        del self._unsent[:sent]
        if self._unsent:
            return False
        room = FRAME_MESSAGES_MAX - len(frame.messages)
        for stream in self._open[:room]:
            frame.messages.add(publication=self._publication_of(stream))
        del self._open[:room]
        if self._open:
            return False
        self.open_bytes = 0
        return True

    # ---- answers --------------------------------------------------------------------------------

    def on_acknowledged(self, message: Acknowledged) -> Iterator[Confirmed]:
        stream = self._acknowledged.get(message.topic)
        if stream is None or message.publisher != stream.publisher:
            return
        stream.known = (message.term, message.seq)
        self._settle(stream, message.number)
        yield Confirmed(message.topic, message.number)

    def on_columns(self, columns: Acknowledgements) -> Iterator[ConfirmedColumns]:
        topics, numbers = list(columns.topics), list(columns.numbers)
        if not len(topics) == len(numbers) == len(columns.terms) == len(columns.seqs):
            raise DecodeError("acknowledgements whose columns are not equally long")
        for topic, number, term, seq in zip(
            topics, numbers, columns.terms, columns.seqs, strict=True
        ):
            stream = self._acknowledged.get(topic)
            if stream is not None and columns.publisher == stream.publisher:
                stream.known = (term, seq)
                self._settle(stream, number)
        yield ConfirmedColumns(topics, numbers)

    def on_refused(self, message: Refused) -> Iterator[Rejected]:
        stream = self._acknowledged.get(message.topic)
        if stream is not None and message.publisher == stream.publisher:
            first = message.first_number
            kept = [p for p in stream.unacknowledged if p.first_number != first]
            for entry in stream.unacknowledged:
                if entry.first_number == first:
                    self.unsettled_bytes -= _size_of(entry)
            stream.unacknowledged = deque(kept)
            # The next says what is given up.
            stream.begun_on = 0
            last = min(message.last_number, stream.next_number - 1)
            stream.given_up = max(stream.given_up, last)
        silent = self._unacknowledged.get(message.topic)
        if silent is not None and message.publisher == silent.publisher:
            # Its numbers may have got no farther than the broker: nobody must wait for them.
            last = min(message.last_number, silent.next_number - 1)
            silent.given_up = max(silent.given_up, last)
            silent.begun_on = 0
        yield Rejected(
            message.topic, message.first_number, message.last_number, message.code, message.message
        )

    def _settle(self, stream: _TopicStream, number: int) -> None:
        # What was never published is not settled.
        number = min(number, stream.next_number - 1)
        while stream.unacknowledged:
            oldest = stream.unacknowledged[0]
            if oldest.first_number + oldest.count - 1 > number:
                break
            stream.unacknowledged.popleft()
            self.unsettled_bytes -= _size_of(oldest)
        stream.given_up = max(stream.given_up, number)
