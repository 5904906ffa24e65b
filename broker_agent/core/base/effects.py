"""What the broker's core wants done: the output side of its state machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from broker_agent.core.base.notices import BrokerNotice
from dynatops.v1.manager_pb2 import StepReply
from dynatops.v1.overlay_pb2 import PeerFrame

if TYPE_CHECKING:
    from broker_agent.core.stores.store_options import StoreAssignment
    from broker_agent.core.stores.store_reader import ReadOrder

# A client's connection, as its driver calls it. A session may outlive several.
ConnectionId = NewType("ConnectionId", str)


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Give this frame to the link with that broker. It may be lost."""

    address: str
    frame: PeerFrame


@dataclass(frozen=True, slots=True)
class Wake:
    """There is output to be taken by this connection."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Take no more input from this connection for now."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class ResumeReading:
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """End the connection once its output is taken."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Somebody waits until sessions are on disk: do not wait for the next flush."""


@dataclass(frozen=True, slots=True)
class StoreNow:
    """There are events for the log of the store here: take them once the disk is ready."""


@dataclass(frozen=True, slots=True)
class ReadPast:
    """Read this from the log of the store here; `Broker.past_read` is to be told of it."""

    order: ReadOrder


@dataclass(frozen=True, slots=True)
class RememberAssignment:
    """Have on disk what a manager told the store here to keep, in place of what was there;
    `Broker.assignment_remembered` is to be told of it."""

    assignment: StoreAssignment


@dataclass(frozen=True, slots=True)
class NodeReady:
    """The broker takes part: others know it, and events reach it."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The broker has left the others; the process may end."""


@dataclass(frozen=True, slots=True)
class ReplyToManager:
    """Give this to the manager, if there still is one to give it to."""

    reply: StepReply


ConnectionEffect = Wake | PauseReading | ResumeReading | CloseConnection
BrokerEffect = (
    SendFrame
    | ConnectionEffect
    | SaveNow
    | StoreNow
    | ReadPast
    | RememberAssignment
    | NodeReady
    | Stopped
    | ReplyToManager
    | BrokerNotice
)
