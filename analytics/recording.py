"""Leaves in Redis how each run of a job ended, for managers to show: well, or not, and why.

A record that cannot be written fails no run: what was computed counts, and that a job was not heard
of is seen by its record growing old.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import cast

from redis.exceptions import RedisError

from analytics.commits import Counts
from analytics.errors import AnalyticsError
from analytics.publishing import Table, connect
from dynatops.kit.advice.job_records import KEPT_S, JobCounts, JobEnd, JobRun, record_key
from dynatops.kit.observing.logs import without_passwords


class JobRecorder:
    def __init__(
        self,
        redis_url: str,
        password_file: str = "",
        *,
        now_s: Callable[[], float] = time.time,
        complain: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        """Without a server it records nothing: nobody would read it."""
        self._url = redis_url
        self._password_file = password_file
        self._now_s = now_s
        self._complain = complain

    def ended(self, job: str, counts: Counts, seconds: float, *, new: bool) -> None:
        end = JobEnd.DONE if new else JobEnd.NOTHING_NEW
        counted = JobCounts(
            files=counts.files,
            rows=counts.rows,
            late=counts.late,
            dropped=counts.dropped,
            quarantined=counts.quarantined,
            quarantined_files=counts.quarantined_files,
        )
        self._write(job, JobRun(end, self._now_s(), seconds, counts=counted))

    def failed(self, job: str, reason: str, seconds: float) -> None:
        self._write(job, JobRun(JobEnd.FAILED, self._now_s(), seconds, without_passwords(reason)))

    def _write(self, job: str, run: JobRun) -> None:
        if not self._url:
            return
        key, said = record_key(job), cast("Table", run.to_fields())
        try:
            redis = connect(self._url, self._password_file)
            try:
                with redis.pipeline(transaction=True) as pipeline:
                    pipeline.hset(key, mapping=said)
                    for name, count in run.to_increments().items():
                        pipeline.hincrby(key, name, count)
                    pipeline.expire(key, KEPT_S)
                    pipeline.execute()
            finally:
                redis.close()
        except (RedisError, OSError, AnalyticsError) as error:
            where = without_passwords(self._url)
            self._complain(f"how {job} ended could not be written to {where}: {error}")
