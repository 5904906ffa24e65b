"""What a broker remembers of a plan that it takes part in."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_agent.core.transfer import Transfer
from dynatops.v1.manager_pb2 import Step
from dynatops.v1.overlay_pb2 import NodeRef


@dataclass(slots=True)
class Part:
    """This broker's part in one plan."""

    plan: str
    epoch: int
    moved: list[NodeRef]
    since_s: float
    frozen_max_s: float
    transfer: Transfer
    # Tree control messages sent by this node before.
    control_before: int
    # The step that is to be answered once it is done.
    open: Step | None = None
    open_since_s: float = 0.0
    restored: bool = False
    ask_due_s: float = 0.0


@dataclass(slots=True)
class Ended:
    """A plan that ended here without word of how: should it turn out to be committed, this is how
    to follow."""

    epoch: int
    moved: list[NodeRef]
    transfer: Transfer = field(repr=False)
