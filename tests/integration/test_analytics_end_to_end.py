"""The whole loop with real parts: brokers write a lake, Spark reads it, advice lands in Redis, the
next user is sent to the advised broker, and the manager plans with Spark's rates.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import dynatops
from dynatops.client.inspection import Inspector
from dynatops.lake.fields import PUBLICATIONS, SESSIONS, SUBSCRIPTIONS
from dynatops.lake.lake_settings import LakeSettings
from dynatops.local.cluster import ProcessCluster
from tests.support.lakes import read_rows
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("spark")]

BROKERS = 4
FANS = [f"fan-{i}" for i in range(6)]
TOPICS = [f"shop/{i}" for i in range(5)]
HOME = "b2"
EVENTS = 40
BROKER_OPTIONS = ("--set", "advice.period_s=0.2", "--set", "selection.update_period_s=0.2")
MANAGER_OPTIONS = (
    *("--set", "manager.monitor.report_period_s=0.5", "--set", "manager.monitor.period_s=0.5"),
    *("--set", "manager.monitor.periods_min=2", "--set", "advice.period_s=0.2"),
)
# A network that was up for seconds has no periods of minutes.
ANALYTICS = ("--set", "rates.period_s=0.5", "--set", "rates.late_s=0", "--master", "local[2]")


async def command(*arguments: str, module: str = "dynatops") -> Any:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    assert process.returncode == 0, errors.decode()[-2_000:]
    return json.loads(output)


async def fans_come_and_go(cluster: ProcessCluster) -> None:
    """Users who share topics are at one broker; their sessions stay behind. Others publish."""
    home = next(broker for broker in cluster.brokers if broker.name == HOME)
    async with contextlib.AsyncExitStack() as stack:
        for name in FANS:
            fan = await stack.enter_async_context(
                dynatops.connect([home.address], client_id=name, keep_s=600, stay=True)
            )
            await fan.subscribe(*TOPICS)
        publisher = await stack.enter_async_context(dynatops.connect(cluster.addresses, stay=True))
        for _ in range(EVENTS):
            for i, topic in enumerate(TOPICS):
                for _ in range(1 + i):
                    await publisher.publish(topic, b"x")


async def in_the_lake(lake: Path) -> None:
    """Until everything that happened is."""

    def is_whole() -> bool:
        followed = Counter(row["user_id"] for row in read_rows(lake, SUBSCRIPTIONS))
        events: Counter[str] = Counter()
        for row in read_rows(lake, PUBLICATIONS):
            events[row["topic"]] += row["events"]
        closed = {row["user_id"] for row in read_rows(lake, SESSIONS) if row["op"] == "close"}
        return (
            all(followed[name] >= len(TOPICS) for name in FANS)
            and all(events[topic] >= EVENTS * (1 + i) for i, topic in enumerate(TOPICS))
            and closed >= set(FANS)
        )

    await until(is_whole, timeout_s=30, what="the lake has everything")


async def redirects_advised(cluster: ProcessCluster) -> int:
    async with Inspector(cluster.addresses) as inspector:
        reports = await inspector.brokers()
    return sum(report.counters["redirects_advised"] for report in reports)


@pytest.mark.timeout(600)
def test_from_what_brokers_log_to_where_users_and_brokers_go(tmp_path: Path) -> None:
    lake, output = tmp_path / "lake", tmp_path / "analytics"

    async def scenario() -> None:
        cluster = ProcessCluster(
            BROKERS,
            lake=LakeSettings(url=str(lake), window_s=0.2, file_age_max_s=0.2),
            managers=1,
            options=BROKER_OPTIONS,
            manager_options=MANAGER_OPTIONS,
        )
        async with cluster:
            await fans_come_and_go(cluster)
            await in_the_lake(lake)
            # The broker crashes, and comes back without its sessions: nobody online knows any more
            # that these users were together there.
            home = next(broker for broker in cluster.brokers if broker.name == HOME)
            home.kill()
            await home.process.wait()
            cluster.brokers.remove(home)
            await cluster.add(HOME)
            redis = cluster.managers.store_url
            where = ("--lake", str(lake), "--output", str(output), "--redis", redis)
            done = await command("analytics", "run", "all", *where, *ANALYTICS)
            check_jobs(done["jobs"])
            await the_manager_knows_the_jobs(cluster, done["jobs"])
            await the_next_user_is_sent(cluster)
            await the_manager_plans(cluster, output)

    asyncio.run(scenario())


def check_jobs(jobs: list[dict[str, Any]]) -> None:
    # Nobody has asked for the past: there is no such table.
    statuses = {job["job"]: job["status"] for job in jobs}
    assert {name: statuses[name] for name in ("rates", "clusters", "selection", "mobility")} == (
        dict.fromkeys(("rates", "clusters", "selection", "mobility"), "done")
    )
    assert all(job["quarantined_files"] == job["quarantined_rows"] == 0 for job in jobs)
    advised = {job["job"]: job["advice"]["entries"] for job in jobs if job["advice"]}
    # Every fan, and every topic.
    assert advised["selection"] >= len(FANS) + len(TOPICS)


async def the_manager_knows_the_jobs(cluster: ProcessCluster, jobs: list[dict[str, Any]]) -> None:
    (manager,) = cluster.managers.managers

    async def known() -> dict[str, dict[str, Any]]:
        found = await command("analytics", "status", "--manager", manager.url)
        return {job["job"]: job for job in found["jobs"]}

    async def are_all_there() -> bool:
        return all(job["last_run"] for job in (await known()).values())

    await until(are_all_there, timeout_s=60, what="the manager has looked")
    for told in jobs:
        job = (await known())[told["job"]]
        assert job["last_run"] == told["status"].replace(" ", "_")
        assert job["counts"]["rows"] == told["rows_in"]
        assert (job["advice"] is None) == (told["advice"] is None)


async def the_next_user_is_sent(cluster: ProcessCluster) -> None:
    elsewhere = next(broker for broker in cluster.brokers if broker.name != HOME)
    before = await redirects_advised(cluster)

    async def is_sent(name: str) -> bool:
        """One who was there before, or one whom nobody knows, who follows the same."""
        async with dynatops.connect([elsewhere.address], client_id=name) as client:
            await client.subscribe(*TOPICS)
            with contextlib.suppress(AssertionError):
                await until(lambda: client.broker == HOME, timeout_s=3.0)
            return client.broker == HOME

    number = iter(range(100))
    await until(
        # Brokers look for advice, and hear of each other, every 0.2 s.
        lambda: is_sent(f"new-{next(number)}"), timeout_s=60, what="a new user is sent home"
    )  # fmt: skip
    assert await is_sent(FANS[0])
    assert await redirects_advised(cluster) >= before + 2


async def the_manager_plans(cluster: ProcessCluster, output: Path) -> None:
    (manager,) = cluster.managers.managers
    at = ("--manager", manager.url)
    # Somebody has to subscribe, so that there is something to plan for.
    async with contextlib.AsyncExitStack() as stack:
        for broker in cluster.brokers:
            client = await stack.enter_async_context(dynatops.connect([broker.address], stay=True))
            await client.subscribe(*TOPICS[:3])

        async def is_ready() -> bool:
            status = await command("status", *at)
            return bool(status["model"]["ready"] and status["subscriptions"] >= 3 * BROKERS)

        await until(is_ready, timeout_s=60, what="the manager knows the network")
        plan = await command("plan", "--reason", "a test", "--budget", "0.5", *at)
    facts = plan["model"]
    assert facts["rates_from"] == "advice"
    # All of Spark's rates, and nothing else: nobody has published for long, so that none that
    # brokers report are left.
    table = ds.dataset(output / "rates" / "topics", format="parquet").to_table()
    rates = dict(zip(*table.select(["topic", "rate"]).to_pydict().values(), strict=True))
    assert rates.keys() >= set(TOPICS)
    assert facts["events_per_s"] == pytest.approx(sum(rates.values()))
