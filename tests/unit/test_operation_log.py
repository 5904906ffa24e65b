"""What a manager logs and counts of what happened: plans, phases with their length, commands."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dynatops.v1.manager_pb2 import RCFG_FINISH, RCFG_INIT, StepReply
from reconfig_manager.model.notices import (
    BrokerGone,
    BrokerRegistered,
    CheckOutcome,
    PlanChanged,
    PolicyChanged,
    ProcessChecked,
)
from reconfig_manager.model.plan import (
    CostRate,
    Execution,
    Measurement,
    Paused,
    Phase,
    PlacedNode,
    Plan,
    PlanState,
    StepMessages,
)
from reconfig_manager.model.policy import Mode, Policy, VersionedPolicy
from reconfig_manager.ports import AuditEntry
from reconfig_manager.service.observing.operation_log import log_command, log_notice
from reconfig_manager.service.observing.plan_metrics import PlanMetrics
from tests.support.manager_store import plan


def changed(metrics: PlanMetrics, *plans: Plan, former: Plan | None = None) -> None:
    for each in plans:
        notice = PlanChanged(each, former)
        metrics.count_notice(notice)
        log_notice("m1", notice)
        former = each


def executing(plan_id: str = "p1", **values: Any) -> Plan:
    execution = Execution(epoch=3, fence=1, manager="m1", started_s=1.0)
    return plan(plan_id, state=PlanState.EXECUTING, execution=execution, **values)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        {"operation": record.dynatops_operation, **record.dynatops_values}  # type: ignore[attr-defined]
        for record in caplog.records
    ]


@pytest.fixture
def metrics(caplog: pytest.LogCaptureFixture) -> PlanMetrics:
    caplog.set_level(logging.INFO)
    return PlanMetrics()


class TestPlans:
    def test_phases_and_their_length(
        self, metrics: PlanMetrics, caplog: pytest.LogCaptureFixture
    ) -> None:
        freezing = executing(version=3, phase=Phase.FREEZING, changed_s=10.0)
        moving = freezing.entered(Phase.MOVING, 10.2, 1, "m1")
        changed(metrics, freezing, moving)
        assert metrics.phase_s[Phase.FREEZING].count == 1
        assert metrics.phase_s[Phase.FREEZING].sum == pytest.approx(0.2)
        assert metrics.phase_s[Phase.MOVING].count == 0
        told = lines(caplog)
        assert [line["phase"] for line in told] == ["FREEZING", "MOVING"]
        assert "seconds" not in told[0]
        assert told[1]["seconds"] == 0.2
        assert {line["plan"] for line in told} == {"p1"}

    def test_an_end(self, metrics: PlanMetrics, caplog: pytest.LogCaptureFixture) -> None:
        before = executing(phase=Phase.FINISHING)
        assert before.execution is not None
        execution = before.execution.model_copy(
            update={
                "moved": (PlacedNode(node="a", broker_id="b1"),) * 2,
                "messages": {"RCFG_INIT": StepMessages(manager=4, brokers=3)},
                "paused": Paused(brokers=2, max_s=0.25),
            }
        )
        done = before.became(PlanState.COMMITTED, 11.0, "2 brokers moved", execution=execution)
        changed(metrics, before, done)
        assert metrics.ended == {"COMMITTED": 1}
        assert (metrics.brokers_moved, metrics.messages) == (2, 7)
        last = lines(caplog)[-1]
        assert (last["state"], last["paused_max_s"], last["messages"]) == ("COMMITTED", 0.25, 7)
        assert last["reason"] == "2 brokers moved"

    def test_one_that_is_rolled_back_moves_nobody(self, metrics: PlanMetrics) -> None:
        before = executing(phase=Phase.ROLLING_BACK)
        changed(metrics, before, before.became(PlanState.ROLLED_BACK, 11.0, "b1 is gone"))
        assert metrics.ended == {"ROLLED_BACK": 1}
        assert metrics.brokers_moved == 0

    def test_what_was_measured(
        self, metrics: PlanMetrics, caplog: pytest.LogCaptureFixture
    ) -> None:
        rate = CostRate(events=1, seconds=1, relays_per_event=1, hops_per_event=1, cost_per_event=1)
        done = plan(state=PlanState.COMMITTED)
        measured = done.changed(
            20.0,
            measurement=Measurement(
                before=rate, after=rate, predicted_benefit=10, measured_benefit=9,
                benefit_ratio=0.9, predicted_messages=10, measured_messages=5,
                messages_ratio=0.5, at_s=20.0,
            ),
        )  # fmt: skip
        changed(metrics, done)
        before = metrics.benefit_ratio
        assert before is None
        changed(metrics, measured, former=done)
        assert [metrics.benefit_ratio, metrics.messages_ratio] == [0.9, 0.5]
        assert len(caplog.records) == 1

    def test_what_another_leader_left(
        self, metrics: PlanMetrics, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It goes on in the phase that it found: that is told, and lasted as long as it did."""
        found = executing(phase=Phase.MOVING, changed_s=10.0).entered(
            Phase.RESTORING, 10.5, 1, "m1"
        )
        again = found.entered(Phase.RESTORING, 12.5, 2, "m2")
        changed(metrics, again, former=found)
        assert [(line["phase"], line["seconds"]) for line in lines(caplog)] == [("RESTORING", 2.0)]
        assert metrics.phase_s[Phase.RESTORING].sum == pytest.approx(2.0)
        # Ended under that leader, measured under this one: it has not ended twice.
        done = plan(state=PlanState.COMMITTED)
        changed(metrics, done.changed(30.0, flags=("not_measured",)), former=done)
        assert metrics.ended == {}
        assert len(caplog.records) == 1


class TestTheRest:
    def test_pauses_of_brokers(self, metrics: PlanMetrics) -> None:
        for kind, frozen_s in ((RCFG_FINISH, 0.2), (RCFG_FINISH, 0.0), (RCFG_INIT, 9.0)):
            metrics.count_pause(StepReply(kind=kind, frozen_s=frozen_s))
        metrics.count_pause(StepReply(kind=RCFG_FINISH, frozen_s=1e12))
        assert metrics.pause_s.count == 1
        assert metrics.pause_s.sum == pytest.approx(0.2)

    def test_a_command(self, metrics: PlanMetrics, caplog: pytest.LogCaptureFixture) -> None:
        entry = AuditEntry(
            at_s=1.0, actor="ann", role="operator", action="approve", subject="p1", reason="go",
            outcome="accepted", detail="",
        )  # fmt: skip
        log_command("m1", entry)
        assert lines(caplog) == [
            {
                "operation": "command", "manager": "m1", "actor": "ann", "role": "operator",
                "action": "approve", "subject": "p1", "reason": "go", "outcome": "accepted",
            }
        ]  # fmt: skip

    def test_what_watchers_are_told(
        self, metrics: PlanMetrics, caplog: pytest.LogCaptureFixture
    ) -> None:
        auto = VersionedPolicy(policy=Policy(mode=Mode.AUTO), version=4)
        for notice in (
            BrokerRegistered("b1", 1.0),
            BrokerGone("b1", 2.0),
            PolicyChanged(auto, 3.0),
            ProcessChecked(4.0, CheckOutcome.TOO_THIN, "nobody has reported"),
        ):
            log_notice("m1", notice)
        told = lines(caplog)
        assert [line["operation"] for line in told] == [
            "broker_registered",
            "broker_gone",
            "policy_changed",
        ]
        assert told[2]["mode"] == "auto"
