"""From publish to delivery at a steady rate, over a known number of hops.

Without brokers given, some are started, each in its own process, and topics of one rendezvous point
and a subscribing broker are picked so that the way there has as many hops as wanted. Events go to
each topic in turn. Publisher and subscriber are processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count, islice
from typing import Any

import dynatops
from dynatops.client.inspection import Inspector, is_in_tree
from dynatops.local.bench.processes import (
    RENDEZVOUS,
    STANDSTILL_S,
    access,
    brokers,
    heard,
    in_ms,
    say,
    thinned,
    workers,
)
from dynatops.v1.inspection_pb2 import BrokerReport
from overlay.base.identifiers import key_of
from overlay.placement.geometry import RingGeometry

# Events are published this often, as many as are due.
_TICK_S = 0.001
# Before what counts, for connections and caches to settle.
_WARM_UP_S = 0.5
_TOPICS_TRIED = 10_000
# So many new topics are the catalogue's for so long, and repeat where they stand.
_CALM_TOPICS = 1_000
_CALM_S = 1.0


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    events_per_s: int = 5_000
    seconds: float = 5.0
    payload_bytes: int = 100
    brokers: int = 8
    hops: int = 3
    topics: int = 1
    routing: str = RENDEZVOUS


@dataclass(frozen=True, slots=True)
class _Way:
    topics: list[str]
    hops: int
    publisher: str
    subscriber: str


async def run(plan: LatencyPlan, given: str | None = None) -> dict[str, Any]:
    async with (
        brokers(given, plan.brokers, plan.routing) as measured,
        workers("dynatops.local.bench.latency") as start,
    ):
        addresses = measured.addresses
        way = await _pick_way(addresses, plan.hops, plan.topics)
        arguments = (json.dumps(asdict(plan)),)
        subscriber = await start("subscribe", way.subscriber, *arguments)
        await subscriber.tell({"topics": way.topics})
        await subscriber.line()
        publisher = await start("publish", way.publisher, *arguments)
        await publisher.tell({"topics": way.topics})
        published: dict[str, Any] = await publisher.line()
        await publisher.finish()
        await subscriber.tell({"published": published["events"]})
        heard: dict[str, Any] = await subscriber.line()
        await subscriber.finish()
    return {
        **measured.facts(),
        "hops": way.hops,
        "topics": plan.topics,
        "bytes": plan.payload_bytes,
        "events": published["events"],
        "events_per_s": round(published["events"] / published["seconds"], 1),
        **in_ms(heard["latencies_us"]),
        "missed": heard["missed"],
    }


async def _pick_way(addresses: Sequence[str], hops: int, topics: int) -> _Way:
    """The topics and the subscribing broker whose distance comes nearest to the hops wanted."""
    async with Inspector(addresses, **access()) as inspector:
        reports = await inspector.brokers()
    if is_in_tree(reports[0]):
        return _pick_way_in_tree(reports, addresses[0], hops, topics)
    by_node = {report.nodes[0].node.node_id: report.nodes[0].node.address for report in reports}
    geometry = RingGeometry(by_node)
    nodes = [int(node_id) for node_id in geometry.node_ids]
    distances = geometry.hops()
    wanted = min(hops, int(distances.max()))
    for i in count():
        topic = f"bench/latency/{i}"
        root = geometry.successor_of(key_of(topic))
        found = (distances[root] == wanted).nonzero()[0]
        if found.size or i == _TOPICS_TRIED:
            target = int(found[0]) if found.size else int(distances[root].argmax())
            away = int(distances[root, target])
            names = (f"bench/latency/{k}" for k in count(i))
            same = (name for name in names if geometry.successor_of(key_of(name)) == root)
            chosen = list(islice(same, topics))
            return _Way(chosen, away, by_node[nodes[root]], by_node[nodes[target]])
    raise AssertionError("unreachable")


def _pick_way_in_tree(
    reports: Sequence[BrokerReport], publisher: str, hops: int, topics: int
) -> _Way:
    """From the first broker that was named, as far as is wanted, or as there are brokers."""
    links = {
        report.address: [link.neighbour.address for link in report.forwarder.links]
        for report in reports
    }
    away, reached = 0, [publisher]
    seen = {publisher}
    while away < hops:
        further = [each for at in reached for each in links.get(at, ()) if each not in seen]
        if not further:
            break
        seen.update(further)
        reached, away = further, away + 1
    names = [f"bench/latency/{number}" for number in range(topics)]
    return _Way(names, away, publisher, reached[-1])


# ---- in the publisher's and the subscriber's processes -------------------------------------------


async def _publish(address: str, plan: LatencyPlan) -> None:
    payload = bytes(plan.payload_bytes)
    topics: list[str] = (await anext(heard()))["topics"]
    sent = 0
    async with dynatops.connect(address, stay=True, **access()) as client:
        if len(topics) > 1:
            # What it costs to found a topic, and to begin on it, is not what is measured.
            await client.publish_many([(topic, payload) for topic in topics])
            await client.publish_many([(topic, payload) for topic in topics], ack=dynatops.Ack.NONE)
            await asyncio.sleep(_CALM_S * len(topics) / _CALM_TOPICS)
        started_s = time.monotonic()
        while (elapsed_s := time.monotonic() - started_s) < plan.seconds + _WARM_UP_S:
            due = int(elapsed_s * plan.events_per_s) - sent
            if len(topics) == 1:
                await client.publish_many(topics[0], [payload] * due, ack=dynatops.Ack.NONE)
            else:
                for number in range(sent, sent + due):
                    topic = topics[number % len(topics)]
                    await client.publish(topic, payload, ack=dynatops.Ack.NONE)
            sent += due
            await asyncio.sleep(_TICK_S)
        seconds = time.monotonic() - started_s
        await client.flush()
    say({"events": sent, "seconds": seconds})


async def _subscribe(address: str, plan: LatencyPlan) -> None:
    latencies: list[int] = []
    words = heard()
    topics: list[str] = (await anext(words))["topics"]
    # Those that were for warming up.
    got = 0 if len(topics) == 1 else -2 * len(topics)
    async with (
        dynatops.connect(address, stay=True, **access()) as client,
        client.subscribe(*topics) as events,
    ):
        say({"ready": True})

        async def take() -> None:
            nonlocal got
            async for batch in events.batches():
                now_us = time.time_ns() // 1_000
                if got >= 0:
                    latencies.extend(now_us - event.published_us for event in batch)
                got += len(batch)

        taking = asyncio.create_task(take())
        published: int = (await anext(words))["published"]
        with suppress(TimeoutError):
            async with asyncio.timeout(STANDSTILL_S):
                while got + events.missed < published:  # noqa: ASYNC110  # counts from elsewhere
                    await asyncio.sleep(0.01)
        taking.cancel()
        counted = latencies[int(plan.events_per_s * _WARM_UP_S) :]
        say({"latencies_us": thinned(counted), "missed": max(events.missed, published - got)})


def main(arguments: Sequence[str]) -> None:
    role, address, plan = arguments
    work = _publish if role == "publish" else _subscribe
    asyncio.run(work(address, LatencyPlan(**json.loads(plan))))


if __name__ == "__main__":
    main(sys.argv[1:])
