"""How jobs are: what they leave in a real store, and what managers make of it."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis

from analytics.commits import Counts
from analytics.recording import JobRecorder
from dynatops.kit.advice.advising_jobs import JOB_TABLES
from dynatops.kit.advice.job_records import KEPT_S, JobCounts, JobEnd, record_key
from dynatops.kit.advice.keys import head_key
from reconfig_manager.service.observing.job_health import JobHealth
from reconfig_manager.status import AdviceStatus, JobStatus
from tests.support.agents import managing
from tests.support.manager_store import storing
from tests.support.services import ask
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")


def statuses(health: JobHealth) -> dict[str, JobStatus]:
    return {status.job: status for status in health.jobs}


def advice(health: JobHealth) -> dict[str, AdviceStatus]:
    return {status.job: status.advice for status in health.jobs if status.advice is not None}


def test_advice_that_is_there_and_that_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with storing(tmp_path) as (server, _):
            redis = Redis.from_url(server.url)
            health = JobHealth(Redis.from_url(server.url), 15.0)
            assert list(statuses(health)) == list(JOB_TABLES)
            await health.read_once()
            assert advice(health) == {}
            computed_s = time.time() - 100
            await redis.hset(
                head_key("rates"),
                mapping={
                    "version": "v",
                    "computed_s": f"{computed_s:.3f}",
                    "topics": "12",
                    "x": "9",
                },
            )
            await redis.hset(
                head_key("selection"),
                mapping={"computed_s": "7", "clients": "many", "topics": "9" * 30},
            )
            await redis.hset(head_key("clusters"), mapping={"computed_s": "soon"})
            await redis.hset(head_key("demand"), mapping={"computed_s": "inf"})
            await health.read_once()
            assert set(advice(health)) == {"rates", "selection"}
            assert advice(health)["rates"].computed_s == pytest.approx(computed_s, abs=0.001)
            assert advice(health)["rates"].entries == {"topics": 12}
            assert advice(health)["selection"] == AdviceStatus(7.0, {})
            assert math.isinf(advice(health)["rates"].expires_s)
            await redis.expire(head_key("rates"), 500)
            await health.read_once()
            assert advice(health)["rates"].expires_s == pytest.approx(time.time() + 500, abs=20)
            # A head that runs out is advice no more.
            await redis.delete(head_key("rates"))
            await health.read_once()
            assert set(advice(health)) == {"selection"}
            await server.stop()
            await health.read_once()
            assert health.failures == 1
            assert set(advice(health)) == {"selection"}
            await redis.aclose()
            await health.close()

    asyncio.run(scenario())


def test_runs_that_end_well_and_that_do_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with storing(tmp_path) as (server, _):
            clock_s = 1_000.0
            recorder = JobRecorder(server.url, now_s=lambda: clock_s)
            health = JobHealth(Redis.from_url(server.url), 15.0)

            async def rates() -> JobStatus:
                await health.read_once()
                return statuses(health)["rates"]

            counts = Counts(files=3, rows=100, late=5, dropped=2, quarantined=1)
            await asyncio.to_thread(recorder.ended, "rates", counts, 12.5, new=True)
            record = (await rates()).record
            assert record is not None
            assert (record.end, record.ended_s, record.seconds) == (JobEnd.DONE, 1_000.0, 12.5)
            assert record.succeeded_s == 1_000.0
            clock_s = 2_000.0
            await asyncio.to_thread(
                recorder.failed, "rates", "no lake at redis://x:hush@h/ " + "x" * 900, 1.0
            )
            record = (await rates()).record
            assert record is not None
            assert (record.end, record.ended_s) == (JobEnd.FAILED, 2_000.0)
            # When it was well is not forgotten, nor what was counted.
            assert (record.succeeded_s, record.counts.rows) == (1_000.0, 100)
            assert record.reason.startswith("no lake at redis://x:***@h/")
            assert len(record.reason) == 500
            clock_s = 3_000.0
            await asyncio.to_thread(recorder.ended, "rates", Counts(), 0.5, new=False)
            await asyncio.to_thread(recorder.ended, "rates", counts, 2.0, new=True)
            record = (await rates()).record
            assert record is not None
            assert (record.end, record.reason, record.succeeded_s) == (JobEnd.DONE, "", 3_000.0)
            assert record.counts == JobCounts(
                files=6, rows=200, late=10, dropped=4, quarantined=2, quarantined_files=0
            )
            runs = {JobEnd.DONE: 2, JobEnd.NOTHING_NEW: 1, JobEnd.FAILED: 1}
            assert record.runs == runs
            assert statuses(health)["demand"].record is None
            redis = Redis.from_url(server.url)
            assert 0 < await redis.ttl(record_key("rates")) <= KEPT_S
            # What somebody else wrote there is as if the job had never run.
            await redis.hset(record_key("rates"), "rows", "many")
            await redis.set(record_key("demand"), "x")
            assert (await rates()).record is None
            await redis.aclose()
            await health.close()

    asyncio.run(scenario())


def test_a_running_manager_tells_it(tmp_path: Path) -> None:
    """In metrics, and over HTTP."""

    async def scenario() -> None:
        async with storing(tmp_path) as (server, _):
            began_s = time.time()
            recorder = JobRecorder(server.url, now_s=lambda: began_s - 100.0)
            counts = Counts(files=3, rows=100, late=5, dropped=2, quarantined=1)
            await asyncio.to_thread(recorder.ended, "rates", counts, 12.5, new=True)
            await asyncio.to_thread(recorder.failed, "rates", "there is no lake", 1.0)
            async with managing(server.url, "m1", advice={"period_s": 0.05}) as service:
                health = service.driver.job_health
                assert health is not None
                await until(lambda: statuses(health)["rates"].record is not None)
                told = {
                    (family.name, *sample.labels.values()): sample.value
                    for family in service.driver.metrics()
                    for sample in family.samples
                    if family.name.startswith("dynatops_job_")
                }
                age_s = told["dynatops_job_success_age_seconds", "rates"]
                # Records tell milliseconds.
                assert 100.0 - 0.001 <= age_s <= 100.001 + time.time() - began_s
                assert told["dynatops_job_failing", "rates"] == 1.0
                assert told["dynatops_job_seconds", "rates"] == 1.0
                assert told["dynatops_job_rows_total", "rates"] == 100.0
                assert told["dynatops_job_rows_quarantined_total", "rates"] == 1.0
                assert told["dynatops_job_runs_total", "rates", "failed"] == 1.0
                # Of a job that never ran there is nothing to tell.
                assert not any("demand" in labels for labels in told)
                found = await ask(service, "/v1/analytics")
                jobs = {job["job"]: job for job in found["jobs"]}
                assert found["watched"]
                assert jobs["rates"]["reason"] == "there is no lake"
                assert jobs["rates"]["runs"] == {"done": 1, "nothing_new": 0, "failed": 1}
                assert jobs["demand"]["last_run"] is None

    asyncio.run(scenario())


def test_a_record_that_cannot_be_written_fails_no_run() -> None:
    said: list[str] = []
    recorder = JobRecorder("redis://x:hush@127.0.0.1:1/0", complain=said.append)
    recorder.ended("rates", Counts(), 1.0, new=True)
    assert len(said) == 1
    assert "how rates ended could not be written to redis://x:***@127.0.0.1:1/0" in said[0]
    JobRecorder("", complain=said.append).failed("rates", "whatever", 1.0)
    assert len(said) == 1
