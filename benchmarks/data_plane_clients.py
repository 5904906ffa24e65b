"""Publishers and subscribers of several systems, as `benchmarks.data_plane` runs them.

    python -m benchmarks.data_plane_clients SYSTEM publish|subscribe ADDRESS PLAN

Each system has a class with three methods, written as its own documentation would: connect,
publish a batch, and hand every delivery to a function. Everything else is the same for all: the
subscriber says how far it has come, the publisher stays within a window of it. A process loads only
the system that it measures; the others need not be installed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol

from dynatops.local.bench.processes import BenchWindow, say

TOPIC = "bench"
_BATCH = 500
_REPORT_EVERY = 1_000

OnDelivery = Callable[[int], None]


class System(Protocol):
    async def connect(self, address: str) -> None: ...

    async def publish(self, payload: bytes, count: int) -> None: ...

    async def subscribe(self, deliver: OnDelivery) -> None: ...

    async def close(self) -> None: ...


class Dynatops:
    _taking: asyncio.Task[None] | None = None

    async def connect(self, address: str) -> None:
        dynatops = import_module("dynatops")
        self._ack = dynatops.Ack.NONE
        self._client = await dynatops.connect(address)

    async def publish(self, payload: bytes, count: int) -> None:
        await self._client.publish_many(TOPIC, [payload] * count, ack=self._ack)
        # Let the frame go out.
        await asyncio.sleep(0)

    async def subscribe(self, deliver: OnDelivery) -> None:
        events = await self._client.subscribe(TOPIC)

        async def take() -> None:
            async for batch in events.batches():
                deliver(len(batch))

        self._taking = asyncio.create_task(take())

    async def close(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
        await self._client.flush()
        await self._client.close()


class Nats:
    async def connect(self, address: str) -> None:
        self._client = await import_module("nats").connect(f"nats://{address}")

    async def publish(self, payload: bytes, count: int) -> None:
        for _ in range(count):
            await self._client.publish(TOPIC, payload)
        await asyncio.sleep(0)

    async def subscribe(self, deliver: OnDelivery) -> None:
        async def on_message(_: Any) -> None:
            deliver(1)

        await self._client.subscribe(
            TOPIC, cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await self._client.flush()

    async def close(self) -> None:
        await self._client.flush()
        await self._client.close()


class Paho:
    """paho-mqtt at QoS 0; its loop runs in a thread of its own."""

    async def connect(self, address: str) -> None:
        paho = import_module("paho.mqtt.client")
        host, port = address.split(":")
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._client.connect(host, int(port))
        self._client.loop_start()
        while not self._client.is_connected():  # noqa: ASYNC110  # it is another thread's news
            await asyncio.sleep(0.01)

    async def publish(self, payload: bytes, count: int) -> None:
        for _ in range(count):
            self._client.publish(TOPIC, payload)
        while self._client.want_write():  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def subscribe(self, deliver: OnDelivery) -> None:
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
        self._client.subscribe(TOPIC)
        await confirmed.wait()

    async def close(self) -> None:
        self._client.loop_stop()
        self._client.disconnect()


SYSTEMS: dict[str, type[System]] = {
    "dynatops": Dynatops,
    "nats": Nats,
    "mosquitto": Paho,
    "amqtt": Paho,
}


async def _subscribe(system: System, plan: dict[str, int]) -> None:
    count = told = 0
    started_s = 0.0
    done = asyncio.Event()

    def deliver(more: int) -> None:
        nonlocal count, told, started_s
        if not count:
            started_s = time.monotonic()
        count += more
        if count >= plan["events"]:
            done.set()
        elif count - told >= _REPORT_EVERY:
            told = count
            say({"delivered": count})

    await system.subscribe(deliver)
    say({"ready": True})
    async with asyncio.timeout(plan["timeout_s"]):
        await done.wait()
    say({"seconds": time.monotonic() - started_s})


async def _publish(system: System, plan: dict[str, int]) -> None:
    window = BenchWindow(plan["window"])
    payload = bytes(plan["payload_bytes"])
    sent = 0
    async with asyncio.timeout(plan["timeout_s"]):
        while sent < plan["events"]:
            await window.room(sent)
            count = min(_BATCH, plan["events"] - sent)
            await system.publish(payload, count)
            sent += count
        await window.ended()


async def _run(name: str, role: str, address: str, plan: dict[str, int]) -> None:
    system = SYSTEMS[name]()
    await system.connect(address)
    await (_publish if role == "publish" else _subscribe)(system, plan)
    with suppress(Exception):  # what counts has been counted
        await system.close()


def main(arguments: Sequence[str]) -> None:
    name, role, address, plan = arguments
    asyncio.run(_run(name, role, address, json.loads(plan)))


if __name__ == "__main__":
    main(sys.argv[1:])
