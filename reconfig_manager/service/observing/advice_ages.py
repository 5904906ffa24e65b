"""How old the advice of each analytics job is: read from Redis now and then, for metrics only.

What follows advice says itself when that is too old. This is for people: a job that has not run
for hours shows nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from redis.asyncio import Redis

from dynatops.kit.advice.advising_jobs import JOB_TABLES
from dynatops.kit.advice.reader import (
    UNREACHABLE,
    AdviceError,
    AdviceHead,
    RedisWatch,
    read_heads,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """What a job said of its advice."""

    computed_s: float
    # By table.
    entries: dict[str, int] = field(default_factory=dict)


class AdviceAges(RedisWatch):
    def __init__(self, redis: Redis, period_s: float) -> None:
        super().__init__(redis, period_s)
        # By job; of those whose advice is there.
        self.heads: dict[str, Head] = {}
        self.failures = 0

    async def read_once(self) -> None:
        try:
            found = await read_heads(self._redis, JOB_TABLES)
        except UNREACHABLE as error:
            # What was there before grows old, which is as well.
            self.failures += 1
            log.debug("advice cannot be looked at: %s", error)
            return
        self.heads = {
            job: head for job, raw in found.items() if (head := _head_of(job, raw)) is not None
        }


def _head_of(job: str, raw: AdviceHead) -> Head | None:
    try:
        computed_s = raw.number("computed_s")
    except AdviceError:
        return None
    return Head(computed_s, dict(_counts(raw, JOB_TABLES[job])))


def _counts(raw: AdviceHead, tables: Iterable[str]) -> Iterator[tuple[str, int]]:
    for table in tables:
        with contextlib.suppress(AdviceError):
            if raw.text(table):
                yield table, raw.count(table)
