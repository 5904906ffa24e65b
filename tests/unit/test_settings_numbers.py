"""Settings are numbers that are some: no NaN, and nothing without end."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from broker_agent.process_settings import BrokerSettings
from reconfig_manager.service.process_settings import ManagerProcessSettings

BROKER = [
    ("core", "throttle_wait_max_s"), ("overlay", "ping_period_s"), ("runtime", "keepalive_s"),
    ("http", "timeout_s"), ("advice", "period_s"), ("selection", "margin"), ("lake", "window_s"),
    ("security", "watch_s"), ("manager", "backoff_min_s"),
]  # fmt: skip
MANAGER = [
    ("leadership", "ttl_s"), ("store", "timeout_s"), ("service", "tick_s"), ("advice", "period_s"),
    ("rest", "keepalive_s"), ("security", "watch_s"),
]  # fmt: skip


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("model", "group", "name"),
    [
        *((BrokerSettings, *setting) for setting in BROKER),
        *((ManagerProcessSettings, *setting) for setting in MANAGER),
    ],
)
def test_no_number_is_refused(model: Any, group: str, name: str, value: str | float) -> None:
    with pytest.raises(ValidationError) as raised:
        model(**{group: {name: value}, "data_dir": "d"})
    found = {error["loc"]: error["type"] for error in raised.value.errors()}
    assert found[group, name] == "finite_number"
