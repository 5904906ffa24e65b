"""Two managers, eight brokers and their store, each a process: somebody is killed mid-plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

import dynatops
from dynatops.client.errors import DynatopsError
from dynatops.client.inspection import Inspector, ring_problems
from dynatops.local.cluster import BrokerProcess, ProcessCluster
from dynatops.local.managers import ManagerProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes"), pytest.mark.timeout(180)]

BROKERS = 8
MODES = 4
TOPICS_PER_MODE = 4
OVER = ("COMMITTED", "ROLLED_BACK")
RESOLVED_S = 10.0
# A manager that knows its network after seconds, not minutes.
OPTIONS = [
    "--set=manager.monitor.report_period_s=0.5",
    "--set=manager.monitor.period_s=1.5",
    "--set=manager.monitor.periods_min=1",
    "--set=manager.monitor.window_s=5",
]


def topics_of(broker: int) -> list[str]:
    """Brokers next to each other in the list share interests; on the ring they are anywhere."""
    mode = broker * MODES // BROKERS
    return [f"mode{mode}/{i}" for i in range(TOPICS_PER_MODE)]


@dataclass
class Network:
    cluster: ProcessCluster
    heard: dict[str, list[int]]
    # Numbers of events that were acknowledged, by topic.
    acknowledged: dict[str, list[int]]

    def manager(self) -> ManagerProcess:
        return next(m for m in self.cluster.managers.managers if m.lives)

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        async with httpx.AsyncClient(follow_redirects=True, timeout=10.0) as client:
            url = f"{self.manager().url}/v1/{path}"
            answer = await (client.get(url) if body is None else client.post(url, json=body))
            return answer.json() if answer.is_success else {"status": answer.status_code}

    async def proposed(self) -> str:
        """A plan that is worth it, as soon as the manager knows enough."""
        plan: dict[str, Any] = {}

        async def is_there() -> bool:
            nonlocal plan
            if "id" not in plan or plan["state"] != "PROPOSED":
                body = {"reason": "test", "algorithm": "ssbr-greedy", "budget_s": 1.0}
                plan = await self.ask("reconfigurations", body)
            else:
                plan = await self.ask(f"reconfigurations/{plan['id']}")
            return plan.get("state") == "PROPOSED" and plan["prediction"] is not None

        await until(is_there, timeout_s=60.0)
        return str(plan["id"])

    async def over(self, plan_id: str, within_s: float = RESOLVED_S) -> dict[str, Any]:
        plan: dict[str, Any] = {}

        async def is_over() -> bool:
            nonlocal plan
            try:
                plan = await self.ask(f"reconfigurations/{plan_id}")
            except httpx.HTTPError:
                return False
            return plan.get("state") in OVER

        await until(is_over, timeout_s=within_s)
        return plan

    async def hosts(self) -> dict[int, str]:
        living = [b.address for b in self.cluster.brokers if b.process.returncode is None]
        async with Inspector(living) as inspector:
            reports = await inspector.brokers()
        hosts = {report.nodes[0].node.node_id: report.broker_id for report in reports}
        assert len(hosts) == len(reports), "two brokers host one node"
        return hosts

    async def is_whole(self) -> bool:
        """The ring is what the nodes' positions say, as `dynatops ring` sees it."""
        living = [b.address for b in self.cluster.brokers if b.process.returncode is None]
        async with Inspector(living) as inspector:
            reports = await inspector.brokers()
        return len(reports) == len(living) and not ring_problems(reports)


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    cluster = ProcessCluster(BROKERS, managers=2, manager_options=OPTIONS)
    async with cluster, asyncio.TaskGroup() as tasks:
        here = Network(cluster, {}, {})
        work = [
            tasks.create_task(listen(here, broker, topics_of(i)))
            for i, broker in enumerate(cluster.brokers)
        ]
        await until(lambda: len(here.heard) == BROKERS, timeout_s=20.0)
        work.append(tasks.create_task(publish(here)))
        try:
            yield here
        finally:
            for task in work:
                task.cancel()


