"""Which sessions subscribe to what, and when they are told that they do.

A topic that anyone here subscribes to, by name or by a wildcard, is read (`readers`). A
subscription is confirmed to its client when every topic of it has a position: whatever is stamped
later will come. Where each topic begins is told to the client first; with that, and what it reads,
it can go on at any broker. What is lost for good is told to every subscriber.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from broker_agent.core.rights.throttle import Allowance
from broker_agent.core.routing.rendezvous.hosting.node_hosting import NodeHosting
from broker_agent.core.routing.rendezvous.reading.cursors import cursors_of_client, cursors_on_disk
from broker_agent.core.routing.rendezvous.reading.feeds import CursorKey, Feed
from broker_agent.core.routing.rendezvous.reading.following import Following
from broker_agent.core.routing.rendezvous.reading.readers import Readers, ReadTopic
from broker_agent.core.routing.rendezvous.reading.topics_request import TopicsRequest
from broker_agent.core.routing.rendezvous.ring_context import RingContext
from broker_agent.core.routing.routing import Reached, RestoredSession, SystemConsumer
from broker_agent.core.routing.session_filters import SessionFilters
from broker_agent.core.sessions.session import Session
from dynatops.kit.filters import Filter, pattern_matches
from dynatops.kit.run_events import events_of
from dynatops.v1.client_pb2 import Cursor, ErrorCode, MissCause, Missed, TopicProblem
from dynatops.v1.overlay_pb2 import Event, Fetched, Position, Run, TermSeq
from overlay.base.beats import Beats
from overlay.base.catalogue import began_in, is_catalogue, is_system, shard_topics
from overlay.history.reader import TopicReader

# What a session's wildcards may be compared with flows in again within this.
NAMES_REFILL_S = 10.0


class Subscriptions:
    def __init__(
        self,
        context: RingContext,
        hosting: NodeHosting,
        shard_names_max: int,
    ) -> None:
        self.readers = Readers(context, hosting, self._names_lost)
        self.following = Following()
        self._hosting = hosting
        self._filters = SessionFilters(context)
        self._confirming = context.confirming
        self._outbox = context.outbox
        self._unsaved = context.unsaved
        self._logbook = context.logbook
        self._settings = context.settings
        self._counters = context.counters
        self._shard_names_max = shard_names_max
        # Requests that wait for a topic to be in place; none waits for one that is not read.
        self._waiting: dict[str, dict[Session, list[TopicsRequest]]] = {}
        self._waiting_for_catalogue: dict[Session, list[TopicsRequest]] = {}
        # The terms that the catalogue's parts were last seen in.
        self._catalogue_terms: dict[str, int] = {}
        # Of sessions that have wildcards.
        self._names_left: dict[Session, Allowance] = {}

    def __len__(self) -> int:
        """How many topics clients here subscribe to."""
        return sum(1 for _ in self.topics())

    def __contains__(self, topic: str) -> bool:
        return topic in self.readers

    def topics(self) -> Iterable[str]:
        """What clients here subscribe to; without the system's own."""
        return (topic for topic in self.readers.names() if not is_system(topic))

    @property
    def is_restoring(self) -> bool:
        """Whether sessions from before a restart are not all where they were."""
        waiting = self._waiting_for_catalogue.values()
        return any(request.restores for requests in waiting for request in requests)

    def waits_for_catalogue(self, session: Session) -> bool:
        """Whether some of its filters bring in nothing yet."""
        return session in self._waiting_for_catalogue

    def cursor_names(self, session: Session) -> Iterable[str]:
        """All topics that it subscribes to have one."""
        return self.topics_of(session)

    def topics_of(self, session: Session) -> Iterable[str]:
        """Those that it subscribes to, by name or by a wildcard."""
        return dict.fromkeys([*session.filters, *(session.followed or ())])

    def catching_up(self, session: Session) -> Iterator[str]:
        """Topics that it has not read up to where the others stand."""
        for topic in (*session.filters, *(session.followed or ())):
            entry = self.readers.get(topic)
            if entry is not None and any(session in feed.members for feed in entry.catching_up):
                yield topic

    # ---- clients --------------------------------------------------------------------------------

    def subscribe(
        self,
        session: Session,
        number: int,
        filters: Iterable[Filter],
        problems: list[TopicProblem],
        cursors: Iterable[Cursor] | None,
        now_s: float,
    ) -> None:
        request = TopicsRequest(session, number, problems, session.connection)
        if cursors is not None:
            request.goes_on = True
            request.cursors = cursors_of_client(cursors)
        self._subscribe(request, filters, now_s)

    def restore(
        self, sessions: Sequence[RestoredSession], cursors: Mapping[str, Cursor], now_s: float
    ) -> None:
        """Each reads its topics on from where they had been read."""
        shared = cursors_on_disk(cursors)
        self._know(shared)
        for restored in sessions:
            self._know(restored.cursors)
        for restored in sessions:
            own = cursors_on_disk(restored.cursors)
            reached = ChainMap(own, shared) if own else shared
            request = TopicsRequest(restored.session, 0, [], None, goes_on=True, cursors=reached)
            self._subscribe(request, restored.filters, now_s)

    def _subscribe(self, request: TopicsRequest, filters: Iterable[Filter], now_s: float) -> None:
        session = request.session
        self._unsaved.session(session)
        for wanted in sorted(filters, key=lambda f: f.is_wildcard):
            if self._costs_too_much(wanted, request, now_s):
                continue
            if wanted not in session.filters.get(wanted.pattern, ()):
                request.new.append(wanted)
            elif session.claim(wanted):
                self._tell_positions(session, wanted, now_s)
            is_new = self._filters.add(session, wanted, now_s)
            if wanted.is_wildcard:
                request.is_wild = True
                if is_new:
                    self.following.add(session, wanted.pattern)
                self._widen(session, wanted)
                if not self.following.is_active:
                    self._read_catalogue()
            if self._must_wait(wanted, session):
                request.held.append(wanted)
            else:
                self._bring_in(wanted, request, now_s)
        if request.held:
            self._waiting_for_catalogue.setdefault(session, []).append(request)
        if not request.is_complete:
            self._confirming.note_open(request)
        self._confirm_if_complete(request)

    def _tell_positions(self, session: Session, present: Filter, now_s: float) -> None:
        """Where the topics of a filter stand that the session has: its client may be a new process,
        which could not go on elsewhere without."""
        for topic in list(self.topics_of(session)):
            entry = self.readers.get(topic)
            if entry is not None and pattern_matches(present.pattern, topic):
                self.readers.tell_position(entry, session, now_s)

    def _must_wait(self, wanted: Filter, session: Session) -> bool:
        if not self.following.is_active or self.following.is_complete:
            return False
        waiting = self._waiting_for_catalogue.get(session, ())
        return wanted.is_wildcard or any(request.goes_on for request in waiting)

    def _bring_in(self, wanted: Filter, request: TopicsRequest, now_s: float) -> None:
        if wanted.is_wildcard:
            self._check_catalogue(request, now_s)
            self._expand(wanted, request, now_s)
        else:
            self._join(request.session, wanted.pattern, request, now_s)

    def _widen(self, session: Session, wildcard: Filter) -> None:
        """Topics that the session reads already may bring more now: those that it has by name, and
        those that it has followed from elsewhere, whose names may be lost."""
        for topic in self.topics_of(session):
            entry = self.readers.get(topic)
            if entry is not None and pattern_matches(wildcard.pattern, topic):
                entry.set_condition(session)

    def _expand(self, wildcard: Filter, request: TopicsRequest, now_s: float) -> None:
        """Join all topics that exist and match."""
        session, names = request.session, self.following.names
        before = names.looked_at
        topics = list(names.matching(wildcard.pattern))
        # For each, all wildcards of the session are asked.
        compared = names.looked_at - before + len(topics) * len(session.wildcards)
        self._names_of(session).use(compared, now_s)
        # And those that it has read before, should their names be lost.
        read = request.cursors if not request.restores else ()
        topics += [topic for topic in read if pattern_matches(wildcard.pattern, topic)]
        for topic in dict.fromkeys(topics):
            self._follow(session, topic, request, now_s)

    def _names_of(self, session: Session) -> Allowance:
        """What its wildcards may still be compared with."""
        names = self._names_left.get(session)
        if names is None:
            names = Allowance(self._settings.wildcard_names_max, NAMES_REFILL_S)
            self._names_left[session] = names
        return names

    def _costs_too_much(self, wanted: Filter, request: TopicsRequest, now_s: float) -> bool:
        """Whether the session's wildcards have lately been compared with enough names."""
        if request.restores or not wanted.is_wildcard:
            return False
        if not self._names_of(request.session).is_used_up(now_s):
            return False
        limit = self._settings.wildcard_names_max
        self._counters.filters_over_quota += 1
        every = f"every {NAMES_REFILL_S:g} s"
        message = f"a session's wildcards are compared with {limit:,} names of topics {every}"
        code = ErrorCode.ERROR_CODE_TOO_MANY_TOPICS
        problem = TopicProblem(topic=wanted.pattern, code=code, message=message)
        request.problems.append(problem)
        return True

    def _follow(
        self, session: Session, topic: str, request: TopicsRequest | None, now_s: float
    ) -> None:
        followed = session.followed = session.followed if session.followed is not None else {}
        if topic not in followed and len(followed) >= self._settings.followed_topics_max:
            self._counters.followed_topics_refused += 1
            missed = Missed(topic=topic, cause=MissCause.MISS_CAUSE_TOO_MANY_TOPICS)
            session.tell_missed(missed, now_s)
            self._outbox.touched[session] = None
            return
        followed[topic] = None
        self._join(session, topic, request, now_s)

    def _join(
        self, session: Session, topic: str, request: TopicsRequest | None, now_s: float
    ) -> None:
        """Subscribe to one topic; without a request, because it is new in the catalogue."""
        entry = self.readers.open(topic)
        if entry.feed_of(session) is None:
            start = self._start_of(session, topic, request)
            # What a store reads is no user's request.
            if request is not None and request.goes_on and not session.is_internal:
                self._logbook.requested(topic)
                self._hosting.requested((topic,))
            self.readers.enter(entry, session, start, now_s)
        entry.set_condition(session)
        if request is not None and not entry.live.reader.started:
            if topic not in request.missing:
                waiting = self._waiting.setdefault(topic, {})
                waiting.setdefault(session, []).append(request)
            request.missing[topic] = None

    def _start_of(
        self, session: Session, topic: str, request: TopicsRequest | None
    ) -> CursorKey | None:
        """From where a session reads the topic; None: from now on."""
        if request is None:
            return self._beginning_of(topic)
        if not request.goes_on:
            # One that it wants by a wildcard, too, may be too new for the catalogue to say so.
            is_new = self.following.is_complete and topic not in self.following.names
            by_wildcard = any(pattern_matches(f.pattern, topic) for f in session.wildcards)
            return () if is_new and by_wildcard else None
        # Had the topic been there when the client read elsewhere, it would have a cursor.
        return request.cursors.get(topic, self._beginning_of(topic))

    def _beginning_of(self, topic: str) -> CursorKey:
        """Before its first event; in a term, if that is known, so that it is told if the topic has
        begun anew since."""
        began = self.following.names.began(topic)
        return ((began, 0),) if began else ()

    def unsubscribe(self, session: Session, filters: Iterable[Filter], now_s: float) -> bool:
        """Whether the session follows less than before."""
        self._unsaved.session(session)
        follows_less = False
        for unwanted in filters:
            is_gone = self._filters.remove(session, unwanted, now_s)
            follows_less = follows_less or is_gone
            if not unwanted.is_wildcard:
                self._reconsider(session, [unwanted.pattern])
                continue
            if is_gone:
                self.following.remove(session, unwanted.pattern)
            matching = [t for t in session.followed or () if pattern_matches(unwanted.pattern, t)]
            self._reconsider(session, matching)
        self._withdraw_wildcards(session, now_s)
        return follows_less

    def end(self, session: Session, now_s: float) -> None:
        """The session is no more."""
        for pattern in dict.fromkeys(wildcard.pattern for wildcard in session.wildcards):
            self.following.remove(session, pattern)
        topics = [*session.filters, *(session.followed or ())]
        self._filters.remove_all(session, now_s)
        session.followed = None
        self._reconsider(session, topics)
        self._withdraw_wildcards(session, now_s)
        self._confirming.forget_session(session)
        self._names_left.pop(session, None)

    def _withdraw_wildcards(self, session: Session, now_s: float) -> None:
        waiting = self._waiting_for_catalogue.pop(session, [])
        for request in waiting:
            request.held = [f for f in request.held if f in session.filters.get(f.pattern, ())]
            self._confirm_if_complete(request)
        if remaining := [request for request in waiting if request.held]:
            self._waiting_for_catalogue[session] = remaining
        if self.following.is_idle:
            for shard in self.following.stop():
                self.readers.close(shard)
            # What waited behind a wildcard that is gone has nothing to wait for.
            self._bring_in_waiting(now_s)

    def _reconsider(self, session: Session, topics: Iterable[str]) -> None:
        """A filter has gone: leave topics that no other one wants."""
        for topic in topics:
            entry = self.readers.get(topic)
            if entry is None or entry.feed_of(session) is None:
                continue
            remaining = session.filters_on(topic)
            if session.followed is not None and not any(f.is_wildcard for f in remaining):
                session.followed.pop(topic, None)
            if remaining:
                entry.set_condition(session)
                continue
            self.readers.leave(entry, session)
            self._wait_no_longer(session, topic)

    def _wait_no_longer(self, session: Session, topic: str) -> None:
        waiting = self._waiting.get(topic)
        if waiting is None:
            return
        for request in waiting.pop(session, ()):
            request.missing.pop(topic, None)
            self._confirm_if_complete(request)
        if not waiting:
            del self._waiting[topic]

    def _confirm_if_complete(self, request: TopicsRequest) -> None:
        if request.is_complete:
            self._unsaved.session(request.session)
            if request.is_wild:
                self._note_catalogue_for(request)
            if self._confirming.complete(request):
                self._outbox.touched[request.session] = None

    # ---- the catalogue --------------------------------------------------------------------------

    def _read_catalogue(self) -> None:
        for shard in self.following.start():
            reader = TopicReader(shard, self._shard_names_max)
            reader.begin_at_start()
            self.readers.open_system_topic(reader, self._learn)

    def read_system_topic(self, topic: str, consumer: SystemConsumer) -> None:
        """Read a topic of the system's own from now on."""
        reader = TopicReader(topic, self._settings.publishers_per_topic_max)
        self.readers.open_system_topic(reader, consumer)

    def _learn(self, run: Run, now_s: float) -> None:
        names = (
            (event.payload.decode(errors="replace"), began_in(event))
            for event in self._readable(run)
        )
        for topic, sessions in self.following.learn(names):
            for session in sessions:
                self._follow(session, topic, None, now_s)

    def _readable(self, run: Run) -> Sequence[Event]:
        events = events_of(run)
        if events is None:
            self._counters.runs_unreadable += 1
            return ()
        return events

    def _know(self, topics: Iterable[str]) -> None:
        """These have been read here in a former life of the broker, for whoever wants them."""
        for topic in topics:
            if not is_system(topic):
                self.following.names.add(topic)

    def _check_catalogue(self, request: TopicsRequest, now_s: float) -> None:
        """Whether names may have been lost since the session stood elsewhere, or on disk."""
        for shard in shard_topics():
            entry, stood = self.readers.get(shard), request.cursors.get(shard)
            if entry is None or not stood or entry.feed_of(request.session) is not None:
                continue
            if not entry.live.reader.has_followed(stood[-1][0]):
                self.readers.enter(entry, request.session, stood[-1:], now_s)

    def _note_catalogue_for(self, request: TopicsRequest) -> None:
        """Where the catalogue stands for the session, as far as that is known."""
        for shard in shard_topics():
            entry = self.readers.get(shard)
            if entry is None or entry.feed_of(request.session) is not None:
                continue
            term, seq = entry.live.reader.position
            request.positions.append(Cursor(topic=shard, seen=[TermSeq(term=term, seq=seq)]))
            if request.session.is_kept:
                self._unsaved.topic(shard)

    def reached(self, topic: str, holds: Callable[[Session], bool]) -> Reached | None:
        """Where it stands, for sessions that are to be saved; None: what is on disk is still to be
        compared."""
        if is_catalogue(topic):
            return (
                None if self.is_checking(topic) else Reached(self._catalogue_cursor(topic, holds))
            )
        shared = None
        own: dict[str, Cursor] = {}
        for feed in self.readers.feeds_of(topic):
            if feed.is_live:
                if feed.reader.started and any(holds(session) for session in feed.members):
                    shared = Cursor(seen=feed.reader.seen())
                continue
            cursor = Cursor(seen=feed.reader.seen())
            own.update((s.origin_id, cursor) for s in feed.members if holds(s))
        return Reached(shared, own)

    def _catalogue_cursor(self, shard: str, holds: Callable[[Session], bool]) -> Cursor | None:
        """Where this part stands for the wildcards of sessions that are to be saved."""
        entry = self.readers.get(shard)
        if entry is None or not self.following.is_complete:
            return None
        if not any(map(holds, self.following.sessions)):
            return None
        term, seq = entry.live.reader.position
        return Cursor(seen=[TermSeq(term=term, seq=seq)])

    def is_checking(self, shard: str) -> bool:
        """Whether it is not known yet if names were lost since some session stood elsewhere."""
        entry = self.readers.get(shard)
        return entry is not None and bool(entry.catching_up)

    def _names_lost(self, feed: Feed, now_s: float) -> None:
        """Topics may have come and gone that are not known by name: by pattern, it is told."""
        for session in list(self.following.sessions if feed.is_live else feed.members):
            for pattern in dict.fromkeys(wildcard.pattern for wildcard in session.wildcards):
                cause = MissCause.MISS_CAUSE_NOT_RETAINED
                session.tell_missed(Missed(topic=pattern, cause=cause), now_s)
                self._outbox.touched[session] = None

    def _note_catalogue(self, shard: ReadTopic, now_s: float) -> None:
        reader = shard.live.reader
        if self._catalogue_terms.get(shard.live.topic) != reader.position[0]:
            self._catalogue_terms[shard.live.topic] = reader.position[0]
            self._unsaved.topic(shard.live.topic)
        if reader.is_behind or not reader.started:
            return
        if self.following.shard_read(shard.live.topic):
            self._bring_in_waiting(now_s)

    def _bring_in_waiting(self, now_s: float) -> None:
        waiting, self._waiting_for_catalogue = self._waiting_for_catalogue, {}
        for request in chain.from_iterable(waiting.values()):
            held, request.held = request.held, []
            for wanted in held:
                if self._costs_too_much(wanted, request, now_s):
                    request.held.append(wanted)
                else:
                    self._bring_in(wanted, request, now_s)
            if request.held:
                self.unsubscribe(request.session, request.held, now_s)
                request.held = []
            self._confirm_if_complete(request)

    # ---- what comes along the tree --------------------------------------------------------------

    def observe(self, topic: str, position: Position, now_s: float) -> None:
        """This broker is in the topic's tree; the topic stands here."""
        entry = self.readers.observe(topic, position, now_s)
        self._after_input(entry, now_s)
        for request in chain.from_iterable(self._waiting.pop(topic, {}).values()):
            request.missing.pop(topic, None)
            self._confirm_if_complete(request)

    def on_run(self, run: Run, now_s: float) -> None:
        self._after_input(self.readers.on_run(run, now_s), now_s)

    def on_beats(self, beats: Beats, now_s: float) -> None:
        """Most say what is known here; the others are looked at one by one."""
        for place in self.readers.news_in(beats):
            self.on_run(beats.run_at(place), now_s)

    def on_repair(self, answer: Fetched, now_s: float) -> None:
        self._after_input(self.readers.on_repair(answer, now_s), now_s)

    def _after_input(self, entry: ReadTopic | None, now_s: float) -> None:
        if entry is not None and entry.consumer == self._learn:
            self._note_catalogue(entry, now_s)
