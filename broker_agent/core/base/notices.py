"""What those who watch a broker should hear of, as data.

A notice is an effect that changes nothing: drivers log it, or pass it over. One with an `operation`
is logged as that, field by field; for the others the log has words of its own
(`broker_agent/runtime/observing/narrating.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from dynatops.kit.observing.log_lines import Operation
from overlay.base.effects import Notice as NodeNotice
from overlay.base.peers import Peer

_SESSION = ("broker", "client", "session")


@dataclass(frozen=True, slots=True)
class SessionOpened:
    operation: ClassVar[Operation] = Operation(
        "session_opened", "A client has come, and has a new session.", _SESSION
    )

    client: str
    # As it is shown: without what nobody can guess.
    session: str


@dataclass(frozen=True, slots=True)
class SessionResumed:
    operation: ClassVar[Operation] = Operation(
        "session_resumed", "A client has come back to its session.", (*_SESSION, "filters")
    )

    client: str
    session: str
    filters: int


@dataclass(frozen=True, slots=True)
class SessionDetached:
    operation: ClassVar[Operation] = Operation(
        "session_detached",
        "A connection has ended; its session waits for the client.",
        (*_SESSION, "connected_s", "delivered", "dropped", "filters"),
    )

    client: str
    session: str
    # How long the connection lasted; None if there was none.
    connected_s: float | None
    delivered: int
    dropped: int
    filters: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The connection is gone with it, if it had one."""

    operation: ClassVar[Operation] = Operation(
        "session_ended",
        "A session is over here: the client went, went elsewhere, or did not come back in time.",
        (*_SESSION, "connected_s", "delivered", "dropped"),
    )

    client: str
    session: str
    connected_s: float | None
    delivered: int
    dropped: int


class PlanOutcome(Enum):
    """How a plan ended for a broker that it had frozen."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    NOBODY_SAID = "nobody_said"


@dataclass(frozen=True, slots=True)
class Unfrozen:
    """A plan's part at this broker is over."""

    operation: ClassVar[Operation] = Operation(
        "reconfigured",
        "A plan held this broker's clients back, and does no longer.",
        ("broker", "plan", "outcome", "epoch", "frozen_s", "node", "node_before"),
    )

    plan: str
    outcome: PlanOutcome
    epoch: int
    frozen_s: float
    # As they are shown.
    node: str
    node_before: str


@dataclass(frozen=True, slots=True)
class PushedAside:
    """A broker of the same name counts as newer: another one, or a former life of this one in which
    the clock was ahead of where it is now. This one goes on at another place of the ring."""

    by: Peer


SessionNotice = SessionOpened | SessionResumed | SessionDetached | SessionEnded
BrokerNotice = SessionNotice | Unfrozen | PushedAside | NodeNotice
