"""Which sessions subscribe to what, and the readers that feed them.

A topic that anyone here subscribes to, by name or by a wildcard, has one reader (`feeds`). A
subscription is confirmed to its client when every topic of it has a position: whatever is stamped
later will come. Where each topic begins is told to the client first; with that, and what it reads,
it can go on at any broker. What is lost for good is told to every subscriber.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from broker_agent.core.confirming import Confirming, Request
from broker_agent.core.counters import BrokerCounters
from broker_agent.core.delivery import Condition, Delivery
from broker_agent.core.feeds import CursorKey, Feed, Progress
from broker_agent.core.following import Following
from broker_agent.core.sessions import Session, piece_of
from broker_agent.core.settings import CoreSettings
from broker_agent.core.unsaved import Unsaved
from dynatops.filters import Filter, pattern_matches
from dynatops.v1.client_pb2 import MissCause, Missed, ServerMessage, TopicProblem
from dynatops.v1.overlay_pb2 import Events, Fetched, Position, Run, TermSeq
from overlay.publishers import Part
from overlay.reader import TopicReader

# A session that has caught up gets whatever comes late: its client knows what it has had.
_ALWAYS_THERE = -1


@dataclass(slots=True)
class _Topic:
    live: Feed
    catching_up: list[Feed] = field(default_factory=list)
    conditions: dict[Session, Condition] = field(default_factory=dict)
    waiting: list[Request] = field(default_factory=list)
    is_catalogue: bool = False

    def feed_of(self, session: Session) -> Feed | None:
        if session in self.live.members:
            return self.live
        return next((f for f in self.catching_up if session in f.members), None)

    @property
    def feeds(self) -> list[Feed]:
        return [self.live, *self.catching_up]


class Subscriptions:
    def __init__(
        self,
        settings: CoreSettings,
        counters: BrokerCounters,
        shard_names_max: int,
        unsaved: Unsaved,
    ) -> None:
        self.confirming = Confirming()
        self.progress = Progress(settings, counters)
        self.delivery = Delivery(counters)
        self.following = Following()
        self._unsaved = unsaved
        self._settings = settings
        self._counters = counters
        self._shard_names_max = shard_names_max
        self._topics: dict[str, _Topic] = {}
        self._waiting_for_catalogue: dict[Request, None] = {}
        self._feeds_made = 0
        # What the node is to be told: topics that are wanted now, and that nobody wants any more.
        self._wants: list[tuple[str, bool]] = []

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def sessions_of(self, topic: str) -> int:
        entry = self._topics.get(topic)
        if entry is None:
            return 0
        return len(entry.live.members) + sum(len(f.members) for f in entry.catching_up)

    def topics(self) -> Iterable[str]:
        return self._topics

    def take_wants(self) -> list[tuple[str, bool]]:
        """Topics that the node is to join (or to leave), in order, since the last call."""
        wants, self._wants = self._wants, []
        return wants

    @property
    def is_restoring(self) -> bool:
        """Whether sessions from before a restart are not all where they were."""
        return any(request.restores for request in self._waiting_for_catalogue)

    def topics_of(self, session: Session) -> Iterable[str]:
        """Those that it subscribes to, by name or by a wildcard."""
        return dict.fromkeys([*session.filters, *(session.followed or ())])

    def feeds_of(self, topic: str) -> list[Feed]:
        """The one that follows the topic live first; none if no session wants the topic."""
        entry = self._topics.get(topic)
        return entry.feeds if entry is not None and not entry.is_catalogue else []

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
            if wanted.is_wildcard:
                if is_new:
                    self.following.add(session, wanted.pattern)
                self._widen(session, wanted)
                if not self.following.is_active:
                    self._read_catalogue()
            if self._must_wait(wanted, session):
                request.held.append(wanted)
                self._waiting_for_catalogue[request] = None
            else:
                self._bring_in(wanted, request, now_s)
        if not request.is_complete:
            self.confirming.note(request)
        self._confirm_if_complete(request)

    def _must_wait(self, wanted: Filter, session: Session) -> bool:
        if not self.following.is_active or self.following.is_complete:
            return False
        waiting = self._waiting_for_catalogue
        return wanted.is_wildcard or any(
            request.session is session and request.cursors is not None for request in waiting
        )

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
            entry = self._topics[topic] = _Topic(Feed(topic, 0, reader))
            self._wants.append((topic, True))
        if entry.feed_of(session) is None:
            self._unsaved.topic(topic)
            start = self._start_of(topic, request)
            if start is None:
                entry.live.members[session] = entry.live.reader.clock
                if entry.live.reader.started:
                    self.delivery.tell_position(session, entry.live, now_s)
            else:
                self._catch_up(entry, session, start, now_s)
        self._set_condition(entry, session)
        if request is not None and not entry.live.reader.started:
            request.missing[topic] = None
            entry.waiting.append(request)

    def _start_of(self, topic: str, request: Request | None) -> CursorKey | None:
        """From where a session reads the topic; None: from now on."""
        if request is None:
            return ()
        if request.cursors is None:
            return None
        # Had the topic been there when the client read elsewhere, it would have a cursor.
        return request.cursors.get(topic, ())

    def _catch_up(self, entry: _Topic, session: Session, start: CursorKey, now_s: float) -> None:
        feed = next((feed for feed in entry.catching_up if feed.stands_at(start)), None)
        if feed is None:
            self._feeds_made += 1
            topic = entry.live.topic
            reader = TopicReader(topic, self._settings.publishers_per_topic_max)
            if start:
                reader.resume(TermSeq(term=term, seq=seq) for term, seq in start)
            else:
                reader.begin_at_start()
            feed = Feed(topic, self._feeds_made, reader)
            entry.catching_up.append(feed)
            self._counters.catch_ups += 1
        feed.members[session] = _ALWAYS_THERE
        if entry.live.reader.started:
            self._merge_or_ask(entry, now_s)

    def _merge_or_ask(self, entry: _Topic, now_s: float) -> None:
        """Sessions that stand where the live reader stands join it; the others read on."""
        live = entry.live
        for feed in list(entry.catching_up):
            if feed.reader.is_behind or feed.reader.position < live.reader.position:
                if not self.progress.is_asking(feed):
                    self.progress.ask(feed, now_s)
            elif (
                feed.reader.position == live.reader.position
                and not live.reader.is_behind
                and feed.reader.covers(live.reader)
            ):
                entry.catching_up.remove(feed)
                self.progress.forget([feed])
                live.members.update(feed.members)
                self._unsaved.topic(live.topic)

    def _set_condition(self, entry: _Topic, session: Session) -> None:
        """What the session's filters together want of this topic."""
        filters = session.filters_on(entry.live.topic)
        if filters and all(f.predicate is not None for f in filters):
            entry.conditions[session] = tuple(filters)
        else:
            entry.conditions.pop(session, None)

    def unsubscribe(self, session: Session, filters: Iterable[Filter], now_s: float) -> None:
        self._unsaved.session(session)
        for unwanted in filters:
            is_gone = session.remove_filter(unwanted)
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
        topics = [*session.filters, *(session.followed or ())]
        session.filters, session.wildcards, session.followed = {}, (), None
        self._reconsider(session, topics)
        self._withdraw_wildcards(session)
        self.confirming.forget(session)

    def _withdraw_wildcards(self, session: Session) -> None:
        for request in [r for r in self._waiting_for_catalogue if r.session is session]:
            request.held = [f for f in request.held if f in session.filters.get(f.pattern, ())]
            if not request.held:
                del self._waiting_for_catalogue[request]
                self._confirm_if_complete(request)
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
        entry.conditions.pop(session, None)
        self.delivery.forget(session, feed.topic)
        for request in [r for r in entry.waiting if r.session is session]:
            entry.waiting.remove(request)
            request.missing.pop(feed.topic, None)
            self._confirm_if_complete(request)
        if feed is not entry.live and not feed.members:
            self.progress.forget([feed])
            entry.catching_up.remove(feed)

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
            self._topics[shard] = _Topic(Feed(shard, 0, reader), is_catalogue=True)
            self._wants.append((shard, True))

    def _learn(self, shard: _Topic, parts: list[Part], now_s: float) -> None:
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
            requests, self._waiting_for_catalogue = self._waiting_for_catalogue, {}
            for request in requests:
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
        waiting, entry.waiting = entry.waiting, []
        for request in waiting:
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

    def _hand_on(self, entry: _Topic, feed: Feed, parts: list[Part], now_s: float) -> None:
        if not parts:
            return
        if entry.is_catalogue:
            self._learn(entry, parts, now_s)
        else:
            self.delivery.deliver(feed, parts, entry.conditions, now_s)
            self._unsaved.topic(feed.topic)

    def _after_input(self, entry: _Topic, now_s: float) -> None:
        if entry.catching_up:
            self._merge_or_ask(entry, now_s)
        if entry.is_catalogue:
            self._note_catalogue(entry, now_s)
