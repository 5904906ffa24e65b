"""A line in the log for each thing that the core has done: it logs nothing itself.

A notice that says how it is logged is logged so. What is here beside that is said in other words
than its fields, or not each time that it happens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from broker_agent.core.base.notices import BrokerNotice, PushedAside, SessionNotice
from broker_agent.core.broker import Broker
from dynatops.kit.observing.log_lines import log_notice
from dynatops.kit.observing.log_operations import (
    BROKER_OPERATIONS,
    HISTORIES_JOINED,
    PEERS_LOST,
    RANGE_ASSUMED,
    RING_JOINED,
    RING_LEFT,
    TOPICS_HANDED_OVER,
    TOPICS_TAKEN_OVER,
)
from dynatops.version import VERSION
from overlay.base.effects import HistoriesJoined, PeerLost, RangeAssumed, TookOver
from overlay.base.identifiers import show_node
from overlay.base.peers import Peer

# Of a broker, in all.
OPERATIONS = BROKER_OPERATIONS.with_notices(get_args(BrokerNotice))
_RING_PERIOD_S = 1.0
_PEERS_SHOWN = 10

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _RingNews:
    """What the ring has gone through since it was told last."""

    # Brokers, with where they were.
    lost: dict[str, None] = field(default_factory=dict)
    taken_over: int = 0
    # Whether some of these were a dead broker's.
    from_dead: bool = False
    ranges_assumed: int = 0
    joined: int = 0


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Narrator:
    def __init__(self, core: Broker, wall_ms: Callable[[], int] = _wall_ms) -> None:
        self._core = core
        self._wall_ms = wall_ms
        self._ring = _RingNews()
        self._ring_due_s = 0.0
        # The broker has left: what is kept of sessions waits on disk, and is not over.
        self._sessions_are_over = False

    # ---- the broker itself ----------------------------------------------------------------------

    def joined(self, seconds: float, http: str | None, doors: Mapping[str, str]) -> None:
        """`doors`: further ways in for clients, and where they are."""
        status = self._core.status()
        identity, node = status.identity, status.node
        place = "a member of the ring" if node is not None else "in its tree"
        RING_JOINED.log(
            log,
            f"broker {identity.broker_id} is {place}, at {identity.address}",
            broker=identity.broker_id,
            address=identity.address,
            http=http,
            doors=", ".join(f"{name} at {at}" for name, at in doors.items()) or None,
            node=show_node(node.me.node_id) if node is not None else None,
            members=len(node.successors) + 1 if node is not None else None,
            sessions=status.sessions,
            seconds=round(seconds, 3),
            version=VERSION,
        )

    def end_of_sessions(self) -> None:
        self._sessions_are_over = True

    def left(self, seconds: float, *, in_time: bool) -> None:
        status = self._core.status()
        RING_LEFT.log(
            log,
            broker=status.identity.broker_id,
            in_time=in_time,
            sessions=status.sessions,
            seconds=round(seconds, 3),
        )

    def on_notice(self, notice: BrokerNotice) -> None:
        if self._sessions_are_over and isinstance(notice, SessionNotice):
            return
        match notice:
            case PushedAside(by=by):
                self._pushed_aside(by)
            case PeerLost(peer=peer):
                self._ring.lost[f"{peer.broker_id} at {peer.address}"] = None
            case TookOver(from_dead=from_dead):
                self._ring.taken_over += 1
                self._ring.from_dead |= from_dead
            case RangeAssumed():
                self._ring.ranges_assumed += 1
            case HistoriesJoined():
                self._ring.joined += 1
            case _:
                log_notice(log, notice, broker=self._core.identity.broker_id)

    # ---- the ring -------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Tell what the ring has gone through: a line of each kind a second at most, whatever
        happens."""
        if now_s < self._ring_due_s:
            return
        self._ring_due_s = now_s + _RING_PERIOD_S
        ring, self._ring = self._ring, _RingNews()
        if self._core.is_leaving:
            # When many leave at once, those that are still there look dead to each other.
            return
        broker = self._core.identity.broker_id
        if lost := list(ring.lost):
            shown = ", ".join(lost[:_PEERS_SHOWN]) + (", …" if len(lost) > _PEERS_SHOWN else "")
            text = f"{len(lost)} taken for dead: {shown}"
            PEERS_LOST.log(log, text, broker=broker, count=len(lost), peers=lost[:_PEERS_SHOWN])
        if count := ring.taken_over:
            text = f"{count:,} {'topic' if count == 1 else 'topics'} taken over"
            # A broker that leaves in order hands its topics over, too.
            after = TOPICS_TAKEN_OVER if ring.from_dead else TOPICS_HANDED_OVER
            after.log(log, text, broker=broker, count=count)
        if ring.ranges_assumed:
            RANGE_ASSUMED.log(log, broker=broker)
        if count := ring.joined:
            text = f"{count} topics with two histories, grown apart, which are joined"
            HISTORIES_JOINED.log(log, text, broker=broker, count=count)

    # ---- a second broker of the name -------------------------------------------------------------

    def _pushed_aside(self, by: Peer) -> None:
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
