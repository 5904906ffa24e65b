"""What managers manage, in miniature: brokers that keep the protocol's promises.

Brokers here have no ring and no trees; they do what `manager.proto` and the phase table say. What a
correct manager must not do to them raises `BrokenProtocolError` at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dynatops.v1.manager_pb2 import (
    RCFG_DHT_UPDATE,
    RCFG_FINISH,
    RCFG_INIT,
    RCFG_ROLL_BACK,
    RCFG_TREE_REPAIR,
    RCFG_TREE_RESTORE,
    STEP_PROBLEM_CANNOT_KEEP,
    STEP_PROBLEM_IN_USE,
    STEP_PROBLEM_NOT_FROZEN,
    STEP_PROBLEM_STALE,
    STEP_PROBLEM_UNSPECIFIED,
    STORE_ASSIGN,
    KeptUnit,
    Registration,
    Step,
    StepProblem,
    StepReply,
    StoreReport,
)
from dynatops.v1.overlay_pb2 import NodeRef
from reconfig_manager.ports import AgentId

# Of a broker that moves: a part of its node's state, and a confirmation.
STATE_MESSAGES = 2
# Of every broker: trees that lead through it change because others move.
REPAIR_MESSAGES = 3
FROZEN_S = 0.2


class BrokenProtocolError(Exception):
    """The manager did something that loses events."""


@dataclass
class FakeBroker:
    broker_id: str
    node_id: int
    incarnation: int = 1
    epoch: int = 0
    fence: int = 0
    frozen_by: str = ""
    frozen_at_s: float = 0.0
    frozen_max_s: float = 0.0
    repaired: bool = True
    alive: bool = True
    streams: int = 0
    # The plan that it was thawed from last, and those it was told to roll back.
    thawed_from: str = ""
    rolled_back: set[str] = field(default_factory=set)
    # Steps as they came, by kind.
    seen: list[int] = field(default_factory=list)
    # As a store: what it may keep, does keep, and what of it is not caught up with.
    capacity: int = 0
    keeps: tuple[str, ...] = ()
    store_epoch: int = 0
    behind: set[str] = field(default_factory=set)
    # What it answers instead to steps of a kind, without obeying.
    answers: dict[int, StepReply] = field(default_factory=dict)

    @property
    def agent(self) -> AgentId:
        return AgentId(self.broker_id, self.incarnation, self.streams)

    def registration(self) -> Registration:
        node = NodeRef(
            node_id=self.node_id,
            broker_id=self.broker_id,
            address=f"{self.broker_id}:1",
            epoch=self.epoch,
            incarnation=self.incarnation,
        )
        return Registration(node=node, epoch=self.epoch, fence=self.fence, frozen_by=self.frozen_by)

    def obey(self, step: Step, now_s: float) -> StepReply:
        self.seen.append(step.kind)
        if step.kind in self.answers:
            reply = StepReply(fence=step.fence, plan=step.plan, epoch=step.epoch, kind=step.kind)
            reply.MergeFrom(self.answers[step.kind])
            return reply
        problem = self._obey(step, now_s)
        ends = step.kind in (RCFG_FINISH, RCFG_ROLL_BACK)
        return StepReply(
            fence=step.fence,
            plan=step.plan,
            epoch=step.epoch,
            kind=step.kind,
            problem=problem,
            messages=STATE_MESSAGES if step.kind == RCFG_DHT_UPDATE and not problem else 0,
            frozen_s=FROZEN_S if ends and self.thawed_from == step.plan else 0.0,
            repair_messages=(
                REPAIR_MESSAGES if step.kind == RCFG_FINISH and self.thawed_from == step.plan else 0
            ),
        )

    def _obey(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.fence < self.fence:
            return STEP_PROBLEM_STALE
        self.fence = step.fence
        return {
            RCFG_INIT: self._init,
            RCFG_DHT_UPDATE: self._update,
            RCFG_TREE_RESTORE: self._restore,
            RCFG_TREE_REPAIR: self._repair,
            RCFG_FINISH: self._finish,
            RCFG_ROLL_BACK: self._roll_back,
            STORE_ASSIGN: self._assign,
        }[step.kind](step, now_s)

    def _init(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch <= self.epoch or step.plan in self.rolled_back:
            return STEP_PROBLEM_STALE
        if self.frozen_by != step.plan:
            self.frozen_by, self.frozen_at_s = step.plan, now_s
            self.frozen_max_s = step.frozen_max_s
        return STEP_PROBLEM_UNSPECIFIED

    def _update(self, step: Step, now_s: float) -> StepProblem.ValueType:
        return STEP_PROBLEM_UNSPECIFIED if self._is_frozen_by(step) else STEP_PROBLEM_NOT_FROZEN

    def _restore(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch > self.epoch:
            self.epoch = step.epoch
            for ref in step.moved:
                if ref.broker_id == self.broker_id and ref.incarnation == self.incarnation:
                    # Thawed already, it mends its trees by itself.
                    self.node_id, self.repaired = ref.node_id, not self.frozen_by
        return STEP_PROBLEM_UNSPECIFIED

    def _repair(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch != self.epoch:
            raise BrokenProtocolError(f"{self.broker_id} is to repair what it has not restored")
        self.repaired = True
        return STEP_PROBLEM_UNSPECIFIED

    def _finish(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch != self.epoch:
            raise BrokenProtocolError(f"{self.broker_id} is to finish what it has not restored")
        self._thaw(step)
        return STEP_PROBLEM_UNSPECIFIED

    def _roll_back(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch == self.epoch:
            return STEP_PROBLEM_IN_USE
        self.rolled_back.add(step.plan)
        self._thaw(step)
        return STEP_PROBLEM_UNSPECIFIED

    def _assign(self, step: Step, now_s: float) -> StepProblem.ValueType:
        if step.epoch < self.store_epoch:
            return STEP_PROBLEM_STALE
        if len(step.keep) > self.capacity:
            return STEP_PROBLEM_CANNOT_KEEP
        self.store_epoch, self.keeps = step.epoch, tuple(step.keep)
        return STEP_PROBLEM_UNSPECIFIED

    def store_report(self) -> StoreReport | None:
        if not (self.capacity or self.keeps):
            return None
        return StoreReport(
            capacity=self.capacity,
            epoch=self.store_epoch,
            keeps=[
                KeptUnit(pattern=each, ready=each not in self.behind, events=100)
                for each in self.keeps
            ],
        )

    def _is_frozen_by(self, step: Step) -> bool:
        return self.frozen_by == step.plan

    def _thaw(self, step: Step) -> None:
        if self._is_frozen_by(step):
            self.frozen_by, self.thawed_from = "", step.plan

    def thaw_if_late(self, now_s: float) -> None:
        if self.frozen_by and now_s >= self.frozen_at_s + self.frozen_max_s:
            self.thawed_from, self.frozen_by, self.repaired = self.frozen_by, "", True
