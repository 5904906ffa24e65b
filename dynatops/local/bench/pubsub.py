"""Throughput and latency from one publisher to one subscriber, each in a process of its own.

The subscriber says how far it has come over a pipe, and the publisher keeps at most a window of
events under way, so that what is measured is a flow that could go on for ever and loses nothing.
With several topics, events go to each in turn. Processor time is that of the brokers that were
started for the purpose, from the publisher's first event to the subscriber's last.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

import dynatops
from dynatops.local.bench.processes import (
    RENDEZVOUS,
    STANDSTILL_S,
    BenchWindow,
    access,
    brokers,
    in_ms,
    kept_for,
    say,
    thinned,
    us_per_event,
    workers,
)

TOPIC = "bench/pubsub"
_BATCH = 500
_REPORT_EVERY = 1_000
_KEEP_S = 60


@dataclass(frozen=True, slots=True)
class PubSubPlan:
    events: int
    payload_bytes: int
    brokers: int
    ack: str
    window: int
    # Whether the subscriber's session outlives its connection, and is saved by brokers started
    # here.
    kept: bool = False
    # Over which events are spread.
    topics: int = 1
    window_bytes: int = 16 << 20
    routing: str = RENDEZVOUS

    @property
    def under_way(self) -> int:
        """Events that may be under way."""
        return max(1, min(self.window, self.window_bytes // self.payload_bytes))

    def topic_names(self) -> list[str]:
        return [TOPIC] if self.topics == 1 else [f"{TOPIC}/{i}" for i in range(self.topics)]


async def run(plan: PubSubPlan, given: str | None = None) -> dict[str, Any]:
    async with (
        brokers(
            given, plan.brokers, plan.routing, saving=plan.kept, keep=kept_for(plan.ack)
        ) as measured,
        workers("dynatops.local.bench.pubsub") as start,
    ):
        addresses = measured.addresses
        settings = json.dumps(asdict(plan))
        subscriber = await start("subscribe", addresses[-1], settings)
        await subscriber.line()
        publisher = await start("publish", addresses[0], settings)
        await publisher.line()
        before_s = measured.processor_s()
        while "seconds" not in (report := await subscriber.line(STANDSTILL_S)):
            await publisher.tell(report)
        after_s = measured.processor_s()
        await publisher.end_of_words()
        published = await publisher.line()
        await asyncio.gather(publisher.finish(), subscriber.finish())
    return {
        "events": plan.events,
        "bytes": plan.payload_bytes,
        **measured.facts(),
        "ack": plan.ack,
        "kept": plan.kept,
        "topics": plan.topics,
        "events_per_s": round(report["events"] / report["seconds"], 1),
        **in_ms(report["latencies_us"]),
        "missed": report["missed"],
        "broker_cpu_us_per_event": us_per_event(before_s, after_s, plan.events),
        "publisher_cpu_us_per_event": us_per_event(0.0, published["cpu_s"], plan.events),
        "subscriber_cpu_us_per_delivery": us_per_event(0.0, report["cpu_s"], plan.events),
    }


# ---- in the publisher's and the subscriber's processes -------------------------------------------


class _Arrivals:
    """What has come, until all has that will: an event that is missed comes with no other."""

    def __init__(self) -> None:
        self.count = 0
        self.latencies: list[int] = []
        self.started_us = time.time_ns() // 1_000
        self.moved = asyncio.Event()

    async def read(self, events: dynatops.Subscription) -> None:
        async for batch in events.batches():
            now_us = time.time_ns() // 1_000
            if not self.count:
                self.started_us = batch[0].published_us
            self.count += len(batch)
            step = len(batch) // 20 + 1
            self.latencies += [now_us - event.published_us for event in batch[::step]]
            self.moved.set()


async def _subscribe(address: str, plan: PubSubPlan) -> None:
    client_id, keep_s = (f"bench-{os.getpid()}", _KEEP_S) if plan.kept else ("", 0)
    connecting = dynatops.connect(
        address, client_id=client_id, keep_s=keep_s, stay=True, **access()
    )
    heard = _Arrivals()
    async with (
        connecting as client,
        client.subscribe(*plan.topic_names(), on_gap=lambda _: heard.moved.set()) as events,
    ):
        say({"ready": True})
        before_s = time.process_time()
        reading = asyncio.create_task(heard.read(events))
        told = 0
        # What is missed is not under way any more, and is no event that came.
        while (done := heard.count + events.missed) < plan.events:
            if done - told >= min(_REPORT_EVERY, plan.under_way / 4):
                told = done
                say({"delivered": done})
            await heard.moved.wait()
            heard.moved.clear()
        reading.cancel()
        say(
            {
                "seconds": time.time_ns() / 1e9 - heard.started_us / 1e6,
                "missed": events.missed,
                "events": heard.count,
                "cpu_s": time.process_time() - before_s,
                "latencies_us": thinned(heard.latencies),
            }
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """What goes out together: so many events of each topic, after so many of all."""

    sent: int
    runs: list[tuple[str, int]]


def _batches(plan: PubSubPlan) -> Iterator[_Batch]:
    """All events, spread evenly: each topic in turn, as often as it takes."""
    topics = cycle(plan.topic_names())
    batch = min(_BATCH, plan.events, plan.under_way)
    run_events = max(batch // plan.topics, 1)
    for sent in range(0, plan.events, batch):
        left = min(batch, plan.events - sent)
        sizes = [min(run_events, left - at) for at in range(0, left, run_events)]
        yield _Batch(sent, [(next(topics), size) for size in sizes])


async def _publish(address: str, plan: PubSubPlan) -> None:
    window = BenchWindow(plan.under_way)
    ack = dynatops.Ack[plan.ack.upper()]
    payload = bytes(plan.payload_bytes)
    async with dynatops.connect(address, stay=True, **access()) as client:
        say({"ready": True})
        before_s = time.process_time()
        unacknowledged: set[asyncio.Task[None]] = set()
        for batch in _batches(plan):
            await window.room(batch.sent)
            for topic, size in batch.runs:
                publishing = client.publish_many(topic, [payload] * size, ack=ack)
                if ack is dynatops.Ack.NONE:
                    await publishing
                else:
                    task = asyncio.create_task(publishing)
                    unacknowledged.add(task)
                    task.add_done_callback(unacknowledged.discard)
            # Let the frame go out.
            await asyncio.sleep(0)
        await asyncio.gather(*unacknowledged)
        await client.flush()
        cpu_s = time.process_time() - before_s
        # The subscriber still reports to this process, through the one that started both.
        await window.ended()
        say({"cpu_s": cpu_s})


def main(arguments: list[str]) -> None:
    role, address, plan = arguments
    work = _publish if role == "publish" else _subscribe
    asyncio.run(work(address, PubSubPlan(**json.loads(plan))))


if __name__ == "__main__":
    main(sys.argv[1:])
