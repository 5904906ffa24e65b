"""From routing to sessions: each event once into the queue of every session that wants it.

A run is one content for all who want all of it, and one more for each choice of its events that
conditions on attributes make. A session whose condition no event meets is sent nothing, but now and
then how far the topic has got: its cursor must not fall out of what is retained. What cannot be
read meets no condition, and might have: the session is told that it misses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.session_conditions import Condition, SessionConditions
from broker_agent.core.sessions.content import BundleContent, Content, RunContent
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import attributes_of
from dynatops.kit.repeats import RunPart
from dynatops.kit.run_events import count_of, events_of
from dynatops.v1.client_pb2 import MissCause, Missed
from dynatops.v1.overlay_pb2 import Event, Events, Run

# Events passed over until a session is told how far the topic is; a small part of what is retained.
_PASSED_OVER_MAX = 1_000
_NOBODY: Mapping[Session, Condition] = {}


class _Selection:
    """Who gets what of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.whole: Content = RunContent(run)
        self._events: Sequence[Event] = ()
        self._contents: dict[tuple[int, ...], Content] = {}
        # Whether somebody wanted to know what is in it, and nobody can.
        self.is_unreadable = False

    def places(self, conditions: SessionConditions) -> Mapping[Session, Sequence[int]]:
        """Which events each of these sessions wants, of those that want any."""
        events = events_of(self.run)
        if events is None:
            self.is_unreadable = True
            return {}
        self._events = events
        attributes = [attributes_of(event.attributes) for event in events]
        return conditions.places(self.run.topic, attributes)

    def of(self, places: Sequence[int]) -> Content:
        """What those get who want these events."""
        if places and len(places) == len(self._events):
            return self.whole
        key = tuple(places)
        found = self._contents.get(key)
        if found is None:
            found = self._contents[key] = self._select(key)
        return found

    def _select(self, places: tuple[int, ...]) -> Content:
        run, events = self.run, self._events
        if self.is_unreadable:
            unreadable = MissCause.MISS_CAUSE_UNREADABLE
            return Content(Missed(topic=run.topic, cause=unreadable, count=run.count))
        offsets = [run.selected[i] for i in places] if run.partial else places
        partial = Run()
        partial.CopyFrom(self.run)
        partial.partial = True
        del partial.selected[:]
        partial.selected.extend(offsets)
        chosen = Events(events=[events[i] for i in places], attributed=bool(places))
        partial.events = chosen.SerializeToString()
        return Content(partial)


class SessionDelivery:
    def __init__(self, context: BrokerContext, is_all_here: Callable[[str], bool]) -> None:
        # Whether no other broker hears of a topic's events.
        self._is_all_here = is_all_here
        self._counters = context.counters
        self._outbox = context.outbox
        # Events passed over since the session was last told of the topic.
        self._passed_over: dict[tuple[Session, str], int] = {}

    def deliver(
        self,
        members: dict[Session, int],
        parts: list[RunPart],
        conditions: SessionConditions | None,
        now_s: float,
    ) -> None:
        """`members`: the reader's count of runs when each began; what filled a hole that opened
        before is none of its concern."""
        touched = self._outbox.touched
        conditional = conditions.filters if conditions else _NOBODY
        for part in parts:
            selection = _Selection(part.run)
            run = part.run
            run_events = count_of(run)
            places: Mapping[Session, Sequence[int]] | None = None
            taken = dropped = 0
            for session, joined in members.items():
                if part.opened is not None and joined >= part.opened:
                    # A late event, from before this session subscribed.
                    continue
                content, count = selection.whole, run_events
                if conditions and session in conditional:
                    if places is None:
                        places = selection.places(conditions)
                    wanted = places.get(session, ())
                    count = len(wanted)
                    must_tell = count or selection.is_unreadable or self._must_tell(session, run)
                    if not must_tell:
                        continue
                    content = selection.of(wanted)
                outcome = session.offer(run.topic, content, count, now_s)
                if outcome is None:
                    self._outbox.too_slow[session] = None
                elif outcome:
                    taken += count
                else:
                    dropped += count
                touched[session] = None
            is_all = partial(self._is_all_here, run.topic)
            self._outbox.note_audience(run.publisher, members, is_all)
            self._counters.runs_unreadable += selection.is_unreadable
            self._counters.delivered_events += taken
            self._counters.dropped_events += dropped

    def deliver_bundle(self, sessions: Sequence[Session], bundle: Bundle, now_s: float) -> None:
        """Events of many topics, all to each of these sessions."""
        counters, touched = self._counters, self._outbox.touched
        self._outbox.note_audience(
            bundle.publisher, sessions, lambda: all(map(self._is_all_here, bundle.topics))
        )
        content: BundleContent | None = None
        runs: list[RunContent] = []
        for session in sessions:
            touched[session] = None
            if session.takes_bundles:
                content = content or BundleContent(bundle)
                outcomes = [(session.offer_bundle(bundle.topics, content, now_s), len(bundle))]
            else:
                runs = runs or [RunContent(bundle.run_at(i)) for i in range(len(bundle))]
                offered = zip(bundle.topics, runs, strict=True)
                outcomes = [(session.offer(topic, run, 1, now_s), 1) for topic, run in offered]
            for outcome, count in outcomes:
                if outcome is None:
                    self._outbox.too_slow[session] = None
                elif outcome:
                    counters.delivered_events += count
                else:
                    counters.dropped_events += count

    def _must_tell(self, session: Session, run: Run) -> bool:
        """Whether a run without events for the session is sent all the same."""
        key = (session, run.topic)
        passed_over = self._passed_over.get(key, 0) + run.count
        # What a history lacks may come late: the client must know of it.
        if run.missing or passed_over >= _PASSED_OVER_MAX:
            self._passed_over.pop(key, None)
            return True
        self._passed_over[key] = passed_over
        return False

    def tell_position(self, session: Session, topic: str, beginning: Content, now_s: float) -> None:
        """Where the session begins to read the topic."""
        if not session.tell_position(topic, beginning, now_s):
            self._counters.places_untold += 1
        self._outbox.touched[session] = None

    def tell_it_goes_on(
        self, session: Session, topic: str, beginning: Content, now_s: float
    ) -> None:
        """What its client has asked to go on with begins here."""
        session.tell_it_goes_on(topic, beginning, now_s)
        self._outbox.touched[session] = None

    def tell_missed(self, sessions: Iterable[Session], missed: Missed, now_s: float) -> None:
        content = Content(missed)
        for session in sessions:
            session.tell_missed(missed, now_s, content)
            self._outbox.touched[session] = None

    def forget_passed_over(self, session: Session, topic: str) -> None:
        self._passed_over.pop((session, topic), None)
