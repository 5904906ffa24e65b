"""A client's session: what it subscribes to, and what waits to be sent to it.

    attached --connection lost--> detached --same client id--> attached
                                     `--expiry, or none wished for--> gone

What waits is kept as contents, which many sessions may share, in no encoding (`content`). There are
two lanes:

    deliveries  runs of events, where topics begin, and what was missed: in order, numbered with
                serials. A session that outlives its connections keeps them until the client says
                that its application took them, and sends those again that a broken connection may
                have lost. No more than a window of them is under way.
    answers     of one connection. They keep their place among the deliveries if all before them fit
                into the window; else they go first, so that nothing waits for an application that
                waits for an answer.

Answers speak of no delivery but for two. Positions of topics come before Subscribed, or with it if
it goes first. Goodbye comes after what will be sent.

Both lanes are bounded. What happens to events past the bound is the session's choice; notices are
summed up; a connection whose answers nobody reads ends.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product, takewhile
from operator import attrgetter
from types import MappingProxyType

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.rights.access import Grant
from broker_agent.core.sessions.content import Answer, BundleContent, Content, note_firsts
from broker_agent.core.sessions.redelivery import Piece, with_marks, without_gaps
from dynatops.kit.filters import Filter, pattern_matches
from dynatops.kit.topics import STREAMS
from dynatops.v1.client_pb2 import (
    Cursor,
    ErrorCode,
    EventMark,
    Goodbye,
    MissCause,
    Missed,
    Received,
    SlowPolicy,
    Subscribed,
)
from dynatops.v1.overlay_pb2 import Acknowledged, Acknowledgements, Run, TermSeq

# Words on single events are written into their pieces when there are so many of them.
_MARKS_MAX = 1_000
# What is said of a topic's missed events: why, and whether it is known how many.
_UNTOLD_AS = (tuple(MissCause.values()), (True, False))
# What an entry of a queue costs beside its data.
_ENTRY_BYTES = 100


# The id of the broker's own session, as a store. No client's is like it.
OWN_SESSION = "$store"
_serial_of = attrgetter("serial")
# The part of an id that `registry` draws at random.
_SECRET = re.compile(r"-[0-9a-f]{16}(?=~|$)")
_NO_FILTERS: frozenset[Filter] = frozenset()
_NOTHING_AVOIDED: Mapping[str, float] = MappingProxyType({})


class Session:
    __slots__ = (
        "_answers",
        "_bytes",
        "_closes_when_slow",
        "_events",
        "_marked",
        "_marks",
        "_pieces",
        "_sent",
        "_sent_bytes",
        "_settings",
        "_unclaimed",
        "_untold",
        "acknowledged",
        "answers_bytes",
        "attached_s",
        "attempt",
        "avoided",
        "changed",
        "client_id",
        "closing",
        "connection",
        "delivered",
        "detached_s",
        "door",
        "dropped",
        "expiry_s",
        "filters",
        "followed",
        "given_up",
        "grant",
        "movable",
        "origin_id",
        "outwaited",
        "owner",
        "paused",
        "policy",
        "publisher",
        "redirected",
        "saved",
        "serial",
        "session_id",
        "speaks_bundles",
        "unread",
        "unsettled_bytes",
        "wildcards",
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
        # Nothing, until it has been let in; and the name of the token that let it in.
        self.grant = Grant(settings)
        self.owner = ""
        # What its client publishes under.
        self.publisher = 0
        self.policy = policy
        self.connection = connection
        # How long it outlives its connection.
        self.expiry_s = expiry_s
        # Since when it has its connection, until that is known to be gone; since when it has none.
        self.attached_s: float | None = None
        self.detached_s = 0.0
        # The client's hellos until it was let in here last, as the client counts them.
        self.attempt = 0
        # As it was called when it was opened, and is called on disk. Each later life of the broker
        # has a name of its own for it, because serials may stand for other deliveries than before.
        self.origin_id = session_id
        # Whether it goes where a broker sends it, and whether it has been sent.
        self.movable = False
        self.redirected = False
        # Whether its client understands events and acknowledgements of many topics in one message.
        self.speaks_bundles = False
        # Whether publishers have waited for it in vain, since it last had little to read.
        self.outwaited = False
        # Addresses that its client could not reach lately, and until when it is not sent there.
        self.avoided: Mapping[str, float] = _NOTHING_AVOIDED
        # The further door that its client came by last; empty: the one that the broker is known by.
        self.door = ""
        # By pattern; one pattern may come with several conditions.
        self.filters: dict[str, tuple[Filter, ...]] = {}
        self.wildcards: tuple[Filter, ...] = ()
        # Topics that its wildcards have brought in.
        self.followed: dict[str, None] | None = None
        # Those of them that its client has not asked for since it came back.
        self._unclaimed = _NO_FILTERS
        self.closing = False
        # Bytes of publications that their rendezvous points have not taken yet.
        self.unsettled_bytes = 0
        self.paused = False
        # Whether it is not read from because it does not read what it is told.
        self.unread = False
        # Whether its connection is about to end because of that.
        self.given_up = False
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
        # They are lists, as most that exist are short: a deque begins with 760 bytes.
        self._pieces: list[Piece] | None = None
        self._bytes = 0
        self._events = 0
        self._sent: list[Piece] | None = None
        self._sent_bytes = 0
        # What the client said of single events, and is not written into their pieces yet.
        self._marks: dict[int, list[EventMark]] | None = None
        self._marked = 0
        # Serials on disk whose pieces are no longer what they are there.
        self.changed: set[int] | None = None
        self._answers: list[Content] | None = None
        self.answers_bytes = 0
        # Events missed since the subscriber was last told, by topic, cause, and whether it is known
        # how many.
        self._untold: dict[tuple[str, MissCause.ValueType, bool], int] | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_s > 0

    @property
    def is_internal(self) -> bool:
        """Whether it is the broker's own: nobody's user."""
        return self.session_id == OWN_SESSION

    @property
    def takes_bundles(self) -> bool:
        """Whether events of many topics may be one delivery: of one that is kept, each is to be
        taken by itself."""
        return self.speaks_bundles and self.expiry_s <= 0

    @property
    def is_crowded(self) -> bool:
        """Whether its client reads, and has more than half of what may wait still before it: it
        would not notice if nothing more came for a while."""
        settings = self._settings
        return (
            self.connection is not None
            and not (self.closing or self.outwaited)
            and (
                2 * self._events > settings.session_queue_events_max
                or 2 * self._bytes > settings.session_queue_bytes_max
            )
        )

    @property
    def has_little(self) -> bool:
        """Whether less than a quarter of what may wait waits for it, or nothing for long: its
        client is gone."""
        settings = self._settings
        return self.connection is None or (
            4 * self._events < settings.session_queue_events_max
            and 4 * self._bytes < settings.session_queue_bytes_max
        )

    @property
    def queued_events(self) -> int:
        return self._events

    @property
    def queued_bytes(self) -> int:
        return self._bytes

    @property
    def queued_pieces(self) -> int:
        return len(self._pieces or ())

    @property
    def has_output(self) -> bool:
        """Whether anything waits to be sent, now or once there is room for it."""
        return bool(self._pieces or self._answers or self._untold)

    @property
    def oldest_s(self) -> float | None:
        """Since when what is sent next has been waiting; None if that is no delivery."""
        return self._pieces[0].queued_s if self._pieces and self._pieces[0].serial else None

    @property
    def untaken_bytes(self) -> int:
        """Sent, and not known to have been taken by the application."""
        return self._sent_bytes

    @property
    def shown_id(self) -> str:
        """Its id without what nobody can guess: with that, a session can be given up."""
        return _SECRET.sub("", self.session_id)

    @property
    def shown(self) -> str:
        """It, in a sentence."""
        return f"session {self.shown_id or '(none)'} of {self.client_id!r}"

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

    def claim(self, present: Filter) -> bool:
        """The client asks for a filter that the session has: whether for the first time since it
        came back, so that it may be a process that knows nothing."""
        is_first = present in self._unclaimed
        self._unclaimed -= {present}
        return is_first

    # ---- connections ----------------------------------------------------------------------------

    def attach(self, connection: ConnectionId, attempt: int, now_s: float) -> None:
        """`attempt` is the client's, from its hello."""
        self.connection = connection
        self.attempt = attempt
        self.attached_s = now_s
        self._unclaimed = frozenset(chain.from_iterable(self.filters.values()))
        self.closing = False
        self.redirected = False

    def avoid(self, addresses: Iterable[str], until_s: float) -> None:
        """Its client could not reach brokers at these addresses, says the newest hello."""
        avoided = dict.fromkeys(addresses, until_s)
        self.avoided = avoided or _NOTHING_AVOIDED

    def detach(self, now_s: float) -> None:
        """The connection is gone: answers are void, deliveries not yet taken go out again."""
        self.connection = None
        self.detached_s = now_s
        self.paused = self.unread = self.given_up = False
        self._answers, self.answers_bytes = None, 0
        self._apply_marks()
        pieces = [*(self._sent or ()), *(self._pieces or ())]
        self._sent, self._sent_bytes = None, 0
        # A client may have said that it has what it was about to be sent again.
        left = [piece for piece in pieces if piece.serial > self.acknowledged]
        if self.is_kept and len(left) != self.serial - self.acknowledged:
            left = list(without_gaps(left, self.acknowledged, self.serial, now_s))
        self._pieces = left or None
        self._events = sum(piece.events for piece in self._pieces or ())
        self._bytes = sum(piece.content.nbytes for piece in self._pieces or ())

    def received(self, message: Received) -> bool:
        """The application took deliveries; whether that makes room to send."""
        serial = message.serial
        self.acknowledged = max(self.acknowledged, min(serial, self.serial))
        was_full = self._is_waiting
        sent = self._sent
        if sent and sent[-1].serial <= serial:
            self._sent, self._sent_bytes = None, 0
        elif sent and sent[0].serial <= serial:
            taken = bisect_right(sent, serial, key=_serial_of)
            self._sent_bytes -= sum(piece.content.nbytes for piece in sent[:taken])
            del sent[:taken]
        if message.beyond or message.marks:
            self._received_beyond(message)
        return was_full and not self._is_waiting

    def _received_beyond(self, message: Received) -> None:
        """It took deliveries, or events of some, though not what was sent before."""
        sent = self._sent or []
        for taken in message.beyond:
            start = bisect_left(sent, taken.first, key=_serial_of)
            stop = bisect_right(sent, taken.last, key=_serial_of)
            for piece in sent[start:stop]:
                self._note_changed(piece.serial)
                self._sent_bytes -= piece.content.nbytes
            del sent[start:stop]
        for mark in message.marks:
            if self._marks is None:
                self._marks = {}
            if mark.serial > self.acknowledged:
                self._marks.setdefault(mark.serial, []).append(mark)
                self._marked += 1
        if self._marked >= _MARKS_MAX:
            self._apply_marks()

    def _apply_marks(self) -> None:
        """Write into what has been sent what is known of single events."""
        marks, self._marks, self._marked = self._marks or {}, None, 0
        sent = self._sent or []
        for serial, said in marks.items():
            at = bisect_left(sent, serial, key=_serial_of)
            if at == len(sent) or sent[at].serial != serial:
                continue
            piece = with_marks(sent[at], said)
            self._sent_bytes -= sent[at].content.nbytes
            self._note_changed(serial)
            if piece is None:
                del sent[at]
            else:
                sent[at] = piece
                self._sent_bytes += piece.content.nbytes

    def _note_changed(self, serial: int) -> None:
        if serial <= self.saved:
            self.changed = self.changed or set()
            self.changed.add(serial)

    def take_changed(self) -> dict[int, Piece | None]:
        """Deliveries that are otherwise than on disk, by serial; None for those that are gone."""
        self._apply_marks()
        serials, self.changed = self.changed, None
        if not serials:
            return {}
        found = {p.serial: p for pieces in (self._sent, self._pieces) for p in pieces or ()}
        return {
            serial: piece if piece and not piece.stands_for_others else None
            for serial in sorted(serials)
            if serial > self.acknowledged
            for piece in (found.get(serial),)
        }

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
                if 0 < piece.serial <= upto and not piece.stands_for_others:
                    newest_first.append(piece)
        return newest_first[::-1]

    def untold(self) -> list[Missed]:
        """What was dropped since the subscriber was last told."""
        return [
            Missed(topic=topic, cause=cause, count=count)
            for (topic, cause, _), count in (self._untold or {}).items()
        ]

    def restore(self, pieces: Iterable[Piece], untold: Iterable[Missed]) -> None:
        """What waited before the broker restarted. To be said before anything has come."""
        stored = list(pieces)
        if stored:
            self.acknowledged = stored[0].serial - 1
        for piece in without_gaps(stored, self.acknowledged, 0, 0.0):
            self._queue.append(piece)
            self._bytes += piece.content.nbytes
            self._events += piece.events
            self.serial = self.saved = piece.serial
        if not self._pieces:
            self._pieces = None
        for missed in untold:
            self._note_untold(missed.topic, missed.cause, missed.count)

    # ---- output ---------------------------------------------------------------------------------

    @property
    def _queue(self) -> list[Piece]:
        if self._pieces is None:
            self._pieces = []
        return self._pieces

    def say(self, answer: Answer) -> None:
        """Nothing more is said to a connection that was given up because nobody reads it."""
        if not self.closing and self.connection is not None:
            self._answer(Content(answer))

    def say_acknowledged(
        self,
        publisher: int,
        topics: Sequence[str],
        numbers: Sequence[int],
        terms: Sequence[int],
        seqs: Sequence[int],
    ) -> None:
        """Say that events have reached their level, one topic in each place."""
        if self.speaks_bundles:
            columns = Acknowledgements(
                publisher=publisher, topics=topics, numbers=numbers, terms=terms, seqs=seqs
            )
            self.say(columns)
            return
        for topic, number, term, seq in zip(topics, numbers, terms, seqs, strict=True):
            self.say(
                Acknowledged(topic=topic, publisher=publisher, number=number, term=term, seq=seq)
            )

    def say_first(self, answer: Answer) -> None:
        """The first answer on a connection, when nothing is under way."""
        content = Content(answer)
        self._queue.insert(0, Piece(content, 0, 0, "", 0.0))
        self._bytes += content.nbytes

    def _answer(self, content: Content) -> None:
        if self.given_up or self.has_unread_too_much:
            return
        if self._answers is None and self._has_window_for_all:
            self._append(content, 0, "", 0.0, serial=0)
            return
        if self._answers is None:
            self._answers = []
        self._answers.append(content)
        self.answers_bytes += content.nbytes + _ENTRY_BYTES

    @property
    def has_unread_too_much(self) -> bool:
        """Whether answers wait past their bound: the connection is to end."""
        return self.answers_bytes > self._settings.session_answers_bytes_max

    def confirm(self, subscribed: Subscribed) -> None:
        """Where its topics begin is said before, or with it."""
        if self._answers is not None or not self._has_window_for_all:
            subscribed.positions.extend(self._positions())
        self.say(subscribed)

    @property
    def _has_window_for_all(self) -> bool:
        """Whether what is queued now will be sent, whatever the application does."""
        pieces = self._pieces
        if not pieces and not self._sent_bytes:
            return True
        queued = self._bytes + _ENTRY_BYTES * len(pieces or ())
        return self._sent_bytes + queued <= self._settings.session_window_bytes

    def _positions(self) -> Iterable[Cursor]:
        """Where topics begin whose beginnings wait to be sent; not those of which events wait
        before, as they would be taken for repeats. A place in a stream is that of all topics
        together: said before events of the stream, it is the one just before the first of them; and
        it is not said before a gap, which a client that goes elsewhere from there is not told."""
        begun: set[str] = set() if self._untold is None else {STREAMS}
        before: list[Content] = []
        firsts: dict[int, int] = {}
        for piece in self._pieces or ():
            if isinstance(piece.content, BundleContent):
                begun.update(piece.content.topics())
                before.append(piece.content)
            elif piece.events:
                begun.add(piece.topic)
                before.append(piece.content)
            elif piece.serial:
                for body in piece.content.bodies:
                    if isinstance(body, Missed):
                        begun.add(STREAMS)
                    elif (
                        isinstance(body, Run)
                        and body.count == 0
                        and body.term
                        and body.topic not in begun
                    ):
                        seq = body.first_seq - 1
                        if body.topic == STREAMS:
                            while before:
                                note_firsts(before.pop(0), firsts)
                            seq = min(seq, firsts.get(body.term, body.first_seq) - 1)
                        yield Cursor(topic=body.topic, seen=[TermSeq(term=body.term, seq=seq)])

    def tell_position(self, topic: str, beginning: Content, now_s: float) -> bool:
        """Where a topic begins, in its place among the events. False if there are too many of these
        already: whoever goes elsewhere without it is told more there than it asked for."""
        if self.closing:
            return True
        if not self._has_room_for_notice:
            return False
        self._deliver(beginning, 0, topic, now_s)
        return True

    def tell_it_goes_on(self, topic: str, beginning: Content, now_s: float) -> None:
        """What its client has asked to go on with begins here: said once a request, whatever waits,
        because the client reads nothing before."""
        if not self.closing:
            self._deliver(beginning, 0, topic, now_s)

    def tell_missed(self, missed: Missed, now_s: float, content: Content | None = None) -> None:
        """What it does not get, in its place among the events; summed up if there is too much of
        that. `content`: the same, where others are told it, too."""
        if self.closing:
            return
        if self._has_room_for_notice:
            self._deliver(content or Content(missed), 0, missed.topic, now_s)
        else:
            self._note_untold(missed.topic, missed.cause, missed.count)

    @property
    def _has_room_for_notice(self) -> bool:
        """A client that reads nothing has no end of notices; beside the events there is room for as
        many again."""
        settings = self._settings
        return (
            self.queued_pieces < 2 * settings.session_queue_events_max
            and self._bytes < 2 * settings.session_queue_bytes_max
        )

    def _deliver(self, content: Content, events: int, topic: str, now_s: float) -> None:
        self.serial += 1
        self._append(content, events, topic, now_s, serial=self.serial)

    def offer(self, topic: str, content: Content, events: int, now_s: float) -> bool | None:
        """Queue events; False if they were dropped, None if the session is too slow to go on."""
        if self.closing:
            return False
        if self._is_too_much(events, content.nbytes):
            if self._closes_when_slow:
                return None
            self._note_dropped(topic, MissCause.MISS_CAUSE_SLOW_SUBSCRIBER, events)
            return False
        if self._untold is not None:
            self._tell_dropped(now_s, (topic,))
        self._deliver_events(topic, content, events, now_s)
        return True

    def offer_bundle(
        self, topics: Sequence[str], content: BundleContent, now_s: float
    ) -> bool | None:
        """The same of events on many topics, to a session that takes them so."""
        if self.closing:
            return False
        if self._is_too_much(content.events, content.nbytes):
            if self._closes_when_slow:
                return None
            for topic in topics:
                self._note_dropped(topic, MissCause.MISS_CAUSE_SLOW_SUBSCRIBER, 1)
            return False
        if self._untold is not None:
            self._tell_dropped(now_s, topics)
        self._deliver_events("", content, content.events, now_s)
        return True

    def _is_too_much(self, events: int, nbytes: int) -> bool:
        """Whether the queue would be too long with these; one delivery is always let in."""
        return bool(self._pieces) and (
            self._events + events > self._settings.session_queue_events_max
            or self._bytes + nbytes > self._settings.session_queue_bytes_max
        )

    def _deliver_events(self, topic: str, content: Content, events: int, now_s: float) -> None:
        self.serial += 1
        self._append(content, events, topic, now_s, serial=self.serial)
        self.delivered += events

    def take_output(self, bytes_max: int, now_s: float) -> list[Content]:
        """Remove and return output, about so much; at least one content if there is any."""
        answers: list[Content] = []
        if self._answers is not None:
            answers = self._take_answers(bytes_max)
            bytes_max = max(0, bytes_max - sum(answer.nbytes for answer in answers))
        if self._untold is not None and not self._events:
            self._tell_dropped(now_s)
        pieces = self._pieces
        if not pieces or not bytes_max or self._is_waiting:
            return answers
        if self._bytes <= bytes_max:
            taken, self._pieces = pieces, None
            self._bytes = self._events = 0
        else:
            taken = self._take_some(pieces, bytes_max)
        if self.outwaited and self.has_little:
            self.outwaited = False
        if self.is_kept:
            self._note_sent(taken)
        return [*answers, *[piece.content for piece in taken]]

    def _take_answers(self, bytes_max: int) -> list[Content]:
        answers = self._answers or []
        if self.answers_bytes <= bytes_max:
            self._answers, self.answers_bytes = None, 0
            return answers
        # Not all at once: what is sent together is to stay short.
        size = count = 0
        while count < len(answers) and (not count or size + answers[count].nbytes <= bytes_max):
            size += answers[count].nbytes
            count += 1
        taken = answers[:count]
        del answers[:count]
        self.answers_bytes -= size + count * _ENTRY_BYTES
        return taken

    def _take_some(self, pieces: list[Piece], bytes_max: int) -> list[Piece]:
        count = size = 0
        for piece in pieces:
            if count and size + piece.content.nbytes > bytes_max:
                break
            count += 1
            size += piece.content.nbytes
            self._events -= piece.events
        taken = pieces[:count]
        del pieces[:count]
        self._bytes -= size
        if not pieces:
            self._pieces = None
        return taken

    def _note_sent(self, taken: list[Piece]) -> None:
        """Deliveries are kept until the application has them."""
        deliveries = [piece for piece in taken if piece.serial]
        self._sent_bytes += sum([piece.content.nbytes for piece in deliveries])
        if self._sent is not None:
            self._sent += deliveries
        elif deliveries:
            self._sent = deliveries

    def expire(self, before_s: float) -> int:
        """Drop what has waited since before this time for an absent client; how many events."""
        pieces = self._pieces
        if pieces is None:
            return 0
        old = list(takewhile(lambda piece: piece.queued_s < before_s, pieces))
        for piece in old:
            # The client counts from here on.
            self.acknowledged = max(piece.serial, self.acknowledged)
            self._bytes -= piece.content.nbytes
            self._events -= piece.events
            if piece.events:
                self._note_dropped(piece.topic, MissCause.MISS_CAUSE_EXPIRED, piece.events)
        del pieces[: len(old)]
        if not pieces:
            self._pieces = None
        return sum(piece.events for piece in old)

    def miscounts(self) -> Iterator[str]:
        """Where its counts are not those of its queues, or these are out of order: nowhere."""
        queued, sent, answers = self._pieces or [], self._sent or [], self._answers or []
        if self._bytes != (size := sum(piece.content.nbytes for piece in queued)):
            yield f"{size} bytes are queued, and {self._bytes} counted"
        if self._events != (events := sum(piece.events for piece in queued)):
            yield f"{events} events are queued, and {self._events} counted"
        if self._sent_bytes != (size := sum(piece.content.nbytes for piece in sent)):
            yield f"{size} bytes have been sent and not taken, and {self._sent_bytes} counted"
        size = sum(answer.nbytes + _ENTRY_BYTES for answer in answers)
        if not self.given_up and self.answers_bytes != size:
            yield f"{size} bytes of answers are queued, and {self.answers_bytes} counted"
        serials = [piece.serial for piece in (*sent, *queued) if piece.serial]
        if serials != sorted(set(serials)) or (serials and serials[-1] > self.serial):
            yield f"deliveries are out of order: {serials[:10]}, the newest is {self.serial}"

    def close(self, code: ErrorCode.ValueType, message: str, alternatives: Iterable[str]) -> None:
        """Say goodbye, after what is queued if that will be sent; nothing more is queued."""
        if self.closing:
            return
        goodbye = Goodbye(code=code, message=message, alternatives=alternatives)
        self.say(goodbye)
        self.closing = True

    def end_unread(self, code: ErrorCode.ValueType, message: str) -> None:
        """Say only goodbye to a connection that does not read; the session is not over with it."""
        goodbye = Goodbye(code=code, message=message)
        content = Content(goodbye)
        self._answers, self.answers_bytes = [content], content.nbytes
        self.given_up = True

    def _append(
        self, content: Content, events: int, topic: str, now_s: float, *, serial: int
    ) -> None:
        self._queue.append(Piece(content, events, serial, topic, now_s))
        self._bytes += content.nbytes
        self._events += events

    def _note_dropped(self, topic: str, cause: MissCause.ValueType, events: int) -> None:
        self._note_untold(topic, cause, events)
        self.dropped += events

    def _note_untold(self, topic: str, cause: MissCause.ValueType, count: int) -> None:
        if self._untold is None:
            self._untold = {}
        key = (topic, cause, count > 0)
        if key not in self._untold and len(self._untold) >= self._settings.session_untold_max:
            key = ("", cause, count > 0)
        self._untold[key] = self._untold.get(key, 0) + count

    def _tell_dropped(self, now_s: float, topics: Iterable[str] | None = None) -> None:
        """Say what was missed, of these topics or of all."""
        untold = self._untold or {}
        keys = list(untold)
        if topics is not None:
            # Not by going through what may be as many topics again, for each that comes.
            keys = [key for key in product(dict.fromkeys(topics), *_UNTOLD_AS) if key in untold]
        for key in keys:
            if not self._has_room_for_notice:
                break
            missed = Missed(topic=key[0], cause=key[1], count=untold.pop(key))
            self.tell_missed(missed, now_s)
        if not untold:
            self._untold = None
