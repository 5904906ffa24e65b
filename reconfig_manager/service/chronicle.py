"""What a manager does, noted as it happens: a line in the log for each operation, and figures of
plans that nothing else keeps. The core notes nothing; this looks at its effects.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict

from dynatops.kit.observing.log_operations import (
    BROKER_GONE,
    BROKER_REGISTERED,
    COMMAND,
    PLAN_CHANGED,
    POLICY_CHANGED,
)
from dynatops.kit.observing.metrics import Histogram
from dynatops.v1.manager_pb2 import RCFG_FINISH, RCFG_ROLL_BACK, StepReply
from reconfig_manager.execution.tally import FROZEN_MAX_S
from reconfig_manager.model.plan import Phase, Plan, PlanState
from reconfig_manager.ports import Audit, AuditEntry, ManagerEffect, Record, Tell

log = logging.getLogger(__name__)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PLANS_MAX = 1_000


def tell_command(me: str, entry: AuditEntry) -> None:
    COMMAND.log(
        log,
        manager=me,
        actor=entry.actor,
        role=entry.role or None,
        action=entry.action,
        subject=entry.subject,
        reason=entry.reason or None,
        outcome=entry.outcome,
        detail=entry.detail or None,
    )


class Chronicle:
    def __init__(self) -> None:
        # This manager's id, once it is known.
        self.me = ""
        self.ended: Counter[str] = Counter()
        self.brokers_moved = 0
        self.messages = 0
        self.phase_s = {phase: Histogram(_SECONDS) for phase in Phase}
        # Of brokers, as each says when it thaws.
        self.pause_s = Histogram(_SECONDS)
        # Of the plan measured last: measured by predicted. None before the first.
        self.benefit_ratio: float | None = None
        self.messages_ratio: float | None = None
        self._plans: OrderedDict[str, Plan] = OrderedDict()

    def note(self, effect: ManagerEffect) -> None:
        match effect:
            case Record(plan=Plan() as plan):
                self._note_plan(plan)
            case Audit(entry=entry):
                tell_command(self.me, entry)
            case Tell(event=event):
                self._note_event(event)

    def note_reply(self, reply: StepReply) -> None:
        if reply.kind in (RCFG_FINISH, RCFG_ROLL_BACK) and 0 < reply.frozen_s <= FROZEN_MAX_S:
            self.pause_s.observe(reply.frozen_s)

    def _note_event(self, event: dict[str, object]) -> None:
        match event.get("type"):
            case "broker":
                gone = event.get("state") == "gone"
                operation = BROKER_GONE if gone else BROKER_REGISTERED
                operation.log(log, manager=self.me, broker=event.get("broker"))
            case "policy":
                policy = event.get("policy")
                mode = policy.get("mode") if isinstance(policy, dict) else None
                POLICY_CHANGED.log(log, manager=self.me, version=event.get("version"), mode=mode)

    # ---- plans ----------------------------------------------------------------------------------

    def _note_plan(self, plan: Plan) -> None:
        before = self._plans.get(plan.id)
        if before is not None and before.version >= plan.version:
            # Written again, because the store did not answer.
            return
        self._plans[plan.id] = plan
        if len(self._plans) > _PLANS_MAX:
            self._plans.popitem(last=False)
        measured = plan.measurement
        if measured is not None and (before is None or before.measurement is None):
            self.benefit_ratio = measured.benefit_ratio
            self.messages_ratio = measured.messages_ratio
        if before is not None and (before.state, before.phase) == (plan.state, plan.phase):
            return
        seconds = None
        if before is not None:
            seconds = max(plan.changed_s - before.changed_s, 0.0)
            if before.phase is not None and before.state is PlanState.EXECUTING:
                self.phase_s[before.phase].observe(seconds)
        if plan.state.over:
            self._count(plan)
        self._tell(plan, seconds)

    def _count(self, plan: Plan) -> None:
        self.ended[plan.state] += 1
        if plan.execution is not None:
            self.messages += plan.execution.messages_total
            if plan.state is PlanState.COMMITTED:
                self.brokers_moved += len(plan.execution.moved)

    def _tell(self, plan: Plan, seconds: float | None) -> None:
        found, execution = plan.prediction, plan.execution
        ended = execution is not None and plan.state.over
        PLAN_CHANGED.log(
            log,
            manager=self.me,
            plan=plan.id,
            state=str(plan.state),
            phase=str(plan.phase) if plan.phase else None,
            reason=plan.note,
            moves=len(plan.moves),
            benefit=found.benefit if found else None,
            moving_cost=found.moving_cost if found else None,
            epoch=execution.epoch if execution else None,
            seconds=round(seconds, 3) if seconds is not None else None,
            messages=execution.messages_total if execution and ended else None,
            paused_max_s=round(execution.paused.max_s, 3) if execution and ended else None,
        )
