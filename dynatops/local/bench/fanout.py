"""One publisher, many sessions on one topic: how many deliveries a second.

Sessions are spread over the brokers and live in two processes. The publisher keeps at most a window
of events ahead of what all sessions together have got, so nothing is lost for want of room.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dynatops
from dynatops.local.bench.processes import (
    RENDEZVOUS,
    STANDSTILL_S,
    BenchWorker,
    access,
    brokers,
    in_ms,
    say,
    thinned,
    workers,
)

TOPIC = "bench/fanout"
_WORKERS = 2
_BATCH = 50
_REPORT_EVERY_S = 0.02
_CONNECT_AT_ONCE = 50
# Latencies noted by one worker, of some events each.
_SAMPLES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class FanoutPlan:
    sessions: int = 1_000
    events: int = 2_000
    payload_bytes: int = 100
    brokers: int = 8
    window: int = 500
    routing: str = RENDEZVOUS


async def run(plan: FanoutPlan, given: str | None = None) -> dict[str, Any]:
    async with (
        brokers(given, plan.brokers, plan.routing, in_one_process=True) as measured,
        workers("dynatops.local.bench.fanout") as start,
    ):
        addresses = measured.addresses
        share = [
            plan.sessions // _WORKERS + (i < plan.sessions % _WORKERS) for i in range(_WORKERS)
        ]
        listening = [
            await start(",".join(addresses), str(sessions), json.dumps(asdict(plan)))
            for sessions in share
        ]
        await asyncio.gather(*(worker.line() for worker in listening))
        started_s = time.time()
        reports = await _publish(plan, addresses, listening)
        await asyncio.gather(*(worker.finish() for worker in listening))
    deliveries = plan.sessions * plan.events
    seconds = max(report["ended_s"] for report in reports) - started_s
    latencies = [latency for report in reports for latency in report["latencies_us"]]
    return {
        "sessions": plan.sessions,
        **measured.facts(),
        "events": plan.events,
        "bytes": plan.payload_bytes,
        "deliveries": deliveries,
        "deliveries_per_s": round(deliveries / seconds, 1),
        **in_ms(latencies),
        "missed": sum(report["missed"] for report in reports),
    }


async def _publish(
    plan: FanoutPlan, addresses: Sequence[str], workers: Sequence[BenchWorker]
) -> list[dict[str, Any]]:
    """Publish at the pace of the subscribers; their last words."""
    delivered = [0] * len(workers)
    moved = asyncio.Event()

    async def follow(index: int) -> dict[str, Any]:
        while True:
            report: dict[str, Any] = await workers[index].line(STANDSTILL_S)
            delivered[index] = report["delivered"]
            moved.set()
            if "ended_s" in report:
                return report

    following = [asyncio.create_task(follow(i)) for i in range(len(workers))]
    for task in following:
        # Whoever waits for room learns of one that has failed.
        task.add_done_callback(lambda _: moved.set())
    payload = bytes(plan.payload_bytes)
    async with dynatops.connect(addresses, stay=True, **access()) as client:
        sent = 0
        while sent < plan.events:
            while (sent - plan.window) * plan.sessions >= sum(delivered):
                for task in following:
                    if task.done():
                        task.result()
                moved.clear()
                await moved.wait()
            size = min(_BATCH, plan.events - sent)
            await client.publish_many(TOPIC, [payload] * size, ack=dynatops.Ack.NONE)
            # Let the frame go out.
            await asyncio.sleep(0)
            sent += size
        await client.flush()
        return await asyncio.gather(*following)


# ---- in a process of subscribers -----------------------------------------------------------------


class _Subscribers:
    def __init__(self, plan: FanoutPlan, sessions: int) -> None:
        self._plan = plan
        self._sessions = sessions
        self._gate = asyncio.Semaphore(_CONNECT_AT_ONCE)
        self._subscribed = 0
        self._everyone = asyncio.Event()
        self._latencies_us: list[int] = []
        self.delivered = self.missed = 0

    async def run(self, addresses: Sequence[str]) -> None:
        sessions = [
            asyncio.create_task(self._session(addresses[i % len(addresses)]))
            for i in range(self._sessions)
        ]
        if sessions:
            await self._everyone.wait()
        say({"ready": True})
        reporting = asyncio.create_task(self._report())
        await asyncio.gather(*sessions)
        reporting.cancel()
        say(
            {
                "delivered": self._sessions * self._plan.events,
                "ended_s": time.time(),
                "missed": self.missed,
                "latencies_us": thinned(self._latencies_us),
            }
        )

    async def _session(self, address: str) -> None:
        async with self._gate:
            client = await dynatops.connect(address, timeout_s=60.0, stay=True, **access())
            events = await client.subscribe(TOPIC)
        self._subscribed += 1
        if self._subscribed == self._sessions:
            self._everyone.set()
        count = 0
        async for batch in events.batches():
            count += len(batch)
            self.delivered += len(batch)
            if len(self._latencies_us) < _SAMPLES_MAX:
                self._latencies_us.append(time.time_ns() // 1_000 - batch[-1].published_us)
            if count + events.missed >= self._plan.events:
                break
        self.missed += events.missed
        await client.close()

    async def _report(self) -> None:
        told = -1
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            if self.delivered != told:
                told = self.delivered
                say({"delivered": told})


def main(arguments: Sequence[str]) -> None:
    addresses, sessions, plan = arguments
    subscribers = _Subscribers(FanoutPlan(**json.loads(plan)), int(sessions))
    asyncio.run(subscribers.run(addresses.split(",")))


if __name__ == "__main__":
    main(sys.argv[1:])
