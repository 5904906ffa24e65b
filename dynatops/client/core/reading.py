"""What a client subscribes to, and how far it has read each topic.

A client can go on at any broker: it knows its filters, and for each topic the place it has reached
in every term, and which numbers of each publisher it has had. So whatever a broker sends it twice,
in the same order or another, it takes once. Brokers in a tree number their events over all topics:
there it also knows how far it has read the stream of each broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import is_wildcard, pattern_matches
from dynatops.kit.repeats import Publishers
from dynatops.kit.topics import RESERVED_PREFIX, STREAMS
from dynatops.v1.client_pb2 import Cursor, Filter, Welcome
from dynatops.v1.overlay_pb2 import Run, TermSeq

# Terms remembered for each topic, and publishers; and streams.
_TERMS_MAX = 8
_STREAMS_MAX = 4_096
_PUBLISHERS_MAX = 4_096

# A pattern, and a condition on attributes.
FilterKey = tuple[str, str]


class Arrived(NamedTuple):
    """Events that have not been had before: those of the run at offsets from `start` to `stop`."""

    run: Run
    start: int
    stop: int

    @property
    def places(self) -> Sequence[tuple[int, int]]:
        """(index among the events that are here, offset in the run) of each."""
        if not self.run.partial:
            return [(i, i) for i in range(self.start, self.stop)]
        selected = enumerate(self.run.selected)
        return [(i, offset) for i, offset in selected if self.start <= offset < self.stop]


class ArrivedBundle(NamedTuple):
    """Events of many topics that have not been had before."""

    bundle: Bundle
    places: Sequence[int]


class TopicCursor:
    """How far one topic has been read."""

    __slots__ = ("_publishers", "_seen")

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._publishers = Publishers(_PUBLISHERS_MAX)

    def begin(self, term: int, seq: int) -> None:
        """The topic stands here, and is read from here on."""
        self._mark(term, seq)

    def admit(self, run: Run) -> Sequence[Arrived]:
        last_seq = run.first_seq + run.count - 1
        if last_seq <= self._seen.get(run.term, 0):
            return ()
        self._mark(run.term, last_seq)
        window = self._publishers.window(run.publisher)
        first = run.first_number
        if first > window.high + 1:
            window.expect_before(min(run.since_number, first))
        return [
            Arrived(run, new.first - first, new.first - first + new.count)
            for new in window.admit(first, run.count, run.missing)
        ]

    def expect_before(self, publisher: int, since: int) -> None:
        """The publisher's numbers before this one are in other streams, if they have not come."""
        self._publishers.window(publisher).expect_before(since)

    def admit_event(self, term: int, seq: int, publisher: int, number: int) -> bool:
        """The same of an event that nothing is missing before."""
        reached = self._seen.get(term)
        if reached is None:
            self._mark(term, seq)
        elif seq > reached:
            self._seen[term] = seq
        else:
            return False
        if self._publishers.admit_following(publisher, number):
            return True
        return bool(self._publishers.window(publisher).admit(number, 1))

    def _mark(self, term: int, seq: int) -> None:
        if term == 0:
            return
        is_new = term not in self._seen
        self._seen[term] = max(seq, self._seen.get(term, 0))
        if is_new:
            self._seen = dict(sorted(self._seen.items())[-_TERMS_MAX:])

    def seen(self, *, before: tuple[int, int] | None = None) -> list[TermSeq]:
        """How far it has been read; or as if it had been read to just before this stamp."""
        if before is None:
            return [TermSeq(term=term, seq=seq) for term, seq in self._seen.items()]
        last, stop = before
        return [
            TermSeq(term=term, seq=seq if term < last else min(seq, stop - 1))
            for term, seq in self._seen.items()
            if term <= last
        ]


class StreamPlaces:
    """How far the streams of brokers in a tree have been read, all topics together."""

    def __init__(self) -> None:
        # By stream; later ones have higher numbers.
        self._reached: dict[int, int] = {}

    def reach(self, stream: int, number: int) -> None:
        is_new = stream not in self._reached
        self._reached[stream] = max(number, self._reached.get(stream, 0))
        if is_new and len(self._reached) > _STREAMS_MAX:
            del self._reached[min(self._reached)]

    def cursor(self, held: Iterable[tuple[int, int]]) -> Cursor:
        """As if it had been read to just before the first of these events in each stream."""
        reached = dict(self._reached)
        for stream, number in held:
            if stream in reached:
                reached[stream] = min(reached[stream], number - 1)
        seen = [TermSeq(term=stream, seq=number) for stream, number in sorted(reached.items())]
        return Cursor(topic=STREAMS, seen=seen)


