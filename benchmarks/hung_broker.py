"""A broker hangs: how long until its clients and peers go on elsewhere?

    python -m benchmarks.hung_broker [--json]

Three brokers are processes, and one of them is stopped (SIGSTOP): its kernel goes on acknowledging
what is sent to it. Two clients are connected to it, one that publishes and one that listens, and
the other brokers rely on it. Seconds from the stop until each client is connected to another
broker, until an event published there after that has come to the one that listens, and until each
other broker takes the hung one for dead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import dynatops
from dynatops.local.cluster import BrokerProcess, ProcessCluster

PATIENCE_S = 120.0
CONDEMNED = "dynatops_node_peers_condemned_total "


class HungWatch:
    """When something happened, after the stop."""

    def __init__(self) -> None:
        self.began_s = 0.0
        self.after_s: dict[str, float] = {}

    def note(self, what: str) -> None:
        if self.began_s:
            self.after_s.setdefault(what, round(time.monotonic() - self.began_s, 1))


async def condemned(broker: BrokerProcess) -> float:
    def fetch() -> float:
        with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(CONDEMNED):
                    return float(line.split()[-1])
        return 0.0

    return await asyncio.to_thread(fetch)


async def noted(watch: HungWatch, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110  # no single event says so
        await asyncio.sleep(0.1)
    watch.note(what)


async def measure() -> dict[str, float]:
    async with ProcessCluster(3, options=["--http", "127.0.0.1:0"]) as cluster:
        hung, others = cluster.brokers[1], [cluster.brokers[0], cluster.brokers[2]]
        watch = HungWatch()

        def on_connection(who: str) -> Callable[[str, str], None]:
            return lambda broker, _: watch.note(f"{who} is elsewhere") if broker else None

        async def client(who: str) -> dynatops.Client:
            return await dynatops.connect(
                hung.address, client_id=who, stay=True, on_connection=on_connection(who)
            )

        publisher, listener = await client("the publisher"), await client("the listener")
        witness = await dynatops.connect(others[0].address, stay=True)
        events = await listener.subscribe("hung")
        await witness.publish("hung", b"before")
        await anext(events)
        before = {broker.name: await condemned(broker) for broker in others}

        def takes_for_dead(broker: BrokerProcess) -> Callable[[], Awaitable[bool]]:
            async def condition() -> bool:
                return await condemned(broker) > before[broker.name]

            return condition

        async def publish() -> None:
            while True:
                await publisher.publish("elsewhere", b"x", timeout_s=PATIENCE_S)
                await asyncio.sleep(0.2)

        async def listen() -> None:
            await anext(events)
            watch.note("the listener hears on")

        async def speak() -> None:
            await publisher.publish("hung", b"after", timeout_s=PATIENCE_S)

        publishing = asyncio.ensure_future(publish())
        await asyncio.sleep(1.0)
        hung.process.send_signal(signal.SIGSTOP)
        watch.began_s = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(
                    *(noted(watch, f"{b.name} notices", takes_for_dead(b)) for b in others),
                    listen(), speak(),
                )  # fmt: skip
        except TimeoutError:
            pass
        finally:
            hung.process.send_signal(signal.SIGCONT)
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            for one in (publisher, listener, witness):
                await one.close()
        return watch.after_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    after_s: dict[str, Any] = asyncio.run(measure())
    if arguments.json:
        print(json.dumps({"after_s": after_s}, indent=2))
    else:
        for what, seconds in sorted(after_s.items(), key=lambda item: item[1]):
            print(f"{seconds:6.1f} s  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
