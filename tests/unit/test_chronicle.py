"""What a manager notes of its effects: plans once each, phases with their length, commands."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dynatops.v1.manager_pb2 import RCFG_FINISH, RCFG_INIT, StepReply
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
from reconfig_manager.ports import Audit, AuditEntry, Record, Tell
from reconfig_manager.service.chronicle import Chronicle
from tests.support.manager_store import plan


def written(chronicle: Chronicle, *plans: Plan) -> None:
    for each in plans:
        chronicle.note(Record(0, plan=each))


def executing(plan_id: str = "p1", **values: Any) -> Plan:
    execution = Execution(epoch=3, fence=1, manager="m1", started_s=1.0)
    return plan(plan_id, state=PlanState.EXECUTING, execution=execution, **values)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        {"operation": record.dynatops_operation, **record.dynatops_values}  # type: ignore[attr-defined]
        for record in caplog.records
    ]


@pytest.fixture
def chronicle(caplog: pytest.LogCaptureFixture) -> Chronicle:
    caplog.set_level(logging.INFO)
    chronicle = Chronicle()
    chronicle.me = "m1"
    return chronicle


class TestPlans:
    def test_phases_and_their_length(
        self, chronicle: Chronicle, caplog: pytest.LogCaptureFixture
    ) -> None:
        freezing = executing(version=3, phase=Phase.FREEZING, changed_s=10.0)
        moving = freezing.entered(Phase.MOVING, 10.2, 1, "m1")
        written(chronicle, freezing, moving, moving)
        assert chronicle.phase_s[Phase.FREEZING].count == 1
        assert chronicle.phase_s[Phase.FREEZING].sum == pytest.approx(0.2)
        assert chronicle.phase_s[Phase.MOVING].count == 0
        told = lines(caplog)
        assert [line["phase"] for line in told] == ["FREEZING", "MOVING"]
        assert "seconds" not in told[0]
        assert told[1]["seconds"] == 0.2
        assert {line["plan"] for line in told} == {"p1"}

    def test_an_end(self, chronicle: Chronicle, caplog: pytest.LogCaptureFixture) -> None:
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
        written(chronicle, before, done, done)
        assert chronicle.ended == {"COMMITTED": 1}
        assert (chronicle.brokers_moved, chronicle.messages) == (2, 7)
        last = lines(caplog)[-1]
        assert (last["state"], last["paused_max_s"], last["messages"]) == ("COMMITTED", 0.25, 7)
        assert last["reason"] == "2 brokers moved"

    def test_one_that_is_rolled_back_moves_nobody(self, chronicle: Chronicle) -> None:
        before = executing(phase=Phase.ROLLING_BACK)
        written(chronicle, before, before.became(PlanState.ROLLED_BACK, 11.0, "b1 is gone"))
        assert chronicle.ended == {"ROLLED_BACK": 1}
        assert chronicle.brokers_moved == 0

    def test_what_was_measured(
        self, chronicle: Chronicle, caplog: pytest.LogCaptureFixture
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
        written(chronicle, done)
        before = chronicle.benefit_ratio
        assert before is None
        written(chronicle, measured)
        assert [chronicle.benefit_ratio, chronicle.messages_ratio] == [0.9, 0.5]
        assert len(caplog.records) == 1

    def test_plans_are_forgotten(self, chronicle: Chronicle) -> None:
        for number in range(1_100):
            written(chronicle, plan(f"p{number}"))
        assert len(chronicle._plans) == 1_000


class TestTheRest:
    def test_pauses_of_brokers(self, chronicle: Chronicle) -> None:
        for kind, frozen_s in ((RCFG_FINISH, 0.2), (RCFG_FINISH, 0.0), (RCFG_INIT, 9.0)):
            chronicle.note_reply(StepReply(kind=kind, frozen_s=frozen_s))
        chronicle.note_reply(StepReply(kind=RCFG_FINISH, frozen_s=1e12))
        assert chronicle.pause_s.count == 1
        assert chronicle.pause_s.sum == pytest.approx(0.2)

    def test_a_command(self, chronicle: Chronicle, caplog: pytest.LogCaptureFixture) -> None:
        entry = AuditEntry(
            at_s=1.0, actor="ann", role="operator", action="approve", subject="p1", reason="go",
            outcome="accepted", detail="",
        )  # fmt: skip
        chronicle.note(Audit(entry))
        assert lines(caplog) == [
            {
                "operation": "command", "manager": "m1", "actor": "ann", "role": "operator",
                "action": "approve", "subject": "p1", "reason": "go", "outcome": "accepted",
            }
        ]  # fmt: skip

    def test_what_watchers_are_told(
        self, chronicle: Chronicle, caplog: pytest.LogCaptureFixture
    ) -> None:
        for event in (
            {"type": "broker", "broker": "b1", "state": "registered"},
            {"type": "broker", "broker": "b1", "state": "gone"},
            {"type": "policy", "policy": {"mode": "auto"}, "version": 4},
            {"type": "check", "outcome": "too_thin"},
        ):
            chronicle.note(Tell(event))
        told = lines(caplog)
        assert [line["operation"] for line in told] == [
            "broker_registered",
            "broker_gone",
            "policy_changed",
        ]
        assert told[2]["mode"] == "auto"
