"""From routing to sessions: each event once into the queue of every session that wants it.

A run is one content for all who want all of it, and one more for each distinct condition on
attributes. A session whose condition no event meets is sent nothing, but now and then how far the
topic has got: its cursor must not fall out of what is retained. What cannot be read meets no
condition, and might have: the session is told that it misses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.sessions.content import BundleContent, Content, RunContent
from broker_agent.core.sessions.session import Session
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter, Value, attributes_of
from dynatops.kit.repeats import RunPart
from dynatops.kit.run_events import count_of, events_of
from dynatops.v1.client_pb2 import MissCause, Missed
from dynatops.v1.overlay_pb2 import Event, Events, Run

# Events passed over until a session is told how far the topic is; a small part of what is retained.
_PASSED_OVER_MAX = 1_000

# Filters of which an event must meet one.
Condition = tuple[Filter, ...]


class _Selection:
    """Who gets what of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.whole: Content = RunContent(run)
        self._events: Sequence[Event] | None = None
        self._attributes: list[Mapping[str, Value]] = []
        self._contents: dict[Condition, tuple[Content, int]] = {}
        # Whether somebody wanted to know what is in it, and nobody can.
        self.is_unreadable = False

    def of(self, condition: Condition) -> tuple[Content, int]:
        """What sessions with this condition get, and how many events are in it."""
        found = self._contents.get(condition)
        if found is None:
            found = self._contents[condition] = self._select(condition)
        return found

    def _select(self, condition: Condition) -> tuple[Content, int]:
        if self._events is None:
            events = events_of(self.run)
            self.is_unreadable = events is None
            self._events = events or ()
            self._attributes = [attributes_of(event.attributes) for event in self._events]
        run, events = self.run, self._events
        if self.is_unreadable:
            unreadable = MissCause.MISS_CAUSE_UNREADABLE
            missed = Missed(topic=run.topic, cause=unreadable, count=run.count)
            return Content(missed), 0
        selected = [
            place
            for place, attributes in enumerate(self._attributes)
            if any(f.predicate is None or f.predicate.holds(attributes) for f in condition)
        ]
        if len(selected) == len(events):
            return self.whole, len(selected)
        offsets = [run.selected[i] for i in selected] if run.partial else selected
        partial = Run()
        partial.CopyFrom(self.run)
        partial.partial = True
        del partial.selected[:]
        partial.selected.extend(offsets)
        chosen = Events(events=[events[i] for i in selected], attributed=bool(selected))
        partial.events = chosen.SerializeToString()
        return Content(partial), len(selected)


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
        conditions: Mapping[Session, Condition] | None,
        now_s: float,
    ) -> None:
        """`members`: the reader's count of runs when each began; what filled a hole that opened
        before is none of its concern."""
        touched = self._outbox.touched
        for part in parts:
            selection = _Selection(part.run)
            run = part.run
            run_events = count_of(run)
            taken = dropped = 0
            for session, joined in members.items():
                if part.opened is not None and joined >= part.opened:
                    # A late event, from before this session subscribed.
                    continue
                content, count = selection.whole, run_events
                if conditions and (condition := conditions.get(session)) is not None:
                    content, count = selection.of(condition)
                    must_tell = count or selection.is_unreadable or self._must_tell(session, run)
                    if not must_tell:
                        continue
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

    def tell_missed(self, sessions: Iterable[Session], missed: Missed, now_s: float) -> None:
        content = Content(missed)
        for session in sessions:
            session.tell_missed(missed, now_s, content)
            self._outbox.touched[session] = None

    def forget_passed_over(self, session: Session, topic: str) -> None:
        self._passed_over.pop((session, topic), None)
