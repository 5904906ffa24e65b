"""Publishers and subscribers of several systems, as `benchmarks.data_plane` runs them.

    python -m benchmarks.data_plane_clients SYSTEM publish|subscribe ADDRESS PLAN

Each system has a class, written as its own documentation would: connect, publish on topics in turn,
and hand every delivery to a function. Everything else is the same for all, in lines of JSON:

    subscriber   says `ready`; counts events of the warm-up, one on each topic; says `warm`; then
                 how much it has `delivered`; is told how much was `sent`; says what it `heard` once
                 that has come, or nothing more does, and up to which event it `measured` the time
                 (`measured_s`).
    publisher    founds the topics; says `ready`; begins when it is first told what was `delivered`,
                 and stays within a window of it; says what it `sent` at the end, or when it is told
                 nothing more.

A process loads only the system that it measures; the others need not be installed. The client in
`nats_c_client.c` says and hears the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle, islice
from typing import Any, Protocol

from dynatops.local.bench.processes import BenchWindow, heard, say

_BATCH = 500
_REPORT_EVERY = 1_000
# Topics that are founded at a time.
_FOUND_AT_ONCE = 500
_LOOK_EVERY_S = 0.005

# So many events have come, or will not come any more.
OnEvents = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FlowPlan:
    topics: int
    payload_bytes: int
    events: int
    # Events that may be under way.
    under_way: int
    # Events that do not come for so long never do.
    still_s: float

    @property
    def batch(self) -> int:
        """What goes out between looks at the window."""
        return max(1, min(_BATCH, self.under_way // 4))

    @property
    def report_every(self) -> int:
        return max(1, min(_REPORT_EVERY, self.under_way // 4))


class System(Protocol):
    # What stands before the number of a topic, and a pattern of all topics.
    TOPIC: str
    ALL: str

    async def connect(self, address: str) -> None: ...

    async def found(self, topics: Sequence[str]) -> None:
        """Publish one event on each, and wait until they are out."""

    async def publish(self, topics: Sequence[str], payload: bytes) -> None:
        """One event on each of these, in this order."""

    async def subscribe(self, pattern: str, deliver: OnEvents, miss: OnEvents) -> None: ...

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


class Dynatops:
    TOPIC = "bench/"
    ALL = "bench/+"
    _taking: asyncio.Task[None] | None = None

    async def connect(self, address: str) -> None:
        dynatops = import_module("dynatops")
        self._none = dynatops.Ack.NONE
        self._client = await dynatops.connect(address)

    async def found(self, topics: Sequence[str]) -> None:
        names = iter(topics)
        while some := list(islice(names, _FOUND_AT_ONCE)):
            await asyncio.gather(*(self._client.publish(name, b"") for name in some))

    async def publish(self, topics: Sequence[str], payload: bytes) -> None:
        publish, none = self._client.publish, self._none
        for topic in topics:
            await publish(topic, payload, ack=none)
        # Let the frame go out.
        await asyncio.sleep(0)

    async def subscribe(self, pattern: str, deliver: OnEvents, miss: OnEvents) -> None:
        events = await self._client.subscribe(pattern, on_gap=lambda gap: miss(max(1, gap.count)))

        async def take() -> None:
            async for batch in events.batches():
                deliver(len(batch))

        self._taking = asyncio.create_task(take())

    async def flush(self) -> None:
        await self._client.flush()

    async def close(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
        await self._client.close()


class DynatopsBatches(Dynatops):
    """Where all events are of one topic, they go out by the quicker call."""

    async def publish(self, topics: Sequence[str], payload: bytes) -> None:
        await self._client.publish_many(topics[0], [payload] * len(topics), ack=self._none)
        await asyncio.sleep(0)


class Nats:
    TOPIC = "bench."
    ALL = "bench.*"

    async def connect(self, address: str) -> None:
        self._client = await import_module("nats").connect(f"nats://{address}")

    async def found(self, topics: Sequence[str]) -> None:
        await self.publish(topics, b"")
        await self.flush()

    async def publish(self, topics: Sequence[str], payload: bytes) -> None:
        publish = self._client.publish
        for topic in topics:
            await publish(topic, payload)
        await asyncio.sleep(0)

    async def subscribe(self, pattern: str, deliver: OnEvents, miss: OnEvents) -> None:
        async def on_message(_: Any) -> None:
            deliver(1)

        await self._client.subscribe(
            pattern, cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await self._client.flush()

    async def flush(self) -> None:
        await self._client.flush()

    async def close(self) -> None:
        await self._client.close()


class Paho:
    """paho-mqtt at QoS 0; its loop runs in a thread of its own."""

    TOPIC = "bench/"
    ALL = "bench/+"

    async def connect(self, address: str) -> None:
        paho = import_module("paho.mqtt.client")
        host, port = address.split(":")
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._client.connect(host, int(port))
        self._client.loop_start()
        while not self._client.is_connected():  # noqa: ASYNC110  # it is another thread's news
            await asyncio.sleep(0.01)

    async def found(self, topics: Sequence[str]) -> None:
        await self.publish(topics, b"")

    async def publish(self, topics: Sequence[str], payload: bytes) -> None:
        publish = self._client.publish
        for topic in topics:
            publish(topic, payload)
        await self.flush()

    async def subscribe(self, pattern: str, deliver: OnEvents, miss: OnEvents) -> None:
        loop = asyncio.get_running_loop()
        confirmed = asyncio.Event()
        waiting = 0

        def pass_on() -> None:
            nonlocal waiting
            count, waiting = waiting, 0
            deliver(count)

        def on_message(*_: Any) -> None:
            nonlocal waiting
            waiting += 1
            if waiting == 1:
                loop.call_soon_threadsafe(pass_on)

        self._client.on_message = on_message
        self._client.on_subscribe = lambda *_: loop.call_soon_threadsafe(confirmed.set)
        self._client.subscribe(pattern)
        await confirmed.wait()

    async def flush(self) -> None:
        while self._client.want_write():  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def close(self) -> None:
        self._client.loop_stop()
        self._client.disconnect()


_SYSTEMS: dict[str, type[System]] = {
    "dynatops": Dynatops,
    "dynatops-single": Dynatops,
    "nats": Nats,
    "mosquitto": Paho,
    "amqtt": Paho,
}


def _system(name: str, plan: FlowPlan) -> System:
    if name == "dynatops" and plan.topics == 1:
        return DynatopsBatches()
    return _SYSTEMS[name]()


class _CountedArrivals:
    """What has come, and what is known not to come; said as it goes on, once it is to be."""

    def __init__(self, plan: FlowPlan) -> None:
        self._plan = plan
        self._next_report = sys.maxsize
        self.heard = 0
        self.missed = 0
        self.measured = 0
        self.measured_s = 0.0

    @property
    def done(self) -> int:
        """What is not under way any more."""
        return self.heard + self.missed

    def deliver(self, more: int) -> None:
        self.heard += more
        if self.done >= self._next_report:
            self._report()

    def miss(self, more: int) -> None:
        self.missed += more
        if self.done >= self._next_report:
            self._report()

    def begin(self) -> None:
        """What came before was the warm-up."""
        self.heard = self.missed = 0
        self._next_report = min(self._plan.report_every, self._plan.events)

    def _report(self) -> None:
        self.measured, self.measured_s = self.heard, time.time()
        say({"delivered": self.done})
        self._next_report = self.done + self._plan.report_every
        if self.done < self._plan.events:
            self._next_report = min(self._next_report, self._plan.events)

    async def until(self, count: int) -> None:
        """Until so much has come, or nothing more does."""
        seen, moved_s = -1, 0.0
        while self.done < count:
            if self.done != seen:
                seen, moved_s = self.done, time.monotonic()
            elif time.monotonic() - moved_s > self._plan.still_s:
                break
            await asyncio.sleep(_LOOK_EVERY_S)


async def _subscribe(system: System, plan: FlowPlan) -> None:
    arrivals = _CountedArrivals(plan)
    pattern = f"{system.TOPIC}0" if plan.topics == 1 else system.ALL
    await system.subscribe(pattern, arrivals.deliver, arrivals.miss)
    say({"ready": True})
    await arrivals.until(plan.topics)
    arrivals.begin()
    before_s = time.process_time()
    say({"warm": True})
    async for told in heard():
        await arrivals.until(told["sent"])
        break
    say(
        {
            "heard": arrivals.heard,
            "measured": arrivals.measured,
            "measured_s": arrivals.measured_s,
            "cpu_s": time.process_time() - before_s,
        }
    )


async def _publish(system: System, plan: FlowPlan) -> None:
    names = [f"{system.TOPIC}{i}" for i in range(plan.topics)]
    payload = bytes(plan.payload_bytes)
    await system.found(names)
    window = BenchWindow(plan.under_way)
    say({"ready": True})
    await window.begun()
    before_s = time.process_time()
    turn = cycle(names)
    sent = 0
    while sent < plan.events:
        count = min(plan.batch, plan.events - sent)
        await window.room(sent + count - 1)
        if window.is_over:
            break
        await system.publish(list(islice(turn, count)), payload)
        sent += count
    await system.flush()
    say({"sent": sent, "cpu_s": time.process_time() - before_s})
    await window.ended()


async def _run(name: str, role: str, address: str, plan: FlowPlan) -> None:
    system = _system(name, plan)
    await system.connect(address)
    await (_publish if role == "publish" else _subscribe)(system, plan)
    with suppress(Exception):  # what counts has been counted
        await system.close()


def main(arguments: Sequence[str]) -> None:
    name, role, address, plan = arguments
    asyncio.run(_run(name, role, address, FlowPlan(**json.loads(plan))))


if __name__ == "__main__":
    main(sys.argv[1:])
