"""A broker's part in a plan: its states, and what it remembers meanwhile.

`PART_STATES` has every arrow, with what leads along it; docs/images/part.svg is drawn from it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from broker_agent.core.routing.rendezvous.hosting.transfer import Transfer
from dynatops.v1.manager_pb2 import Step
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.base.identifiers import NodeId


class PartState(enum.StrEnum):
    IDLE = "IDLE"
    # Clients are held back.
    FROZEN = "FROZEN"
    # And its node is sealed, on its way to its next host.
    GIVING = "GIVING"
    # And the placement is in use here.
    RESTORED = "RESTORED"
    # It gave its node away, and goes on with it all the same, as nobody said how the plan ended.
    UNSURE = "UNSURE"


# What may follow each state, and what leads there.
PART_STATES: Mapping[PartState, Mapping[PartState, str]] = MappingProxyType(
    {
        PartState.IDLE: {PartState.FROZEN: "INIT"},
        PartState.FROZEN: {
            PartState.GIVING: "DHT_UPDATE",
            PartState.RESTORED: "TREE_RESTORE",
            PartState.IDLE: "ROLL_BACK, or patience is over",
        },
        PartState.GIVING: {
            PartState.RESTORED: "TREE_RESTORE, or a broker says so",
            PartState.IDLE: "ROLL_BACK, or a broker says so",
            PartState.UNSURE: "patience is over",
        },
        PartState.RESTORED: {PartState.IDLE: "FINISH, or patience is over"},
        PartState.UNSURE: {
            PartState.IDLE: "word of how it ended",
            PartState.FROZEN: "INIT of another plan",
        },
    }
)


class IllegalPartError(Exception):
    """A bug: this cannot follow."""

    def __init__(self, state: PartState, following: PartState) -> None:
        super().__init__(f"a broker's part in a plan was {state}; {following} cannot follow")


@dataclass(slots=True)
class ReconfigurationPart:
    """This broker's part in one plan."""

    plan: str
    epoch: int
    moved: list[NodeRef]
    since_s: float
    frozen_max_s: float
    transfer: Transfer
    # How things stood when the plan froze this broker.
    epoch_before: int
    node_before: NodeId
    # The step that is to be answered once it is done.
    open: Step | None = None
    open_since_s: float = 0.0
    # Tree control messages that this broker had sent when it was restored: what follows is repair.
    control_before: int = 0
    ask_due_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Thawed:
    """What is answered to whoever ends the plan, however often."""

    plan: str = ""
    frozen_s: float = 0.0
    repair_messages: int = 0


@dataclass(slots=True)
class Ended:
    """A plan that ended here without word of how: should it turn out to be committed, this is how
    to follow."""

    epoch: int
    moved: list[NodeRef]
    transfer: Transfer = field(repr=False)
