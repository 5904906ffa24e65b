"""Brokers as a manager sees them: the real uplink, around a broker that only obeys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from broker_agent.process_settings import ManagerLinkSettings
from broker_agent.runtime.manager.uplink import Uplink
from dynatops.kit.security.peer_credentials import LinkCredentials
from dynatops.v1.manager_pb2 import (
    RCFG_TREE_RESTORE,
    LoadReport,
    Registration,
    Step,
    StepReply,
    TopicCount,
)
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.base.identifiers import key_of
from reconfig_manager.service.manager_service import ManagerService
from reconfig_manager.service.process_settings import ManagerProcessSettings

# Everything happens sooner than in earnest.
QUICK: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "rest": {"listen": "127.0.0.1:0"},
    "leadership": {"ttl_s": 2.5, "renew_s": 0.3, "margin_s": 0.3, "poll_s": 0.05},
    "manager": {
        "monitor": {"report_period_s": 0.1, "period_s": 0.1, "window_s": 5.0, "periods_min": 1},
        "execution": {"gone_s": 0.3, "resend_s": 0.1},
    },
}


@asynccontextmanager
async def managing(
    redis_url: str, name: str = "m1", **values: Any
) -> AsyncIterator[ManagerService]:
    settings = {**QUICK, "manager_id": name, **values}
    settings["store"] = {"timeout_s": 0.3, **settings.get("store", {}), "redis_url": redis_url}
    service = ManagerService(ManagerProcessSettings.model_validate(settings))
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


class FakeAgent:
    """A broker that registers, reports, and says yes to everything."""

    def __init__(
        self,
        name: str,
        addresses: list[str],
        credentials: LinkCredentials | None = None,
        incarnation: int = 1,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.node_id: int = key_of(name)
        self.epoch = 0
        self.fence = 0
        self.frozen_by = ""
        self.registration_version = 0
        self.steps: list[Step] = []
        self.reports = 0
        # Does not answer.
        self.mute = False
        self._topic = f"t/{int(name[1:]) // 2 if name[1:].isdigit() else name}"
        settings = ManagerLinkSettings(
            addresses=tuple(addresses), backoff_min_s=0.02, backoff_max_s=0.1
        )
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.uplink = Uplink(settings, credentials or LinkCredentials(), self, options)

    # ---- what the uplink asks -------------------------------------------------------------------

    def registration(self) -> Registration:
        node = NodeRef(
            node_id=self.node_id, broker_id=self.name, address=f"h:{self.node_id % 60_000}",
            epoch=self.epoch, incarnation=self.incarnation,
        )  # fmt: skip
        return Registration(
            protocol_min=1, protocol_max=1, node=node, epoch=self.epoch, fence=self.fence,
            frozen_by=self.frozen_by,
        )  # fmt: skip

    def attend(self) -> None:
        pass

    def load_report(self, *, full: bool) -> LoadReport:
        self.reports += 1
        return LoadReport(
            window_s=0.1,
            publications=[TopicCount(topic=self._topic, events=1_000, bytes=1_000)],
            subscribed=[self._topic, "t/all"] if full else [],
            sessions=1,
            subscriptions=2,
            counters={"stamped_events": 1_000 * self.reports},
        )

    def on_step(self, step: Step) -> None:
        self.steps.append(step)
        self.fence = max(self.fence, step.fence)
        if self.mute:
            return
        for node in step.moved:
            if node.broker_id == self.name and step.kind == RCFG_TREE_RESTORE:
                self.node_id, self.epoch = node.node_id, step.epoch
        self.uplink.reply(
            StepReply(fence=step.fence, plan=step.plan, epoch=step.epoch, kind=step.kind)
        )


@asynccontextmanager
async def attending(agents: list[FakeAgent]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(agent.uplink.run()) for agent in agents]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
