"""Who asks for the past of which topics, as Spark computed it: the advice of the `demand` job, from
Redis. Its table `topics` has, of each topic, requests in a second and the shares of those who ask
most:

    dynatops:advice:demand:v1:VERSION:topics   topic -> {"rate": 2.5, "brokers": {"b1": 0.8}, ...}

It is fresh as rates are (`rate_advice.py`).
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
from dynatops.kit.strict_json import JsonError, parse_json
from reconfig_manager.service.process_settings import RateAdviceSettings
from reconfig_manager.storing.demand import AdvisedDemand

log = logging.getLogger(__name__)

# Called with demand by topic, when it was computed, and how long it is fresh from now on.
OnDemand = Callable[[dict[str, AdvisedDemand], float, float], None]


class DemandAdviceError(AdviceError):
    """What is in Redis is no demand; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class AdvisedTopics:
    topics: dict[str, AdvisedDemand]
    computed_s: float


def demand_kind(topics_max: int, ttl_s: float) -> AdviceKind[AdvisedTopics]:
    async def read(version: AdviceVersion) -> AdvisedTopics:
        head = version.head
        computed_s, promised = head.number("computed_s"), head.count("topics")
        if promised > topics_max:
            most = f"advice.topics_max, {topics_max:,}"
            raise DemandAdviceError(f"{promised:,} topics are more than {most}")
        topics: dict[str, AdvisedDemand] = {}
        async for topic, text in version.entries("topics"):
            topics[topic] = _demand_of(topic, text)
            if len(topics) > promised:
                break
        if len(topics) != promised:
            key = version.key_of("topics")
            raise DemandAdviceError(f"{key} has not the {promised:,} topics promised")
        return AdvisedTopics(topics, computed_s)

    return AdviceKind(
        job="demand", what="demand", log=log, complaint=_complaint, read=read, ttl_s=ttl_s
    )


def _demand_of(topic: str, text: str) -> AdvisedDemand:
    """Raises DemandAdviceError."""
    try:
        document = parse_json(text.encode())
    except JsonError as error:
        raise DemandAdviceError(f"of {topic!r}: {error}") from None
    said = document if isinstance(document, dict) else {}
    rate, brokers = _amount(said.get("rate")), said.get("brokers")
    if rate is None or not isinstance(brokers, dict):
        raise DemandAdviceError(f"of {topic!r} there is no rate, or nobody who asks: {text[:80]}")
    shares = {name: s for name, share in brokers.items() if (s := _amount(share)) is not None}
    return AdvisedDemand(rate, shares)


def _amount(value: object) -> float | None:
    """Finite, and 0 at least; None if it is no such number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def demand_reader(
    redis: Redis, settings: RateAdviceSettings, on_demand: OnDemand
) -> AdviceReader[AdvisedTopics]:
    """It closes the client that it is given when its work ends; each version is read once."""

    def hand_over(advised: Advised[AdvisedTopics] | None) -> None:
        if advised is not None:
            content = advised.content
            on_demand(content.topics, content.computed_s, advised.fresh_for_s)

    kind = demand_kind(settings.topics_max, settings.ttl_s)
    return AdviceReader(kind, redis, hand_over, period_s=settings.period_s)


def _complaint(error: Exception) -> str:
    return f"demand cannot be read: {type(error).__name__}: {error}"
