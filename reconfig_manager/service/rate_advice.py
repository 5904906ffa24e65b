"""Publication rates as Spark computed them: the advice that a manager follows, read from Redis.

    dynatops:advice:rates:v1                hash, with an expiry: `version` names the table,
                                            `topics` says how many entries it has, `computed_s`
                                            when it was computed (UNIX time)
    dynatops:advice:rates:v1:VERSION:rates  hash: topic -> events/s

They are fresh until they are too old (`advice.ttl_s`), or Redis forgets their head. The core is
told until when, and how old they are, which it tells people when it plans. How they are read, and
what happens while they cannot be: `dynatops.kit.advice.reader`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from redis.asyncio import Redis

from dynatops.kit.advice.reader import (
    AdviceError,
    AdviceKind,
    AdviceReader,
    AdviceVersion,
    Advised,
    number_of_text,
)
from reconfig_manager.service.process_settings import RateAdviceSettings

log = logging.getLogger(__name__)

# Called with events/s by topic, when they were computed, and how long they are fresh from now on.
OnRates = Callable[[dict[str, float], float, float], None]


class RateAdviceError(AdviceError):
    """What is in Redis are no rates; the message says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class AdvisedRates:
    # Events/s by topic.
    rates: dict[str, float]
    computed_s: float


def rates_kind(topics_max: int, ttl_s: float) -> AdviceKind[AdvisedRates]:
    async def read(version: AdviceVersion) -> AdvisedRates:
        head = version.head
        computed_s = head.number("computed_s")
        promised = int(head.number("topics"))
        if promised > topics_max:
            most = f"advice.topics_max, {topics_max:,}"
            raise RateAdviceError(f"{promised:,} topics are more than {most}")
        rates: dict[str, float] = {}
        async for topic, rate in version.entries("rates"):
            rates[topic] = number_of_text(rate, topic)
            if len(rates) > promised:
                break
        if len(rates) != promised:
            key = version.key_of("rates")
            raise RateAdviceError(f"{key} has not the {promised:,} topics promised")
        return AdvisedRates(rates, computed_s)

    return AdviceKind(
        job="rates", what="rates", log=log, complaint=_complaint, read=read, ttl_s=ttl_s
    )


def rate_reader(
    redis: Redis, settings: RateAdviceSettings, on_rates: OnRates
) -> AdviceReader[AdvisedRates]:
    """It closes the client that it is given when its work ends; each version is read once."""

    def hand_over(advised: Advised[AdvisedRates] | None) -> None:
        # Rates that are there no more are fresh no longer than was said.
        if advised is not None:
            content = advised.content
            on_rates(content.rates, content.computed_s, advised.fresh_for_s)

    kind = rates_kind(settings.topics_max, settings.ttl_s)
    return AdviceReader(kind, redis, hand_over, period_s=settings.period_s)


def _complaint(error: Exception) -> str:
    return f"rates cannot be read: {type(error).__name__}: {error}"
