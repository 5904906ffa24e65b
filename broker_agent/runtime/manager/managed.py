"""The broker as its uplink sees it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dynatops.v1.manager_pb2 import LoadReport, Registration, Step

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent


class ManagedBroker:
    """Implements `uplink.UplinkHost`."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def registration_version(self) -> int:
        return self._agent.core.reporting.version

    def registration(self) -> Registration:
        return self._agent.core.reporting.registration()

    def attend(self) -> None:
        # Between two managers it goes on counting, and the next report has it all.
        self._agent.core.attend(self._now())

    def load_report(self, *, full: bool) -> LoadReport:
        return self._agent.core.take_load_report(self._now(), full=full)

    def on_step(self, step: Step) -> None:
        self._agent.on_step(step)
