"""What a manager may plan for a broker in a tree: nothing. Its place is the topology's."""

from __future__ import annotations

from broker_agent.core.base.effects import ReplyToManager
from broker_agent.core.routing.forwarding.forwarding_context import ForwardingContext
from dynatops.v1.manager_pb2 import STEP_PROBLEM_NOT_HOST, Registration, Step, StepReply

_NOT_MOVED = (
    "this broker forwards events in a tree, where brokers are not moved: change the topology with "
    "`dynatops topology apply`"
)


class TreePlans:
    is_frozen = False
    epoch = 0
    fence = 0
    version = 0

    def __init__(self, context: ForwardingContext) -> None:
        self._me = context.forwarder.me
        self._outbox = context.outbox

    def registration(self) -> Registration:
        return Registration(node=self._me.ref)

    def on_step(self, step: Step, now_s: float) -> None:
        reply = StepReply(
            fence=step.fence,
            plan=step.plan,
            epoch=step.epoch,
            kind=step.kind,
            problem=STEP_PROBLEM_NOT_HOST,
            message=_NOT_MOVED,
        )
        self._outbox.do(ReplyToManager(reply))

    def tick(self, now_s: float) -> None:
        """Nothing is ever under way."""

    def progress(self, now_s: float) -> None:
        """It is never frozen."""
