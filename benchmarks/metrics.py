"""What it costs to look at a broker: throughput with and without scrapes, in turns, and how long a
scrape takes where there are many topics.

    python -m benchmarks.metrics [--json] [--events N] [--turns N] [--topics N] [--every S]

Two brokers, each a process of its own, one with probes and metrics, one without; the same load goes
to either, several times, one after the other. Prometheus asks every 15 to 60 seconds; here it is
asked every second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dynatops
from dynatops.local.bench.processes import BenchWorker, processor_s
from dynatops.local.bench.pubsub import PubSubPlan
from dynatops.local.bench.pubsub import run as run_pubsub

_SCRAPES = 20
_AT_ONCE = 500


@asynccontextmanager
async def broker(*options: str) -> AsyncIterator[dict[str, Any]]:
    worker = await BenchWorker.start(
        "dynatops", "broker", "--listen", "127.0.0.1:0", "--json", *options,
        "--set", "core.followed_topics_max=1000000",
    )  # fmt: skip
    try:
        yield {**await worker.line(), "pid": worker.pid}
    finally:
        worker.interrupt()
        await worker.finish()


async def scrape(address: str) -> tuple[float, str]:
    """How long it took, and what was answered."""

    def fetch() -> tuple[float, str]:
        began_s = time.perf_counter()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return time.perf_counter() - began_s, text

    return await asyncio.to_thread(fetch)


async def scrape_forever(address: str, every_s: float, taken_s: list[float]) -> None:
    while True:
        taken_s.append((await scrape(address))[0])
        await asyncio.sleep(every_s)


async def load(
    broker: dict[str, Any], arguments: argparse.Namespace, taken_s: list[float]
) -> tuple[float, float]:
    """Events a second, and the broker's microseconds for each."""
    plan = PubSubPlan(arguments.events, 100, 1, "replicated", 20_000)
    http, before_s = broker.get("http", ""), processor_s(broker["pid"])
    work = scrape_forever(http, arguments.every, taken_s) if http else asyncio.sleep(0)
    scraping = asyncio.create_task(work)
    try:
        found = await run_pubsub(plan, broker["address"])
    finally:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
    used_s = processor_s(broker["pid"]) - before_s
    return float(found["events_per_s"]), 1e6 * used_s / arguments.events


async def in_turns(arguments: argparse.Namespace) -> dict[str, Any]:
    quiet: list[tuple[float, float]] = []
    watched: list[tuple[float, float]] = []
    taken_s: list[float] = []
    async with broker() as plain, broker("--http", "127.0.0.1:0") as seen:
        for turn in range(arguments.turns):
            # Each is the first as often as the second.
            pair = [(plain, quiet), (seen, watched)]
            for target, results in pair[:: 1 if turn % 2 else -1]:
                results.append(await load(target, arguments, taken_s))
    pairs = list(zip(quiet, watched, strict=True))
    return {
        "quiet_events_per_s": round(statistics.median(rate for rate, _ in quiet)),
        "scraped_events_per_s": round(statistics.median(rate for rate, _ in watched)),
        "throughput_ratio": round(statistics.median(b[0] / a[0] for a, b in pairs), 3),
        "quiet_us_per_event": round(statistics.median(cost for _, cost in quiet), 3),
        "scraped_us_per_event": round(statistics.median(cost for _, cost in watched), 3),
        "processor_ratio": round(statistics.median(b[1] / a[1] for a, b in pairs), 3),
        "scrapes": len(taken_s),
        "busy_scrape_ms": round(1e3 * statistics.median(taken_s), 2),
    }


async def many_topics(topics: int) -> dict[str, Any]:
    async with broker("--http", "127.0.0.1:0") as seen:
        async with dynatops.connect(seen["address"], stay=True) as client:
            async with client.subscribe("t/#") as events:
                for first in range(0, topics, _AT_ONCE):
                    names = range(first, min(first + _AT_ONCE, topics))
                    await asyncio.gather(*(client.publish(f"t/{n}", b"x") for n in names))
                    for _ in names:
                        await events.__anext__()
                await counted(seen["http"], topics)
                taken_s = []
                for _ in range(_SCRAPES):
                    taken_s.append((await scrape(seen["http"]))[0])
                    await asyncio.sleep(0.1)
                text = (await scrape(seen["http"]))[1]
    return {
        "topics": topics,
        "scrape_ms": round(1e3 * statistics.median(taken_s), 2),
        "scrape_max_ms": round(1e3 * max(taken_s), 2),
        "scrape_bytes": len(text),
        "series": sum(not line.startswith("#") for line in text.splitlines()),
    }


async def counted(address: str, topics: int) -> None:
    """Until the census knows of all of them."""
    while figure("dynatops_node_member_trees", (await scrape(address))[1]) < topics:  # noqa: ASYNC110
        await asyncio.sleep(0.5)


def figure(name: str, text: str) -> float:
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    found = await in_turns(arguments)
    return {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        **found,
        **await many_topics(arguments.topics),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between scrapes")
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments))
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:>22}  {value}")


if __name__ == "__main__":
    main()
