"""How old the advice of each analytics job is: read from Redis now and then, for metrics only.

What follows advice says itself when that is too old. This is for people: a job that has not run
for hours shows nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field

from redis.asyncio import Redis
from redis.exceptions import RedisError

from dynatops.kit.advice_keys import JOB_TABLES, head_key

log = logging.getLogger(__name__)

_DIGITS_MAX = 15


@dataclass(frozen=True, slots=True)
class Head:
    """What a job said of its advice."""

    computed_s: float
    # By table.
    entries: dict[str, int] = field(default_factory=dict)


class AdviceAges:
    def __init__(self, redis: Redis, period_s: float) -> None:
        """It closes the client that it is given when its work ends."""
        # By job; of those whose advice is there.
        self.heads: dict[str, Head] = {}
        self.failures = 0
        self._redis = redis
        self._period_s = period_s

    async def run(self) -> None:
        try:
            while True:
                await self.read_heads()
                await asyncio.sleep(self._period_s)
        finally:
            await self._redis.aclose()

    async def read_heads(self) -> None:
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for job in JOB_TABLES:
                    pipeline.hgetall(head_key(job))
                answers = await pipeline.execute()
        except (RedisError, OSError, TimeoutError) as error:
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
