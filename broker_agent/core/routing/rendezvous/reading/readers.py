"""The topics that are read here: each once as it goes on, for all who want it.

    node --runs, positions, repairs--> reader --parts--> delivery --> sessions
                                                   `--> consumer (a topic of the system's own)

Each topic has one feed that follows it live, and one for every place where sessions come back
from (`feeds`). Why a session reads a topic, and what it has been promised, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.routing.delivery import SessionDelivery
from broker_agent.core.routing.rendezvous.hosting.node_hosting import NodeHosting
from broker_agent.core.routing.rendezvous.reading.feeds import CursorKey, Feed, FeedProgress
from broker_agent.core.routing.rendezvous.ring_context import RingContext
from broker_agent.core.routing.routing import SystemConsumer
from broker_agent.core.routing.session_conditions import SessionConditions
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import Bundle
from dynatops.kit.repeats import RunPart
from dynatops.v1.client_pb2 import MissCause, Missed
from dynatops.v1.overlay_pb2 import Fetched, Position, Run, TermSeq
from overlay.base.beats import Beats
from overlay.base.catalogue import is_system
from overlay.history.reader import TopicReader

# A session that has caught up gets whatever comes late: its client knows what it has had.
_ALWAYS_THERE = -1


@dataclass(slots=True)
class ReadTopic:
    """A topic that is read, and who gets what of it."""

    live: Feed
    # Most topics have nothing of what follows most of the time, and a broker has many topics.
    catching_up: tuple[Feed, ...] = ()
    conditions: SessionConditions | None = None
    # Who reads a topic of the system's own, in place of sessions.
    consumer: SystemConsumer | None = None

    @property
    def is_plain(self) -> bool:
        """Whether all of it goes to all that read it."""
        return not (self.catching_up or self.conditions or self.consumer)

    def feed_of(self, session: Session) -> Feed | None:
        if session in self.live.members:
            return self.live
        return next((f for f in self.catching_up if session in f.members), None)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        return (self.live, *self.catching_up)

    def give_up(self, feed: Feed) -> None:
        """The feed catches up no more."""
        self.catching_up = tuple(f for f in self.catching_up if f is not feed)

    def set_condition(self, session: Session) -> None:
        """What the session's filters together want of this topic."""
        filters = session.filters_on(self.live.topic)
        if filters and all(f.predicate is not None for f in filters):
            self.conditions = self.conditions or SessionConditions()
            self.conditions.put(session, filters)
        elif self.conditions:
            self.conditions.drop(session)


