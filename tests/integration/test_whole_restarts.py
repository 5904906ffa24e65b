"""All brokers stopped, or killed, and started again: nothing new is taken for something old, and
whoever may have lost something is told."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

import dynatops
from dynatops.local.cluster import BrokerProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

TOPIC = "orders/eu"
NAMES = ("b0", "b1", "b2")


class Network:
    """Brokers with a folder each, on ports that they keep."""

    def __init__(self, folder: Path) -> None:
        self.brokers: list[BrokerProcess] = []
        self._folder = folder
        self._ports = [0] * len(NAMES)

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers]

    async def start(self) -> None:
        self.brokers = []
        for i, name in enumerate(NAMES):
            join = [self.brokers[0].address] if self.brokers else []
            options = ["--data-dir", str(self._folder / name)]
            broker = await BrokerProcess.start(
                name, port=self._ports[i], join=join, options=options
            )
            self._ports[i] = int(broker.address.rpartition(":")[2])
            self.brokers.append(broker)

    async def end(self, how: str) -> None:
        if how == "SIGTERM":
            assert await asyncio.gather(*(b.stop() for b in self.brokers)) == [0] * len(NAMES)
            return
        for broker in self.brokers:
            broker.kill()
        await asyncio.gather(*(broker.process.communicate() for broker in self.brokers))


class Deduplicator:
    """An application that does nothing twice, as the guide says: by term and seq."""

    def __init__(self) -> None:
        self.done: list[bytes] = []
        self.gaps: list[dynatops.Gap] = []
        self._stamps: set[tuple[str, int, int]] = set()

    async def read(self, events: dynatops.Subscription) -> None:
        async for event in events:
            stamp = (event.topic, event.term, event.seq)
            if stamp not in self._stamps:
                self._stamps.add(stamp)
                self.done.append(event.payload)

    def has_done(self, payloads: list[bytes]) -> bool:
        return set(payloads) <= set(self.done)


async def publish(address: str, payloads: list[bytes]) -> None:
    """As a process of its own, acknowledged as `replicated`."""
    async with dynatops.connect(address) as publisher:
        for payload in payloads:
            await publisher.publish(TOPIC, payload)


def billing(network: Network) -> AbstractAsyncContextManager[dynatops.Client]:
    """A process of the application, at the broker that has its session."""
    return dynatops.connect(network.addresses[1], client_id="billing", keep_s=600, stay=True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_what_is_new_arrives_and_what_may_be_lost_is_told(how: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        network, application = Network(tmp_path), Deduplicator()
        await network.start()
        try:
            before = [b"before %d" % i for i in range(20)]
            async with billing(network) as first:
                events = await first.subscribe(TOPIC, "orders/+", on_gap=application.gaps.append)
                reading = asyncio.create_task(application.read(events))
                await publish(network.addresses[0], before)
                await until(partial(application.has_done, before))
                await first.flush()
                reading.cancel()
            # Acknowledged, and the kept session stands behind it: nothing waits for its client.
            await network.end(how)
            await network.start()
            assert application.gaps == []
            after = [b"after %d" % i for i in range(20)]
            async with billing(network) as second:
                assert {str(f) for f in second.resumed} == {TOPIC, "orders/+"}
                events = await second.subscribe(TOPIC, "orders/+", on_gap=application.gaps.append)
                reading = asyncio.create_task(application.read(events))
                await publish(network.addresses[2], after)
                await until(partial(application.has_done, after), 20.0)
                assert application.done == before + after
                # It cannot know whether there was something between.
                told = {(gap.topic, gap.count) for gap in application.gaps}
                assert (TOPIC, 0) in told
                reading.cancel()
        finally:
            for broker in network.brokers:
                if broker.process.returncode is None:
                    broker.kill()
                    await broker.process.communicate()

    asyncio.run(scenario())
