"""What happened under a manager: for the event stream, the log and metrics.

A notice is among the effects of the core, once for each thing that happened, and says all of it:
nothing that reads it needs to remember, or to compare with, what there was before. `event_of` is
the one place where a notice becomes what `GET /v1/events` carries. One with an `operation` is
logged as that, field by field; of the others `service/observing/operation_log.py` says whether, and
how.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, ClassVar

from dynatops.kit.observing.log_lines import Operation
from reconfig_manager.model.plan import Phase, Plan, PlanState
from reconfig_manager.model.policy import Mode, VersionedPolicy


@dataclass(frozen=True, slots=True)
class LeadershipTaken:
    manager: str
    fence: int
    at_s: float


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    manager: str
    at_s: float


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """One that was not here, or was another process."""

    operation: ClassVar[Operation] = Operation(
        "broker_registered", "A broker has registered with the manager.", ("manager", "broker")
    )

    broker: str
    at_s: float


@dataclass(frozen=True, slots=True)
class BrokerGone:
    operation: ClassVar[Operation] = Operation(
        "broker_gone",
        "A broker has been away for so long that it counts no more.",
        ("manager", "broker"),
    )

    broker: str
    at_s: float


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    operation: ClassVar[Operation] = Operation(
        "policy_changed", "Another policy is in force.", ("manager", "version", "mode")
    )

    policy: VersionedPolicy
    at_s: float

    @property
    def version(self) -> int:
        return self.policy.version

    @property
    def mode(self) -> Mode:
        return self.policy.policy.mode


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """A plan was made, or something in it is different: its state, its phase, or what is known."""

    plan: Plan
    # As it was, also under another leader; None for a new one.
    former: Plan | None = None

    @property
    def is_entered(self) -> bool:
        """It is in another state or phase than before, or, under a new leader, in one once more."""
        return self.former is None or _stage(self.former) != _stage(self.plan)

    @property
    def former_s(self) -> float | None:
        """For how long it was as it was before."""
        if self.former is None:
            return None
        return max(self.plan.changed_s - self.former.changed_s, 0.0)

    @property
    def left_phase(self) -> Phase | None:
        """The phase of its execution that is over."""
        former = self.former
        if former is None or former.state is not PlanState.EXECUTING or not self.is_entered:
            return None
        return former.phase

    @property
    def is_ended(self) -> bool:
        return self.is_entered and self.plan.state.over

    @property
    def is_measured(self) -> bool:
        """What it gained is known from now on."""
        measured_before = self.former is not None and self.former.measurement is not None
        return self.plan.measurement is not None and not measured_before


def _stage(plan: Plan) -> tuple[PlanState, int]:
    execution = plan.execution if plan.stores is None else plan.stores.execution
    return plan.state, len(execution.journal) if execution is not None else 0


class CheckOutcome(enum.StrEnum):
    TOO_THIN = "too_thin"
    COST_BELOW_THRESHOLD = "cost_below_threshold"
    SOLVING = "solving"
    UNSOLVED = "unsolved"
    NOT_WORTH_IT = "not_worth_it"
    # Good, and to be so for some more periods.
    WAITING = "waiting"
    OUTSIDE_WINDOWS = "outside_windows"
    FOUND = "found"


@dataclass(frozen=True, slots=True)
class ProcessChecked:
    """How far Algorithm 3 came this time."""

    at_s: float
    outcome: CheckOutcome
    explanation: str
    # Periods in a row in which a placement was worth it.
    streak: int = 0


Notice = (
    LeadershipTaken
    | LeadershipLost
    | BrokerRegistered
    | BrokerGone
    | PolicyChanged
    | PlanChanged
    | ProcessChecked
)


def event_of(notice: Notice) -> dict[str, Any]:
    """`type` and what belongs to it, as JSON has it."""
    match notice:
        case LeadershipTaken(manager, fence, at_s):
            return {"type": "leader", "manager": manager, "fence": fence, "at_s": at_s}
        case LeadershipLost(manager, at_s):
            return {"type": "deposed", "manager": manager, "at_s": at_s}
        case BrokerRegistered(broker, at_s):
            return {"type": "broker", "broker": broker, "state": "registered", "at_s": at_s}
        case BrokerGone(broker, at_s):
            return {"type": "broker", "broker": broker, "state": "gone", "at_s": at_s}
        case PolicyChanged(policy, at_s):
            return {"type": "policy", **policy.model_dump(mode="json"), "at_s": at_s}
        case ProcessChecked(at_s, outcome, explanation, streak):
            return {
                "type": "check",
                "at_s": at_s,
                "outcome": str(outcome),
                "explanation": explanation,
                "streak": streak,
            }
        case PlanChanged(plan):
            return _plan_event(plan)


def _plan_event(plan: Plan) -> dict[str, Any]:
    event: dict[str, Any] = {
        "type": "plan",
        "plan": plan.id,
        "version": plan.version,
        "state": str(plan.state),
        "phase": plan.phase_name or None,
        "note": plan.note,
        "moves": plan.moves_count,
        "at_s": plan.changed_s,
    }
    if plan.stores is not None:
        event["kind"] = str(plan.kind)
        if plan.stores.prediction is not None:
            event["benefit"] = plan.stores.prediction.benefit
            event["moving_cost"] = plan.stores.prediction.transfer
    if plan.prediction is not None:
        event["benefit"] = plan.prediction.benefit
        event["moving_cost"] = plan.prediction.moving_cost
    if plan.measurement is not None:
        event["measured_benefit"] = plan.measurement.measured_benefit
        event["flags"] = list(plan.flags)
    return event
