"""Real managers, brokers and a real store, some of which are really killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dynatops
from dynatops.local.cluster import ProcessCluster
from dynatops.local.managers import ManagerProcess
from tests.support.manager_store import server_pid
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

OPTIONS = (
    "--set", "manager.monitor.report_period_s=0.5",
    "--set", "manager.monitor.period_s=0.5",
    "--set", "manager.monitor.periods_min=2",
    "--set", "manager.execution.gone_s=1",
)  # fmt: skip
BROKERS = 8
TOPICS = 20
TAKE_OVER_S = 10.0
OVER = ("COMMITTED", "ROLLED_BACK", "REJECTED", "EXPIRED", "CANCELLED")


async def ask(manager: ManagerProcess, path: str, body: object = None) -> Any:
    def request() -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        question = urllib.request.Request(manager.url + path, data, headers)  # noqa: S310
        with urllib.request.urlopen(question, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    return await asyncio.to_thread(request)


async def leads(manager: ManagerProcess) -> bool:
    try:
        return bool((await ask(manager, "/v1/readyz"))["leads"])
    except (urllib.error.URLError, OSError):
        # It answers 503 while nobody leads.
        return False


async def leader_of(cluster: ProcessCluster) -> ManagerProcess:
    found: list[ManagerProcess] = []

    async def one() -> bool:
        living = [manager for manager in cluster.managers.managers if manager.lives]
        found[:] = [manager for manager in living if await leads(manager)]
        return len(found) == 1

    await until(one, timeout_s=20, what="one manager leads")
    return found[0]


async def knows(manager: ManagerProcess, brokers: int) -> None:
    """Until enough is known to plan."""

    async def ready() -> bool:
        cluster = await ask(manager, "/v1/cluster")
        known = cluster["model"]["ready"] and cluster["subscriptions"] >= 5 * brokers
        return bool(known and cluster["brokers_attached"] == brokers)

    await until(ready, timeout_s=30, what="the manager knows the network")


@contextlib.asynccontextmanager
async def load(cluster: ProcessCluster) -> AsyncIterator[list[int]]:
    """Somebody publishes, and users far from each other have interests in common; how many events
    have been heard.
    """
    heard = [0]

    async def listen(events: dynatops.Subscription) -> None:
        async for _ in events:
            heard[0] += 1

    async def publish(client: dynatops.Client) -> None:
        number = 0
        while True:
            number += 1
            with contextlib.suppress(dynatops.DynatopsError):
                await client.publish(f"t/{number % TOPICS}", b"x", timeout_s=10)
            await asyncio.sleep(0.003)

    async with contextlib.AsyncExitStack() as stack:
        tasks = []
        for i, address in enumerate(cluster.addresses):
            client = await stack.enter_async_context(dynatops.connect([address], stay=True))
            mine = [f"t/{topic}" for topic in range(TOPICS) if topic // 5 == i % 4]
            tasks.append(asyncio.create_task(listen(await client.subscribe(*mine))))
        publisher = await stack.enter_async_context(dynatops.connect(cluster.addresses))
        tasks.append(asyncio.create_task(publish(publisher)))
        try:
            yield heard
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def flows(heard: list[int]) -> None:
    before = heard[0]
    await until(lambda: heard[0] > before + 50, what="events flow")


async def state_of(manager: ManagerProcess, plan_id: str) -> str:
    return str((await ask(manager, f"/v1/reconfigurations/{plan_id}"))["state"])


async def is_executing(manager: ManagerProcess, plan_id: str) -> None:
    async def executing() -> bool:
        plan = await ask(manager, f"/v1/reconfigurations/{plan_id}")
        assert plan["state"] not in OVER, plan["note"]
        return bool(plan["state"] == "EXECUTING")

    await until(executing, timeout_s=30, what="the plan is being executed")


async def is_over(manager: ManagerProcess, plan_id: str, within_s: float) -> str:
    async def over() -> bool:
        return await state_of(manager, plan_id) in OVER

    await until(over, timeout_s=within_s, what="the plan is over")
    return await state_of(manager, plan_id)


async def propose(manager: ManagerProcess) -> Any:
    body = {"reason": "a test", "execute": True, "budget_s": 0.5}
    return await ask(manager, "/v1/reconfigurations", body)


def test_a_leader_goes_and_another_takes_over() -> None:
    async def scenario() -> None:
        async with ProcessCluster(2, managers=2, manager_options=OPTIONS) as cluster:
            first = await leader_of(cluster)
            first.kill()
            await first.process.wait()
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            second = await leader_of(cluster)
            assert second is not first
            assert loop.time() - began_s < TAKE_OVER_S

            async def attached() -> bool:
                return bool((await ask(second, "/v1/cluster"))["brokers_attached"] == 2)

            await until(attached)
            # Told to stop, a leader gives the lease back at once.
            third = await cluster.managers.add("m9", listen=first.address)
            assert await second.stop() == 0
            assert await until(lambda: leads(third)) < 3.0
            await until(lambda: _attached(third, 2))

    asyncio.run(scenario())


async def _attached(manager: ManagerProcess, brokers: int) -> bool:
    return bool((await ask(manager, "/v1/cluster"))["brokers_attached"] == brokers)


def test_nobody_leads_without_a_store_and_the_network_goes_on() -> None:
    async def scenario() -> None:
        async with ProcessCluster(3, managers=2, manager_options=OPTIONS) as cluster:
            await leader_of(cluster)
            async with load(cluster) as heard:
                os.kill(server_pid(cluster.managers.store_url), signal.SIGSTOP)
                try:

                    async def nobody() -> bool:
                        return not any([await leads(m) for m in cluster.managers.managers])

                    await until(nobody)
                    await flows(heard)
                finally:
                    os.kill(server_pid(cluster.managers.store_url), signal.SIGKILL)
                # It is started again, with all that it had confirmed.
                leader = await leader_of(cluster)
                await until(lambda: _attached(leader, 3))
                await flows(heard)

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_leader_is_killed_in_the_middle_of_a_plan() -> None:
    async def scenario() -> None:
        async with ProcessCluster(BROKERS, managers=2, manager_options=OPTIONS) as cluster:
            leader = await leader_of(cluster)
            async with load(cluster) as heard:
                await knows(leader, BROKERS)
                held = cluster.brokers[0].process
                # It does not answer: the plan waits for it.
                held.send_signal(signal.SIGSTOP)
                try:
                    plan = await propose(leader)
                    await is_executing(leader, plan["id"])
                    leader.kill()
                finally:
                    held.send_signal(signal.SIGCONT)
                began_s = asyncio.get_running_loop().time()
                other = await leader_of(cluster)
                state = await is_over(other, plan["id"], 2 * TAKE_OVER_S)
                assert state == "ROLLED_BACK"
                assert asyncio.get_running_loop().time() - began_s < TAKE_OVER_S
                await flows(heard)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_broker_is_killed_in_the_middle_of_a_plan() -> None:
    async def scenario() -> None:
        async with ProcessCluster(BROKERS, managers=1, manager_options=OPTIONS) as cluster:
            leader = await leader_of(cluster)
            async with load(cluster) as heard:
                await knows(leader, BROKERS)
                victim = cluster.brokers[-1].process
                victim.send_signal(signal.SIGSTOP)
                plan = await propose(leader)
                await is_executing(leader, plan["id"])
                victim.kill()
                assert await is_over(leader, plan["id"], 2 * TAKE_OVER_S) in OVER[:2]
                await flows(heard)

    asyncio.run(scenario())
