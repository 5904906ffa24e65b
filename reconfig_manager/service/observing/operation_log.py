"""The operation log of a manager: a line for each command, plan, broker and policy that changed.

What happened is said by the core, in notices and audit entries; nothing is worked out here.
"""

from __future__ import annotations

import logging
from typing import get_args

from dynatops.kit.observing import log_lines
from dynatops.kit.observing.log_operations import COMMAND, MANAGER_OPERATIONS, PLAN_CHANGED
from reconfig_manager.model.notices import (
    LeadershipLost,
    LeadershipTaken,
    Notice,
    PlanChanged,
    ProcessChecked,
)
from reconfig_manager.ports import AuditEntry

# Of a manager, in all.
OPERATIONS = MANAGER_OPERATIONS.with_notices(get_args(Notice))

log = logging.getLogger(__name__)


def log_command(manager: str, entry: AuditEntry) -> None:
    COMMAND.log(
        log,
        manager=manager,
        actor=entry.actor,
        role=entry.role or None,
        action=entry.action,
        subject=entry.subject,
        reason=entry.reason or None,
        outcome=entry.outcome,
        detail=entry.detail or None,
    )


def log_notice(manager: str, notice: Notice) -> None:
    """Leaderships are logged where they are won and lost (`store/leadership.py`), checks nowhere:
    the last one is a metric."""
    match notice:
        case LeadershipTaken() | LeadershipLost() | ProcessChecked():
            pass
        case PlanChanged():
            if notice.is_entered:
                _log_plan(manager, notice)
        case _:
            log_lines.log_notice(log, notice, manager=manager)


def _log_plan(manager: str, notice: PlanChanged) -> None:
    plan, seconds = notice.plan, notice.former_s
    found, execution = plan.prediction, plan.execution
    ended = execution is not None and plan.state.over
    PLAN_CHANGED.log(
        log,
        manager=manager,
        plan=plan.id,
        state=str(plan.state),
        phase=plan.phase_name or None,
        reason=plan.note,
        moves=plan.moves_count,
        benefit=found.benefit if found else None,
        moving_cost=found.moving_cost if found else None,
        epoch=execution.epoch if execution else None,
        seconds=round(seconds, 3) if seconds is not None else None,
        messages=execution.messages_total if execution and ended else None,
        paused_max_s=round(execution.paused.max_s, 3) if execution and ended else None,
    )