class Readers:
    def __init__(
        self,
        context: RingContext,
        hosting: NodeHosting,
        on_system_loss: Callable[[Feed, float], None],
    ) -> None:
        self.progress = FeedProgress(context.settings, context.counters)
        self.delivery = SessionDelivery(context, hosting.is_all_here)
        self._hosting = hosting
        self._ring = context.ring
        self._settings = context.settings
        self._counters = context.counters
        self._unsaved = context.unsaved
        # Called when a topic of the system's own may have lost what this feed was to read.
        self._on_system_loss = on_system_loss
        self._topics: dict[str, ReadTopic] = {}
        self._feeds_made = 0

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def names(self) -> Iterable[str]:
        """The topics that are read, the system's own too."""
        return self._topics

    def count_in_steps(self, counts: BrokerCounts, at_once: int) -> Iterator[None]:
        """Add topics to these; a few thousand at a time, as they are many."""
        for number, topic in enumerate(list(self._topics), 1):
            counts.topics_read += not is_system(topic)
            if not number % at_once:
                yield

    def get(self, topic: str) -> ReadTopic | None:
        return self._topics.get(topic)

    def feeds_of(self, topic: str) -> list[Feed]:
        """The one that follows the topic live first; none if no session wants the topic."""
        entry = self._topics.get(topic)
        return list(entry.feeds) if entry is not None and entry.consumer is None else []

    def tick(self, now_s: float) -> None:
        """Ask rendezvous points for what is missed, and tell them of newer terms."""
        for repair in self.progress.due_repairs(now_s):
            self._hosting.fetch(
                repair.topic, repair.seen, repair.reader, now_s, wants_holes=repair.wants_holes
            )
        for topic, newest_term in self.progress.due_corrections(now_s):
            self._hosting.insist(topic, newest_term, now_s)

    # ---- who reads ------------------------------------------------------------------------------

    def open(self, topic: str) -> ReadTopic:
        """The topic, read from now on if it was not."""
        entry = self._topics.get(topic)
        if entry is None:
            entry = self._add(TopicReader(topic, self._settings.publishers_per_topic_max), None)
        return entry

    def open_system_topic(self, reader: TopicReader, consumer: SystemConsumer) -> None:
        """Read a topic of the system's own, from where its reader stands."""
        self._add(reader, consumer)

    def _add(self, reader: TopicReader, consumer: SystemConsumer | None) -> ReadTopic:
        topic = reader.topic
        entry = self._topics[topic] = ReadTopic(
            self._feed(topic, reader, is_live=True), consumer=consumer
        )
        self._ring.wish(topic, wanted=True)
        return entry

    def _feed(self, topic: str, reader: TopicReader, *, is_live: bool = False) -> Feed:
        self._feeds_made += 1
        return Feed(topic, self._feeds_made, reader, is_live=is_live)

    def close(self, topic: str) -> None:
        entry = self._topics.pop(topic, None)
        if entry is not None:
            self.progress.forget_feeds(entry.feeds)
            self._ring.wish(topic, wanted=False)

    def enter(
        self, entry: ReadTopic, session: Session, start: CursorKey | None, now_s: float
    ) -> None:
        """A session reads the topic, too: from its start, or (None) from now on."""
        self._unsaved.topic(entry.live.topic)
        if start is not None:
            self._catch_up(entry, session, start, now_s)
            return
        entry.live.members[session] = entry.live.reader.clock
        self.tell_position(entry, session, now_s)

    def tell_position(self, entry: ReadTopic, session: Session, now_s: float) -> None:
        """Where the session stands in the topic, as far as that is known."""
        feed = entry.feed_of(session)
        if feed is not None and feed.reader.position[0]:
            self.delivery.tell_position(session, feed.topic, feed.beginning(), now_s)

    def leave(self, entry: ReadTopic, session: Session) -> None:
        """A session reads the topic no more; neither does the broker, if it was the last one."""
        feed = entry.feed_of(session)
        if feed is None:
            return
        self._unsaved.topic(feed.topic)
        del feed.members[session]
        if entry.conditions:
            entry.conditions.drop(session)
        self.delivery.forget_passed_over(session, feed.topic)
        if feed is not entry.live and not feed.members:
            self.progress.forget_feeds([feed])
            entry.give_up(feed)
        if not entry.live.members and not entry.catching_up:
            self.close(feed.topic)

    # ---- catching up ----------------------------------------------------------------------------

    def _catch_up(self, entry: ReadTopic, session: Session, start: CursorKey, now_s: float) -> None:
        feed = next((feed for feed in entry.catching_up if feed.reader.stands_at(start)), None)
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

    def _reader_from(self, topic: str, start: CursorKey) -> TopicReader:
        reader = TopicReader(topic, self._settings.publishers_per_topic_max)
        if start:
            reader.resume(TermSeq(term=term, seq=seq) for term, seq in start)
        else:
            reader.begin_at_start()
        return reader

    def _merge_or_ask(self, live: Feed, feed: Feed, now_s: float) -> bool:
        """Sessions that stand where the live reader stands join it; the others read on. Whether
        they have joined it."""
        is_behind = feed.reader.is_behind or live.reader.is_behind
        if feed.reader.agrees_with(live.reader) and not is_behind:
            self.progress.forget_feeds([feed])
            if not is_system(live.topic):
                live.members.update(feed.members)
                live.reader.learn_from(feed.reader)
            self._unsaved.topic(live.topic)
            return True
        if not self.progress.is_asking(feed):
            # Where it stands on its own account, it asks again only now and then.
            is_urgent = feed.reader.is_behind or not feed.asked
            feed.asked = True
            delay_s = 0.0 if is_urgent else self._settings.repair_retry_s
            self.progress.ask(feed, now_s + delay_s)
        return False

    # ---- what comes along the tree: the topic that it was for, if that has been read on ----------

    def observe(self, topic: str, position: Position, now_s: float) -> ReadTopic | None:
        """This broker is in the topic's tree; the topic stands here."""
        entry = self._topics.get(topic)
        if entry is None:
            return None
        was_started = entry.live.reader.started
        for feed in entry.feeds:
            feed.reader.observe(position)
            self.progress.note_input(feed, now_s)
        if not was_started and entry.live.reader.started:
            self._unsaved.topic(topic)
            for session in entry.live.members:
                self.delivery.tell_position(session, topic, entry.live.beginning(), now_s)
        self._merge(entry, now_s)
        return entry

    def on_run(self, run: Run, now_s: float) -> ReadTopic | None:
        entry = self._topics.get(run.topic)
        if entry is None:
            return None
        for feed in entry.feeds:
            self._hand_on(entry, feed, feed.reader.offer(run), now_s)
            self.progress.note_input(feed, now_s)
        self._merge(entry, now_s)
        return entry

    def on_bundle(self, bundle: Bundle, now_s: float) -> None:
        """The same of a bundle: events that plainly follow go together to all sessions that read
        just the same topics of it; each of the others goes as a run."""
        by_audience: dict[Session | tuple[Session, ...], list[int]] = {}
        singly: list[int] = []
        topics, publisher = self._topics, bundle.publisher
        terms, seqs, numbers = bundle.terms, bundle.seqs, bundle.numbers
        for place, topic in enumerate(bundle.topics):
            entry = topics.get(topic)
            if entry is None:
                continue
            if entry.is_plain and entry.live.reader.offer_next(
                terms[place], seqs[place], publisher, numbers[place]
            ):
                members = entry.live.members
                # Most topics have one reader.
                audience = next(iter(members)) if len(members) == 1 else tuple(members)
                places = by_audience.get(audience)
                if places is None:
                    by_audience[audience] = [place]
                else:
                    places.append(place)
            else:
                singly.append(place)
        for audience, places in by_audience.items():
            sessions = audience if isinstance(audience, tuple) else (audience,)
            self.delivery.deliver_bundle(sessions, bundle.pick(places), now_s)
        self._unsaved.all_topics(bundle.topics)
        for place in singly:
            self.on_run(bundle.run_at(place), now_s)

    def news_in(self, beats: Beats) -> Iterator[int]:
        """The places of those that say more than is known here, or may."""
        for place, topic in enumerate(beats.topics):
            entry = self._topics.get(topic)
            if entry is None:
                continue
            term, seq = beats.terms[place], beats.seqs[place]
            if not (entry.is_plain and entry.live.reader.has_just_read(term, seq)):
                yield place

    def on_repair(self, answer: Fetched, now_s: float) -> ReadTopic | None:
        entry = self._topics.get(answer.topic)
        if entry is None:
            return None
        feed = next((feed for feed in entry.feeds if feed.number == answer.reader), None)
        if feed is None:
            return None
        if is_system(feed.topic) and not feed.is_live:
            self._compare(entry, feed, answer, now_s)
            return None
        if not feed.is_live and answer.position.term < feed.reader.newest_term:
            self._begin_again(feed, answer, now_s)
            return None
        reading = feed.reader.fetched(answer)
        if reading.lost or reading.unknown_loss:
            self._counters.lost_events += reading.lost
            self._counters.unknown_losses += reading.unknown_loss
            self._tell_missed(feed, 0 if reading.unknown_loss else reading.lost, now_s)
        self._hand_on(entry, feed, reading.parts, now_s)
        self.progress.answered(feed, now_s)
        for other in entry.feeds:
            # One that hears nothing for lack of a tree learns that it is behind.
            if other is not feed and other.reader.started:
                other.reader.observe(answer.position)
                self.progress.note_input(other, now_s)
        self._merge(entry, now_s)
        return entry

    def _compare(self, entry: ReadTopic, feed: Feed, answer: Fetched, now_s: float) -> None:
        """Somebody stood in a topic of the system's own: whether that is where it has been. Nobody
        is to read on from there."""
        if answer.unknown_loss:
            self._counters.unknown_losses += 1
            self._tell_missed(feed, 0, now_s)
        self.progress.forget_feeds([feed])
        entry.give_up(feed)

    def _begin_again(self, feed: Feed, answer: Fetched, now_s: float) -> None:
        """A client was where the rendezvous point has never been: on the other side of a partition,
        or in a history that is lost, or so it says. Go on from the last place that both may know.

        What it had elsewhere the client drops; what it has had here its next process may not know,
        so that the reader has to."""
        feed.reader.go_back(answer)
        self._counters.unknown_losses += 1
        self._tell_missed(feed, 0, now_s)
        self.progress.ask(feed, now_s)

    def _tell_missed(self, feed: Feed, count: int, now_s: float) -> None:
        self._unsaved.topic(feed.topic)
        if not is_system(feed.topic):
            cause = MissCause.MISS_CAUSE_NOT_RETAINED
            missed = Missed(topic=feed.topic, cause=cause, count=count)
            self.delivery.tell_missed(feed.members, missed, now_s)
        elif not count:
            self._on_system_loss(feed, now_s)

    def _hand_on(self, entry: ReadTopic, feed: Feed, parts: list[RunPart], now_s: float) -> None:
        if not parts:
            return
        if entry.consumer is not None:
            for part in parts:
                entry.consumer(part.run, now_s)
        else:
            self.delivery.deliver(feed.members, parts, entry.conditions, now_s)
            self._unsaved.topic(feed.topic)

    def _merge(self, entry: ReadTopic, now_s: float) -> None:
        if entry.catching_up:
            entry.catching_up = tuple(
                f for f in entry.catching_up if not self._merge_or_ask(entry.live, f, now_s)
            )
