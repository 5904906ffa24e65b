"""What watchers are told of each notice: names and fields are in the documentation."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from dynatops.kit.strict_json import write_json
from reconfig_manager.model.notices import (
    BrokerGone,
    BrokerRegistered,
    CheckOutcome,
    LeadershipLost,
    LeadershipTaken,
    Notice,
    PlanChanged,
    PolicyChanged,
    ProcessChecked,
    event_of,
)
from reconfig_manager.model.plan import CostRate, Measurement, PlanState
from reconfig_manager.model.policy import Mode, Policy, VersionedPolicy
from tests.support.manager_store import plan

POLICY = VersionedPolicy(policy=Policy(mode=Mode.AUTO), version=4)
RATE = CostRate(events=1, seconds=1, relays_per_event=1, hops_per_event=1, cost_per_event=1)
MEASURED = Measurement(
    before=RATE, after=RATE, predicted_benefit=10, measured_benefit=9, benefit_ratio=0.9,
    predicted_messages=10, measured_messages=5, messages_ratio=0.5, at_s=20.0,
)  # fmt: skip
CASES: list[tuple[Notice, dict[str, Any]]] = [
    (LeadershipTaken("m1", 3, 1.5), {"type": "leader", "manager": "m1", "fence": 3, "at_s": 1.5}),
    (LeadershipLost("m1", 1.5), {"type": "deposed", "manager": "m1", "at_s": 1.5}),
    (
        BrokerRegistered("b1", 1.5),
        {"type": "broker", "broker": "b1", "state": "registered", "at_s": 1.5},
    ),
    (BrokerGone("b1", 1.5), {"type": "broker", "broker": "b1", "state": "gone", "at_s": 1.5}),
    (
        PolicyChanged(POLICY, 1.5),
        {
            "type": "policy",
            "policy": POLICY.policy.model_dump(mode="json"),
            "version": 4,
            "at_s": 1.5,
        },
    ),
    (
        ProcessChecked(1.5, CheckOutcome.WAITING, "accept", 1),
        {
            "type": "check", "at_s": 1.5, "outcome": "waiting", "explanation": "accept",
            "streak": 1,
        },
    ),
    (
        PlanChanged(plan("p1", note="being computed", changed_s=1.5)),
        {
            "type": "plan", "plan": "p1", "version": 1, "state": "PROPOSED", "phase": None,
            "note": "being computed", "moves": 0, "at_s": 1.5,
        },
    ),
    (
        PlanChanged(plan("p1", 9, state=PlanState.COMMITTED, flags=("a",), measurement=MEASURED)),
        {
            "type": "plan", "plan": "p1", "version": 9, "state": "COMMITTED", "phase": None,
            "note": "", "moves": 0, "at_s": 1.0, "measured_benefit": 9.0, "flags": ["a"],
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("notice", "event"), CASES, ids=lambda value: type(value).__name__)
def test_as_an_event(notice: Notice, event: dict[str, Any]) -> None:
    text = write_json(event_of(notice))
    assert json.loads(text) == event
    assert list(json.loads(text)) == list(event)


def test_every_kind_of_notice_is_above() -> None:
    assert {type(notice) for notice, _ in CASES} == set(get_args(Notice))
