"""What a manager tells the store here to keep.

    STORE_ASSIGN --sound, not older--> RememberAssignment --on disk--> kept from now on, answered
                 `-------------------- refused, with the reason      `-- not on disk: refused

An assignment says all that is to be kept, so it may come twice. A broker obeys no manager with a
lower fencing number than it has obeyed, and no assignment older than the one that it has. What is
answered outlives the process: its settings say what a store keeps until a manager has said so.
"""

from __future__ import annotations

from typing import Protocol

from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.effects import RememberAssignment, ReplyToManager
from broker_agent.core.stores.store_options import StoreAssignment
from dynatops.kit.filters import FilterError, check_pattern
from dynatops.v1.manager_pb2 import (
    STEP_PROBLEM_CANNOT_KEEP,
    STEP_PROBLEM_STALE,
    STEP_PROBLEM_UNSPECIFIED,
    Step,
    StepProblem,
    StepReply,
)


class Keeper(Protocol):
    """The store that is told."""

    def assign(self, patterns: tuple[str, ...], now_s: float) -> None:
        """Keep these, and nothing else."""


class StoreAssigning:
    def __init__(
        self,
        context: BrokerContext,
        keeper: Keeper | None,
        capacity: int,
        assigned: StoreAssignment | None,
    ) -> None:
        """Without a keeper, or a capacity, everything is refused. `assigned`: what was on disk."""
        self._outbox = context.outbox
        self._keeper = keeper
        self.capacity = capacity
        self._assigned = assigned or StoreAssignment()
        # Obeyed, as of the last life of this broker or since.
        self._fence = self._assigned.fence
        # On its way to the disk.
        self._step: Step | None = None
        # Raised whenever the fence has changed.
        self.version = 0

    @property
    def fence(self) -> int:
        return self._fence

    @property
    def epoch(self) -> int:
        """Of what is kept; 0 while that is what the settings say."""
        return self._assigned.epoch

    def on_step(self, step: Step, fence: int, now_s: float) -> None:
        """`fence`: the highest number that this broker has obeyed in anything else."""
        obeyed = max(fence, self._fence)
        if step.fence < obeyed:
            problem = f"a manager with fencing number {obeyed} has been obeyed"
            self._reply(step, STEP_PROBLEM_STALE, problem, obeyed)
            return
        if step.fence > self._fence:
            self._fence = step.fence
            self.version += 1
        newest = max(self.epoch, self._step.epoch if self._step is not None else 0)
        if step.epoch < newest:
            self._reply(step, STEP_PROBLEM_STALE, f"assignment {newest} is newer")
            return
        if problem := self._why_not(step):
            self._reply(step, STEP_PROBLEM_CANNOT_KEEP, problem)
            return
        patterns = tuple(dict.fromkeys(step.keep))
        if (step.epoch, patterns) == (self.epoch, self._assigned.patterns):
            self._reply(step)
            return
        self._step = Step()
        self._step.CopyFrom(step)
        self._outbox.do(RememberAssignment(StoreAssignment(patterns, step.epoch, step.fence)))

    def _why_not(self, step: Step) -> str:
        if self._keeper is None or not self.capacity:
            return "this broker is no store that a manager may assign topics to: set store.capacity"
        if step.epoch == 0:
            return "an assignment has an epoch above 0"
        if len(step.keep) > self.capacity:
            return f"{len(step.keep)} topics are more than its capacity, {self.capacity}"
        try:
            for pattern in step.keep:
                check_pattern(pattern)
        except FilterError as error:
            return str(error)
        return ""

    def remembered(self, epoch: int, problem: str, now_s: float) -> None:
        """An assignment of this epoch is on disk; or it is not, and why."""
        step = self._step
        if step is None or step.epoch != epoch or self._keeper is None:
            # Another one has taken its place meanwhile.
            return
        self._step = None
        if problem:
            self._reply(step, STEP_PROBLEM_CANNOT_KEEP, problem)
            return
        patterns = tuple(dict.fromkeys(step.keep))
        self._assigned = StoreAssignment(patterns, step.epoch, step.fence)
        self._keeper.assign(patterns, now_s)
        self._reply(step)

    def _reply(
        self,
        step: Step,
        problem: StepProblem.ValueType = STEP_PROBLEM_UNSPECIFIED,
        message: str = "",
        obeyed: int = 0,
    ) -> None:
        self._outbox.do(
            ReplyToManager(
                StepReply(
                    fence=obeyed or step.fence,
                    plan=step.plan,
                    epoch=step.epoch,
                    kind=step.kind,
                    problem=problem,
                    message=message,
                )
            )
        )
