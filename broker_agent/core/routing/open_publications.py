"""What clients publish, until it is acknowledged or refused: the books, whichever way it goes.

Every publication is kept until it is acknowledged, and goes out again meanwhile: in order,
everything that is open for this publisher and topic. The publisher's numbers make that harmless. A
publisher with too much open is made to wait; after a deadline it is told that nobody took its
events.

One stream, (publisher, topic):   open 5 6 7 8  --Acknowledged(6)-->  open 7 8

What is to be stored as well stays open when it is acknowledged, does not go out again, and is done
once it is `stored`; what is behind it waits, as to acknowledge one is to acknowledge all before it.
Until stores have had something of the stream only so much of it goes out: the topic may be new, and
stores must hear of it before more is published than is retained.

A stream with nothing open knows no session, which may be gone by then: only what was settled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.stream_past import StreamPast
from broker_agent.core.sessions.session import Session
from dynatops.kit.bounded import BoundedTable
from dynatops.kit.bundles import Bundle
from dynatops.v1.client_pb2 import ErrorCode, Refused
from dynatops.v1.overlay_pb2 import AckLevel, Acknowledged, Acknowledgements, Publication

_RETRY_PAUSE_FACTOR_MAX = 5.0
# What a publication takes beside its events.
_OPEN_BYTES = 256
_UINT64_MAX = (1 << 64) - 1
_NOWHERE = (0, 0)
# Of a stream that stores have had nothing of: a small part of what is retained of a topic.
_FIRST_EVENTS = 1_000


def _no_stores(topic: str) -> str:
    return "published, but this broker knows of no stores"


class Unstored(NamedTuple):
    """Events of a publisher on a topic, those of one answer of brokers, that are stamped and
    copied, and are to be stored as well: they lie behind `after`, and no farther than `stamp`."""

    topic: str
    publisher: int
    first_number: int
    number: int
    after: tuple[int, int]
    stamp: tuple[int, int]


class OutgoingPublications:
    """What is to go out once the broker settles, in order."""

    def __init__(self) -> None:
        self._waiting: list[Publication] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, publication: Publication) -> None:
        self._waiting.append(publication)

    def add_all(self, publications: Iterable[Publication]) -> None:
        self._waiting += publications

    def take(self) -> list[Publication]:
        waiting, self._waiting = self._waiting, []
        return waiting


@dataclass(slots=True)
class OpenPublication:
    publication: Publication
    entered_s: float
    # Of its events: the message makes a copy of them each time it is asked.
    nbytes: int
    # Acknowledged, and waits to be stored, or behind what does.
    is_accepted: bool = False
    # Since when brokers have it, whatever is known of it now.
    accepted_s: float | None = None
    # Enough stores have it.
    is_proven: bool = False
    # Behind which its events were stamped, as it was first said.
    after: tuple[int, int] | None = None
    # It has not gone out yet.
    is_held: bool = False

    @property
    def last_number(self) -> int:
        return self.publication.first_number + self.publication.count - 1

    @property
    def level(self) -> AckLevel.ValueType:
        return self.publication.ack

    @property
    def wants_to_know(self) -> bool:
        """Whether its client waits to hear that it is acknowledged."""
        return self.publication.ack != AckLevel.ACK_LEVEL_NONE and not self.publication.void

    def alone(self) -> OpenPublication:
        return self


class _OpenEvent:
    """An event of a bundle."""

    __slots__ = (
        "accepted_s",
        "after",
        "bundle",
        "entered_s",
        "is_accepted",
        "is_proven",
        "last_number",
        "nbytes",
        "place",
    )  # fmt: skip

    def __init__(self, bundle: Bundle, place: int, entered_s: float) -> None:
        self.bundle = bundle
        self.place = place
        self.entered_s = entered_s
        self.nbytes = bundle.sizes[place]
        self.last_number = bundle.numbers[place]
        self.is_accepted = False
        self.is_proven = False
        self.accepted_s: float | None = None
        self.after: tuple[int, int] | None = None

    @property
    def wants_to_know(self) -> bool:
        return self.bundle.ack != AckLevel.ACK_LEVEL_NONE

    @property
    def level(self) -> AckLevel.ValueType:
        return self.bundle.ack

    def alone(self) -> OpenPublication:
        """As it is published by itself. What is counted of it stays the same."""
        publication = self.bundle.publication_at(self.place)
        return OpenPublication(
            publication,
            self.entered_s,
            self.nbytes,
            self.is_accepted,
            self.accepted_s,
            self.is_proven,
            self.after,
        )


@dataclass(slots=True)
class _PublisherStream:
    """Something of it is open."""

    session: Session
    past: StreamPast
    open: deque[OpenPublication | _OpenEvent] = field(default_factory=deque)
    due_s: float = 0.0
    pause_s: float = 0.0
    # Whether any of it is to be stored.
    is_to_be_stored: bool = False
    # Events that have gone out before stores have had any, and whether others are held for that.
    first_events: int = 0
    is_holding: bool = False

    def alone(self) -> list[OpenPublication]:
        """All that is open, each to be published by itself from now on, and what comes behind."""
        entries = [entry.alone() for entry in self.open]
        self.open = deque(entries)
        return entries


def _is_answered(entry: OpenPublication | _OpenEvent) -> bool:
    """Whether it waits for stores, not for other brokers."""
    return entry.is_accepted or (isinstance(entry, OpenPublication) and entry.is_held)


class OpenPublications(ABC):
    def __init__(self, context: BrokerContext, out: OutgoingPublications, taken_by: str) -> None:
        """`taken_by`: who acknowledges, for those who are told that nobody did."""
        # Bytes of all sessions' publications that nobody has taken yet.
        self.unsettled_bytes = 0
        self._settings = context.settings
        self._counters = context.counters
        self._outbox = context.outbox
        self._timings = context.timings
        self._out = out
        self._taken_by = taken_by
        # What is to be stored, and has been acknowledged since somebody asked.
        self._unstored: list[Unstored] = []
        # By whom and publisher: topics, numbers, terms, and numbers in them, that are done, and of
        # which their clients have not heard.
        self._done: dict[tuple[Session, int], list[tuple[str, int, int, int]]] = {}
        self._why_not_stored: Callable[[str], str] = _no_stores
        # Streams with something open, whose bytes are bounded; and others seen lately.
        self._busy: dict[tuple[int, str], _PublisherStream] = {}
        self._idle: BoundedTable[tuple[int, str], StreamPast] = BoundedTable(
            context.settings.rendezvous_cache_max, context.counters, "streams_forgotten"
        )

    @abstractmethod
    def _not_answered(self, topic: str) -> None:
        """What is open on the topic goes out again."""

    @property
    def open_streams(self) -> int:
        return len(self._busy)

    def publish_own(self, publication: Publication) -> None:
        """An event of the broker's own, which nobody acknowledges."""
        self._out.add(publication)

    def accept(self, session: Session, publication: Publication, now_s: float) -> None:
        """Take a client's publication in, and send it out."""
        copy = Publication()
        copy.CopyFrom(publication)
        nbytes = len(copy.events)
        if not copy.void:
            self._counters.published_events += copy.count
            self._counters.published_bytes += nbytes
        self._open(session, copy, nbytes, now_s)

    def _open(self, session: Session, publication: Publication, nbytes: int, now_s: float) -> None:
        stream = self._stream((publication.publisher, publication.topic), session, now_s)
        stream.is_to_be_stored |= publication.ack == AckLevel.ACK_LEVEL_STORED
        entry = OpenPublication(publication, now_s, nbytes)
        stream.open.append(entry)
        self._count_open(session, nbytes + _OPEN_BYTES)
        if stream.is_to_be_stored and not stream.past.is_stored:
            stream.is_holding |= stream.first_events >= _FIRST_EVENTS
            stream.first_events += publication.count
        entry.is_held = stream.is_holding
        if not entry.is_held:
            self._update(publication, stream.past, now_s)
            self._out.add(publication)

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
        is_to_be_stored = bundle.ack == AckLevel.ACK_LEVEL_STORED
        for place, topic in enumerate(bundle.topics):
            stream = self._stream((bundle.publisher, topic), session, now_s)
            stream.is_to_be_stored |= is_to_be_stored
            stream.open.append(_OpenEvent(bundle, place, now_s))
        self._count_open(session, bundle.nbytes + _OPEN_BYTES * len(bundle))

    def _done_at_once(
        self,
        session: Session,
        bundle: Bundle,
        pasts: Sequence[StreamPast | None],
        now_s: float,
    ) -> None:
        """This broker's own node has stamped them, and that is all that was asked of brokers."""
        publisher, topics, numbers = bundle.publisher, bundle.topics, bundle.numbers
        terms, seqs = bundle.terms, bundle.seqs
        if bundle.ack == AckLevel.ACK_LEVEL_STORED or (self._busy and None in pasts):
            # They wait for stores, or perhaps behind what does.
            self._open_events(session, bundle, now_s)
            columns = Acknowledgements(
                publisher=publisher, topics=topics, numbers=numbers, terms=terms, seqs=seqs
            )
            self.settle_columns(columns, now_s)
            return
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
        """Say the newest that is known of what came before."""
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
        after, stamp = (ack.after_term, ack.after_seq), (ack.term, ack.seq)
        if self._settle(key, stream, ack.number, after, stamp, now_s):
            stream.session.say(ack)
        self._outbox.settled[stream.session] = None

    def settle_columns(self, columns: Acknowledgements, now_s: float) -> None:
        """The same of many topics."""
        publisher = columns.publisher
        # For whom: topics, numbers, terms, and numbers in them.
        told: dict[Session, tuple[list[str], list[int], list[int], list[int]]] = {}
        for topic, number, term, seq in zip(
            columns.topics, columns.numbers, columns.terms, columns.seqs, strict=True
        ):
            key = (publisher, topic)
            stream = self._busy.get(key)
            if stream is None:
                continue
            session = stream.session
            after = term, seq - 1
            wants_to_know = self._settle(key, stream, number, after, (term, seq), now_s)
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
        after: tuple[int, int],
        known: tuple[int, int],
        now_s: float,
    ) -> bool:
        """All up to this number is acknowledged, the last of it between these positions; whether
        the client waits to hear of it."""
        past = stream.past
        before, past.known, past.known_s = past.known, known, now_s
        if stream.is_to_be_stored:
            self._accept_up_to(number, key, stream, (before, after, known), now_s)
            self._tell_done(key, stream, known, now_s)
            return False
        past.settled = max(past.settled, number)
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

    # ---- what is to be stored -------------------------------------------------------------------

    def _accept_up_to(
        self,
        number: int,
        key: tuple[int, str],
        stream: _PublisherStream,
        positions: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
        now_s: float,
    ) -> None:
        """`positions`: where the topic stood when the publisher was last told; behind which the
        last of these events lies, if that is known; and where it stands now."""
        before, after, known = positions
        accepted: list[OpenPublication | _OpenEvent] = []
        for entry in stream.open:
            if entry.last_number > number:
                break
            if not entry.is_accepted:
                entry.is_accepted = True
                if entry.accepted_s is None:
                    entry.accepted_s = now_s
                accepted.append(entry)
        if not accepted:
            return
        for entry in accepted:
            if after != _NOWHERE and entry.last_number == number:
                entry.after = after
            elif entry.after is None:
                # Of several at once it is known only that they came after what was told before.
                entry.after = before
        publisher, topic = key
        oldest = min(entry.after or _NOWHERE for entry in accepted)
        first_number = accepted[0].last_number
        self._unstored.append(Unstored(topic, publisher, first_number, number, oldest, known))

    @property
    def has_unstored(self) -> bool:
        return bool(self._unstored)

    def take_unstored(self) -> list[Unstored]:
        """What has been acknowledged by brokers since the last call, and is to be stored."""
        unstored, self._unstored = self._unstored, []
        return unstored

    def stored(self, unstored: Unstored, now_s: float) -> None:
        """There are as many stores as it takes that have these."""
        key = (unstored.publisher, unstored.topic)
        stream = self._busy.get(key)
        if stream is None:
            return
        for entry in stream.open:
            if entry.last_number > unstored.number:
                break
            if entry.last_number >= unstored.first_number:
                entry.is_proven = entry.is_accepted
        stream.past.is_stored = True
        self._let_out(stream, now_s)
        self._tell_done(key, stream, unstored.stamp, now_s)

    def _tell_done(
        self,
        key: tuple[int, str],
        stream: _PublisherStream,
        position: tuple[int, int],
        now_s: float,
    ) -> None:
        """What is accepted is done, up to the first that is to be stored and is not."""
        session, past = stream.session, stream.past
        number, wants_to_know = 0, False
        while stream.open and stream.open[0].is_accepted:
            entry = stream.open[0]
            if entry.level == AckLevel.ACK_LEVEL_STORED and not entry.is_proven:
                break
            stream.open.popleft()
            number = entry.last_number
            self._timings.acknowledged_s.observe(now_s - entry.entered_s)
            self._count_open(session, -entry.nbytes - _OPEN_BYTES)
            wants_to_know = wants_to_know or entry.wants_to_know
        past.settled = max(past.settled, number)
        if wants_to_know:
            self._done.setdefault((session, key[0]), []).append((key[1], number, *position))
        self._outbox.settled[session] = None
        if stream.open:
            stream.pause_s = self._settings.publish_retry_s
            stream.due_s = now_s + stream.pause_s
        else:
            self._rest(key)

    def _let_out(self, stream: _PublisherStream, now_s: float) -> None:
        """Stores have had some of it: what was held goes out."""
        if not stream.is_holding:
            return
        stream.is_holding = False
        for entry in stream.open:
            if isinstance(entry, OpenPublication) and entry.is_held:
                entry.is_held = False
                self._update(entry.publication, stream.past, now_s)
                self._out.add(entry.publication)

    def tell_stored(self) -> None:
        """Tell clients what is done since the last call of what was to be stored."""
        if not self._done:
            return
        done, self._done = self._done, {}
        for (session, publisher), rows in done.items():
            topics, numbers, terms, seqs = zip(*rows, strict=True)
            session.say_acknowledged(publisher, topics, numbers, terms, seqs)

    def ask_again(self, unstored: Unstored, now_s: float) -> None:
        """No store's mark proves that it has these: whoever stamps the topic by now may say anew
        where they are."""
        stream = self._busy.get((unstored.publisher, unstored.topic))
        if stream is None:
            return
        for entry in stream.open:
            if entry.last_number <= unstored.number:
                entry.is_accepted = False
        self.open_alone(unstored.publisher, unstored.topic, now_s)

    def explain_unstored(self, why: Callable[[str], str]) -> None:
        """`why`: of a topic, for publishers whose events brokers have, and too few stores."""
        self._why_not_stored = why

    def open_alone(self, publisher: int, topic: str, now_s: float) -> None:
        """What is open goes out again as publications, which say more than bundles."""
        stream = self._busy.get((publisher, topic))
        if stream is None:
            return
        for entry in stream.alone():
            if not (entry.is_accepted or entry.is_held):
                self._update(entry.publication, stream.past, now_s)
                self._out.add(entry.publication)

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
            first = stream.open[0]
            if isinstance(first, OpenPublication) and first.is_held:
                # All that it waited for has been given up.
                stream.first_events = 0
                self._let_out(stream, now_s)
            if first.is_accepted:
                # It waited for what has been given up.
                self._tell_done(key, stream, stream.past.known, now_s)
                if not stream.open:
                    continue
            deadline_s = self._deadline_s(stream.open[0])
            if all(map(_is_answered, stream.open)):
                stream.due_s = deadline_s
                continue
            self._not_answered(key[1])
            stream.pause_s = min(
                2 * stream.pause_s, _RETRY_PAUSE_FACTOR_MAX * self._settings.publish_retry_s
            )
            stream.due_s = min(now_s + stream.pause_s, deadline_s)
            for entry in stream.alone():
                if _is_answered(entry):
                    continue
                self._update(entry.publication, stream.past, now_s)
                again.append(entry.publication)
        self._counters.publish_retries += len(again)
        self._out.add_all(again)

    def _deadline_s(self, entry: OpenPublication | _OpenEvent) -> float:
        """When it is given up."""
        if entry.level == AckLevel.ACK_LEVEL_STORED and entry.accepted_s is not None:
            return entry.accepted_s + self._settings.stored_deadline_s
        return entry.entered_s + self._settings.publish_deadline_s

    def _give_up(self, stream: _PublisherStream, now_s: float) -> None:
        while stream.open and self._deadline_s(stream.open[0]) <= now_s:
            if stream.open[0].is_accepted and stream.open[0].level != AckLevel.ACK_LEVEL_STORED:
                break
            entry = stream.open.popleft()
            stream.past.settled = entry.last_number
            self._count_open(stream.session, -entry.nbytes - _OPEN_BYTES)
            code = ErrorCode.ERROR_CODE_UNDELIVERABLE
            message = f"{self._taken_by} took it within {self._settings.publish_deadline_s:g} s"
            if entry.accepted_s is not None or _is_answered(entry):
                code = ErrorCode.ERROR_CODE_NOT_STORED
                message = self._why_not_stored(entry.alone().publication.topic)
            self.refuse(stream.session, entry.alone().publication, code, message)

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
