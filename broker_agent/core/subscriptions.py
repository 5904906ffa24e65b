"""Which sessions subscribe to what, and the readers that feed them.

A topic that anyone here subscribes to, by name or by a wildcard, has one reader (`feeds`). A
subscription is confirmed to its client when every topic of it has a position: whatever is stamped
later will come. Where each topic begins is told to the client first; with that, and what it reads,
it can go on at any broker. What is lost for good is told to every subscriber.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from broker_agent.core.confirming import Confirming, Request
from broker_agent.core.counters import BrokerCounters
from broker_agent.core.delivery import Condition, Delivery
from broker_agent.core.feeds import CursorKey, Feed, Progress
from broker_agent.core.following import Following
from broker_agent.core.sessions import Session, piece_of
from broker_agent.core.settings import CoreSettings
from broker_agent.core.summaries import LocalTopics
from broker_agent.core.unsaved import Unsaved
from dynatops.filters import Filter, pattern_matches
from dynatops.v1.client_pb2 import MissCause, Missed, ServerMessage, TopicProblem
from dynatops.v1.overlay_pb2 import Events, Fetched, Position, Run, TermSeq
from overlay.catalogue import is_system
from overlay.identifiers import key_of
from overlay.publishers import Part
from overlay.reader import TopicReader

# Takes what is read of a topic of the system's own.
Consumer = Callable[[list[Part], float], None]

# A session that has caught up gets whatever comes late: its client knows what it has had.
_ALWAYS_THERE = -1


@dataclass(slots=True)
class _Topic:
    live: Feed
    # Most topics have nothing of what follows most of the time, and a broker has many topics.
    catching_up: tuple[Feed, ...] = ()
    conditions: dict[Session, Condition] | None = None
    # Requests that wait for the topic to be in place, by session.
    waiting: dict[Session, list[Request]] | None = None
    # Who reads a topic of the system's own, in place of sessions.
    consumer: Consumer | None = None

    def feed_of(self, session: Session) -> Feed | None:
        if session in self.live.members:
            return self.live
        return next((f for f in self.catching_up if session in f.members), None)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        return (self.live, *self.catching_up)

    def wait(self, request: Request) -> None:
        if self.waiting is None:
            self.waiting = {}
        self.waiting.setdefault(request.session, []).append(request)

    def give_up(self, feed: Feed) -> None:
        """The feed catches up no more."""
        self.catching_up = tuple(f for f in self.catching_up if f is not feed)


class Subscriptions:
    def __init__(
        self,
        settings: CoreSettings,
        counters: BrokerCounters,
        shard_names_max: int,
        local: LocalTopics,
        unsaved: Unsaved,
    ) -> None:
        # What sessions subscribe to, for broker selection.
        self.local = local
        self.confirming = Confirming()
        self.progress = Progress(settings, counters)
        self.delivery = Delivery(counters)
        self.following = Following()
        self._unsaved = unsaved
        self._settings = settings
        self._counters = counters
        self._shard_names_max = shard_names_max
        self._topics: dict[str, _Topic] = {}
        self._waiting_for_catalogue: dict[Session, list[Request]] = {}
        self._feeds_made = 0
        # What the node is to be told: topics that are wanted now, and that nobody wants any more.
        self._wants: list[tuple[str, bool]] = []

    def __len__(self) -> int:
        """How many topics clients here subscribe to."""
        return sum(1 for _ in self.topics())

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def topics(self) -> Iterable[str]:
        """What clients here subscribe to; without the system's own."""
        return (topic for topic in self._topics if not is_system(topic))

    def take_wants(self) -> list[tuple[str, bool]]:
        """Topics that the node is to join (or to leave), in order, since the last call."""
        wants, self._wants = self._wants, []
        return wants

    @property
    def is_restoring(self) -> bool:
        """Whether sessions from before a restart are not all where they were."""
        waiting = self._waiting_for_catalogue.values()
        return any(request.restores for requests in waiting for request in requests)

    def topics_of(self, session: Session) -> Iterable[str]:
        """Those that it subscribes to, by name or by a wildcard."""
        return dict.fromkeys([*session.filters, *(session.followed or ())])

    def feeds_of(self, topic: str) -> list[Feed]:
        """The one that follows the topic live first; none if no session wants the topic."""
        entry = self._topics.get(topic)
        return list(entry.feeds) if entry is not None and entry.consumer is None else []

    def catching_up(self, session: Session) -> Iterator[str]:
        """Topics that it has not read up to where the others stand."""
        for topic in (*session.filters, *(session.followed or ())):
            entry = self._topics.get(topic)
            if entry is not None and any(session in feed.members for feed in entry.catching_up):
                yield topic

    # ---- clients --------------------------------------------------------------------------------

    def subscribe(
        self,
        session: Session,
        number: int,
        filters: Iterable[Filter],
        problems: list[TopicProblem],
        cursors: Mapping[str, CursorKey] | None,
        now_s: float,
    ) -> None:
        request = Request(session, number, problems, session.connection, cursors)
        self._unsaved.session(session)
        for wanted in sorted(filters, key=lambda f: f.is_wildcard):
            if wanted not in session.filters.get(wanted.pattern, ()):
                request.new.append(wanted)
            is_new = session.add_filter(wanted)
            if is_new:
                self.local.add([key_of(wanted.pattern)])
            if wanted.is_wildcard:
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
            self.confirming.note(request)
        self._confirm_if_complete(request)

    def _must_wait(self, wanted: Filter, session: Session) -> bool:
        if not self.following.is_active or self.following.is_complete:
            return False
        waiting = self._waiting_for_catalogue.get(session, ())
        return wanted.is_wildcard or any(request.cursors is not None for request in waiting)

    def _bring_in(self, wanted: Filter, request: Request, now_s: float) -> None:
        if wanted.is_wildcard:
            self._expand(wanted, request, now_s)
        else:
            self._join(request.session, wanted.pattern, request, now_s)

    def _widen(self, session: Session, wildcard: Filter) -> None:
        """Topics that the session has by name may bring more now."""
        for pattern in session.filters:
            entry = self._topics.get(pattern)
            if entry is not None and pattern_matches(wildcard.pattern, pattern):
                self._set_condition(entry, session)

    def _expand(self, wildcard: Filter, request: Request, now_s: float) -> None:
        """Join all topics that exist and match."""
        for topic in list(self.following.names.matching(wildcard.pattern)):
            self._follow(request.session, topic, request, now_s)

    def _follow(self, session: Session, topic: str, request: Request | None, now_s: float) -> None:
        followed = session.followed = session.followed if session.followed is not None else {}
        if topic not in followed and len(followed) >= self._settings.followed_topics_max:
            self._counters.followed_topics_refused += 1
            missed = Missed(topic=topic, cause=MissCause.MISS_CAUSE_TOO_MANY_TOPICS)
            session.tell(topic, piece_of(ServerMessage(missed=missed)), now_s)
            self.delivery.touched[session] = None
            return
        followed[topic] = None
        self._join(session, topic, request, now_s)

    def _join(self, session: Session, topic: str, request: Request | None, now_s: float) -> None:
        """Subscribe to one topic; without a request, because it is new in the catalogue."""
        entry = self._topics.get(topic)
        if entry is None:
            reader = TopicReader(topic, self._settings.publishers_per_topic_max)
            entry = self._topics[topic] = _Topic(self._feed(topic, reader, is_live=True))
            self._wants.append((topic, True))
        if entry.feed_of(session) is None:
            self._unsaved.topic(topic)
            start = self._start_of(session, topic, request)
            if start is None:
                entry.live.members[session] = entry.live.reader.clock
                if entry.live.reader.started:
                    self.delivery.tell_position(session, entry.live, now_s)
            else:
                self._catch_up(entry, session, start, now_s)
        self._set_condition(entry, session)
        if request is not None and not entry.live.reader.started:
            request.missing[topic] = None
            entry.wait(request)

    def _feed(self, topic: str, reader: TopicReader, *, is_live: bool = False) -> Feed:
        self._feeds_made += 1
        return Feed(topic, self._feeds_made, reader, is_live=is_live)

    def _start_of(self, session: Session, topic: str, request: Request | None) -> CursorKey | None:
        """From where a session reads the topic; None: from now on."""
        if request is None:
            return ()
        if request.cursors is None:
            # One that it wants by a wildcard, too, may be too new for the catalogue to say so.
            is_new = self.following.is_complete and topic not in self.following.names
            by_wildcard = any(pattern_matches(f.pattern, topic) for f in session.wildcards)
            return () if is_new and by_wildcard else None
        # Had the topic been there when the client read elsewhere, it would have a cursor.
        return request.cursors.get(topic, ())

    def _catch_up(self, entry: _Topic, session: Session, start: CursorKey, now_s: float) -> None:
        feed = next((feed for feed in entry.catching_up if feed.stands_at(start)), None)
        if feed is not None:
            feed.members[session] = _ALWAYS_THERE
            return
        topic = entry.live.topic
        reader = self._reader_from(topic, start)
        feed = self._feed(topic, reader)
        feed.members[session] = _ALWAYS_THERE
        self._counters.catch_ups += 1
        if not (entry.live.reader.started and self._merge_or_ask(entry.live, feed, now_s)):
            entry.catching_up += (feed,)

    def _merge_or_ask(self, live: Feed, feed: Feed, now_s: float) -> bool:
        """Sessions that stand where the live reader stands join it; the others read on. Whether
        they have joined it."""
        is_behind = feed.reader.is_behind or live.reader.is_behind
        if feed.reader.agrees_with(live.reader) and not is_behind:
            self.progress.forget([feed])
            live.members.update(feed.members)
            self._unsaved.topic(live.topic)
            return True
        if not self.progress.is_asking(feed):
            # Where it stands on its own account, it asks again only now and then.
            is_urgent = feed.reader.is_behind or not feed.asked
            feed.asked = True
            delay_s = 0.0 if is_urgent else self._settings.repair_retry_s
            self.progress.ask(feed, now_s + delay_s)
        return False

    def _set_condition(self, entry: _Topic, session: Session) -> None:
        """What the session's filters together want of this topic."""
        filters = session.filters_on(entry.live.topic)
        if filters and all(f.predicate is not None for f in filters):
            entry.conditions = entry.conditions or {}
            entry.conditions[session] = tuple(filters)
        elif entry.conditions:
            entry.conditions.pop(session, None)

    def unsubscribe(self, session: Session, filters: Iterable[Filter], now_s: float) -> None:
        self._unsaved.session(session)
        for unwanted in filters:
            is_gone = session.remove_filter(unwanted)
            if is_gone:
                self.local.remove([key_of(unwanted.pattern)])
            if not unwanted.is_wildcard:
                self._reconsider(session, [unwanted.pattern])
                continue
            if is_gone:
                self.following.remove(session, unwanted.pattern)
            matching = [t for t in session.followed or () if pattern_matches(unwanted.pattern, t)]
            self._reconsider(session, matching)
        self._withdraw_wildcards(session)

    def end(self, session: Session, now_s: float) -> None:
        """The session is no more."""
        for pattern in dict.fromkeys(wildcard.pattern for wildcard in session.wildcards):
            self.following.remove(session, pattern)
        self.local.remove(key_of(pattern) for pattern in session.filters)
        topics = [*session.filters, *(session.followed or ())]
        session.filters, session.wildcards, session.followed = {}, (), None
        self._reconsider(session, topics)
        self._withdraw_wildcards(session)
        self.confirming.forget(session)

    def _withdraw_wildcards(self, session: Session) -> None:
        waiting = self._waiting_for_catalogue.pop(session, [])
        for request in waiting:
            request.held = [f for f in request.held if f in session.filters.get(f.pattern, ())]
            self._confirm_if_complete(request)
        if remaining := [request for request in waiting if request.held]:
            self._waiting_for_catalogue[session] = remaining
        if self.following.is_idle:
            for shard in self.following.stop():
                self._drop(shard)

    def _reconsider(self, session: Session, topics: Iterable[str]) -> None:
        """A filter has gone: leave topics that no other one wants."""
        for topic in topics:
            entry = self._topics.get(topic)
            feed = entry.feed_of(session) if entry is not None else None
            if entry is None or feed is None:
                continue
            remaining = session.filters_on(topic)
            if session.followed is not None and not any(f.is_wildcard for f in remaining):
                session.followed.pop(topic, None)
            if remaining:
                self._set_condition(entry, session)
                continue
            self._part(entry, feed, session)
            if not entry.live.members and not entry.catching_up:
                self._drop(topic)

    def _part(self, entry: _Topic, feed: Feed, session: Session) -> None:
        self._unsaved.topic(feed.topic)
        del feed.members[session]
        if entry.conditions:
            entry.conditions.pop(session, None)
        self.delivery.forget(session, feed.topic)
        for request in entry.waiting.pop(session, ()) if entry.waiting else ():
            request.missing.pop(feed.topic, None)
            self._confirm_if_complete(request)
        if feed is not entry.live and not feed.members:
            self.progress.forget([feed])
            entry.give_up(feed)

    def _drop(self, topic: str) -> None:
        entry = self._topics.pop(topic, None)
        if entry is not None:
            self.progress.forget(entry.feeds)
            self._wants.append((topic, False))

    def _confirm_if_complete(self, request: Request) -> None:
        if request.is_complete:
            self._unsaved.session(request.session)
            if self.confirming.complete(request):
                self.delivery.touched[request.session] = None

    # ---- the catalogue --------------------------------------------------------------------------

    def _read_catalogue(self) -> None:
        for shard in self.following.start():
            reader = TopicReader(shard, self._shard_names_max)
            reader.begin_at_start()
            feed = self._feed(shard, reader, is_live=True)
            self._topics[shard] = _Topic(feed, consumer=self._learn)
            self._wants.append((shard, True))

    def read_system_topic(self, topic: str, consumer: Consumer) -> None:
        """Read a topic of the system's own from now on."""
        reader = TopicReader(topic, self._settings.publishers_per_topic_max)
        feed = self._feed(topic, reader, is_live=True)
        self._topics[topic] = _Topic(feed, consumer=consumer)
        self._wants.append((topic, True))

    def _learn(self, parts: list[Part], now_s: float) -> None:
        names = (
            event.payload.decode(errors="replace")
            for part in parts
            for event in Events.FromString(part.run.events).events
        )
        for topic, sessions in self.following.learn(names):
            for session in sessions:
                self._follow(session, topic, None, now_s)

    def _note_catalogue(self, shard: _Topic, now_s: float) -> None:
        reader = shard.live.reader
        if reader.is_behind or not reader.started:
            return
        if self.following.shard_read(shard.live.topic):
            waiting, self._waiting_for_catalogue = self._waiting_for_catalogue, {}
            for request in chain.from_iterable(waiting.values()):
                held, request.held = request.held, []
                for wanted in held:
                    self._bring_in(wanted, request, now_s)
                self._confirm_if_complete(request)

    # ---- what comes along the tree --------------------------------------------------------------

    def observe(self, topic: str, position: Position, now_s: float) -> None:
        """This broker is in the topic's tree; the topic stands here."""
        entry = self._topics.get(topic)
        if entry is None:
            return
        was_started = entry.live.reader.started
        for feed in entry.feeds:
            feed.reader.observe(position)
            self.progress.note(feed, now_s)
        if not was_started and entry.live.reader.started:
            self._unsaved.topic(topic)
            for session in entry.live.members:
                self.delivery.tell_position(session, entry.live, now_s)
        self._after_input(entry, now_s)
        waiting, entry.waiting = entry.waiting or {}, None
        for request in chain.from_iterable(waiting.values()):
            request.missing.pop(topic, None)
            self._confirm_if_complete(request)

    def on_run(self, run: Run, now_s: float) -> None:
        entry = self._topics.get(run.topic)
        if entry is None:
            return
        for feed in entry.feeds:
            self._hand_on(entry, feed, feed.reader.offer(run), now_s)
            self.progress.note(feed, now_s)
        self._after_input(entry, now_s)

    def on_repair(self, answer: Fetched, now_s: float) -> None:
        entry = self._topics.get(answer.topic)
        if entry is None:
            return
        feed = next((feed for feed in entry.feeds if feed.number == answer.reader), None)
        if feed is None:
            return
        if not feed.is_live and answer.position.term < feed.reader.newest_term:
            self._begin_again(feed, answer, now_s)
            return
        reading = feed.reader.fetched(answer)
        if reading.lost or reading.unknown_loss:
            self._counters.lost_events += reading.lost
            self._counters.unknown_losses += reading.unknown_loss
            count = 0 if reading.unknown_loss else reading.lost
            self.delivery.tell_missed(feed, MissCause.MISS_CAUSE_NOT_RETAINED, count, now_s)
            self._unsaved.topic(feed.topic)
        self._hand_on(entry, feed, reading.parts, now_s)
        self.progress.answered(feed, now_s)
        for other in entry.feeds:
            # One that hears nothing for lack of a tree learns that it is behind.
            if other is not feed and other.reader.started:
                other.reader.observe(answer.position)
                self.progress.note(other, now_s)
        self._after_input(entry, now_s)

    def _begin_again(self, feed: Feed, answer: Fetched, now_s: float) -> None:
        """A client was where the rendezvous point has never been: on the other side of a partition,
        or so it says. Go on from the last place that both may know; the client drops repeats."""
        seen = feed.reader.seen()
        common = [entry for entry in seen if entry.term <= answer.position.term]
        feed.reader = self._reader_from(feed.topic, tuple((e.term, e.seq) for e in common))
        feed.reader.observe(answer.position)
        # Who has read nothing there has lost no place.
        if any(entry.seq for entry in seen[len(common) :]):
            self._counters.unknown_losses += 1
            self.delivery.tell_missed(feed, MissCause.MISS_CAUSE_NOT_RETAINED, 0, now_s)
        self.progress.ask(feed, now_s)

    def _reader_from(self, topic: str, start: CursorKey) -> TopicReader:
        reader = TopicReader(topic, self._settings.publishers_per_topic_max)
        if start:
            reader.resume(TermSeq(term=term, seq=seq) for term, seq in start)
        else:
            reader.begin_at_start()
        return reader

    def _hand_on(self, entry: _Topic, feed: Feed, parts: list[Part], now_s: float) -> None:
        if not parts:
            return
        if entry.consumer is not None:
            entry.consumer(parts, now_s)
        else:
            self.delivery.deliver(feed, parts, entry.conditions, now_s)
            self._unsaved.topic(feed.topic)

    def _after_input(self, entry: _Topic, now_s: float) -> None:
        if entry.catching_up:
            entry.catching_up = tuple(
                f for f in entry.catching_up if not self._merge_or_ask(entry.live, f, now_s)
            )
        if entry.consumer == self._learn:
            self._note_catalogue(entry, now_s)
