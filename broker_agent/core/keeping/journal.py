"""What is written to disk, so that sessions which outlive connections outlive their broker too.

On disk is one instant of the past, and all of it: the sessions, the deliveries that waited, and how
far each topic had been read. Whatever was stamped later is read again from other brokers.

    flush n      captures: what changed since flush n-1, as it is now
    flush n+1    writes what flush n captured, without deliveries confirmed meanwhile

So deliveries that a client confirms within a flush are never written. Where somebody waits for the
disk, or the broker stops, everything is captured and written at once. If a write fails, all that it
held has changed again; nothing captured after it is written before it has been captured anew.

The driver writes `Changes`, one after the other, and says how it went. Each is to be written as a
whole or not at all. Until all restored sessions are back where they were nothing is written: the
disk knows better.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.routing.confirming import UnconfirmedRequest
from broker_agent.core.routing.routing import RoutedSubscriptions
from broker_agent.core.sessions.redelivery import Piece
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.session import Session
from dynatops.v1.client_pb2 import Cursor, SlowPolicy
from dynatops.v1.storage_pb2 import SessionRecord


@dataclass(slots=True)
class Changes:
    """What one write makes of what is on disk, in this order."""

    # Sessions that are no more, with their deliveries and cursors.
    removed: list[str] = field(default_factory=list)
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    # Deliveries up to these serials are no longer needed.
    confirmed: dict[str, int] = field(default_factory=dict)
    # As are these single ones, though not all before them.
    taken: list[tuple[str, int]] = field(default_factory=list)
    pieces: list[tuple[str, Piece]] = field(default_factory=list)
    # By topic: how far it is read for every session that has no cursor of its own.
    cursors: dict[str, Cursor | None] = field(default_factory=dict)
    # By session and topic, while a session catches up.
    own_cursors: dict[tuple[str, str], Cursor | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(
            (self.removed, self.sessions, self.confirmed, self.taken, self.pieces, self.cursors)
        ) or bool(self.own_cursors)


@dataclass(frozen=True, slots=True)
class Stored:
    """What is on disk."""

    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    # Of each session, ascending.
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    own_cursors: dict[tuple[str, str], Cursor] = field(default_factory=dict)


@dataclass(slots=True)
class _Capture:
    """What changed, as it was at one instant."""

    # None for sessions that are not, or no longer, to be kept.
    records: dict[Session, SessionRecord | None] = field(default_factory=dict)
    # The newest delivery of sessions whose queues changed.
    serials: dict[Session, int] = field(default_factory=dict)
    cursors: dict[str, Cursor | None] = field(default_factory=dict)
    own_cursors: dict[tuple[str, str], Cursor | None] = field(default_factory=dict)
    confirmations: list[UnconfirmedRequest] = field(default_factory=list)

    def update(self, newer: _Capture) -> None:
        self.records.update(newer.records)
        self.serials.update(newer.serials)
        self.cursors.update(newer.cursors)
        self.own_cursors.update(newer.own_cursors)
        self.confirmations += newer.confirmations

    @property
    def topics(self) -> Iterable[str]:
        return [*self.cursors, *(topic for _, topic in self.own_cursors)]


class SessionJournal:
    def __init__(
        self, context: BrokerContext, registry: Registry, subscriptions: RoutedSubscriptions
    ) -> None:
        self._registry = registry
        self._subscriptions = subscriptions
        self._confirming = context.confirming
        self._unsaved = context.unsaved
        self._counters = context.counters
        self._captured = _Capture()
        self._writing: _Capture | None = None
        # Before the present write: serials up to which sessions were saved, and their first.
        self._before: dict[Session, tuple[int, int]] = {}
        # What it changes of deliveries that were on disk before.
        self._changing: dict[Session, set[int]] = {}
        self._removing: list[str] = []
        # What may be on disk: sessions, with the first serial of their deliveries (0: none is);
        # sessions with something untold; cursors.
        self._first: dict[Session, int] = {}
        self._with_untold: dict[Session, None] = {}
        self._cursors: dict[str, None] = {}
        self._own_cursors: dict[str, dict[str, None]] = {}
        # Sessions to be removed from disk.
        self._gone: dict[str, None] = {}
        self._is_over = False
        self._confirming.holding = True

    # ---- for the driver -------------------------------------------------------------------------

    def restored(self, sessions: Iterable[Session], stored: Stored) -> None:
        """The disk has this, and these sessions were made of it."""
        for session in sessions:
            pieces = stored.pieces.get(session.origin_id)
            self._first[session] = pieces[0].serial if pieces else 0
            if stored.sessions[session.origin_id].untold:
                self._with_untold[session] = None
        self._cursors = dict.fromkeys(stored.cursors)
        for origin_id, topic in stored.own_cursors:
            self._own_cursors.setdefault(topic, {})[origin_id] = None
        # They are what is on disk. Cursors that nobody needs any more are not.
        self._unsaved.take_sessions()
        self._unsaved.take_topics()
        wanted = {topic for session in sessions for topic in session.filters}
        self._unsaved.note_all((), (), (topic for topic in self._cursors if topic not in wanted))

    def take_changes(self, *, everything: bool = False) -> Changes | None:
        """What to write now; None if nothing. To be answered by `written` or `failed`."""
        if self._writing is not None or self._subscriptions.is_restoring:
            return None
        changes = Changes(removed=list(self._gone))
        self._gone, self._before, self._changing = {}, {}, {}
        due, self._captured = self._captured, _Capture()
        if not self._is_over:
            self._settle(due, changes)
            self._captured = self._capture()
            if everything or self._captured.confirmations:
                fresh, self._captured = self._captured, _Capture()
                self._settle(fresh, changes)
                due.update(fresh)
        if not changes and not due.confirmations:
            return None
        self._writing, self._removing = due, changes.removed
        return changes

    def written(self) -> list[UnconfirmedRequest]:
        """The changes are on disk; whom to tell."""
        assert self._writing is not None
        confirmations = self._writing.confirmations
        self._writing = None
        self._confirming.holding = not self._is_over
        self._confirming.is_failing = False
        return confirmations

    def failed(self) -> list[UnconfirmedRequest]:
        """The changes are not on disk, and nobody knows until when; who waits for that."""
        assert self._writing is not None
        self._counters.session_writes_failed += 1
        for session, (saved, first) in self._before.items():
            session.saved = saved
            if session in self._first:
                self._first[session] = first or self._first[session]
        for session, serials in self._changing.items():
            session.changed = (session.changed or set()) | serials
        self._gone.update(dict.fromkeys(self._removing))
        confirmations = [*self._writing.confirmations, *self._captured.confirmations]
        confirmations += self._confirming.take_held()
        for capture in (self._writing, self._captured):
            self._unsaved.note_all(capture.records, capture.serials, capture.topics)
            self._cursors.update(dict.fromkeys(capture.cursors))
            for origin_id, topic in capture.own_cursors:
                self._own_cursors.setdefault(topic, {})[origin_id] = None
        self._writing, self._captured = None, _Capture()
        self._confirming.holding = False
        self._confirming.is_failing = not self._is_over
        return confirmations

    def end(self) -> None:
        """The broker stops: what happens to sessions from now on is not meant to last, unless
        their clients go elsewhere."""
        self._is_over = True
        self._confirming.holding = False
        self._confirming.is_failing = False

    def forget_session(self, session: Session) -> None:
        """Its client has gone elsewhere."""
        if self._first.pop(session, None) is not None:
            self._with_untold.pop(session, None)
            self._gone[session.origin_id] = None

    # ---- capturing ------------------------------------------------------------------------------

    def _capture(self) -> _Capture:
        capture = _Capture()
        sessions, queues = self._unsaved.take_sessions()
        for session in queues:
            if self._registry.holds(session):
                capture.serials[session] = session.serial
                untold = session.untold()
                if untold or session in self._with_untold:
                    capture.records[session] = self._record_of(session)
        for session in sessions:
            is_held = self._registry.holds(session)
            if is_held:
                # Together with its queue: what was dropped is in the one or, once told, the other.
                capture.serials[session] = session.serial
                capture.records[session] = self._record_of(session)
            else:
                capture.records[session] = None
                # Perhaps their cursors were there for this session alone.
                self._unsaved.note_all((), (), self._subscriptions.cursor_names(session))
        for topic in self._unsaved.take_topics():
            self._capture_topic(topic, capture)
        capture.confirmations = self._confirming.take_held()
        return capture

    def _record_of(self, session: Session) -> SessionRecord:
        settled = self._confirming.settled(session)
        return SessionRecord(
            client_id=session.client_id,
            expiry_s=session.expiry_s,
            slow_policy=SlowPolicy.ValueType(session.policy),
            filters=[f.to_wire() for f in settled],
            untold=session.untold(),
            owner=session.owner,
        )

    def _capture_topic(self, topic: str, capture: _Capture) -> None:
        reached = self._subscriptions.reached(topic, self._registry.holds)
        if reached is None:
            self._unsaved.topic(topic)
            return
        if reached.shared is not None or topic in self._cursors:
            capture.cursors[topic] = reached.shared
        for origin_id in self._own_cursors.get(topic, ()):
            capture.own_cursors[origin_id, topic] = None
        for origin_id, cursor in reached.own.items():
            capture.own_cursors[origin_id, topic] = cursor

    # ---- settling what to write -----------------------------------------------------------------

    def _settle(self, due: _Capture, changes: Changes) -> None:
        self._settle_sessions(due, changes)
        for topic, cursor in due.cursors.items():
            changes.cursors[topic] = cursor
            self._cursors.pop(topic, None)
            if cursor is not None:
                self._cursors[topic] = None
        for (origin_id, topic), cursor in due.own_cursors.items():
            changes.own_cursors[origin_id, topic] = cursor
            owners = self._own_cursors.setdefault(topic, {})
            owners.pop(origin_id, None)
            if cursor is not None:
                owners[origin_id] = None
            elif not owners:
                del self._own_cursors[topic]

    def _settle_sessions(self, due: _Capture, changes: Changes) -> None:
        for session, record in due.records.items():
            if record is not None and self._registry.holds(session):
                changes.sessions[session.origin_id] = record
                self._first.setdefault(session, 0)
                self._with_untold.pop(session, None)
                if record.untold:
                    self._with_untold[session] = None
            elif session in self._first:
                changes.removed.append(session.origin_id)
                changes.sessions.pop(session.origin_id, None)
                self._first.pop(session, None)
                self._with_untold.pop(session, None)
        for session, serial in due.serials.items():
            if session in self._first:
                self._settle_queue(session, serial, changes)

    def _settle_queue(self, session: Session, serial: int, changes: Changes) -> None:
        """Write what has waited for a flush; take away what was confirmed."""
        first, done = self._first[session], session.acknowledged
        self._before.setdefault(session, (session.saved, first))
        if first and done >= first:
            changes.confirmed[session.origin_id] = done
            first = done + 1 if done < session.saved else 0
        if changed := session.take_changed():
            self._changing.setdefault(session, set()).update(changed)
            name = session.origin_id
            changes.taken.extend((name, number) for number, p in changed.items() if p is None)
            changes.pieces.extend((name, p) for p in changed.values() if p is not None)
        pieces = session.unconfirmed(max(session.saved, done), serial)
        changes.pieces.extend((session.origin_id, piece) for piece in pieces)
        if pieces and not first:
            first = pieces[0].serial
        self._first[session] = first
        self._counters.deliveries_saved += len(pieces)
        session.saved = max(serial, session.saved)
