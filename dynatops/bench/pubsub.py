"""Throughput and latency from one publisher to one subscriber, each in a process of its own.

The subscriber says how far it has come over a pipe, and the publisher keeps at most a window of
events under way, so that what is measured is a flow that could go on for ever and loses nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

import dynatops
from dynatops.cluster import ProcessCluster

TOPIC = "bench/pubsub"
_BATCH = 500
_REPORT_EVERY = 1_000


@dataclass(frozen=True, slots=True)
class PubSubPlan:
    events: int
    payload_bytes: int
    brokers: int
    ack: str
    window: int


async def run(plan: PubSubPlan) -> dict[str, Any]:
    async with ProcessCluster(plan.brokers) as cluster:
        subscriber = await _start("subscribe", plan, cluster.addresses[-1])
        await _line(subscriber)
        publisher = await _start("publish", plan, cluster.addresses[0])
        assert publisher.stdin is not None
        async for report in _lines(subscriber):
            if "seconds" in report:
                break
            publisher.stdin.write(json.dumps(report).encode() + b"\n")
            await publisher.stdin.drain()
        publisher.stdin.close()
        await asyncio.gather(publisher.wait(), subscriber.wait())
    return {
        "events": plan.events,
        "bytes": plan.payload_bytes,
        "brokers": plan.brokers,
        "ack": plan.ack,
        "events_per_s": round(plan.events / report["seconds"], 1),
        "p50_ms": report["p50_ms"],
        "p99_ms": report["p99_ms"],
        "missed": report["missed"],
    }


async def _start(role: str, plan: PubSubPlan, address: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dynatops.bench.pubsub",
        role,
        address,
        json.dumps(asdict(plan)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def _line(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[Any]:
    assert process.stdout is not None
    async for line in process.stdout:
        yield json.loads(line)


# ---- in the publisher's and the subscriber's processes -------------------------------------------


def _say(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)


async def _subscribe(address: str, plan: PubSubPlan) -> None:
    async with dynatops.connect(address) as client, client.subscribe(TOPIC) as events:
        _say({"ready": True})
        latencies: list[int] = []
        count = told = 0
        started_us = 0
        async for batch in events.batches():
            now_us = time.time_ns() // 1_000
            if not count:
                started_us = batch[0].published_us
            count += len(batch)
            latencies += [now_us - event.published_us for event in batch[:: len(batch) // 20 + 1]]
            if count >= plan.events or events.missed:
                break
            if count - told >= _REPORT_EVERY:
                told = count
                _say({"delivered": count})
        seconds = time.time_ns() / 1e9 - started_us / 1e6
        latencies.sort()
        _say(
            {
                "seconds": seconds,
                "missed": events.missed,
                "p50_ms": latencies[len(latencies) // 2] / 1_000,
                "p99_ms": latencies[len(latencies) * 99 // 100] / 1_000,
            }
        )


async def _publish(address: str, plan: PubSubPlan) -> None:
    delivered = 0
    moved = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def listen() -> None:
        nonlocal delivered
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            delivered = json.loads(line)["delivered"]
            moved.set()
        delivered = plan.events
        moved.set()

    listening = asyncio.create_task(listen())
    ack = dynatops.Ack[plan.ack.upper()]
    payload = bytes(plan.payload_bytes)
    async with dynatops.connect(address) as client:
        unacknowledged: set[asyncio.Task[None]] = set()
        sent = 0
        while sent < plan.events:
            while sent - delivered >= plan.window:
                moved.clear()
                await moved.wait()
            size = min(_BATCH, plan.events - sent)
            publishing = client.publish_many(TOPIC, [payload] * size, ack=ack)
            if ack is dynatops.Ack.NONE:
                await publishing
                # Let the frame go out.
                await asyncio.sleep(0)
            else:
                task = asyncio.create_task(publishing)
                unacknowledged.add(task)
                task.add_done_callback(unacknowledged.discard)
                await asyncio.sleep(0)
            sent += size
        await asyncio.gather(*unacknowledged)
        await client.flush()
    listening.cancel()


def main(arguments: list[str]) -> None:
    role, address, plan = arguments
    work = _publish if role == "publish" else _subscribe
    asyncio.run(work(address, PubSubPlan(**json.loads(plan))))


if __name__ == "__main__":
    main(sys.argv[1:])
