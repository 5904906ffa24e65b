"""A link to a neighbour: ordered and complete while a session lasts, over frames that may be lost,
doubled, late or out of order.

            start, silence, a newer session of the other's
                  |                    ^
                  v                    |
              GREETING --------------> UP
                 hears its own session back

Each end numbers its sessions, and numbers never go down over its lives. A session is up at an end
that has heard its own number back from one with the same topology. In it batches are numbered; they
are taken in order, confirmed together, and sent again with growing pauses until they are. When a
session ends, what was not confirmed is gone: whoever uses the link begins anew with each session.
What messages mean is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count

from dynatops.kit.bounded import BoundedTable, Past
from dynatops.v1.overlay_pb2 import (
    LinkBatch,
    LinkGreeting,
    LinkMessage,
    NodeRef,
    PeerFrame,
    Run,
)
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.forwarding.base.forwarding_settings import ForwardingSettings

# Lives begin milliseconds apart; so many sessions of all links fit into each.
_SESSION_BITS = 20
# A confirmation that nothing else carries waits for the next tick, but not for more than this.
_UNCONFIRMED_MAX = 16


def session_numbers(incarnation: int) -> Iterator[int]:
    """For all links of one life of a broker: none is used twice."""
    return count((incarnation << _SESSION_BITS) + 1)


class LinkState(Enum):
    GREETING = "greeting"
    UP = "up"


@dataclass(slots=True)
class _Unconfirmed:
    frame: PeerFrame
    number: int
    nbytes: int


class Link:
    def __init__(
        self,
        me: NodeRef,
        settings: ForwardingSettings,
        counters: ForwardingCounters,
        sessions: Iterator[int],
        version: int,
        digest: int,
        now_s: float,
    ) -> None:
        self.state = LinkState.GREETING
        # Which session of this end it is, for those who must begin anew with each.
        self.session = 0
        self.theirs = 0
        self._sessions = sessions
        self._me = me
        self._settings = settings
        self._counters = counters
        self._version = version
        self._digest = digest
        self._frames: list[PeerFrame] = []
        self._unconfirmed: deque[_Unconfirmed] = deque()
        self._early: BoundedTable[int, LinkBatch] = BoundedTable(
            settings.early_batches_max, counters, "link_batches_early", past=Past.NEWEST
        )
        # Of this session: batches that were begun, and confirmed.
        self.sent_number = 0
        self.confirmed_number = 0
        # Events that are on their way.
        self.unconfirmed_bytes = 0
        self._open: LinkBatch | None = None
        self._open_frame: PeerFrame | None = None
        self._open_bytes = 0
        self._taken = 0
        self._taken_told = 0
        self._must_confirm = False
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self.state = LinkState.GREETING
        self.session = next(self._sessions)
        self._forget_said()
        self._early.clear()
        self._taken = self._taken_told = 0
        self._must_confirm = False
        self._heard_s = self._said_s = now_s
        self._greet_due_s = now_s
        self._pause_s = self._settings.resend_min_s
        self._resend_due_s = now_s

    def _forget_said(self) -> None:
        self._unconfirmed.clear()
        self.unconfirmed_bytes = 0
        self._open = self._open_frame = None
        self._open_bytes = 0
        self.sent_number = self.confirmed_number = 0

    @property
    def is_up(self) -> bool:
        return self.state is LinkState.UP

    @property
    def has_room(self) -> bool:
        """Whether more events may be sent now."""
        return self.is_up and self.unconfirmed_bytes < self._settings.link_window_bytes

    @property
    def is_idle(self) -> bool:
        """Whether all that was said is confirmed."""
        return not self._unconfirmed and self._open is None

    def set_topology(self, version: int, digest: int, now_s: float) -> None:
        """Begin anew: links are up only between ends with one topology."""
        self._version, self._digest = version, digest
        self._end(now_s)

    def _end(self, now_s: float) -> None:
        if self.is_up:
            self._counters.link_sessions_lost += 1
        self._begin(now_s)

    # ---- saying ---------------------------------------------------------------------------------

    def message(self, nbytes: int = 0) -> LinkMessage:
        """One more message, to be filled in at once. Events say how many bytes they are."""
        batch = self._open
        if batch is None or (self._open_bytes and self._open_bytes >= self._settings.batch_bytes):
            self._close_batch()
            batch = self._open_batch()
        self._open_bytes += nbytes
        self.unconfirmed_bytes += nbytes
        return batch.messages.add()

    def add_run(self, run: Run, nbytes: int) -> None:
        """An event run; runs in a row share one message."""
        batch = self._open
        if batch is not None and batch.messages and self._open_bytes < self._settings.batch_bytes:
            last = batch.messages[-1]
            if last.HasField("forwarded") and not last.forwarded.bundles:
                last.forwarded.runs.append(run)
                self._open_bytes += nbytes
                self.unconfirmed_bytes += nbytes
                return
        self.message(nbytes).forwarded.runs.append(run)

    def _open_batch(self) -> LinkBatch:
        frame = self._open_frame = PeerFrame(sender=self._me)
        batch = self._open = frame.messages.add().link_batch
        self.sent_number += 1
        batch.session, batch.heard, batch.number = self.session, self.theirs, self.sent_number
        return batch

    def _close_batch(self) -> None:
        batch, frame = self._open, self._open_frame
        if batch is None or frame is None:
            return
        batch.confirmed = self._taken
        self._confirmed_now()
        self._frames.append(frame)
        self._unconfirmed.append(_Unconfirmed(frame, batch.number, self._open_bytes))
        self._open = self._open_frame = None
        self._open_bytes = 0

    def _confirmed_now(self) -> None:
        self._taken_told, self._must_confirm = self._taken, False

    def frames(self, now_s: float) -> list[PeerFrame]:
        """All that is to be sent now."""
        if self._open is not None:
            if not self._unconfirmed:
                self._resend_due_s = now_s + self._pause_s
            self._close_batch()
        if len(self._unconfirmed) > self._settings.link_batches_max:
            self._counters.link_sessions_full += 1
            self._end(now_s)
            return []
        if self.is_up and self._taken - self._taken_told >= _UNCONFIRMED_MAX:
            self._say_confirmed()
        frames, self._frames = self._frames, []
        if frames:
            self._said_s = now_s
        return frames

    def _say_confirmed(self) -> None:
        frame = PeerFrame(sender=self._me)
        batch = frame.messages.add().link_batch
        batch.session, batch.heard, batch.confirmed = self.session, self.theirs, self._taken
        self._confirmed_now()
        self._frames.append(frame)

    def _greet(self, now_s: float) -> None:
        greeting = LinkGreeting(
            session=self.session, heard=self.theirs, version=self._version, digest=self._digest
        )
        frame = PeerFrame(sender=self._me)
        frame.messages.add().link_greeting.CopyFrom(greeting)
        self._frames.append(frame)
        self._greet_due_s = now_s + self._settings.greeting_retry_s

    # ---- hearing --------------------------------------------------------------------------------

    def hear_greeting(self, greeting: LinkGreeting, now_s: float) -> None:
        """One of a broker with the same topology."""
        if self.is_up:
            if greeting.session < self.theirs:
                return
            if greeting.session > self.theirs:
                self._end(now_s)
        if greeting.session != self.theirs:
            self.theirs = greeting.session
            # It has not heard of this end what it is to answer to.
            self._greet(now_s)
        self._heard_s = now_s
        if greeting.heard == self.session:
            self._come_up(now_s)
        elif self.is_up or self._greet_due_s > now_s:
            self._greet(now_s)

    def _come_up(self, now_s: float) -> None:
        if self.is_up:
            return
        self.state = LinkState.UP
        # What was said before was said to an earlier session of the other end.
        self._forget_said()
        self._counters.link_sessions += 1
        # So that the other end knows, whatever becomes of the greetings.
        self._greet(now_s)
        self._heard_s = self._said_s = now_s

    def hear_batch(self, batch: LinkBatch, now_s: float) -> list[LinkBatch]:
        """The batches whose turn it is, oldest first."""
        if batch.session != self.theirs or batch.heard != self.session:
            return []
        self._come_up(now_s)
        self._heard_s = now_s
        self._take_confirmation(batch.confirmed, now_s)
        if not batch.number:
            return []
        self._must_confirm = True
        if batch.number != self._taken + 1:
            if batch.number <= self._taken or batch.number in self._early:
                self._counters.link_batches_repeated += 1
            else:
                self._early.put(batch.number, batch)
            return []
        self._taken += 1
        ready = [batch]
        while self._early and (early := self._early.pop(self._taken + 1, None)) is not None:
            self._taken += 1
            ready.append(early)
        return ready

    def _take_confirmation(self, confirmed: int, now_s: float) -> None:
        unconfirmed = self._unconfirmed
        if not unconfirmed or unconfirmed[0].number > confirmed:
            return
        while unconfirmed and unconfirmed[0].number <= confirmed:
            self.unconfirmed_bytes -= unconfirmed.popleft().nbytes
        self.confirmed_number = confirmed
        self._pause_s = self._settings.resend_min_s
        self._resend_due_s = now_s + self._pause_s

    # ---- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        settings = self._settings
        if not self.is_up:
            if now_s >= self._greet_due_s:
                self._greet(now_s)
            return
        if now_s - self._heard_s >= settings.peer_timeout_s:
            self._end(now_s)
            return
        if self._unconfirmed and now_s >= self._resend_due_s:
            for entry in list(self._unconfirmed)[: settings.resend_batches_max]:
                self._counters.link_batches_resent += 1
                self._frames.append(entry.frame)
            self._pause_s = min(2 * self._pause_s, settings.resend_max_s)
            self._resend_due_s = now_s + self._pause_s
        if self._must_confirm or now_s - self._said_s >= settings.keepalive_s:
            self._say_confirmed()
