"""Which sessions get which topics, and that each of them gets every event once, in order.

All sessions of a broker share one reader for each topic. It exists as long as one of them
subscribes; with it this broker's node is in the topic's tree. A subscription is confirmed to its
client when the reader knows where the topic stands: whatever is stamped later will come. A reader
that falls behind asks the rendezvous point; what is lost for good is told to every subscriber.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_agent.core.counters import BrokerCounters
from broker_agent.core.sessions import Session, piece_of
from broker_agent.core.settings import CoreSettings
from dynatops.v1.client_pb2 import (
    MissCause,
    Missed,
    ServerMessage,
    Subscribed,
    TopicProblem,
)
from dynatops.v1.overlay_pb2 import Fetched, Position, Run, TermSeq
from overlay.publishers import Part
from overlay.reader import TopicReader


@dataclass(slots=True)
class _Request:
    """A client's request to subscribe, until every topic of it is in place."""

    session: Session
    number: int
    problems: list[TopicProblem]
    missing: dict[str, None]


@dataclass(slots=True)
class _Topic:
    reader: TopicReader
    sessions: dict[str, Session] = field(default_factory=dict)
    # The reader's clock when each session joined.
    joined: dict[str, int] = field(default_factory=dict)
    waiting: list[_Request] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Repair:
    """A request to the rendezvous point that is due now."""

    topic: str
    seen: list[TermSeq]


