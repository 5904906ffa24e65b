"""The client's side of the protocol, as a pure state machine.

It numbers events, keeps those that await acknowledgement and the topics that are subscribed to, and
after any loss of the connection says it all again to the next broker. Its driver connects, moves
frames and waits; the simulator drives the same class.

    frames = core.connected()          # what to send first
    core.publish("quake/ca", b"M5.1", Ack.REPLICATED, now_us)
    frame = core.take_frame(bytes_max) # what to send now
    for item in core.on_frame(frame):  # what a broker said
        ...

Events that are to be acknowledged and events that are not are numbered apart, as two publishers:
the former are sent again until they are, the latter never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Echo,
    Filter,
    Goodbye,
    Hello,
    Missed,
    Refused,
    ServerFrame,
    SlowPolicy,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Welcome,
)
from dynatops.v1.overlay_pb2 import AckLevel, Acknowledged, Events, Publication, Run

PROTOCOL = 1
# Events of one topic are put together up to these bounds.
RUN_EVENTS_MAX = 500
RUN_BYTES_MAX = 128 << 10
# A position acknowledged longer ago may be forgotten with its topic, and says nothing.
_POSITION_KNOWN_US = 60_000_000


class Ack(IntEnum):
    """When a publication counts as done."""

    NONE = AckLevel.ACK_LEVEL_NONE
    RP = AckLevel.ACK_LEVEL_RP
    REPLICATED = AckLevel.ACK_LEVEL_REPLICATED


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


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The connection was lost, and these subscriptions are in place again: between, events may have
    been missed."""

    topics: list[str]


Item = Run | Confirmed | Rejected | Missed | Subscribed | Welcome | Goodbye | Interrupted | int


@dataclass(slots=True)
class _Outgoing:
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


