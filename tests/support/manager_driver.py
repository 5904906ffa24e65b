"""A manager's core with brokers that obey, a store in memory, and its HTTP side: no network.

Time stands still unless a test moves it. Solvers run at once, unless held back; so do brokers'
answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import httpx
from fastapi import FastAPI

from dynatops.kit.observing.metrics import Family, Sample
from dynatops.v1.manager_pb2 import LoadReport, TopicCount
from overlay.base.identifiers import key_of
from reconfig_manager.manager import Manager
from reconfig_manager.model.core_settings import (
    ManagerSettings,
    MeasuringSettings,
    MonitorSettings,
    StoringSettings,
)
from reconfig_manager.model.notices import event_of
from reconfig_manager.model.plan import Plan
from reconfig_manager.model.refusals import StoreAway
from reconfig_manager.monitor.measuring import COUNTERS
from reconfig_manager.ports import (
    AgentId,
    Audit,
    Drop,
    KeepRates,
    ManagerEffect,
    Notify,
    Outranked,
    PlaceTopics,
    Record,
    SendStep,
    Solve,
)
from reconfig_manager.rest.app import create_app
from reconfig_manager.rest.broadcast import Broadcast
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.service.facade import ManagerFacade
from reconfig_manager.solvers import SOLVERS
from reconfig_manager.status import JobStatus
from reconfig_manager.store.memory import MemoryStore
from reconfig_manager.storing.planners import STORE_PLANNERS
from tests.support.managed import FakeBroker

START_S = 1_760_000_000.0
TTL_S = 1e9
PERIOD_S = 10.0
TOPICS = 12
EVENTS = 1_000
SETTINGS = ManagerSettings(
    monitor=MonitorSettings(report_period_s=PERIOD_S, period_s=PERIOD_S, periods_min=1),
    measuring=MeasuringSettings(settle_s=0.0, measure_s=3 * PERIOD_S, events_min=1),
    storing=StoringSettings(measure_s=3 * PERIOD_S, catch_up_timeout_s=10 * PERIOD_S),
)
SOLVER_S = 0.05


class ManagerDriver:
    """Implements `facade.Driver`."""

    def __init__(
        self,
        settings: RestSettings | None = None,
        brokers: int = 8,
        name: str = "m1",
        store: MemoryStore | None = None,
    ) -> None:
        self.clock_s = START_S
        self.settings = settings or RestSettings()
        self.store = store or MemoryStore(self.now_s)
        self.manager = Manager(SETTINGS, name)
        self.broadcast = Broadcast(
            name,
            watchers_max=self.settings.watchers_max,
            caller_watchers_max=self.settings.caller_watchers_max,
            watcher_events_max=self.settings.watcher_events_max,
            kept=self.settings.events_kept,
        )
        self.facade = ManagerFacade(self, self.store, self.broadcast, self.settings)
        self.leader_url = ""
        self.brokers = {f"b{i}": FakeBroker(f"b{i}", key_of(f"b{i}")) for i in range(brokers)}
        self.fence = 0
        # Commands to brokers, and problems, that wait for `let_go`.
        self.hold_steps = False
        self.hold_solver = False
        self._held: deque[ManagerEffect] = deque()
        self._streams = count(1)
        self._counters = dict.fromkeys(COUNTERS, 0)
        # By broker: users' requests for the past of topics in a period; and what it counts of
        # answers, since it was started.
        self.requests: dict[str, dict[str, int]] = {}
        self.answers: dict[str, dict[str, int]] = {}

    # ---- facade.Driver ---------------------------------------------------------------------------

    def now_s(self) -> float:
        return self.clock_s

    late_s = 0.0
    analytics_jobs: tuple[JobStatus, ...] | None = None

    def problems(self) -> dict[str, str]:
        return {"store": "no answer"} if self.store.away else {}

    def jobs(self) -> tuple[JobStatus, ...] | None:
        return self.analytics_jobs

    def metrics(self) -> list[Family]:
        up = Sample(float(not self.store.away))
        return [Family("dynatops_store_up", "gauge", "Whether the store answers.", (up,))]

    async def carry_out(self, effects: Sequence[ManagerEffect]) -> None:
        waiting = deque(effects)
        failure: StoreAway | None = None
        while waiting:
            effect = waiting.popleft()
            try:
                waiting += await self._carry_out(effect)
            except StoreAway as error:
                failure = error
        if failure is not None:
            raise failure

    async def _carry_out(self, effect: ManagerEffect) -> list[ManagerEffect]:
        match effect:
            case Record():
                return await self._record(effect)
            case SendStep():
                if self.hold_steps:
                    self._held.append(effect)
                    return []
                broker = self.brokers[effect.agent.broker_id]
                reply = broker.obey(effect.step, self.clock_s)
                return self.manager.reply(effect.agent, reply, self.clock_s)
            case Solve():
                if self.hold_solver:
                    self._held.append(effect)
                    return []
                task = replace(effect.task, time_limit_s=min(SOLVER_S, effect.task.time_limit_s))
                solution = SOLVERS[effect.algorithm](effect.problem, task)
                return self.manager.solved(effect.plan_id, solution, self.clock_s)
            case PlaceTopics():
                placed = STORE_PLANNERS[effect.planner](effect.problem, effect.task)
                return self.manager.topics_placed(effect.plan_id, placed, self.clock_s)
            case Notify():
                self.broadcast.publish(event_of(effect.notice))
            case Audit():
                await self.store.append_audit(effect.entry)
            case Drop() | KeepRates() | Outranked():
                pass
        return []

    async def _record(self, record: Record) -> list[ManagerEffect]:
        try:
            await self.store.write(self.fence, record)
        except StoreAway:
            self.manager.not_recorded(record.token, self.clock_s)
            raise
        return self.manager.recorded(record.token, self.clock_s)

    # ---- what tests do ---------------------------------------------------------------------------

    async def lead(self) -> None:
        fence = await self.store.acquire(self.manager.me, TTL_S)
        assert fence is not None
        self.fence = fence
        await self.carry_out(self.manager.lead(fence, await self.store.read_state(), self.clock_s))

    async def depose(self) -> None:
        await self.store.release(self.manager.me, self.fence)
        await self.carry_out(self.manager.depose(self.clock_s))
        self.broadcast.end("another manager leads")

    async def know_the_network(self) -> None:
        """Everybody registers and reports, twice: enough is known to plan."""
        for broker in self.brokers.values():
            broker.streams = next(self._streams)
            await self.carry_out(
                self.manager.register(broker.agent, broker.registration(), self.clock_s)
            )
        await self.report(first=True)
        await self.report()

    async def report(self, *, first: bool = False) -> None:
        """A period later, brokers say what happened in it."""
        moved = any(broker.epoch for broker in self.brokers.values())
        # Relays and hops an event: fewer once somebody has moved.
        self._counters["stamped_events"] += EVENTS
        self._counters["relayed_events"] += EVENTS // 2 if moved else EVENTS
        self._counters["tree_delivered_hops"] += (2 if moved else 3) * EVENTS
        for number, broker in enumerate(self.brokers.values()):
            report = load_report(number, self._counters, first=first)
            said = broker.store_report()
            if said is not None:
                report.store.CopyFrom(said)
            for topic, asked in self.requests.get(broker.broker_id, {}).items():
                report.requests.append(TopicCount(topic=topic, events=asked))
            report.counters.update(self.answers.get(broker.broker_id, {}))
            await self.carry_out(self.manager.report(broker.agent, report, self.clock_s))
        self.clock_s += PERIOD_S
        await self.tick()

    async def tick(self) -> None:
        await self.carry_out(self.manager.tick(self.clock_s))

    async def let_go(self) -> None:
        self.hold_steps = self.hold_solver = False
        held, self._held = self._held, deque()
        await self.carry_out(list(held))

    def agent(self, broker_id: str) -> AgentId:
        return self.brokers[broker_id].agent

    @property
    def plans(self) -> list[Plan]:
        return list(self.manager.leader_state.plans.values())


def load_report(number: int, counters: Mapping[str, int], *, first: bool) -> LoadReport:
    """Neighbours by number have topics in common; on the ring they are far from each other."""
    topics = [f"news/{(number // 2 + i) % TOPICS}" for i in range(3)]
    return LoadReport(
        window_s=PERIOD_S,
        publications=[TopicCount(topic=f"news/{number}", events=EVENTS, bytes=100 * EVENTS)],
        subscribed=[*topics, "a/b//c"] if first else [],
        sessions=10,
        subscriptions=30,
        counters=counters,
    )


@asynccontextmanager
async def serving(
    driver: ManagerDriver, **headers: str
) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """The app, and a client of it within this process."""
    app = create_app(driver.facade, driver.settings)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:7480", headers=headers
    ) as client:
        yield app, client


async def leading(settings: RestSettings | None = None, **values: Any) -> ManagerDriver:
    """One that leads and knows enough."""
    driver = ManagerDriver(settings, **values)
    await driver.lead()
    await driver.know_the_network()
    return driver


Test = Callable[[ManagerDriver, httpx.AsyncClient], Awaitable[None]]


def with_manager(test: Test, settings: RestSettings | None = None) -> None:
    async def run() -> None:
        driver = await leading(settings)
        async with serving(driver) as (_, client):
            await test(driver, client)

    asyncio.run(run())


def is_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    assert document["code"] == code
    assert document["detail"]
    return document
