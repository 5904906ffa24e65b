"""Many topics: events go to each in turn, one by one, to users who follow all of them or some.

Publisher and users are processes of their own. Every topic is published on once before anything is
measured, so that what founding a topic costs is not in it. The publisher keeps at most a window of
events under way, by what users say over pipes; with acknowledgements, so many calls wait at a time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from random import Random
from typing import Any

import dynatops
from dynatops.local.bench.processes import (
    RENDEZVOUS,
    STANDSTILL_S,
    BenchWindow,
    BenchWorker,
    access,
    brokers,
    in_ms,
    kept_for,
    say,
    thinned,
    us_per_event,
    workers,
)

_MODULE = "dynatops.local.bench.topics"
_TOPIC = "bench/topics"
_WORKERS = 2
_CONNECT_AT_ONCE = 50
_WARM_AT_ONCE = 500
_REPORT_EVERY_S = 0.005
_SAMPLES_MAX = 200_000
# Calls between looks at the window.
_CALLS = 50


@dataclass(frozen=True, slots=True)
class TopicsPlan:
    events: int = 500_000
    topics: int = 10_000
    users: int = 1
    # Topics that each user follows by name; 0: all, by a wildcard.
    follow: int = 0
    payload_bytes: int = 100
    brokers: int = 1
    ack: str = "none"
    window: int = 20_000
    window_bytes: int = 16 << 20
    seed: int = 1
    routing: str = RENDEZVOUS

    def names(self) -> list[str]:
        return [f"{_TOPIC}/{i}" for i in range(self.topics)]

    def followed(self, user: int) -> range | list[int]:
        """The topics of this user, by number."""
        if not self.follow:
            return range(self.topics)
        rng = Random(f"{self.seed}/{user}")
        return rng.sample(range(self.topics), min(self.follow, self.topics))

    def followers(self) -> list[int]:
        """How many follow each topic."""
        counts = Counter(topic for user in range(self.users) for topic in self.followed(user))
        return [counts[topic] for topic in range(self.topics)]

    def deliveries(self, users: Sequence[int]) -> int:
        """What these users are to hear, once everything has been published."""
        rounds, rest = divmod(self.events, self.topics)
        return sum(
            rounds * len(followed) + sum(topic < rest for topic in followed)
            for followed in map(self.followed, users)
        )


async def run(plan: TopicsPlan, given: str | None = None) -> dict[str, Any]:
    async with (
        brokers(given, plan.brokers, plan.routing, keep=kept_for(plan.ack)) as measured,
        workers(_MODULE) as start,
    ):
        shares = [range(i, plan.users, _WORKERS) for i in range(min(_WORKERS, plan.users))]
        addresses, settings = ",".join(measured.addresses), json.dumps(asdict(plan))
        users = [
            await start("follow", addresses, settings, f"{share.start}", str(len(shares)))
            for share in shares
        ]
        await asyncio.gather(*(worker.line() for worker in users))
        publisher = await start("publish", addresses, settings)
        # Every topic is there, and those who follow it have heard so.
        await publisher.line()
        await asyncio.gather(*(worker.line() for worker in users))
        before_s = measured.processor_s()
        started_s = time.time()
        reports = await _pass_on(users, publisher)
        after_s = measured.processor_s()
        published = await publisher.line()
        await asyncio.gather(*(worker.finish() for worker in (publisher, *users)))
    deliveries = plan.deliveries(range(plan.users))
    seconds = max(published["ended_s"], *(report["ended_s"] for report in reports)) - started_s
    return {
        "events": plan.events,
        "topics": plan.topics,
        "users": plan.users,
        "follow": plan.follow or "all",
        "bytes": plan.payload_bytes,
        **measured.facts(),
        "ack": plan.ack,
        "deliveries": deliveries,
        "events_per_s": round(plan.events / seconds, 1),
        "deliveries_per_s": round(deliveries / seconds, 1),
        **in_ms([latency for report in reports for latency in report["latencies_us"]]),
        **({} if plan.ack == "none" else {"ack_p99_ms": in_ms(published["acks_us"])["p99_ms"]}),
        "missed": sum(report["missed"] for report in reports),
        "broker_cpu_us_per_event": us_per_event(before_s, after_s, plan.events),
        "publisher_cpu_us_per_event": us_per_event(0.0, published["cpu_s"], plan.events),
        "subscriber_cpu_us_per_delivery": us_per_event(
            0.0, sum(report["cpu_s"] for report in reports), deliveries
        ),
    }


async def _pass_on(users: Sequence[BenchWorker], publisher: BenchWorker) -> list[dict[str, Any]]:
    """Let the publisher begin, and tell it how far users have come; their last words."""
    delivered = [0] * len(users)
    await publisher.tell({"delivered": 0})

    async def follow(index: int) -> dict[str, Any]:
        while True:
            report: dict[str, Any] = await users[index].line()
            delivered[index] = report["delivered"]
            await publisher.tell({"delivered": sum(delivered)})
            if "ended_s" in report:
                return report

    return await asyncio.gather(*(follow(index) for index in range(len(users))))


# ---- in the publisher's process ------------------------------------------------------------------


class _Publisher:
    def __init__(self, plan: TopicsPlan, client: dynatops.Client) -> None:
        self._plan = plan
        self._client = client
        self._names = plan.names()
        self._payload = bytes(plan.payload_bytes)
        self._ack = dynatops.Ack[plan.ack.upper()]
        self._window: BenchWindow | None = None
        self.acks_us: list[int] = []

    async def warm_up(self) -> None:
        """Publish once on each topic."""
        names = iter(self._names)
        while some := list(islice(names, _WARM_AT_ONCE)):
            await asyncio.gather(*(self._client.publish(name, self._payload) for name in some))

    async def run(self) -> None:
        plan, followers = self._plan, self._plan.followers()
        # Deliveries of an event, on the average; what nobody follows is under way for no time.
        of_event = sum(followers) / plan.topics
        events = min(plan.window, max(1, plan.window_bytes // max(plan.payload_bytes, 1)))
        window = self._window = BenchWindow(max(1, round(events * max(of_event, 1.0))))
        await window.begun()
        numbers = iter(range(plan.events))
        if self._ack is dynatops.Ack.NONE:
            await self._call(numbers, window, of_event)
        else:
            # What is under way is what is waited for.
            await asyncio.gather(*(self._call_and_wait(numbers) for _ in range(events)))
        await self._client.flush()

    async def heard_out(self) -> None:
        """Wait until nobody tells it anything any more."""
        if self._window is not None:
            await self._window.ended()

    async def _call(self, numbers: Any, window: BenchWindow, of_event: float) -> None:
        publish, payload, none = self._client.publish, self._payload, dynatops.Ack.NONE
        names, topics = self._names, self._plan.topics
        for number in numbers:
            if not number % _CALLS:
                await window.room(round(number * of_event))
            await publish(names[number % topics], payload, ack=none)

    async def _call_and_wait(self, numbers: Any) -> None:
        publish, payload, ack = self._client.publish, self._payload, self._ack
        names, topics, acks_us = self._names, self._plan.topics, self.acks_us
        for number in numbers:
            since_ns = time.perf_counter_ns()
            await publish(names[number % topics], payload, ack=ack)
            if len(acks_us) < _SAMPLES_MAX:
                acks_us.append((time.perf_counter_ns() - since_ns) // 1_000)


async def _publish(addresses: Sequence[str], plan: TopicsPlan) -> None:
    async with dynatops.connect(addresses[0], stay=True, **access()) as client:
        publisher = _Publisher(plan, client)
        await publisher.warm_up()
        say({"warm": True})
        before_s = time.process_time()
        await publisher.run()
        cpu_s = time.process_time() - before_s
        say({"ended_s": time.time(), "cpu_s": cpu_s, "acks_us": thinned(publisher.acks_us)})
        # Users may still hear, and it is told of that.
        await publisher.heard_out()


# ---- in a process of users -----------------------------------------------------------------------


class _Listeners:
    def __init__(self, plan: TopicsPlan, users: range) -> None:
        self._plan = plan
        self._users = users
        self._gate = asyncio.Semaphore(_CONNECT_AT_ONCE)
        self._latencies_us: list[int] = []
        self._clients: list[dynatops.Client] = []
        self.delivered = 0

    async def run(self, addresses: Sequence[str]) -> None:
        subscriptions = await asyncio.gather(
            *(self._subscribe(user, addresses[-1 - user % len(addresses)]) for user in self._users)
        )
        say({"ready": True})
        reading = [asyncio.create_task(self._read(events)) for events in subscriptions]
        warm = sum(len(self._plan.followed(user)) for user in self._users)
        await self._until(warm, reporting=False)
        self.delivered -= warm
        self._latencies_us.clear()
        before_s = time.process_time()
        say({"warm": True})
        expected = self._plan.deliveries(self._users)
        await self._until(expected, reporting=True)
        # What did not come is missed, said or not.
        lacking = max(expected - self.delivered, 0)
        told = sum(subscription.missed for subscription in subscriptions)
        say(
            {
                "delivered": self.delivered,
                "ended_s": time.time(),
                "missed": max(lacking, told),
                "cpu_s": time.process_time() - before_s,
                "latencies_us": thinned(self._latencies_us),
            }
        )
        for task in reading:
            task.cancel()
        await asyncio.gather(*(client.close() for client in self._clients))

    async def _subscribe(self, user: int, address: str) -> dynatops.Subscription:
        plan = self._plan
        patterns = [f"{_TOPIC}/{topic}" for topic in plan.followed(user)] if plan.follow else []
        async with self._gate:
            client = await dynatops.connect(address, timeout_s=60.0, stay=True, **access())
            self._clients.append(client)
            return await client.subscribe(*(patterns or [f"{_TOPIC}/#"]))

    async def _read(self, events: dynatops.Subscription) -> None:
        latencies_us = self._latencies_us
        async for batch in events.batches():
            self.delivered += len(batch)
            if len(latencies_us) < _SAMPLES_MAX:
                now_us = time.time_ns() // 1_000
                step = len(batch) // 20 + 1
                latencies_us += [now_us - event.published_us for event in batch[::step]]

    async def _until(self, expected: int, *, reporting: bool) -> None:
        """Until so much has been delivered, or nothing more comes."""
        seen, moved_s = -1, time.monotonic()
        while self.delivered < expected:
            await asyncio.sleep(_REPORT_EVERY_S)
            now_s = time.monotonic()
            if self.delivered != seen:
                seen, moved_s = self.delivered, now_s
                if reporting:
                    say({"delivered": seen})
            elif now_s - moved_s > STANDSTILL_S:
                break


def main(arguments: Sequence[str]) -> None:
    role, addresses, settings, *share = arguments
    plan = TopicsPlan(**json.loads(settings))
    if role == "publish":
        asyncio.run(_publish(addresses.split(","), plan))
    else:
        first, step = map(int, share)
        asyncio.run(_Listeners(plan, range(first, plan.users, step)).run(addresses.split(",")))


if __name__ == "__main__":
    main(sys.argv[1:])
