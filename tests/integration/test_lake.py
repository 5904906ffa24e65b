"""What a running network writes to a lake, read back."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dynatops
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent, StartError
from dynatops.lake.fields import (
    PUBLICATIONS,
    REQUESTS,
    SESSIONS,
    SUBSCRIPTIONS,
)
from dynatops.lake.lake_settings import LakeSettings
from dynatops.local.cluster import LocalCluster, ProcessCluster
from tests.support.lakes import read_rows, unfinished_files, whole_files
from tests.support.waiting import until

DAVIS, WIEN = (38.5, -121.7), (48.2, 16.4)


def lake_at(folder: Path, **values: Any) -> LakeSettings:
    return LakeSettings(url=str(folder), **{"window_s": 0.1, "file_age_max_s": 0.1, **values})


def counted(rows: list[dict[str, Any]], *names: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in names) for row in rows)


def test_a_network_writes_what_happens(tmp_path: Path) -> None:
    labels = [{"latitude": str(DAVIS[0]), "longitude": str(DAVIS[1])}]

    async def scenario() -> None:
        async with LocalCluster(3, lake=lake_at(tmp_path), labels=labels, managers=1) as cluster:
            first, second, _ = cluster.addresses
            ann = await dynatops.connect(first, client_id="ann", stay=True, keep_s=60)
            bob = await dynatops.connect(second, client_id="bob", stay=True, place=WIEN)
            events = await ann.subscribe("quake/ca", "fire/#")
            others = await bob.subscribe("quake/ca")
            for i in range(50):
                await bob.publish(f"quake/{'ca' if i % 2 else 'ny'}", b"0123456789")
            async for batch in events.batches():
                if batch[-1].seq == 25:
                    break
            await others.close()
            await bob.close()
            await until(lambda: len(cluster.agents[1].core.registry) == 0)
            await ann.close()
            registry = cluster.agents[0].core.registry
            await until(lambda: registry.clients["ann"].connection is None)

    asyncio.run(scenario())
    assert unfinished_files(tmp_path) == []
    subscriptions = read_rows(tmp_path, SUBSCRIPTIONS)
    assert counted(subscriptions, "broker_id", "user_id", "topic", "op") == {
        ("b0", "ann", "quake/ca", "subscribe"): 1,
        ("b0", "ann", "fire/#", "subscribe"): 1,
        ("b0", "ann", "quake/ca", "unsubscribe"): 1,
        ("b0", "ann", "fire/#", "unsubscribe"): 1,
        ("b1", "bob", "quake/ca", "subscribe"): 1,
        ("b1", "bob", "quake/ca", "unsubscribe"): 1,
    }
    sessions = read_rows(tmp_path, SESSIONS)
    bobs = [row for row in sessions if row["user_id"] == "bob"]
    assert [row["op"] for row in bobs] == ["open", "leave"]
    assert {(row["latitude"], row["longitude"]) for row in bobs} == {WIEN}
    anns = [row for row in sessions if row["user_id"] == "ann"]
    # Her session was kept until the broker went.
    assert [row["op"] for row in anns] == ["open", "close", "leave"]
    assert {(row["latitude"], row["longitude"]) for row in anns} == {DAVIS}
    check_publications(tmp_path)


def check_publications(lake: Path) -> None:
    rows = read_rows(lake, PUBLICATIONS)
    events: Counter[str] = Counter()
    for row in rows:
        assert row["broker_id"] in {"b0", "b1", "b2"}
        assert row["events"] > 0
        # Never more than a window and what the timer was late.
        assert 0 < row["window_s"] < 5
        events[row["topic"]] += row["events"]
    assert events["quake/ca"] == events["quake/ny"] == 25
    assert not any(topic.startswith("$") for topic in events)
    assert all(row["bytes"] >= 10 * row["events"] for row in rows)


def test_manager_and_lake_each_get_all_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LocalCluster(2, lake=lake_at(tmp_path), managers=1) as cluster:
            async with dynatops.connect(cluster.addresses) as client:
                await client.publish("before", b"x")
                # Managers count from when they have met a broker.
                await until(lambda: all(a.core.reporting._since_s for a in cluster.agents))
                for _ in range(30):
                    await client.publish("quake/ca", b"x")
            reports = [a.core.reporting.report(a._now(), full=True) for a in cluster.agents]
            told = Counter({c.topic: c.events for report in reports for c in report.publications})
            # What an earlier report had said is not said again.
            assert told["quake/ca"] <= 30

    asyncio.run(scenario())
    events: Counter[str] = Counter()
    for row in read_rows(tmp_path, PUBLICATIONS):
        events[row["topic"]] += row["events"]
    assert (events["before"], events["quake/ca"]) == (1, 30)


def test_who_comes_back_asks_for_the_past(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LocalCluster(2, lake=lake_at(tmp_path)) as cluster:
            address = cluster.addresses[0]
            ann = await dynatops.connect(address, client_id="ann", stay=True, keep_s=60)
            await ann.subscribe("quake/ca", "fire")
            await ann.close()
            registry = cluster.agents[0].core.registry
            await until(lambda: registry.clients["ann"].connection is None)
            # The session is there; elsewhere there is none, and it reads on from its cursors.
            again = await dynatops.connect(address, client_id="ann", stay=True, keep_s=60)
            await again.close()
            await until(lambda: registry.clients["ann"].connection is None)

    asyncio.run(scenario())
    ops = [row["op"] for row in read_rows(tmp_path, SESSIONS)]
    assert ops == ["open", "close", "resume", "close", "leave"]
    assert read_rows(tmp_path, REQUESTS) == []


def test_moving_users_leave_ask_and_subscribe(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LocalCluster(2, lake=lake_at(tmp_path)) as cluster:
            ann = await dynatops.connect(
                cluster.addresses, client_id="ann", stay=True, timeout_s=10.0
            )
            await ann.subscribe("quake/ca", "fire")
            home = next(a for a in cluster.agents if "ann" in a.core.registry.clients)
            other = next(a for a in cluster.agents if a is not home)
            await home.stop()
            await until(lambda: len(list(ring_of(other.core).subscriptions.topics())) == 2)
            await ann.close()

    asyncio.run(scenario())
    rows = read_rows(tmp_path, SESSIONS)
    assert len({row["broker_id"] for row in rows}) == 2
    ops = counted(rows, "op")
    assert ops == {("open",): 2, ("leave",): 2}
    assert counted(read_rows(tmp_path, SUBSCRIPTIONS), "topic", "op") == {
        (topic, op): 2 for topic in ("quake/ca", "fire") for op in ("subscribe", "unsubscribe")
    }
    assert counted(read_rows(tmp_path, REQUESTS), "topic", "count") == {
        ("quake/ca", 1): 1,
        ("fire", 1): 1,
    }


@pytest.mark.processes
def test_a_killed_broker_leaves_whole_files_only(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    settings = lake_at(lake, file_age_max_s=0.02, window_s=0.02)

    async def scenario() -> None:
        async with ProcessCluster(2, lake=settings) as cluster:
            async with dynatops.connect(cluster.addresses, stay=True) as client:
                published = 0
                while len(whole_files(lake)) < 20:
                    await client.publish("quake/ca", b"x")
                    published += 1
                cluster.brokers[1].kill()
                await cluster.brokers[1].process.wait()
        rows = [row for row in read_rows(lake, PUBLICATIONS) if row["topic"] == "quake/ca"]
        assert 0 < sum(row["events"] for row in rows) <= published

    asyncio.run(scenario())


def test_a_lake_that_cannot_be_is_said_at_the_start() -> None:
    settings = BrokerSettings(
        listen="127.0.0.1:0", lake=LakeSettings(url="gopher://somewhere/lake")
    )

    async def scenario() -> None:
        with pytest.raises(StartError, match=r"lake\.url: gopher://somewhere/lake cannot be"):
            await Agent(settings).start()

    asyncio.run(scenario())


def test_a_broker_goes_on_without_its_lake(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way of the folder")
    lake = lake_at(tmp_path / "file" / "lake", retry_s=0.05)

    async def scenario() -> None:
        async with LocalCluster(1, lake=lake) as cluster:
            agent = cluster.agents[0]
            async with dynatops.connect(cluster.addresses) as client:
                await client.publish("quake/ca", b"x")
                await until(lambda: agent.lake_counters.lake_failures > 2)
                await client.publish("quake/ca", b"y")

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    said = [record.message for record in caplog.records if "cannot be written" in record.message]
    assert len(said) == 1


def test_without_a_lake_nothing_is_noted() -> None:
    async def scenario() -> None:
        async with LocalCluster(1) as cluster, dynatops.connect(cluster.addresses) as client:
            await client.subscribe("quake/ca")
            await client.publish("quake/ca", b"x")
            agent = cluster.agents[0]
            page = agent.core.take_logbook_page(agent._now())
            assert (len(page), page.publications, page.dropped) == (0, {}, 0)
            assert not ring_of(agent.core).node.reigns.keeps_tally

    asyncio.run(scenario())
