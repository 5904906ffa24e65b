"""Reads advice from Redis every so often, and hands it on: one reader for all kinds of it.

    reader = AdviceReader(kind, redis, take, period_s=5.0)
    await reader.run()              # until cancelled

A kind of advice (`AdviceKind`) says where it is, what is read of it, and what is said of it in the
log; brokers and managers declare those that they follow. Nothing here holds a process up: while
Redis is away, or what is there is no advice, it goes on with what it has until that is no longer
fresh (`freshness`). Each trouble is said once, and once that it is over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from dynatops.kit.advice.advice_counters import AdviceCounters
from dynatops.kit.advice.freshness import fresh_for_s
from dynatops.kit.advice.keys import head_key, table_key

_SCAN_ENTRIES = 1_000
# Past it a count is none.
_DIGITS_MAX = 15
UNREACHABLE = (RedisError, OSError, TimeoutError)

Content = TypeVar("Content")


class AdviceError(ValueError):
    """What is in Redis is no advice; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class AdviceHead:
    """The head of a job's advice, as it is in Redis; nothing of it has been judged."""

    key: str
    fields: Mapping[bytes, bytes]
    # Until Redis forgets it; infinite, if it never does.
    left_s: float = math.inf

    def text(self, name: str) -> str:
        """Nothing, if there is no such field. Raises AdviceError."""
        return text_of(self.fields.get(name.encode(), b""))

    def count(self, name: str) -> int:
        """Of a table's entries; 0 if nothing is said. Raises AdviceError."""
        digits = self.fields.get(name.encode(), b"0")
        if not digits.isdigit() or len(digits) > _DIGITS_MAX:
            raise AdviceError(f"field {name} of {self.key} is {digits[:40]!r}, not a count")
        return int(digits)

    def number(self, name: str) -> float:
        """Finite, and 0 at least. Raises AdviceError."""
        return number_of_text(self.text(name), name)

    def fresh_for_s(self, ttl_s: float, wall_s: float) -> float:
        """By what Redis has left, and by its age where its kind may be no older than `ttl_s`.
        Raises AdviceError."""
        if math.isfinite(ttl_s):
            age_s = wall_s - self.number("computed_s")
            return fresh_for_s(left_s=self.left_s, age_s=age_s, ttl_s=ttl_s)
        if math.isinf(self.left_s):
            raise AdviceError(f"{self.key} has no expiry: nobody could tell when it is too old")
        return fresh_for_s(left_s=self.left_s)


async def read_heads(redis: Redis, jobs: Collection[str]) -> dict[str, AdviceHead]:
    """Of those jobs whose advice is there. Raises one of UNREACHABLE."""
    async with redis.pipeline() as pipeline:
        for job in jobs:
            pipeline.hgetall(head_key(job))
            pipeline.pttl(head_key(job))
        answers = await pipeline.execute()
    heads: dict[str, AdviceHead] = {}
    for job, fields, left_ms in zip(jobs, answers[::2], answers[1::2], strict=True):
        if fields:
            left_s = left_ms / 1_000 if left_ms >= 0 else math.inf
            heads[job] = AdviceHead(head_key(job), fields, left_s)
    return heads


@dataclass(frozen=True, slots=True)
class AdviceVersion:
    """One version of advice, to be read."""

    head: AdviceHead
    version: str
    counters: AdviceCounters
    redis: Redis

    def key_of(self, table: str) -> str:
        return table_key(self.head.key, self.version, table)

    async def entries(self, table: str) -> AsyncIterator[tuple[str, str]]:
        """In parts that keep nobody waiting. Raises AdviceError."""
        async for name, value in self.redis.hscan_iter(self.key_of(table), count=_SCAN_ENTRIES):
            yield text_of(name), text_of(value)


