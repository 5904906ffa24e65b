"""Real managers have real brokers keep topics where they are asked for; one dies on the way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dynatops
from dynatops.local.cluster import BrokerProcess, ProcessCluster
from dynatops.local.managers import ManagerProcess
from dynatops.v1.overlay_pb2 import PastError
from tests.support.histories import PastRefusedError, past_at
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

MANAGERS = (
    "--set", "manager.monitor.report_period_s=0.5",
    "--set", "manager.monitor.period_s=0.5",
    "--set", "manager.monitor.periods_min=2",
    "--set", "manager.execution.gone_s=1",
)  # fmt: skip
BROKERS = ("--set", "store.capacity=4")
TOPIC = "quake/ca"
EVENTS = [b"%d" % number for number in range(50)]
BODY = {"reason": "a test", "replicas": 1, "events_per_request": 1000}


async def ask(manager: ManagerProcess, path: str, body: object = None) -> Any:
    def request() -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        question = urllib.request.Request(manager.url + path, data, headers)  # noqa: S310
        with urllib.request.urlopen(question, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    return await asyncio.to_thread(request)


async def leader_of(cluster: ProcessCluster) -> ManagerProcess:
    found: list[ManagerProcess] = []

    async def one() -> bool:
        found.clear()
        for manager in cluster.managers.managers:
            if manager.lives:
                with contextlib.suppress(urllib.error.URLError, OSError):
                    if (await ask(manager, "/v1/readyz"))["leads"]:
                        found.append(manager)
        return len(found) == 1

    await until(one, timeout_s=30, what="one manager leads")
    return found[0]


async def keepers(manager: ManagerProcess) -> dict[str, bool]:
    """Who keeps the topic, and whether it serves it."""
    stores = (await ask(manager, "/v1/stores"))["items"]
    return {
        store["broker_id"]: unit["ready"]
        for store in stores
        for unit in store["keeps"]
        if unit["topics"] == TOPIC
    }


async def is_asked_for(cluster: ProcessCluster, manager: ManagerProcess) -> None:
    """Users of the last broker ask for the past, until the manager knows."""

    async def known() -> bool:
        assert await past_at(cluster.brokers[-1].address, TOPIC) == EVENTS
        items = (await ask(manager, "/v1/topics"))["items"]
        return any(item["topic"] == TOPIC and item["requests_per_s"] > 0 for item in items)

    await until(known, timeout_s=30, what="the manager knows who asks")


@pytest.mark.slow
@pytest.mark.parametrize("leader_is_killed", [False, True])
def test_a_topic_moves_to_where_it_is_asked_for(tmp_path: Path, leader_is_killed: bool) -> None:
    async def scenario() -> None:
        cluster = ProcessCluster(
            3, managers=1 + leader_is_killed, data_dir=str(tmp_path), options=BROKERS,
            manager_options=MANAGERS, keep=[TOPIC],
        )  # fmt: skip
        async with cluster:
            leader, last = await leader_of(cluster), cluster.brokers[-1]
            async with dynatops.connect(cluster.addresses) as client:
                for payload in EVENTS:
                    await client.publish(TOPIC, payload, ack="stored", timeout_s=30)

            async def both_serve() -> bool:
                return list((await keepers(leader)).values()) == [True, True]

            await until(both_serve, timeout_s=30, what="its first stores serve it")
            await is_asked_for(cluster, leader)
            former = await keepers(leader)
            assert last.name not in former
            plan_id = (await ask(leader, "/v1/stores/plans", BODY))["id"]
            await _is(leader, plan_id, lambda plan: plan["stores"]["prediction"] is not None)
            if leader_is_killed:
                await _approve_and_kill(leader, last, plan_id)
                leader = await leader_of(cluster)
            else:
                await ask(leader, f"/v1/reconfigurations/{plan_id}/approve", {"reason": "go"})
            plan = await _is(leader, plan_id, lambda plan: plan["state"] == "COMMITTED")
            leaders = {entry["manager"] for entry in plan["stores"]["execution"]["journal"]}
            assert len(leaders) == 1 + leader_is_killed

            async def has_moved() -> bool:
                return await keepers(leader) == {last.name: True}

            await until(has_moved, timeout_s=20, what="the topic is where it is asked for")
            # It has all of it, and whoever asks is answered from there.
            for broker in cluster.brokers:
                await _is_answered(broker)
            assert not (tmp_path / last.name / "store" / "assignment.new").exists()

    asyncio.run(scenario())


async def _approve_and_kill(leader: ManagerProcess, held: BrokerProcess, plan_id: str) -> None:
    # The new store does not answer: the plan waits for it.
    held.process.send_signal(signal.SIGSTOP)
    try:
        await ask(leader, f"/v1/reconfigurations/{plan_id}/approve", {"reason": "go"})
        await _is(leader, plan_id, lambda plan: plan["state"] == "EXECUTING")
        leader.kill()
    finally:
        held.process.send_signal(signal.SIGCONT)


async def _is_answered(broker: BrokerProcess) -> None:
    """With all of it, once it has heard of the new store where it only knew of a former one."""

    async def answered() -> bool:
        try:
            return await past_at(broker.address, TOPIC) == EVENTS
        except PastRefusedError as refused:
            if refused.error != PastError.PAST_ERROR_NOT_STORED:
                raise
            return False

    await until(answered, timeout_s=15, what=f"{broker.name} finds the past")


async def _is(
    manager: ManagerProcess, plan_id: str, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def reached() -> bool:
        plan = await ask(manager, f"/v1/reconfigurations/{plan_id}")
        assert plan["state"] not in ("REJECTED", "EXPIRED", "ROLLED_BACK"), plan["note"]
        found[:] = [plan]
        return holds(plan)

    await until(reached, timeout_s=60, what="the plan has come so far")
    return found[0]
