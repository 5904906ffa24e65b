"""What a broker's log says of reconfigurations."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from broker_agent.runtime.narrating import Narrator
from dynatops.v1.manager_pb2 import RCFG_FINISH, RCFG_INIT, RCFG_ROLL_BACK, RCFG_TREE_RESTORE, Step
from tests.support.brokers import LoneBroker

STEPS = {
    "committed": (RCFG_INIT, RCFG_TREE_RESTORE, RCFG_FINISH),
    "rolled_back": (RCFG_INIT, RCFG_ROLL_BACK),
    "nobody_said": (RCFG_INIT,),
}


@pytest.mark.parametrize("outcome", STEPS)
def test_a_plan_is_told_once_when_it_is_over(
    outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker = LoneBroker()
    narrator = Narrator(broker.core)
    broker.run(0.2)
    for kind in STEPS[outcome]:
        assert not caplog.records
        step = Step(kind=kind, plan="p1-1", epoch=3, fence=1, frozen_max_s=2.0)
        broker.keep(broker.core.on_step(step, broker.now_s))
        narrator.look()
        broker.run(0.5)
    broker.run(10.0)
    narrator.look()
    narrator.look()
    (record,) = caplog.records
    told: dict[str, Any] = record.dynatops_values  # type: ignore[attr-defined]
    assert (told["plan"], told["outcome"]) == ("p1-1", outcome)
    assert told["epoch"] == (3 if outcome == "committed" else 0)
    assert 0.4 < told["frozen_s"] < 12.0
    assert told["node"] == told["node_before"]


def test_without_anybody_to_read_it_nothing_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    broker = LoneBroker()
    narrator = Narrator(broker.core)
    broker.connect("ann")
    assert broker.core.logbook.heard is None
    assert not narrator._connected_s
