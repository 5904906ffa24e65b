"""Reads advice from Redis every so often, and hands it to the core.

    reader = AdviceReader(settings, take)
    await reader.run()              # until cancelled

Nothing here holds a broker up: while Redis is away the broker goes on with what it has, until
that is no longer fresh. That is said once when it goes and once when it is back. Freshness is what
Redis has left for the key, so that no two clocks need to agree.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from broker_agent.core.selection.advice import AdviceCounters, SelectionAdvice
from broker_agent.core.selection.selection_settings import AdviceSettings
from broker_agent.core.selection.summaries import NAME_CHARACTERS_MAX
from dynatops.kit.advice_keys import SELECTION_KEY, clients_key, topics_key
from dynatops.kit.redis_access import password_options

log = logging.getLogger(__name__)

_SCAN_ENTRIES = 1_000


class AdviceError(ValueError):
    """What is in Redis is no advice; the message says what is wrong with it."""


class AdviceReader:
    def __init__(
        self, settings: AdviceSettings, take: Callable[[SelectionAdvice | None], None]
    ) -> None:
        """`take` is given the advice at each look, and None once when there is none any more.
        Raises ValueError."""
        self.counters = AdviceCounters()
        self._settings = settings
        self._take = take
        self._redis = Redis.from_url(
            settings.redis_url,
            socket_timeout=settings.timeout_s,
            socket_connect_timeout=settings.timeout_s,
            # The next look is the retry.
            retry=Retry(NoBackoff(), 0),
            **password_options(settings.redis_url, settings.password),
        )
        self._last: SelectionAdvice | None = None
        self._failures = 0
        # What was last complained of: each trouble is told once.
        self._complaint = ""

    async def run(self) -> None:
        try:
            while True:
                await self.look()
                await asyncio.sleep(self.pause_s)
        finally:
            await self.close()

    async def close(self) -> None:
        await self._redis.aclose()

    @property
    def pause_s(self) -> float:
        """Until the next look: longer and longer while Redis is away."""
        settings = self._settings
        # The exponent is bounded: Redis may be away for weeks.
        doubled = settings.period_s * 2.0 ** min(self._failures, 32)
        return max(settings.period_s, min(doubled, settings.backoff_max_s))

    async def look(self) -> None:
        """Look once, and hand over what is there."""
        try:
            advice = await self._read()
        except (RedisError, OSError, TimeoutError) as error:
            self.counters.advice_failures += 1
            self._failures += 1
            self._complain(f"Redis cannot be asked for advice: {type(error).__name__}: {error}")
            return
        except AdviceError as error:
            self.counters.advice_refused += 1
            self._failures = 0
            self._complain(f"advice refused: {error}")
            return
        if self._complaint:
            log.info("advice can be read again")
        self._failures, self._complaint = 0, ""
        if advice is not None or self._last is not None:
            self._take(advice)
        self._last = advice

    def _complain(self, message: str) -> None:
        if message != self._complaint:
            log.warning("%s; going on with what is known while it is fresh", message)
        self._complaint = message

    async def _read(self) -> SelectionAdvice | None:
        async with self._redis.pipeline() as pipeline:
            pipeline.hgetall(SELECTION_KEY)
            pipeline.pttl(SELECTION_KEY)
            head, left_ms = await pipeline.execute()
        if not head:
            return None
        if left_ms < 0:
            raise AdviceError(
                f"{SELECTION_KEY} has no expiry: nobody could tell when it is too old"
            )
        version = _text(head.get(b"version", b""))
        if not version:
            raise AdviceError(f"{SELECTION_KEY} has no field version")
        fresh_for_s = left_ms / 1_000
        if self._last is not None and self._last.version == version:
            return replace(self._last, fresh_for_s=fresh_for_s)
        clients = await self._table(clients_key(version), _count(head, b"clients"))
        topics = await self._table(topics_key(version), _count(head, b"topics"))
        self.counters.advice_versions += 1
        self.counters.advice_entries += len(clients) + len(topics)
        by_key = {_topic_key(name): broker for name, broker in topics.items()}
        return SelectionAdvice(version, fresh_for_s, clients, by_key)

    async def _table(self, key: str, promised: int) -> dict[str, str]:
        """A hash, up to the bound, in parts that keep nobody waiting."""
        wanted = min(promised, self._settings.entries_max)
        table: dict[str, str] = {}
        if wanted:
            async for name, broker in self._redis.hscan_iter(key, count=_SCAN_ENTRIES):
                table[_text(name)] = _text(broker)
                if len(table) == wanted:
                    break
        if len(table) < wanted:
            raise AdviceError(f"{key} has {len(table):,} entries, not the {promised:,} promised")
        self.counters.advice_left_out += promised - wanted
        return table


def _text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise AdviceError(f"{raw[:40]!r} is not UTF-8") from None
    if len(text) > NAME_CHARACTERS_MAX:
        raise AdviceError(f"the name {text[:40]!r}… is longer than {NAME_CHARACTERS_MAX:,}")
    return text


def _count(head: dict[bytes, bytes], name: bytes) -> int:
    digits = head.get(name, b"0")
    if not digits.isdigit() or len(digits) > 15:
        raise AdviceError(
            f"field {name.decode()} of {SELECTION_KEY} is {digits[:40]!r}, not a count"
        )
    return int(digits)


def _topic_key(name: str) -> int:
    if len(name) == 16:
        try:
            return int(name, 16)
        except ValueError:
            pass
    raise AdviceError(f"{name[:40]!r} is no topic key of 16 hexadecimal digits")
