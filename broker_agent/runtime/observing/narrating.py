"""A line in the log for each thing that the core has done: it logs nothing itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker_agent.core.broker import Broker
from broker_agent.core.sessions.session import Session
from dynatops.kit.observing.log_operations import (
    HISTORIES_JOINED,
    PEERS_LOST,
    RANGE_ASSUMED,
    RECONFIGURED,
    RING_JOINED,
    RING_LEFT,
    SESSION_DETACHED,
    SESSION_ENDED,
    SESSION_OPENED,
    SESSION_RESUMED,
    TOPICS_HANDED_OVER,
    TOPICS_TAKEN_OVER,
)
from dynatops.lake.fields import CLOSE, LEAVE, OPEN, RESUME
from dynatops.version import VERSION
from overlay.identifiers import show_node
from overlay.peers import Peer

_RING_PERIOD_S = 1.0
_PEERS_SHOWN = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Frozen:
    """How things stood when a plan froze the broker."""

    plan: str
    epoch: int
    node: str
    frozen_ms: int
    thaws_alone: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a ring has gone through so far."""

    takeovers: int = 0
    ranges_assumed: int = 0
    merges: int = 0


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Narrator:
    def __init__(self, core: Broker, wall_ms: Callable[[], int] = _wall_ms) -> None:
        self._core = core
        self._wall_ms = wall_ms
        # Who was taken for dead when it last looked, by address.
        self._dead: dict[str, str] = {}
        self._seen = _Seen()
        self._ring_due_s = 0.0
        self._frozen: _Frozen | None = None
        self._pushed_aside_by: Peer | None = None
        # Since when each has been connected.
        self._connected_s: dict[Session, float] = {}
        if log.isEnabledFor(logging.INFO):
            core.logbook.heard = self.on_session

    # ---- the broker itself ----------------------------------------------------------------------

    def joined(self, seconds: float, http: str | None) -> None:
        core, identity = self._core, self._core.identity
        RING_JOINED.log(
            log,
            f"broker {identity.broker_id} is a member of the ring, at {identity.address}",
            broker=identity.broker_id,
            address=identity.address,
            http=http,
            node=show_node(core.node.me.node_id),
            members=len(core.node.ring.successors) + 1,
            sessions=len(core.registry),
            seconds=round(seconds, 3),
            version=VERSION,
        )

    def end_of_sessions(self) -> None:
        """The broker has left: what is kept of sessions waits on disk, and is not over."""
        self._core.logbook.heard = None

    def left(self, seconds: float, *, in_time: bool) -> None:
        RING_LEFT.log(
            log,
            broker=self._core.identity.broker_id,
            in_time=in_time,
            sessions=len(self._core.registry),
            seconds=round(seconds, 3),
        )

    # ---- sessions -------------------------------------------------------------------------------

    def on_session(self, session: Session, op: str, now_s: float) -> None:
        who: dict[str, Any] = {
            "broker": self._core.identity.broker_id,
            "client": session.client_id,
            "session": session.shown_id,
        }
        if op in (OPEN, RESUME):
            self._connected_s[session] = now_s
            if op == OPEN:
                SESSION_OPENED.log(log, **who)
            else:
                SESSION_RESUMED.log(log, **who, filters=len(session.filters))
            return
        since_s = self._connected_s.pop(session, None)
        who |= {
            "connected_s": round(now_s - since_s, 3) if since_s is not None else None,
            "delivered": session.delivered,
            "dropped": session.dropped,
        }
        if op == CLOSE:
            SESSION_DETACHED.log(log, **who, filters=len(session.filters))
        elif op == LEAVE:
            SESSION_ENDED.log(log, **who)

    # ---- other brokers --------------------------------------------------------------------------

    def look_at_ring(self, now_s: float) -> None:
        """With each tick: who is taken for dead, and what that has led to; a line of each a second
        at most, whatever happens."""
        if now_s < self._ring_due_s or self._core.reception.is_leaving:
            # When many leave at once, those that are still there look dead to each other.
            return
        self._ring_due_s = now_s + _RING_PERIOD_S
        core, broker = self._core, self._core.identity.broker_id
        dead = {peer.address: peer.broker_id for peer in core.node.condemned_peers()}
        lost = [f"{name} at {at}" for at, name in dead.items() if at not in self._dead]
        self._dead = dead
        if lost:
            shown = ", ".join(lost[:_PEERS_SHOWN]) + (", …" if len(lost) > _PEERS_SHOWN else "")
            text = f"{len(lost)} taken for dead: {shown}"
            PEERS_LOST.log(log, text, broker=broker, count=len(lost), peers=lost[:_PEERS_SHOWN])
        counters, seen = core.node.counters, self._seen
        now = _Seen(counters.takeovers, counters.ranges_assumed, counters.merges)
        self._seen = now
        if now.takeovers > seen.takeovers:
            count = now.takeovers - seen.takeovers
            text = f"{count:,} {'topic' if count == 1 else 'topics'} taken over"
            # A broker that leaves in order hands its topics over, too.
            after = TOPICS_TAKEN_OVER if dead else TOPICS_HANDED_OVER
            after.log(log, text, broker=broker, count=count)
        if now.ranges_assumed > seen.ranges_assumed:
            RANGE_ASSUMED.log(log, broker=broker)
        if now.merges > seen.merges:
            count = now.merges - seen.merges
            text = f"{count} topics with two histories, grown apart, which are joined"
            HISTORIES_JOINED.log(log, text, broker=broker, count=count)

    # ---- a second broker of the name -------------------------------------------------------------

    def look_for_namesake(self) -> None:
        """With each tick."""
        by = self._core.hosting.pushed_aside_by
        if by is None or by == self._pushed_aside_by:
            return
        self._pushed_aside_by = by
        name, address = self._core.identity.broker_id, by.address
        # Lives are told apart by when they began. Nobody else is at this broker's own address, and
        # nobody has begun in the future.
        if address == self._core.identity.address or by.incarnation > self._wall_ms():
            log.warning(
                "the clock of %s was ahead in a former life, which the ring takes for the newer "
                "one; this one goes on at another place of the ring: look after the clock",
                name,
            )
        else:
            log.error(
                "another broker named %s has joined, at %s, and has this one's place in the ring; "
                "this one goes on at another: end one of the two",
                name, address,
            )  # fmt: skip

    # ---- reconfigurations -----------------------------------------------------------------------

    def look(self) -> None:
        """After each step of a plan, and with each tick."""
        plan = self._core.reconfiguration.frozen_by
        if self._frozen is not None and self._frozen.plan != plan:
            self._tell(self._frozen)
            self._frozen = None
        if plan and self._frozen is None:
            self._frozen = self._now(plan)

    def _now(self, plan: str) -> _Frozen:
        core = self._core
        return _Frozen(
            plan,
            core.reconfiguration.epoch,
            show_node(core.node.me.node_id),
            core.counters.frozen_ms,
            core.counters.thaws_alone,
        )

    def _tell(self, then: _Frozen) -> None:
        now = self._now("")
        outcome = "committed" if now.epoch > then.epoch else "rolled_back"
        if now.thaws_alone > then.thaws_alone:
            outcome = "nobody_said"
        RECONFIGURED.log(
            log,
            broker=self._core.identity.broker_id,
            plan=then.plan,
            outcome=outcome,
            epoch=now.epoch,
            frozen_s=(now.frozen_ms - then.frozen_ms) / 1_000,
            node=now.node,
            node_before=then.node,
        )