class ClientCore:
    def __init__(
        self,
        client_id: str,
        publisher: int,
        slow_policy: SlowPolicy.ValueType = SlowPolicy.SLOW_POLICY_UNSPECIFIED,
        token: str = "",
    ) -> None:
        self.client_id = client_id
        self._token = token
        # Even: acknowledged; odd: not.
        self.publisher = publisher & ~1
        self.welcome: Welcome | None = None
        self._slow_policy = slow_policy
        self._topics: dict[str, None] = {}
        self._request = 0
        self._pending_requests: dict[int, list[str]] = {}
        self._control: list[ClientMessage] = []
        # Echoes asked for, and whether the present broker has been asked.
        self._echoes: dict[int, bool] = {}
        self._acknowledged: dict[str, _Outgoing] = {}
        self._unacknowledged: dict[str, _Outgoing] = {}
        self._open: list[_Outgoing] = []
        self._resend: list[Publication] = []
        # Bytes gathered or awaiting acknowledgement.
        self.open_bytes = 0
        self.unsettled_bytes = 0
        # Last (term, seq) handed out, by topic: two brokers may both send what lies between.
        self._last: dict[str, tuple[int, int]] = {}
        # Requests that renew subscriptions of a former connection.
        self._renewals: set[int] = set()

    @property
    def topics(self) -> list[str]:
        return list(self._topics)

    def confirmed_topics(self) -> list[str]:
        """Topics subscribed to that a broker has confirmed on the present connection."""
        if self.welcome is None:
            return []
        waiting = {topic for topics in self._pending_requests.values() for topic in topics}
        return [topic for topic in self._topics if topic not in waiting]

    # ---- the connection -------------------------------------------------------------------------

    def connected(self) -> ClientFrame:
        """A broker has been reached: the first frame for it. Nothing else goes before Welcome."""
        hello = Hello(
            protocol=PROTOCOL,
            client_id=self.client_id,
            slow_policy=self._slow_policy,
            token=self._token,
        )
        return ClientFrame(messages=[ClientMessage(hello=hello)])

    def disconnected(self) -> None:
        self.welcome = None
        self._control.clear()
        self._echoes = dict.fromkeys(self._echoes, False)
        # What was not sent yet waits for the next broker; what was, and needs no acknowledgement,
        # is not sent again.
        self._resend = [p for p in self._resend if p.publisher != self.publisher]
        unsent = {publication.topic: publication for publication in reversed(self._resend)}
        for outgoing in self._unacknowledged.values():
            oldest = unsent.get(outgoing.topic)
            next_unsent = outgoing.next_number - outgoing.open_count
            outgoing.given_up = (oldest.first_number if oldest else next_unsent) - 1
        for publication in self._resend:
            publication.settled = self._unacknowledged[publication.topic].given_up

    def _greeted(self, welcome: Welcome) -> Iterator[Item]:
        self.welcome = welcome
        yield welcome
        waiting = dict.fromkeys(t for topics in self._pending_requests.values() for t in topics)
        for number, topics in self._pending_requests.items():
            self._say(subscribe=Subscribe(request=number, filters=_filters(topics)))
        known = [topic for topic in self._topics if topic not in waiting]
        if known:
            self._renewals.add(self._ask_to_subscribe(known))
        self._resend = [p for p in self._resend if p.publisher != self.publisher]
        for outgoing in self._acknowledged.values():
            for publication in outgoing.unacknowledged:
                publication.settled = outgoing.settled
                self._resend.append(publication)

    # ---- what the application wants -------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> int:
        """Ask for these topics; the request's number, which `Subscribed` will carry."""
        wanted = list(topics)
        self._topics.update(dict.fromkeys(wanted))
        return self._ask_to_subscribe(wanted)

    def _ask_to_subscribe(self, topics: list[str]) -> int:
        self._request += 1
        self._pending_requests[self._request] = topics
        if self.welcome is not None:
            self._say(subscribe=Subscribe(request=self._request, filters=_filters(topics)))
        return self._request

    def unsubscribe(self, topics: Iterable[str]) -> None:
        gone = list(topics)
        for topic in gone:
            self._topics.pop(topic, None)
            self._last.pop(topic, None)
        if self.welcome is not None:
            self._request += 1
            self._say(unsubscribe=Unsubscribe(request=self._request, filters=_filters(gone)))

    def echo(self) -> int:
        """Ask whichever broker it will be to answer once it has handled everything said so far."""
        self._request += 1
        self._echoes[self._request] = False
        return self._request

    def publish(self, topic: str, payload: bytes, ack: Ack, now_us: int) -> int:
        """Take an event in for the next frame; its number on this topic."""
        streams = self._unacknowledged if ack is Ack.NONE else self._acknowledged
        outgoing = streams.get(topic)
        if outgoing is None:
            publisher = self.publisher | (ack is Ack.NONE)
            outgoing = streams[topic] = _Outgoing(topic, publisher)
        if outgoing.open is not None and (
            outgoing.open_count >= RUN_EVENTS_MAX
            or outgoing.open_bytes >= RUN_BYTES_MAX
            or outgoing.open_ack != ack
        ):
            self._close_run(outgoing)
        if outgoing.open is None:
            outgoing.open = Events()
            outgoing.open_first = outgoing.next_number
            outgoing.open_ack = ack
            self._open.append(outgoing)
        if now_us - outgoing.published_us > _POSITION_KNOWN_US:
            outgoing.known = (0, 0)
        outgoing.published_us = now_us
        outgoing.open.events.add(payload=payload, published_us=now_us)
        outgoing.open_count += 1
        outgoing.open_bytes += len(payload)
        outgoing.next_number += 1
        self.open_bytes += len(payload)
        return outgoing.next_number - 1

    def _close_run(self, outgoing: _Outgoing) -> None:
        """Turn the gathered events into a publication that waits to be sent."""
        self._open.remove(outgoing)
        self._resend.append(self._publication_of(outgoing))

    def _publication_of(self, outgoing: _Outgoing) -> Publication:
        events = outgoing.open.SerializeToString() if outgoing.open is not None else b""
        publication = Publication(
            topic=outgoing.topic,
            publisher=outgoing.publisher,
            first_number=outgoing.open_first,
            count=outgoing.open_count,
            settled=outgoing.settled,
            ack=_WIRE_LEVELS[outgoing.open_ack],
            events=events,
            known_term=outgoing.known[0],
            known_seq=outgoing.known[1],
        )
        outgoing.open = None
        outgoing.open_count = outgoing.open_bytes = 0
        if outgoing.open_ack != Ack.NONE:
            outgoing.unacknowledged.append(publication)
            self.unsettled_bytes += len(events)
        return publication

    # ---- frames out -----------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        unsaid = not all(self._echoes.values())
        return bool(self._control or self._resend or self._open or unsaid)

    def take_frame(self, bytes_max: int) -> ClientFrame | None:
        """The next frame to send; None if there is nothing to say, or nobody to say it to."""
        if self.welcome is None or not self.has_output:
            return None
        frame = ClientFrame(messages=self._control)
        self._control.clear()
        size = 0
        resent = 0
        while resent < len(self._resend) and size < bytes_max:
            publication = self._resend[resent]
            frame.messages.add(publication=publication)
            size += len(publication.events)
            resent += 1
        del self._resend[:resent]
        if self._resend:
            return frame
        for outgoing in self._open:
            frame.messages.add(publication=self._publication_of(outgoing))
        self._open.clear()
        self.open_bytes = 0
        for number, said in self._echoes.items():
            if not said:
                frame.messages.add(echo=Echo(request=number))
                self._echoes[number] = True
        return frame

    def _say(self, **body: Subscribe | Unsubscribe) -> None:
        self._control.append(ClientMessage(**body))  # type: ignore[arg-type]

    # ---- frames in ------------------------------------------------------------------------------

    def on_frame(self, frame: ServerFrame) -> Iterator[Item]:
        """What a broker's frame means for the application, in order."""
        for message in frame.messages:
            kind = message.WhichOneof("body")
            if kind == "run":
                if self._is_news(message.run):
                    yield message.run
            elif kind == "acknowledged":
                yield from self._on_acknowledged(message.acknowledged)
            elif kind == "refused":
                yield from self._on_refused(message.refused)
            elif kind == "subscribed":
                yield from self._on_subscribed(message.subscribed)
            elif kind == "welcome":
                yield from self._greeted(message.welcome)
            elif kind == "missed":
                yield message.missed
            elif kind == "goodbye":
                yield message.goodbye
            elif kind == "echoed":
                self._echoes.pop(message.echoed.request, None)
                yield message.echoed.request

    def _is_news(self, run: Run) -> bool:
        if run.topic not in self._topics:
            return False
        last = self._last.get(run.topic)
        reached = run.first_seq + run.count - 1
        if last is not None and last[0] == run.term and reached <= last[1]:
            return False
        self._last[run.topic] = (run.term, reached)
        return True

    def _on_acknowledged(self, message: Acknowledged) -> Iterator[Item]:
        outgoing = self._acknowledged.get(message.topic)
        if outgoing is None or message.publisher != outgoing.publisher:
            return
        outgoing.known = (message.term, message.seq)
        self._settle(outgoing, message.number)
        yield Confirmed(message.topic, message.number)

    def _on_refused(self, message: Refused) -> Iterator[Item]:
        outgoing = self._acknowledged.get(message.topic)
        if outgoing is not None and message.publisher == outgoing.publisher:
            first = message.first_number
            kept = [p for p in outgoing.unacknowledged if p.first_number != first]
            for publication in outgoing.unacknowledged:
                if publication.first_number == first:
                    self.unsettled_bytes -= len(publication.events)
            outgoing.unacknowledged = deque(kept)
            outgoing.given_up = max(outgoing.given_up, message.last_number)
        unacknowledged = self._unacknowledged.get(message.topic)
        if unacknowledged is not None and message.publisher == unacknowledged.publisher:
            # Its numbers may have got no farther than the broker: nobody must wait for them.
            unacknowledged.given_up = max(unacknowledged.given_up, message.last_number)
        yield Rejected(
            message.topic, message.first_number, message.last_number, message.code, message.message
        )

    def _settle(self, outgoing: _Outgoing, number: int) -> None:
        while outgoing.unacknowledged:
            oldest = outgoing.unacknowledged[0]
            if oldest.first_number + oldest.count - 1 > number:
                break
            outgoing.unacknowledged.popleft()
            self.unsettled_bytes -= len(oldest.events)
        outgoing.given_up = max(outgoing.given_up, number)

    def _on_subscribed(self, message: Subscribed) -> Iterator[Item]:
        topics = self._pending_requests.pop(message.request, None)
        if topics is None:
            return
        for problem in message.problems:
            self._topics.pop(problem.topic, None)
        if message.request in self._renewals:
            self._renewals.discard(message.request)
            yield Interrupted([topic for topic in topics if topic in self._topics])
        yield message


def _filters(topics: Iterable[str]) -> list[Filter]:
    return [Filter(pattern=topic) for topic in topics]
