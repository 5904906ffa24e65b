"""What a broker in the middle of a tree forwards, of events that conditions ask about.

    python -m benchmarks.forwarding [--events N] [--filters 1,10000] [--json]

Three brokers are processes: `hub`, the root of a hierarchical tree, and below it `west`, where all
is published, and `east`, where sessions subscribe. A child sends its parent every event without
looking at it, so conditions are the hub's work, and again east's. One filter is
without a condition; otherwise each names a sensor and a bound, and about a quarter of the events
meet one. Publisher and subscriber speak the protocol themselves: what an application's client takes
is not measured here. Figures are the events of a second through all of it, and what an event costs
the hub's processor: a core that does nothing else forwards so many.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import grpc

from dynatops.kit.filters import attributes_to_wire
from dynatops.local.bench.processes import (
    STANDSTILL_S,
    BenchWindow,
    processor_s,
    say,
    us_per_event,
    workers,
)
from dynatops.local.tree_cluster import ProcessTree, free_ports, written_tree
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Filter,
    Hello,
    ServerFrame,
    Subscribe,
)
from dynatops.v1.overlay_pb2 import Event, Events, Publication, Run

CLIENTS = "/dynatops.v1.PubSub/Connect"
TOPIC = "plant/hall"
PAYLOAD = bytes(100)
BOUNDS = range(50, 100)
WINDOW = 20_000
BATCH = 200
# What brokers allow by default, on one pattern.
_OF_A_SESSION = 100
_REPORT_EVERY = 2_000


class Sensors:
    """Filters, and events that meet one of them or none; the same in every process."""

    def __init__(self, filters: int) -> None:
        rng = Random(filters)
        self._bounds = [rng.choice(BOUNDS) for _ in range(filters)]
        self._rng = Random(1)

    def filters(self) -> list[Filter]:
        if len(self._bounds) == 1:
            return [Filter(pattern=TOPIC)]
        return [
            Filter(pattern=TOPIC, where=f'sensor == "s{number}" and value > {bound}')
            for number, bound in enumerate(self._bounds)
        ]

    def batches(self, events: int) -> Iterator[tuple[bytes, int]]:
        """Serialised `Events`, and the number of the last in it that somebody wants; 0 if none."""
        for begin in range(0, events, BATCH):
            drawn = [self._draw() for _ in range(min(BATCH, events - begin))]
            wanted = [
                at
                for at, (sensor, value) in enumerate(drawn, begin + 1)
                if len(self._bounds) == 1 or value > self._bounds[sensor]
            ]
            made = [
                Event(
                    payload=PAYLOAD,
                    attributes=attributes_to_wire({"sensor": f"s{sensor}", "value": value}),
                )
                for sensor, value in drawn
            ]
            raw = Events(events=made, attributed=True).SerializeToString()
            yield raw, wanted[-1] if wanted else 0

    def _draw(self) -> tuple[int, int]:
        return self._rng.randrange(len(self._bounds)), self._rng.randrange(BOUNDS.stop)


# ---- in the publisher's and the subscriber's processes -------------------------------------------


class RawClient:
    def __init__(self, call: Any) -> None:
        self._call = call

    async def say(self, *messages: ClientMessage) -> None:
        await self._call.write(ClientFrame(messages=messages).SerializeToString())

    async def hear(self) -> ServerFrame:
        raw = await self._call.read()
        if not isinstance(raw, bytes):
            raise RuntimeError(f"the broker has ended the stream: {await self._call.details()}")
        return ServerFrame.FromString(raw)


@asynccontextmanager
async def raw_client(address: str) -> AsyncIterator[tuple[RawClient, int]]:
    """With its publisher's number."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        client = RawClient(channel.stream_stream(CLIENTS)())
        await client.say(ClientMessage(hello=Hello(protocol=1, publisher_secret=os.urandom(16))))
        while not (
            welcomes := [m for m in (await client.hear()).messages if m.HasField("welcome")]
        ):
            pass
        yield client, welcomes[0].welcome.publisher


