"""Publication rates as Spark computed them: the advice that a manager follows, read from Redis.

    dynatops:advice:rates:v1                hash, with an expiry: `version` names the table,
                                            `topics` says how many entries it has, `computed_s`
                                            when it was computed (UNIX time)
    dynatops:advice:rates:v1:VERSION:rates  hash: topic -> events/s

They are fresh until they are too old (`monitor.advice_ttl_s`), which the core judges when it plans:
it tells people how old. How they are read, and what happens while they cannot be:
`dynatops.kit.advice.reader`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from redis.asyncio import Redis

from dynatops.kit.advice.reader import (
    AdviceError,
    AdviceKind,
    AdviceReader,
    AdviceVersion,
    Advised,
)
from reconfig_manager.service.process_settings import RateAdviceSettings

log = logging.getLogger(__name__)

# Called with events/s by topic, and when they were computed.
OnRates = Callable[[dict[str, float], float], None]


class RateAdviceError(AdviceError):
    """What is in Redis are no rates; the message says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class AdvisedRates:
    # Events/s by topic.
    rates: dict[str, float]
    computed_s: float


def rates_kind(topics_max: int) -> AdviceKind[AdvisedRates]:
    async def read(version: AdviceVersion) -> AdvisedRates:
        head = version.head
        computed_s = _number(head.text("computed_s"), "computed_s")
        promised = int(_number(head.text("topics"), "topics"))
        if promised > topics_max:
            most = f"advice.topics_max, {topics_max:,}"
            raise RateAdviceError(f"{promised:,} topics are more than {most}")
        rates: dict[str, float] = {}
        async for topic, rate in version.entries("rates"):
            rates[topic] = _number(rate, topic)
            if len(rates) > promised:
                break
        if len(rates) != promised:
            key = version.key_of("rates")
            raise RateAdviceError(f"{key} has not the {promised:,} topics promised")
        return AdvisedRates(rates, computed_s)

    return AdviceKind(
        job="rates", what="rates", log=log, complaint=_complaint, read=read, must_expire=False
    )


def rate_reader(
    redis: Redis, settings: RateAdviceSettings, on_rates: OnRates
) -> AdviceReader[AdvisedRates]:
    """It closes the client that it is given when its work ends; each version is taken once."""

    def hand_over(advised: Advised[AdvisedRates] | None) -> None:
        if advised is not None and advised.is_new:
            on_rates(advised.content.rates, advised.content.computed_s)

    kind = rates_kind(settings.topics_max)
    return AdviceReader(kind, redis, hand_over, period_s=settings.period_s)


def _complaint(error: Exception) -> str:
    return f"rates cannot be read: {type(error).__name__}: {error}"


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise RateAdviceError(f"{what[:80]} is {text[:40]!r}, not a number")
    return number
