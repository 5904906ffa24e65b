"""What a client publishes: numbered for each topic, kept until acknowledged, sent again if need be.

Events that are to be acknowledged and events that are not are numbered apart, as two publishers:
the former are sent again until they are, the latter never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from dynatops.v1.client_pb2 import ClientFrame, Refused
from dynatops.v1.overlay_pb2 import AckLevel, Acknowledged, Attribute, Events, Publication

# Events of one topic are put together up to these bounds.
RUN_EVENTS_MAX = 500
RUN_BYTES_MAX = 128 << 10
# Brokers take four times as many by default.
FRAME_MESSAGES_MAX = 4_096
# A position acknowledged longer ago may be forgotten with its topic, and says nothing.
_POSITION_KNOWN_US = 60_000_000


class Ack(IntEnum):
    """When a publication counts as done: taken in for sending (NONE), stamped by the topic's
    rendezvous point (RP), or stamped and on two brokers (REPLICATED)."""

    NONE = AckLevel.ACK_LEVEL_NONE
    RP = AckLevel.ACK_LEVEL_RP
    REPLICATED = AckLevel.ACK_LEVEL_REPLICATED

    def __repr__(self) -> str:
        return f"Ack.{self.name}"


# As they may be written in a call.
AckName = Literal["none", "rp", "replicated"]
Payload = bytes | bytearray | memoryview

_WIRE_LEVELS = {
    Ack.NONE: AckLevel.ACK_LEVEL_NONE,
    Ack.RP: AckLevel.ACK_LEVEL_RP,
    Ack.REPLICATED: AckLevel.ACK_LEVEL_REPLICATED,
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
    unacknowledged: deque[Publication] = field(default_factory=deque)
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
        self._unsent: list[Publication] = []

    # ---- the connection -------------------------------------------------------------------------

    def disconnected(self) -> None:
        """What was not sent yet waits for the next broker; what was, and needs no acknowledgement,
        is not sent again."""
        self._unsent = [p for p in self._unsent if p.publisher != self.publisher]
        unsent = {publication.topic: publication for publication in reversed(self._unsent)}
        for stream in self._unacknowledged.values():
            oldest = unsent.get(stream.topic)
            next_unsent = stream.next_number - stream.open_count
            stream.given_up = (oldest.first_number if oldest else next_unsent) - 1
        for publication in self._unsent:
            publication.settled = self._unacknowledged[publication.topic].given_up

    def greeted(self, publisher: int) -> None:
        """There is a broker: it is told all that is unacknowledged, under this number."""
        if publisher != self.publisher:
            self._rename(publisher)
        self._unsent = [p for p in self._unsent if p.publisher != self.publisher]
        for stream in self._acknowledged.values():
            for publication in stream.unacknowledged:
                publication.settled = stream.settled
                self._unsent.append(publication)

    def _rename(self, publisher: int) -> None:
        former, self.publisher = self.publisher, publisher
        for streams, number in (
            (self._acknowledged, publisher),
            (self._unacknowledged, publisher | 1),
        ):
            for stream in streams.values():
                stream.publisher = number
                for publication in stream.unacknowledged:
                    publication.publisher = number
        for publication in self._unsent:
            publication.publisher = publisher | (publication.publisher != former)

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
            self.open_bytes += nbytes
            taken += count
        return stream.next_number - 1

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
            settled=stream.settled,
            ack=_WIRE_LEVELS[stream.open_ack],
            events=events,
            known_term=stream.known[0],
            known_seq=stream.known[1],
        )
        stream.open = None
        stream.open_count = stream.open_bytes = 0
        if stream.open_ack != Ack.NONE:
            stream.unacknowledged.append(publication)
            self.unsettled_bytes += len(events)
        return publication

    @property
    def has_output(self) -> bool:
        return bool(self._unsent or self._open)

    def fill(self, frame: ClientFrame, bytes_max: int) -> bool:
        """Add what is to be sent; whether that was all."""
        size = 0
        sent = 0
        room = FRAME_MESSAGES_MAX - len(frame.messages)
        while sent < min(len(self._unsent), room) and size < bytes_max:
            publication = self._unsent[sent]
            frame.messages.add(publication=publication)
            size += len(publication.events)
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

    def on_refused(self, message: Refused) -> Iterator[Rejected]:
        stream = self._acknowledged.get(message.topic)
        if stream is not None and message.publisher == stream.publisher:
            first = message.first_number
            kept = [p for p in stream.unacknowledged if p.first_number != first]
            for publication in stream.unacknowledged:
                if publication.first_number == first:
                    self.unsettled_bytes -= len(publication.events)
            stream.unacknowledged = deque(kept)
            stream.given_up = max(stream.given_up, message.last_number)
        silent = self._unacknowledged.get(message.topic)
        if silent is not None and message.publisher == silent.publisher:
            # Its numbers may have got no farther than the broker: nobody must wait for them.
            silent.given_up = max(silent.given_up, message.last_number)
        yield Rejected(
            message.topic, message.first_number, message.last_number, message.code, message.message
        )

    def _settle(self, stream: _TopicStream, number: int) -> None:
        while stream.unacknowledged:
            oldest = stream.unacknowledged[0]
            if oldest.first_number + oldest.count - 1 > number:
                break
            stream.unacknowledged.popleft()
            self.unsettled_bytes -= len(oldest.events)
        stream.given_up = max(stream.given_up, number)
