"""How old the advice of each analytics job is: read from Redis now and then, for metrics only.

What follows advice says itself when that is too old. This is for people: a job that has not run
for hours shows nowhere else.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

from redis.asyncio import Redis

from dynatops.kit.advice.advising_jobs import JOB_TABLES
from dynatops.kit.advice.keys import head_key
from dynatops.kit.advice.reader import UNREACHABLE, RedisWatch

log = logging.getLogger(__name__)

_DIGITS_MAX = 15


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
            async with self._redis.pipeline(transaction=False) as pipeline:
                for job in JOB_TABLES:
                    pipeline.hgetall(head_key(job))
                answers = await pipeline.execute()
        except UNREACHABLE as error:
            # What was there before grows old, which is as well.
            self.failures += 1
            log.debug("advice cannot be looked at: %s", error)
            return
        self.heads = {
            job: head
            for job, fields in zip(JOB_TABLES, answers, strict=True)
            if (head := _head_of(job, fields)) is not None
        }


def _head_of(job: str, fields: dict[bytes | str, bytes | str]) -> Head | None:
    texts = {_text(name): _text(value) for name, value in fields.items()}
    try:
        computed_s = float(texts.get("computed_s", "nan"))
    except ValueError:
        computed_s = math.nan
    if not math.isfinite(computed_s):
        return None
    entries = {
        table: int(texts[table])
        for table in JOB_TABLES[job]
        if texts.get(table, "").isdecimal() and len(texts[table]) <= _DIGITS_MAX
    }
    return Head(computed_s, entries)


def _text(raw: bytes | str) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw
