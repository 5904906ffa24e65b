"""A line in the log for each thing that the core has done: it logs nothing itself."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from broker_agent.core.broker import Broker
from broker_agent.core.sessions import Session
from dynatops.lake.fields import CLOSE, LEAVE, OPEN, RESUME
from dynatops.log_operations import (
    RECONFIGURED,
    RING_JOINED,
    RING_LEFT,
    SESSION_DETACHED,
    SESSION_ENDED,
    SESSION_OPENED,
    SESSION_RESUMED,
)
from dynatops.version import VERSION
from overlay.identifiers import show_node

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Frozen:
    """How things stood when a plan froze the broker."""

    plan: str
    epoch: int
    node: str
    frozen_ms: int
    thaws_alone: int


class Narrator:
    def __init__(self, core: Broker) -> None:
        self._core = core
        self._frozen: _Frozen | None = None
        self._pushed_aside_by = ""
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
            "session": session.session_id,
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

    # ---- a second broker of the name -------------------------------------------------------------

    def look_for_namesake(self) -> None:
        """With each tick."""
        address = self._core.hosting.pushed_aside_by
        if address != self._pushed_aside_by:
            self._pushed_aside_by = address
            name = self._core.identity.broker_id
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
