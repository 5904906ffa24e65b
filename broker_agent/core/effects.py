"""What the broker's core wants done: the output side of its state machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from dynatops.v1.overlay_pb2 import PeerFrame

SessionId = NewType("SessionId", str)


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Give this frame to the link with that broker. It may be lost."""

    address: str
    frame: PeerFrame


@dataclass(frozen=True, slots=True)
class Wake:
    """The session has output to be taken."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Take no more input from this session for now."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class ResumeReading:
    session: SessionId


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End the session once its output is taken."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class NodeReady:
    """The broker's node is a full member of the ring."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The broker has left the ring; the process may end."""


SessionEffect = Wake | PauseReading | ResumeReading | CloseSession
BrokerEffect = SendFrame | SessionEffect | NodeReady | Stopped
