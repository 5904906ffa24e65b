"""Sessions that change their minds all the time: how many confirmed changes a second.

Each session has some topics out of many; over and over it gives one up and takes another, and waits
until the broker says that it will hear everything from now on. This is the work that trees cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import dynatops
from dynatops.local.bench.processes import RENDEZVOUS, access, brokers, in_ms


@dataclass(frozen=True, slots=True)
class ChurnPlan:
    sessions: int = 50
    topics: int = 1_000
    topics_per_session: int = 5
    seconds: float = 5.0
    brokers: int = 8
    seed: int = 1
    routing: str = RENDEZVOUS


async def run(plan: ChurnPlan, given: str | None = None) -> dict[str, Any]:
    async with brokers(given, plan.brokers, plan.routing) as measured:
        addresses = measured.addresses
        rng = Random(plan.seed)
        latencies_us: list[float] = []
        end_s = time.monotonic() + plan.seconds
        started_s = time.monotonic()
        await asyncio.gather(
            *(
                _session(addresses, i, plan, Random(rng.random()), end_s, latencies_us)
                for i in range(plan.sessions)
            )
        )
        seconds = time.monotonic() - started_s
    return {
        "sessions": plan.sessions,
        **measured.facts(),
        "topics": plan.topics,
        "changes": len(latencies_us),
        "changes_per_s": round(len(latencies_us) / seconds, 1),
        **in_ms(latencies_us),
    }


async def _session(
    addresses: Sequence[str],
    index: int,
    plan: ChurnPlan,
    rng: Random,
    end_s: float,
    latencies_us: list[float],
) -> None:
    async with dynatops.connect(
        addresses[index % len(addresses)], timeout_s=60.0, stay=True, **access()
    ) as client:
        held: list[dynatops.Subscription] = []
        while time.monotonic() < end_s:
            if len(held) == plan.topics_per_session:
                await held.pop(0).close()
            before_s = time.monotonic()
            held.append(await client.subscribe(f"bench/churn/{rng.randrange(plan.topics)}"))
            latencies_us.append((time.monotonic() - before_s) * 1e6)
