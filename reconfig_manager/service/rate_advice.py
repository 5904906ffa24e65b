"""Publication rates as Spark computed them, read from Redis every so often.

    dynatops:advice:rates:v1                hash, with an expiry: `version` names the table,
                                            `topics` says how many entries it has, `computed_s`
                                            when it was computed (UNIX time)
    dynatops:advice:rates:v1:VERSION:rates  hash: topic -> events/s

Analytics write the table first and the head last, so that a head names a table that is
whole. Nothing here holds the manager up: what cannot be read is said once, and what was read before
is used until it is too old (`monitor.advice_ttl_s`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from dynatops.kit.advice_keys import RATES_KEY, rates_key
from reconfig_manager.service.process_settings import RateAdviceSettings

log = logging.getLogger(__name__)

_SCAN_ENTRIES = 1_000
# Called with events/s by topic, and when they were computed.
OnRates = Callable[[dict[str, float], float], None]


class RateAdviceError(ValueError):
    """What is in Redis are no rates; the message says what is wrong with them."""


class RateReader:
    def __init__(self, redis: Redis, settings: RateAdviceSettings, on_rates: OnRates) -> None:
        """It closes the client that it is given when its work ends."""
        self.versions = 0
        self.failures = 0
        self._settings = settings
        self._on_rates = on_rates
        self._redis = redis
        self._last_version = ""
        # What was last complained of: each trouble is told once.
        self._complaint = ""

    async def run(self) -> None:
        try:
            while True:
                await self.read_once()
                await asyncio.sleep(self._settings.period_s)
        finally:
            await self._redis.aclose()

    async def read_once(self) -> None:
        """Hand over what is new."""
        try:
            await self._read()
        except (RedisError, OSError, TimeoutError, RateAdviceError) as error:
            self.failures += 1
            complaint = f"rates cannot be read: {type(error).__name__}: {error}"
            if complaint != self._complaint:
                log.warning("%s; going on with what is known while it is fresh", complaint)
            self._complaint = complaint
            return
        if self._complaint:
            log.info("rates can be read again")
        self._complaint = ""

    async def _read(self) -> None:
        head = {_text(k): _text(v) for k, v in (await self._redis.hgetall(RATES_KEY)).items()}
        version = head.get("version", "")
        if not version or version == self._last_version:
            return
        computed_s = _number(head.get("computed_s", ""), "computed_s")
        promised = int(_number(head.get("topics", ""), "topics"))
        if promised > self._settings.topics_max:
            most = f"advice.topics_max, {self._settings.topics_max:,}"
            raise RateAdviceError(f"{promised:,} topics are more than {most}")
        rates: dict[str, float] = {}
        async for topic, rate in self._redis.hscan_iter(rates_key(version), count=_SCAN_ENTRIES):
            rates[_text(topic)] = _number(_text(rate), _text(topic))
            if len(rates) > promised:
                break
        if len(rates) != promised:
            raise RateAdviceError(f"{rates_key(version)} has not the {promised:,} topics promised")
        self._last_version = version
        self.versions += 1
        self._on_rates(rates, computed_s)


def _text(raw: bytes | str) -> str:
    try:
        return raw.decode() if isinstance(raw, bytes) else raw
    except UnicodeDecodeError:
        raise RateAdviceError(f"{raw[:40]!r} is not UTF-8") from None


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise RateAdviceError(f"{what[:80]} is {text[:40]!r}, not a number")
    return number
