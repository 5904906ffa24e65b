"""What a broker remembers of a plan that it takes part in."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_agent.core.hosting.transfer import Transfer
from dynatops.v1.manager_pb2 import Step
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.identifiers import NodeId


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
    restored: bool = False
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
