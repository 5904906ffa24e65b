"""What those who watch a broker should hear of, as data.

A notice is an effect that changes nothing: drivers log it, or pass it over. One with an `operation`
is logged as that, field by field; for the others the log has words of its own
(`broker_agent/runtime/observing/narrating.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from dynatops.kit.observing.log_lines import Level, Operation
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


@dataclass(frozen=True, slots=True)
class TopologyChanged:
    """It is to be kept: a broker that is restarted goes on with it."""

    operation: ClassVar[Operation] = Operation(
        "topology_changed",
        "A newer topology is in use: links are up again once neighbours have it, too.",
        ("broker", "version", "source"),
        Level.WARNING,
    )

    version: int
    # Another broker; empty if an operator told this one.
    source: str
    # The topology, as one broker gives it to another.
    text: str


@dataclass(frozen=True, slots=True)
class PlaceGone:
    """The broker is to go."""

    operation: ClassVar[Operation] = Operation(
        "place_gone",
        "A newer topology does not have this broker, or has it at another address. It sends its "
        "clients away, and does nothing more.",
        ("broker", "version"),
        Level.WARNING,
    )

    version: int
    text: str


@dataclass(frozen=True, slots=True)
class TopologyContested:
    operation: ClassVar[Operation] = Operation(
        "topology_contested",
        "A neighbour has another topology of the same version: the link stays down until there is "
        "a newer one. Said once.",
        ("broker", "neighbour", "version"),
        Level.WARNING,
    )

    neighbour: str
    version: int


@dataclass(frozen=True, slots=True)
class TreeLinkUp:
    operation: ClassVar[Operation] = Operation(
        "link_up", "The link to a neighbour in the tree is up.", ("broker", "neighbour")
    )

    neighbour: str


@dataclass(frozen=True, slots=True)
class TreeLinkDown:
    operation: ClassVar[Operation] = Operation(
        "link_down",
        "A neighbour in the tree is not heard of, or has begun anew.",
        ("broker", "neighbour"),
        Level.WARNING,
    )

    neighbour: str


SessionNotice = SessionOpened | SessionResumed | SessionDetached | SessionEnded
TreeNotice = TopologyChanged | PlaceGone | TopologyContested | TreeLinkUp | TreeLinkDown
BrokerNotice = SessionNotice | Unfrozen | PushedAside | TreeNotice | NodeNotice
