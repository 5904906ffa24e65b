"""Metrics of plans that ran under this manager, counted from notices as they happen."""

from __future__ import annotations

from collections import Counter

from dynatops.kit.observing.metrics import Histogram
from dynatops.v1.manager_pb2 import RCFG_FINISH, RCFG_ROLL_BACK, StepReply
from reconfig_manager.execution.tally import FROZEN_MAX_S
from reconfig_manager.model.notices import Notice, PlanChanged
from reconfig_manager.model.plan import Phase, Plan, PlanState

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class PlanMetrics:
    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.brokers_moved = 0
        self.messages = 0
        self.phase_s = {phase: Histogram(_SECONDS) for phase in Phase}
        # Of brokers, as each says when it thaws.
        self.pause_s = Histogram(_SECONDS)
        # Of the plan measured last: measured by predicted. None before the first.
        self.benefit_ratio: float | None = None
        self.messages_ratio: float | None = None

    def count_notice(self, notice: Notice) -> None:
        if not isinstance(notice, PlanChanged):
            return
        measured = notice.plan.measurement
        if measured is not None and notice.is_measured:
            self.benefit_ratio = measured.benefit_ratio
            self.messages_ratio = measured.messages_ratio
        if notice.left_phase is not None and notice.former_s is not None:
            self.phase_s[notice.left_phase].observe(notice.former_s)
        if notice.is_ended:
            self._count_ended(notice.plan)

    def _count_ended(self, plan: Plan) -> None:
        self.ended[plan.state] += 1
        if plan.execution is not None:
            self.messages += plan.execution.messages_total
            if plan.state is PlanState.COMMITTED:
                self.brokers_moved += len(plan.execution.moved)

    def count_pause(self, reply: StepReply) -> None:
        if reply.kind in (RCFG_FINISH, RCFG_ROLL_BACK) and 0 < reply.frozen_s <= FROZEN_MAX_S:
            self.pause_s.observe(reply.frozen_s)
