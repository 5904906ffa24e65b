"""How the jobs of analytics are: what each left of its runs, and how old its advice is. Read from
Redis now and then, for people only: metrics, `/v1/analytics`.

What follows advice says itself when that is too old. A job that fails, or has not run for hours,
shows nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator

from redis.asyncio import Redis

from dynatops.kit.advice.advising_jobs import JOB_TABLES
from dynatops.kit.advice.job_records import JobRecord, record_key
from dynatops.kit.advice.reader import (
    UNREACHABLE,
    AdviceError,
    AdviceHead,
    RedisWatch,
    read_heads,
)
from reconfig_manager.status import AdviceStatus, JobStatus

log = logging.getLogger(__name__)


class JobHealth(RedisWatch):
    def __init__(self, redis: Redis, period_s: float) -> None:
        super().__init__(redis, period_s)
        # In the order of their names.
        self.jobs: tuple[JobStatus, ...] = tuple(map(JobStatus, JOB_TABLES))
        self.failures = 0

    async def read_once(self) -> None:
        try:
            heads = await read_heads(self._redis, JOB_TABLES)
            records = await self._records()
        except UNREACHABLE as error:
            # What was there before grows old, which is as well.
            self.failures += 1
            log.debug("jobs cannot be looked at: %s", error)
            return
        advice = {job: _advice_of(job, head) for job, head in heads.items()}
        self.jobs = tuple(JobStatus(job, records.get(job), advice.get(job)) for job in JOB_TABLES)

    async def _records(self) -> dict[str, JobRecord]:
        async with self._redis.pipeline() as pipeline:
            for job in JOB_TABLES:
                pipeline.hgetall(record_key(job))
            answers = await pipeline.execute(raise_on_error=False)
        records: dict[str, JobRecord] = {}
        for job, raw in zip(JOB_TABLES, answers, strict=True):
            # What is no record is none, as if the job had never run.
            with contextlib.suppress(ValueError):
                if isinstance(raw, dict) and raw:
                    records[job] = JobRecord.of(raw)
        return records


def _advice_of(job: str, raw: AdviceHead) -> AdviceStatus | None:
    try:
        computed_s = raw.number("computed_s")
    except AdviceError:
        return None
    entries = dict(_counts(raw, JOB_TABLES[job]))
    return AdviceStatus(computed_s, entries, time.time() + raw.left_s)


def _counts(raw: AdviceHead, tables: Iterable[str]) -> Iterator[tuple[str, int]]:
    for table in tables:
        with contextlib.suppress(AdviceError):
            if raw.text(table):
                yield table, raw.count(table)
