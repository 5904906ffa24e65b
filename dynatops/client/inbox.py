"""From runs to subscriptions: who gets which event, what waits, and what has been taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from dynatops.client.arrivals import COLUMNS_MIN, events_of
from dynatops.client.core.joining import LiveItem
from dynatops.client.core.reading import Arrived
from dynatops.client.core.taking import Given, Taking
from dynatops.client.core.work import WorkItem, oldest_held
from dynatops.client.errors import SubscribeError
from dynatops.client.events import NO_ATTRIBUTES, BundleEvents, Event, RunEvents
from dynatops.client.joined import JoinedQueue
from dynatops.client.routes import Route, Routes
from dynatops.client.subscription import QUEUE_EVENTS_MAX, EventQueue, Gap
from dynatops.client.working import WorkQueue
from dynatops.kit.filters import Filter, pattern_matches
from dynatops.v1.client_pb2 import MissCause, Missed, TopicProblem

if TYPE_CHECKING:
    from dynatops.client.core.reading import ArrivedBundle, FilterKey, Reading
    from dynatops.kit.bundles import Bundle

_MISS_REASONS = {
    MissCause.MISS_CAUSE_SLOW_SUBSCRIBER: "this subscriber was too slow",
    MissCause.MISS_CAUSE_NOT_RETAINED: "the events are no longer retained",
    MissCause.MISS_CAUSE_EXPIRED: "the events waited too long for this client",
    MissCause.MISS_CAUSE_TOO_MANY_TOPICS: "the session's wildcards match too many topics",
    MissCause.MISS_CAUSE_UNREADABLE: "the events cannot be read",
}


_new = tuple.__new__
# While an answer is waited for, so many times more events are taken in.
_AWAITING_FACTOR = 4


class Inbox:
    def __init__(self, reading: Reading, awaits_answers: Callable[[], bool]) -> None:
        # Set while no subscription is full: only then is anything read from the broker.
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.taking = Taking()
        self._reading = reading
        self._reading.oldest_held = self._oldest_held
        self._awaits_answers = awaits_answers
        # Whether the broker keeps the session: then it sends no more than a window beyond what has
        # been taken, and everything may be read.
        self._kept = False
        self._routes = Routes()
        self._touched: dict[Given, None] = {}
        # The session that the numbers of deliveries are those of.
        self._session_id = ""
        # Events of a session kept from before, for filters that nobody has asked for yet; and what
        # was missed of them, by topic and cause.
        self._unclaimed: list[WorkItem] = []
        self._unclaimed_gaps: dict[tuple[str, str], int] = {}
        # Subscriptions to such filters that are not confirmed yet, and what they have had so far:
        # should they come to nothing, it goes to whoever asks next.
        self._claiming: dict[EventQueue, list[WorkItem]] = {}

    # ---- subscriptions --------------------------------------------------------------------------

    def add(self, queue: EventQueue) -> list[FilterKey]:
        """The filters that are new with this subscription."""
        return self._routes.add(queue)

    def remove(self, queue: EventQueue) -> list[FilterKey]:
        """The filters that are gone with it."""
        gone = self._routes.remove(queue)
        self.look_for_room()
        return gone

    def claim(self, queue: EventQueue) -> None:
        """Hand over what has come for this subscription before it was asked for.

        What filters want that are still to be asked for is kept for them too.
        """
        remaining = self._unclaimed_filters()
        waiting, self._unclaimed = self._unclaimed, []
        claimed = [item for item in waiting if _is_wanted(item.event, queue.filters)]
        self._unclaimed = [item for item in waiting if _is_wanted(item.event, remaining)]
        if self._kept and (claimed or self._reading.has_claimed(queue.filter_keys)):
            self._claiming[queue] = []
        self._put_items(queue, claimed)
        stay = {id(item) for item in self._unclaimed}
        self._release(item for item in waiting if id(item) not in stay)
        gaps, self._unclaimed_gaps = self._unclaimed_gaps, {}
        for (topic, reason), count in gaps.items():
            if any(pattern_matches(f.pattern, topic) for f in queue.filters):
                queue.tell_gap(Gap(topic, count, reason))
            if any(pattern_matches(f.pattern, topic) for f in remaining):
                self._unclaimed_gaps[topic, reason] = count
        self.look_for_room()

    def confirmed(self, queue: EventQueue) -> None:
        """The subscription is in place."""
        self._release(self._claiming.pop(queue, ()))

    def put_back(self, queue: EventQueue) -> None:
        """The application gave the subscription up before it was confirmed: what has come of
        filters that the session was kept with waits for whoever asks for them next."""
        remaining = self._unclaimed_filters()
        came = self._claiming.pop(queue, [])
        back = [item for item in came if _is_wanted(item.event, remaining)]
        self._unclaimed = back + self._unclaimed
        queue.close()
        stay = {id(item) for item in back}
        self._release(item for item in came if id(item) not in stay)
        self.look_for_room()

    def _unclaimed_filters(self) -> list[Filter]:
        return [_filter_of(key) for key in self._reading.unclaimed]

    def fail(self, failure: Exception) -> None:
        for queue in self._routes:
            queue.fail(failure)

    def refused(self, problems: Iterable[TopicProblem]) -> None:
        """A broker does not let these be subscribed to, though another did."""
        for problem in problems:
            for queue in self._routes:
                if any(f.pattern == problem.topic for f in queue.filters):
                    queue.fail(SubscribeError((problem.topic,), problem.message))

    def begin_session(self, *, kept: bool) -> None:
        """A broker has said welcome."""
        self._kept = kept
        if self._session_id == self._reading.session_id:
            self.taking.tell_again()
        else:
            self._session_id = self._reading.session_id
            self.taking.begin_anew(self._reading.had)
        self.look_for_room()

    def has_been_read(self) -> None:
        """A subscription is empty: perhaps there is room again."""
        if not self.has_room.is_set():
            self.look_for_room()

    def look_for_room(self) -> None:
        """A subscription has become full or empty, or somebody begins to wait for an answer: that
        comes behind events, so more of these are taken in until it is here."""
        factor = _AWAITING_FACTOR if self._awaits_answers() else 1
        limit = factor * QUEUE_EVENTS_MAX
        if self._kept or not any(len(queue) >= limit for queue in self._routes):
            self.has_room.set()
        else:
            self.has_room.clear()

    # ---- what comes -----------------------------------------------------------------------------

    def _put_joined(self, item: LiveItem) -> None:
        """To subscriptions with a past."""
        shares: dict[EventQueue, list[int]] = {}
        if isinstance(item, Arrived):
            shares = {queue: [] for queue, _ in self._routes.joined(item.run.topic)}
        else:
            for place in item.places:
                for queue, _ in self._routes.joined(item.bundle.topics[place]):
                    shares.setdefault(queue, []).append(place)
        for queue, places in shares.items():
            if not isinstance(queue, JoinedQueue):
                continue
            queue.put_live(item if isinstance(item, Arrived) else item._replace(places=places))
            self._touched[queue if queue.joining.is_joined else queue.held] = None
            if queue.is_full:
                self.look_for_room()

    def put(self, arrived: Arrived) -> None:
        if self._routes.has_joined:
            self._put_joined(arrived)
        self._put_run(arrived)

    def _put_run(self, arrived: Arrived) -> None:
        events = events_of(arrived)
        if events is None:
            run = arrived.run
            cause = MissCause.MISS_CAUSE_UNREADABLE
            self.tell_gap(Missed(topic=run.topic, cause=cause, count=run.count))
            return
        routes = self._routes.to(arrived.run.topic)
        if self._routes.has_work or self._reading.unclaimed or self._claiming:
            self._put_singly(arrived, list(events), routes)
            return
        for queue, condition in routes:
            if condition:
                queue.put([e for e in events if any(_holds(f, e) for f in condition)])
            elif isinstance(events, RunEvents):
                queue.put_columns(events)
            else:
                queue.put(events)
            self._touched[queue] = None
            if queue.is_full:
                self.look_for_room()

    def put_bundle(self, arrived: ArrivedBundle) -> None:
        if self._routes.has_joined:
            self._put_joined(arrived)
        self._put_others(arrived)

    def _put_others(self, arrived: ArrivedBundle) -> None:
        bundle, places = arrived
        if self._routes.has_work or self._reading.unclaimed or self._claiming:
            for place in places:
                self._put_run(Arrived(bundle.run_at(place), 0, 1))
            return
        if len(places) >= COLUMNS_MIN:
            if self._put_whole(bundle, places):
                return
            if len(places) >= COLUMNS_MIN * len(self._routes):
                self._put_columns(bundle, places)
                return
        topics, payloads, published_us = bundle.topics, bundle.payloads, bundle.published_us
        terms, seqs, routes_to = bundle.terms, bundle.seqs, self._routes.to
        by_queue: dict[EventQueue, list[Event]] = {}
        for i in places:
            topic = topics[i]
            event = _new(
                Event, (topic, payloads[i], published_us[i], terms[i], seqs[i], NO_ATTRIBUTES)
            )
            for queue, condition in routes_to(topic):
                if condition and not _holds_of_none(condition):
                    continue
                wanted = by_queue.get(queue)
                if wanted is None:
                    wanted = by_queue[queue] = []
                wanted.append(event)
        for queue, events in by_queue.items():
            queue.put(events)
            self._touched[queue] = None
            if queue.is_full:
                self.look_for_room()

    def _put_whole(self, bundle: Bundle, places: Sequence[int]) -> bool:
        """If the same subscriptions want all of it; False, and nothing is done, if they do not."""
        topics = bundle.topics
        first = self._routes.to(topics[places[0]])
        if self._routes.to(topics[places[-1]]) is not first:
            return False
        bundle = bundle.pick(places)
        if not self._routes.are_all(bundle.topics, first):
            return False
        columns = BundleEvents(bundle)
        for queue, condition in first:
            if condition and not _holds_of_none(condition):
                continue
            queue.put_columns(columns)
            self._touched[queue] = None
            if queue.is_full:
                self.look_for_room()
        return True

    def _put_columns(self, bundle: Bundle, places: Sequence[int]) -> None:
        """To each subscription what it wants of it: few subscriptions want much."""
        topics, routes_to = bundle.topics, self._routes.to
        shares: dict[EventQueue, list[int]] = {}
        for place in places:
            for queue, condition in routes_to(topics[place]):
                if not condition or _holds_of_none(condition):
                    shares.setdefault(queue, []).append(place)
        for queue, wanted in shares.items():
            queue.put_columns(BundleEvents(bundle.pick(wanted)))
            self._touched[queue] = None
            if queue.is_full:
                self.look_for_room()

    def _put_singly(self, arrived: Arrived, events: list[Event], routes: list[Route]) -> None:
        """Somebody may hold single events: the delivery is an entry of its own."""
        serial = self._reading.had
        delivery = None
        if self._kept:
            if self._touched:
                self.taking.note_given(serial - 1, list(self._touched))
                self._touched = {}
            delivery = self.taking.open(serial)
        handed = self._reading.handed
        items = [
            WorkItem(event, delivery, offset, handed.get(offset, 0))
            for event, (_, offset) in zip(events, arrived.places, strict=True)
        ]
        unclaimed = self._unclaimed_filters()
        kept = [item for item in items if _is_wanted(item.event, unclaimed)]
        self._hold(kept)
        self._unclaimed += kept
        for queue, condition in routes:
            wanted = items
            if condition:
                wanted = [i for i in items if any(_holds(f, i.event) for f in condition)]
            self._put_items(queue, wanted)
            if queue.is_full:
                self.look_for_room()

    def _put_items(self, queue: EventQueue, items: list[WorkItem]) -> None:
        if queue in self._claiming:
            self._hold(items)
            self._claiming[queue] += items
        if isinstance(queue, WorkQueue):
            self._hold(items)
            queue.put_work([WorkItem(i.event, i.delivery, i.offset, i.deliveries) for i in items])
            return
        before = queue.put_events
        queue.put([item.event for item in items])
        for count, item in enumerate(items, before + 1):
            if item.delivery is not None:
                item.delivery.needs.append((queue, count))

    def _hold(self, items: Iterable[WorkItem]) -> None:
        for item in items:
            if item.delivery is not None:
                self.taking.hold(item.delivery, item.offset)

    def _release(self, items: Iterable[WorkItem]) -> None:
        for item in items:
            if item.delivery is not None:
                self.taking.release(item.delivery, item.offset)

    def tell_gap(self, missed: Missed) -> None:
        reason = _MISS_REASONS.get(missed.cause, "the broker did not say why")
        gap = Gap(missed.topic, missed.count, reason)
        # Without a topic it is of many, and who wants which is not said.
        routes: list[Route] = [(q, ()) for q in self._routes]
        if gap.topic:
            routes = [*self._routes.to(gap.topic), *self._routes.joined(gap.topic)]
        for queue, _ in routes:
            queue.tell_gap(gap)
        if any(pattern_matches(pattern, gap.topic) for pattern, _ in self._reading.unclaimed):
            before = self._unclaimed_gaps.get((gap.topic, reason), 0)
            self._unclaimed_gaps[gap.topic, reason] = before + gap.count

    def end_of_frame(self) -> None:
        """All of a frame has been put. A broker that keeps the session wants to know of it."""
        if self._kept:
            self.taking.note_given(self._reading.had, list(self._touched))
        self._touched = {}

    def _oldest_held(self) -> Mapping[str, dict[int, int]]:
        """The oldest events here that the application has not taken, by topic and term. A broker
        that is to keep the session for a later process begins there."""
        if not self._kept:
            return {}
        queues = [queue for queue in self._routes if isinstance(queue, WorkQueue)]
        held = [item for queue in queues for item in queue.work.items()]
        return oldest_held((*held, *self._unclaimed))


@lru_cache(maxsize=1_000)
def _filter_of(key: FilterKey) -> Filter:
    return Filter.parse(*key)


def _is_wanted(event: Event, filters: Iterable[Filter]) -> bool:
    return any(f.matches(event.topic, event.attributes) for f in filters)


def _holds_of_none(condition: Sequence[Filter]) -> bool:
    """Whether an event without attributes is wanted."""
    return any(f.predicate is None or f.predicate.holds(NO_ATTRIBUTES) for f in condition)


def _holds(filter_: Filter, event: Event) -> bool:
    predicate = filter_.predicate
    return predicate is None or predicate.holds(event.attributes or NO_ATTRIBUTES)