async def listen(here: Network, broker: BrokerProcess, topics: list[str]) -> None:
    """A user of this broker; should the broker die, of another that it knows of."""
    async with dynatops.connect(broker.address, timeout_s=60.0) as client:
        events = await client.subscribe(*topics)
        heard = here.heard.setdefault(broker.name, [])
        async for event in events:
            heard.append(int(event.payload))


async def publish(here: Network) -> None:
    topics = sorted({topic for i in range(BROKERS) for topic in topics_of(i)})
    async with dynatops.connect(here.cluster.addresses[::-1], timeout_s=60.0) as client:
        number = 0
        while True:
            number += 1
            topic = topics[number % len(topics)]
            try:
                await client.publish(topic, b"%d" % number, timeout_s=30.0)
            except DynatopsError:
                continue
            here.acknowledged.setdefault(topic, []).append(number)
            await asyncio.sleep(0.005)


async def nothing_is_lost(here: Network) -> None:
    """Everyone who lives has heard every acknowledged event of their topics, once."""
    for i, broker in enumerate(here.cluster.brokers):
        owed = {n for topic in topics_of(i) for n in here.acknowledged.get(topic, [])[5:-5]}
        heard = here.heard[broker.name]
        await until(lambda owed=owed, heard=heard: owed <= set(heard), timeout_s=20.0)
        assert len(heard) == len(set(heard))


async def traffic_flows(here: Network) -> None:
    before = {name: len(heard) for name, heard in here.heard.items()}
    await until(
        lambda: all(len(here.heard[name]) > n for name, n in before.items()), timeout_s=20.0
    )


@pytest.mark.parametrize("after_s", [0.08])
def test_the_leader_is_killed_mid_plan(after_s: float) -> None:
    asyncio.run(the_leader_is_killed_mid_plan(after_s))


async def the_leader_is_killed_mid_plan(after_s: float) -> None:
    async with network() as here:
        plan_id = await here.proposed()
        leader = await the_leader(here)
        await here.ask(f"reconfigurations/{plan_id}/approve", {"reason": "test"})
        await asyncio.sleep(after_s)
        leader.kill()
        await leader.process.wait()
        plan = await here.over(plan_id)
        moved = {int(move["to_node"], 16): move["broker_id"] for move in plan["moves"]}
        hosts = await here.hosts()
        if plan["state"] == "COMMITTED":
            assert moved.items() <= hosts.items()
        else:
            former = {int(move["from_node"], 16): move["broker_id"] for move in plan["moves"]}
            assert former.items() <= hosts.items()
        await until(here.is_whole, timeout_s=20.0)
        await traffic_flows(here)
        await nothing_is_lost(here)


@pytest.mark.parametrize("after_s", [0.08])
def test_a_moving_broker_is_killed(after_s: float) -> None:
    asyncio.run(a_moving_broker_is_killed(after_s))


async def a_moving_broker_is_killed(after_s: float) -> None:
    async with network() as here:
        plan_id = await here.proposed()
        plan = await here.ask(f"reconfigurations/{plan_id}")
        victim = next(b for b in here.cluster.brokers if b.name == plan["moves"][0]["broker_id"])
        await here.ask(f"reconfigurations/{plan_id}/approve", {"reason": "test"})
        await asyncio.sleep(after_s)
        victim.kill()
        await victim.process.wait()
        # A broker that is gone is waited for; then it is done without, or undone.
        plan = await here.over(plan_id, within_s=30.0)
        assert plan["state"] in OVER
        await until(here.is_whole, timeout_s=20.0)
        await traffic_flows(here)
        assert len(await here.hosts()) == BROKERS - 1


async def the_leader(here: Network) -> ManagerProcess:
    """The manager that answers without sending its callers elsewhere."""
    async with httpx.AsyncClient(timeout=10.0) as client:
        for manager in here.cluster.managers.managers:
            answer = await client.get(f"{manager.url}/v1/cluster")
            if answer.status_code == httpx.codes.OK:
                return manager
    raise AssertionError("nobody leads")
