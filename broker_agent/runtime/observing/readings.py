"""What metrics are read from, taken once for all that are asked for together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.status.broker_status import BrokerStatus

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent


@dataclass(frozen=True, slots=True)
class BrokerReadings:
    # The process: its settings, connections with others, files.
    agent: Agent
    # What its core says of itself.
    status: BrokerStatus
    # What was counted last; some seconds old.
    counts: BrokerCounts


def readings_of(agent: Agent) -> BrokerReadings:
    return BrokerReadings(agent, agent.core.status(), agent.watch.census.last)