@dataclass(frozen=True, slots=True)
class AdviceKind(Generic[Content]):
    """A kind of advice, as the process that follows it declares it."""

    # The job that writes it.
    job: str
    # In the log, what can be read again.
    what: str
    log: logging.Logger
    # What cannot be read, in the log: of an AdviceError, or of an error of Redis.
    complaint: Callable[[Exception], str]
    # Reads one version. Raises AdviceError.
    read: Callable[[AdviceVersion], Awaitable[Content]]
    # It is not fresh when it was computed longer ago. Without, it is fresh as long as its head
    # lives: a head without an expiry is no advice then.
    ttl_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Advised(Generic[Content]):
    """What a look has found."""

    version: str
    content: Content
    # From now on.
    fresh_for_s: float


class RedisWatch(ABC):
    """Looks into Redis again and again; it closes the client that it is given when its work
    ends."""

    def __init__(self, redis: Redis, period_s: float, backoff_max_s: float = 0.0) -> None:
        """Without `backoff_max_s` it looks as often while Redis is away."""
        self._redis = redis
        self._period_s = period_s
        self._backoff_max_s = backoff_max_s
        # In a row.
        self._failures = 0

    async def run(self) -> None:
        task = asyncio.current_task()
        try:
            while True:
                await self.read_once()
                if task is not None and task.cancelling():
                    # The client for Redis has taken it for an answer that does not come.
                    raise asyncio.CancelledError
                await asyncio.sleep(self.pause_s)
        finally:
            await self.close()

    async def close(self) -> None:
        await self._redis.aclose()

    @property
    def pause_s(self) -> float:
        """Until the next look: longer and longer while Redis is away."""
        # The exponent is bounded: Redis may be away for weeks.
        doubled = self._period_s * 2.0 ** min(self._failures, 32)
        return max(self._period_s, min(doubled, self._backoff_max_s))

    @abstractmethod
    async def read_once(self) -> None:
        """Look once."""


class AdviceReader(RedisWatch, Generic[Content]):
    def __init__(
        self,
        kind: AdviceKind[Content],
        redis: Redis,
        take: Callable[[Advised[Content] | None], None],
        *,
        period_s: float,
        backoff_max_s: float = 0.0,
    ) -> None:
        """`take` is given the advice at each look, and None once when there is none any more."""
        super().__init__(redis, period_s, backoff_max_s)
        self.counters = AdviceCounters()
        self._kind = kind
        self._take = take
        self._last: Advised[Content] | None = None
        # What was last complained of: each trouble is told once.
        self._complaint = ""

    async def read_once(self) -> None:
        """Look once, and hand over what is there."""
        try:
            advised = await self._read()
        except UNREACHABLE as error:
            self.counters.advice_failures += 1
            self._failures += 1
            self._complain(self._kind.complaint(error))
            return
        except AdviceError as error:
            self.counters.advice_refused += 1
            self._failures = 0
            self._complain(self._kind.complaint(error))
            return
        if self._complaint:
            self._kind.log.info("%s can be read again", self._kind.what)
        self._failures, self._complaint = 0, ""
        if advised is not None or self._last is not None:
            self._take(advised)
        self._last = advised

    def _complain(self, message: str) -> None:
        if message != self._complaint:
            self._kind.log.warning("%s; going on with what is known while it is fresh", message)
        self._complaint = message

    async def _read(self) -> Advised[Content] | None:
        heads = await read_heads(self._redis, (self._kind.job,))
        head = heads.get(self._kind.job)
        if head is None:
            return None
        version = head.text("version")
        if not version:
            raise AdviceError(f"{head.key} has no field version")
        fresh_s = head.fresh_for_s(self._kind.ttl_s, time.time())
        if self._last is not None and self._last.version == version:
            return replace(self._last, fresh_for_s=fresh_s)
        content = await self._kind.read(AdviceVersion(head, version, self.counters, self._redis))
        self.counters.advice_versions += 1
        return Advised(version, content, fresh_s)


def number_of_text(text: str, what: str) -> float:
    """Finite, and 0 at least. Raises AdviceError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise AdviceError(f"{what[:80]} is {text[:40]!r}, not a number")
    return number


def text_of(raw: bytes | str) -> str:
    """Raises AdviceError."""
    try:
        return raw.decode() if isinstance(raw, bytes) else raw
    except UnicodeDecodeError:
        raise AdviceError(f"{raw[:40]!r} is not UTF-8") from None