class Subscriptions:
    def __init__(self, settings: CoreSettings, counters: BrokerCounters) -> None:
        self._settings = settings
        self._counters = counters
        self._topics: dict[str, _Topic] = {}
        # Topics whose reader is behind -> when to ask for what it misses.
        self._behind: dict[str, float] = {}
        # Topics whose reader is ahead of the rendezvous point -> when to tell it so.
        self._ahead: dict[str, float] = {}
        # Sessions that have new output, and those that were too slow, since last asked.
        self._touched: dict[str, Session] = {}
        self._slow: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def sessions_of(self, topic: str) -> int:
        entry = self._topics.get(topic)
        return len(entry.sessions) if entry is not None else 0

    def take_touched(self) -> tuple[Iterable[Session], Iterable[Session]]:
        """Sessions with new output, and sessions that could not take it, since the last call."""
        touched, slow = self._touched, self._slow
        self._touched, self._slow = {}, {}
        return touched.values(), slow.values()

    # ---- clients --------------------------------------------------------------------------------

    def subscribe(
        self, session: Session, number: int, topics: Iterable[str], problems: list[TopicProblem]
    ) -> list[str]:
        """Subscribe the session; which topics are new to this broker."""
        request = _Request(session, number, problems, {})
        new: list[str] = []
        for topic in topics:
            session.topics[topic] = None
            entry = self._topics.get(topic)
            if entry is None:
                reader = TopicReader(topic, self._settings.publishers_per_topic_max)
                entry = self._topics[topic] = _Topic(reader)
                new.append(topic)
            if session.session_id not in entry.sessions:
                entry.sessions[session.session_id] = session
                entry.joined[session.session_id] = entry.reader.clock
            if not entry.reader.started:
                request.missing[topic] = None
                entry.waiting.append(request)
        self._confirm_if_complete(request)
        return new

    def unsubscribe(self, session: Session, topics: Iterable[str]) -> list[str]:
        """Unsubscribe the session; which topics nobody here wants any more."""
        gone: list[str] = []
        for topic in topics:
            session.topics.pop(topic, None)
            entry = self._topics.get(topic)
            if entry is None or entry.sessions.pop(session.session_id, None) is None:
                continue
            del entry.joined[session.session_id]
            for request in [r for r in entry.waiting if r.session is session]:
                entry.waiting.remove(request)
                request.missing.pop(topic, None)
                self._confirm_if_complete(request)
            if not entry.sessions:
                del self._topics[topic]
                self._behind.pop(topic, None)
                self._ahead.pop(topic, None)
                gone.append(topic)
        return gone

    def _confirm_if_complete(self, request: _Request) -> None:
        if not request.missing:
            confirmation = Subscribed(request=request.number, problems=request.problems)
            request.session.say(ServerMessage(subscribed=confirmation))
            self._touched[request.session.session_id] = request.session

    # ---- what comes along the tree --------------------------------------------------------------

    def observe(self, topic: str, position: Position, now_s: float) -> None:
        """This broker is in the topic's tree; the topic stands here."""
        entry = self._topics.get(topic)
        if entry is None:
            return
        entry.reader.observe(position)
        self._note_progress(topic, entry, now_s)
        waiting, entry.waiting = entry.waiting, []
        for request in waiting:
            request.missing.pop(topic, None)
            self._confirm_if_complete(request)

    def on_run(self, run: Run, now_s: float) -> None:
        entry = self._topics.get(run.topic)
        if entry is not None:
            self._deliver(entry, entry.reader.offer(run))
            self._note_progress(run.topic, entry, now_s)

    def on_repair(self, answer: Fetched, now_s: float) -> None:
        entry = self._topics.get(answer.topic)
        if entry is None:
            return
        reading = entry.reader.fetched(answer)
        if reading.lost or reading.unknown_loss:
            self._counters.lost_events += reading.lost
            self._counters.unknown_losses += reading.unknown_loss
            self._tell_lost(entry, answer.topic, 0 if reading.unknown_loss else reading.lost)
        self._deliver(entry, reading.parts)
        self._behind.pop(answer.topic, None)
        self._note_progress(answer.topic, entry, now_s)

    def _tell_lost(self, entry: _Topic, topic: str, count: int) -> None:
        missed = Missed(topic=topic, cause=MissCause.MISS_CAUSE_NOT_RETAINED, count=count)
        for session in entry.sessions.values():
            session.say(ServerMessage(missed=missed))
            self._touched[session.session_id] = session

    def _deliver(self, entry: _Topic, parts: list[Part]) -> None:
        for part in parts:
            run = part.run
            piece = piece_of(ServerMessage(run=run))
            taken = dropped = 0
            for session_id, session in entry.sessions.items():
                if part.opened is not None and entry.joined[session_id] >= part.opened:
                    # A late event, from before this session subscribed.
                    continue
                outcome = session.offer(run.topic, piece, run.count)
                if outcome is None:
                    self._slow[session_id] = session
                elif outcome:
                    taken += 1
                else:
                    dropped += 1
                self._touched[session_id] = session
            self._counters.delivered_events += run.count * taken
            self._counters.dropped_events += run.count * dropped

    def _note_progress(self, topic: str, entry: _Topic, now_s: float) -> None:
        if not entry.reader.is_ahead:
            self._ahead.pop(topic, None)
        else:
            self._ahead.setdefault(topic, now_s)
        if not entry.reader.is_behind:
            self._behind.pop(topic, None)
        elif topic not in self._behind:
            self._behind[topic] = now_s + self._settings.repair_delay_s

    # ---- time -----------------------------------------------------------------------------------

    def due_repairs(self, now_s: float) -> list[Repair]:
        repairs: list[Repair] = []
        for topic, due_s in self._behind.items():
            if due_s <= now_s:
                self._behind[topic] = now_s + self._settings.repair_retry_s
                repairs.append(Repair(topic, self._topics[topic].reader.seen()))
        self._counters.repairs_asked += len(repairs)
        return repairs

    def due_corrections(self, now_s: float) -> list[tuple[str, int]]:
        """Topics whose rendezvous point must be told now of a newer term, and that term."""
        due = [topic for topic, due_s in self._ahead.items() if due_s <= now_s]
        for topic in due:
            self._ahead[topic] = now_s + self._settings.repair_retry_s
        return [(topic, self._topics[topic].reader.newest_term) for topic in due]
