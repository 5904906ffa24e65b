"""What those who watch a broker should hear of, as data.

A notice is an effect that changes nothing: drivers log it, or pass it over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from overlay.base.effects import Notice as NodeNotice
from overlay.base.identifiers import NodeId
from overlay.base.peers import Peer


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A client has a connection to a session."""

    client_id: str
    # As it is shown: without what nobody can guess.
    session_id: str
    filters: int
    # Whether the session was there.
    is_resumed: bool


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A client's connection is gone, or its session is, or both."""

    client_id: str
    session_id: str
    filters: int
    # Whether the session is over, too; if not, it waits for its client.
    is_over: bool
    # How long the connection lasted; None if there was none.
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

    plan: str
    outcome: PlanOutcome
    epoch: int
    frozen_s: float
    node: NodeId
    node_before: NodeId


@dataclass(frozen=True, slots=True)
class PushedAside:
    """A broker of the same name counts as newer: another one, or a former life of this one in which
    the clock was ahead of where it is now. This one goes on at another place of the ring."""

    by: Peer


BrokerNotice = SessionOpened | SessionClosed | Unfrozen | PushedAside | NodeNotice