class Arrivals:
    """Of all sessions together."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._told = 0
        self._reached = 0
        self.events = 0
        self.began_s = 0.0

    async def read(self, client: RawClient) -> None:
        while self._reached < self._last:
            for message in (await client.hear()).messages:
                if message.HasField("missed"):
                    raise RuntimeError("the subscriber has missed events")
                if message.run.count and message.run.topic == TOPIC:
                    self._note(message.run)
            if self._reached - self._told >= _REPORT_EVERY:
                self._told = self._reached
                say({"delivered": self._reached})

    def _note(self, run: Run) -> None:
        self.began_s = self.began_s or time.time()
        self.events += len(run.selected) if run.partial else run.count
        if not run.partial or run.selected:
            last = run.selected[-1] if run.partial else run.count - 1
            self._reached = max(self._reached, run.first_number + last)


async def subscribe(address: str, filters: int, last: int) -> None:
    wanted = Sensors(filters).filters()
    arrivals = Arrivals(last)
    async with AsyncExitStack() as stack:
        clients = []
        for begin in range(0, len(wanted), _OF_A_SESSION):
            client, _ = await stack.enter_async_context(raw_client(address))
            part = wanted[begin : begin + _OF_A_SESSION]
            await client.say(ClientMessage(subscribe=Subscribe(request=1, filters=part)))
            clients.append(client)
        for client in clients:
            await _confirmed(client)
        say({"ready": True})
        reading = [asyncio.create_task(arrivals.read(client)) for client in clients]
        # The one that gets the last event knows first.
        done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        say({"seconds": time.time() - arrivals.began_s, "deliveries": arrivals.events})
        for task in reading:
            task.cancel()


async def _confirmed(client: RawClient) -> None:
    while True:
        for message in (await client.hear()).messages:
            if message.HasField("subscribed"):
                if message.subscribed.problems:
                    raise RuntimeError(str(message.subscribed.problems[0]))
                return


async def publish(address: str, filters: int, events: int) -> None:
    batches = [raw for raw, _ in Sensors(filters).batches(events)]
    window = BenchWindow(WINDOW)
    async with raw_client(address) as (client, publisher):
        say({"ready": True})
        for number, raw in enumerate(batches):
            sent = number * BATCH
            await window.room(sent)
            publication = Publication(
                topic=TOPIC,
                publisher=publisher,
                first_number=sent + 1,
                count=min(BATCH, events - sent),
                events=raw,
            )
            await client.say(ClientMessage(publication=publication))
        await window.ended()


# ---- what is measured ----------------------------------------------------------------------------


async def measure(filters: int, events: int) -> dict[str, Any]:
    names = ("west", "hub", "east")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(names))]
    mapping = {
        "mode": "hierarchical",
        "root": "hub",
        "brokers": dict(zip(names, addresses, strict=True)),
        "links": [["hub", "west"], ["hub", "east"]],
    }
    last = max(number for _, number in Sensors(filters).batches(events))
    with written_tree(mapping) as tree:
        async with ProcessTree(tree) as brokers, workers("benchmarks.forwarding") as start:
            hub = brokers.brokers[1].process.pid
            subscriber = await start("subscribe", addresses[2], str(filters), str(last))
            await subscriber.line()
            publisher = await start("publish", addresses[0], str(filters), str(events))
            await publisher.line()
            before_s = processor_s(hub)
            while "seconds" not in (report := await subscriber.line(STANDSTILL_S)):
                await publisher.tell(report)
            after_s = processor_s(hub)
            await publisher.finish()
    cost_us = us_per_event(before_s, after_s, events)
    return {
        "filters": filters,
        "events": events,
        "forwarded": report["deliveries"],
        "events_per_s": round(events / report["seconds"]),
        "hub_us_per_event": cost_us,
        "hub_events_per_s": round(1e6 / cost_us) if cost_us else None,
    }


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("subscribe", "publish"):
        role, address, *numbers = sys.argv[1:]
        work = subscribe if role == "subscribe" else publish
        asyncio.run(work(address, *map(int, numbers)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--filters", default="1,10000", help="how many, by commas")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [
        asyncio.run(measure(int(filters), arguments.events))
        for filters in arguments.filters.split(",")
    ]
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), "rows": rows}, indent=1))
        return
    print("  filters  forwarded  events/s  us of the hub an event  events/s of a core")
    for row in rows:
        print(
            f"{row['filters']:>9,}  {row['forwarded']:>9,}  {row['events_per_s']:>8,}  "
            f"{row['hub_us_per_event']:>22.2f}  {row['hub_events_per_s']:>18,}"
        )


if __name__ == "__main__":
    main()