class Reading:
    def __init__(self) -> None:
        # Filters wanted -> whether a broker has confirmed them.
        self._filters: dict[FilterKey, bool] = {}
        # How many filters there are on each pattern, unclaimed ones too.
        self._patterns: Counter[str] = Counter()
        self._wildcards: dict[str, None] = {}
        # Filters that a session had from before this client was started; nobody has asked for them
        # yet.
        self.unclaimed: dict[FilterKey, bool] = {}
        # Those that have been asked for since, and that no broker has confirmed to this client.
        self._claimed: dict[FilterKey, None] = {}
        self._cursors: dict[str, TopicCursor] = {}
        # Once a broker has said where it stands: that one is in a tree.
        self._streams: StreamPlaces | None = None
        # Whether its place is behind what sessions have for it, until one goes on from there: what
        # comes before that is not read. The request that goes on, and after which delivery.
        self._is_behind = False
        self._goes_on: tuple[int, int] | None = None
        self.session_id = ""
        # Of the delivery that has just come: how often events were handed out before, by offset.
        self.handed: dict[int, int] = {}
        # The oldest events held here, by topic and term: a later process is to get them, too.
        self.oldest_held: Callable[[], Mapping[str, dict[int, int]]] = dict
        # Serials of deliveries: of the next to come, of the newest had, of the newest taken by the
        # application, and of the newest that the broker was told of.
        self._next_serial = 1
        self.had = 0
        self.taken = 0
        self.told = 0

    @property
    def filters(self) -> list[FilterKey]:
        return list(self._filters)

    @property
    def confirmed(self) -> list[FilterKey]:
        """Filters that some broker has confirmed."""
        return [key for key, is_confirmed in self._filters.items() if is_confirmed]

    # ---- filters --------------------------------------------------------------------------------

    def add(self, filters: Iterable[FilterKey]) -> None:
        for key in filters:
            # Those of the session itself are in place: elsewhere they are gone on with.
            is_claimed = self.unclaimed.pop(key, None) is not None
            if is_claimed:
                self._claimed[key] = None
            if key not in self._filters and not is_claimed:
                self._count(key[0], 1)
            self._filters.setdefault(key, is_claimed)

    def has_claimed(self, filters: Iterable[FilterKey]) -> bool:
        """Whether the session was kept with some of these, and no broker has confirmed them yet."""
        return any(key in self._claimed for key in filters)

    def put_back(self, filters: Iterable[FilterKey]) -> list[FilterKey]:
        """Those among them that the session was kept with are as if nobody had asked for them."""
        kept = [key for key in filters if key in self._claimed]
        for key in kept:
            del self._claimed[key]
            del self._filters[key]
            self.unclaimed[key] = False
        return kept

    def remove(self, filters: Iterable[FilterKey]) -> None:
        for key in filters:
            self._claimed.pop(key, None)
            if self._filters.pop(key, None) is None and self.unclaimed.pop(key, True):
                continue
            pattern = key[0]
            self._count(pattern, -1)
            topics = [pattern] if not is_wildcard(pattern) else list(self._cursors)
            for topic in topics:
                if not self._wants(topic):
                    self._cursors.pop(topic, None)

    def _count(self, pattern: str, change: int) -> None:
        self._patterns[pattern] += change
        if not self._patterns[pattern]:
            del self._patterns[pattern]
            self._wildcards.pop(pattern, None)
        elif is_wildcard(pattern):
            self._wildcards[pattern] = None

    def _wants(self, topic: str) -> bool:
        if topic in self._patterns:
            return True
        if topic.startswith(RESERVED_PREFIX):
            # Where the broker's list of topics stood: another one knows by that what it has lost.
            return bool(self._wildcards)
        return any(pattern_matches(pattern, topic) for pattern in self._wildcards)

    def confirm(self, filters: Iterable[FilterKey]) -> None:
        for key in filters:
            self._claimed.pop(key, None)
            if key in self._filters:
                self._filters[key] = True

    # ---- the session ----------------------------------------------------------------------------

    def greeted(self, welcome: Welcome) -> tuple[list[FilterKey], list[FilterKey]]:
        """Filters that the broker is to be told again, and those it has in excess."""
        was_known = bool(self.session_id)
        if welcome.session_id != self.session_id:
            self.session_id = welcome.session_id
            self.had = self.taken = welcome.serial - 1
        # What was said last may have been lost with the connection.
        self.told = welcome.serial - 1
        self._next_serial = welcome.serial
        present = [(f.pattern, f.where) for f in welcome.filters]
        excess = [k for k in present if k not in self._filters and k not in self.unclaimed]
        if not was_known:
            for key in excess:
                self.unclaimed[key] = False
                self._count(key[0], 1)
            excess = []
        # What the session was kept with goes along, whether it has been asked for yet or not.
        wanted = [*self.confirmed, *self.unclaimed]
        # With nothing to go on with, what comes is all new.
        self._is_behind = self._is_behind and bool(wanted)
        if self._is_behind:
            return wanted, excess
        return [key for key in wanted if key not in present], excess

    def go_on(self, request: int, welcome: Welcome) -> None:
        """The broker has been asked to go on from the place where this client is. That is one place
        for all filters: what the session has been given for some of them is beyond it, and comes
        again in its turn."""
        if self._streams is not None and welcome.HasField("newest_serial"):
            self._is_behind = True
            self._goes_on = (request, welcome.newest_serial)

    def _is_beyond(self, run: Run) -> bool:
        """Whether this delivery comes too early to be read."""
        if self._goes_on is not None and run.topic == STREAMS and run.term == 0:
            request, newest_serial = self._goes_on
            if run.first_seq == request and self.had > newest_serial:
                self._is_behind, self._goes_on = False, None
                return True
        return self._is_behind

    def without_place(self, filters: Iterable[FilterKey]) -> list[str]:
        """The patterns of those that a session was kept with, and of which this process does not
        know where it stood: the broker of that session was left before it had said so."""
        if self._streams is not None:
            return []
        unknown = {
            pattern: None
            for pattern, where in filters
            if (pattern, where) in self._claimed or (pattern, where) in self.unclaimed
        }
        return [pattern for pattern in unknown if pattern not in self._cursors]

    def reached(self, pattern: str) -> list[Cursor]:
        """Where what comes live of these topics is by now; in a tree, of all topics together."""
        if self._streams is not None:
            return [self._streams.cursor(())]
        return [
            Cursor(topic=topic, seen=cursor.seen())
            for topic, cursor in self._cursors.items()
            if pattern_matches(pattern, topic)
        ]

    def cursors(self, filters: Iterable[FilterKey]) -> list[Cursor]:
        """How far the topics of these filters have been read."""
        patterns = {pattern for pattern, _ in filters}
        held = self.oldest_held()
        if self._streams is not None:
            return [self._streams.cursor(chain.from_iterable(map(dict.items, held.values())))]
        wildcards = [pattern for pattern in patterns if is_wildcard(pattern)]
        return [
            Cursor(
                topic=topic, seen=cursor.seen(before=min(held.get(topic, {}).items(), default=None))
            )
            for topic, cursor in self._cursors.items()
            if topic in patterns
            or any(pattern_matches(w, topic) for w in wildcards)
            or (wildcards and topic.startswith(RESERVED_PREFIX))
        ]

    # ---- deliveries -----------------------------------------------------------------------------

    def count_delivery(self) -> bool:
        """A delivery has come; whether it is a new one, not sent again."""
        serial = self._next_serial
        self._next_serial += 1
        if serial <= self.had:
            return False
        self.had = serial
        return True

    def skip(self, count: int) -> None:
        """So many deliveries have been taken already, and do not come."""
        self._next_serial += count
        self.had = max(self.had, self._next_serial - 1)

    def begin(self, positions: Iterable[Cursor]) -> None:
        """Topics are read from here on: said before the deliveries that say so, too."""
        for position in positions:
            if position.topic == STREAMS:
                for stamp in position.seen if not self._is_behind else ():
                    self._reach(stamp.term, stamp.seq)
                continue
            cursor = self._cursor_of(position.topic)
            if cursor is not None:
                for stamp in position.seen:
                    cursor.begin(stamp.term, stamp.seq)

    def _reach(self, stream: int, number: int) -> None:
        if self._streams is None:
            self._streams = StreamPlaces()
        self._streams.reach(stream, number)

    def _cursor_of(self, topic: str) -> TopicCursor | None:
        """None if nobody wants the topic."""
        cursor = self._cursors.get(topic)
        if cursor is None and self._wants(topic):
            cursor = self._cursors[topic] = TopicCursor()
        return cursor

    def admit(self, run: Run) -> Sequence[Arrived]:
        if not self.count_delivery() or (self._is_behind and self._is_beyond(run)):
            return ()
        if run.topic == STREAMS:
            if run.term:
                self._reach(run.term, run.first_seq - 1)
            return ()
        if self._streams is not None:
            self._streams.reach(run.term, run.first_seq + run.count - 1)
        cursor = self._cursor_of(run.topic)
        if cursor is None:
            return ()
        if run.count == 0:
            cursor.begin(run.term, run.first_seq - 1)
            return ()
        return cursor.admit(run)

    def admit_bundle(self, bundle: Bundle) -> Sequence[ArrivedBundle]:
        if not self.count_delivery() or self._is_behind:
            return ()
        publisher, numbers, cursors = bundle.publisher, bundle.numbers, self._cursors
        terms, seqs = bundle.terms, bundle.seqs
        if self._streams is not None:
            # One stream, in order.
            self._streams.reach(terms[-1], seqs[-1])
        for place, since in enumerate(bundle.since_numbers):
            if since and (cursor := self._cursor_of(bundle.topics[place])) is not None:
                cursor.expect_before(publisher, min(since, numbers[place]))
        places: list[int] = []
        for place, topic in enumerate(bundle.topics):
            cursor = cursors.get(topic) or self._cursor_of(topic)
            if cursor is not None and cursor.admit_event(
                terms[place], seqs[place], publisher, numbers[place]
            ):
                places.append(place)
        return (ArrivedBundle(bundle, places),) if places else ()


def to_wire(filters: Iterable[FilterKey]) -> list[Filter]:
    return [Filter(pattern=pattern, where=where) for pattern, where in filters]
