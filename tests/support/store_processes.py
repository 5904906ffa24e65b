"""Brokers that are stores, as processes that are really killed, and what is on their disks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import dynatops
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_requests import ReadTopics, TopicsAnswer
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.stored_runs import run_of
from broker_agent.runtime.eventlog.disk_files import DiskLogFiles
from broker_agent.runtime.eventlog.store_feed import FOLDER
from dynatops.client.errors import DynatopsError
from dynatops.kit.run_events import events_of
from dynatops.local.cluster import BrokerProcess
from tests.support.ports import free_addresses

STARTED_S = 60.0


class StoreProcesses:
    """On a ring, or in a tree: a chain."""

    def __init__(self, folder: Path, brokers: int, values: Iterable[str], *, in_tree: bool) -> None:
        names = [f"b{number}" for number in range(brokers)]
        self.addresses = dict(zip(names, free_addresses(brokers), strict=True))
        self.running: dict[str, BrokerProcess] = {}
        self.folder = folder
        self._values = tuple(values)
        self._topology = folder / "tree.yaml" if in_tree else None
        if self._topology is not None:
            entries = "".join(f"  {name}: {at}\n" for name, at in self.addresses.items())
            links = "".join(f"  - [b{at}, b{at + 1}]\n" for at in range(brokers - 1))
            self._topology.write_text(f"version: 1\nbrokers:\n{entries}links:\n{links}")

    async def start(self, *names: str) -> None:
        async with asyncio.timeout(STARTED_S):
            await asyncio.gather(*map(self._start, names or self.addresses))

    async def _start(self, name: str) -> None:
        _, _, port = self.addresses[name].rpartition(":")
        options = ["--data-dir", str(self.folder / name), "--store", "#"]
        if self._topology is not None:
            options += ["--topology", str(self._topology)]
        else:
            options += ["--found-if-alone", "--join", ",".join(self.addresses.values())]
        for value in self._values:
            options += ["--set", value]
        self.running[name] = await BrokerProcess.start(name, port=int(port), options=options)

    async def kill(self, *names: str) -> None:
        """At the same instant."""
        gone = [self.running.pop(name) for name in names or list(self.running)]
        for broker in gone:
            broker.kill()
        await asyncio.gather(*(broker.process.communicate() for broker in gone))

    def log_folder(self, name: str) -> Path:
        return self.folder / name / FOLDER

    def on_disk(self, name: str) -> Counter[bytes]:
        """Payloads in the log of a broker that does not run."""
        files = DiskLogFiles(self.log_folder(name))
        try:
            log = EventLog.open(files, LogSettings(), 1 << 60)
            return Counter(_payloads(log))
        finally:
            files.close()


def _payloads(log: EventLog) -> Iterable[bytes]:
    request: ReadTopics | None = ReadTopics(1, "#")
    while request is not None:
        answer = log.read(request)
        assert isinstance(answer, TopicsAnswer)
        for row in answer.rows:
            run = run_of(row)
            events = events_of(run) if run is not None else ()
            assert events is not None
            yield from (event.payload for event in events)
        request = answer.following


class StoredPublisher:
    """Publishes all the time; what it was told is stored stands in its books."""

    def __init__(self, name: str, topic: str) -> None:
        self.name = name
        self.topic = topic
        self.count = 0
        self.stored: list[bytes] = []
        self.refused: list[str] = []

    async def run(self, addresses: Iterable[str]) -> None:
        async with dynatops.connect(list(addresses), client_id=self.name, stay=True) as client:
            while True:
                await self._publish(client)

    async def _publish(self, client: dynatops.Client) -> None:
        self.count += 1
        payload = b"%s %d %s" % (self.name.encode(), self.count, b"." * 80)
        try:
            await client.publish(self.topic, payload, ack="stored", timeout_s=60.0)
        except DynatopsError as error:
            self.refused.append(str(error))
        else:
            self.stored.append(payload)


@contextlib.asynccontextmanager
async def store_processes(
    folder: Path, brokers: int, *values: str, in_tree: bool
) -> AsyncIterator[StoreProcesses]:
    processes = StoreProcesses(folder, brokers, values, in_tree=in_tree)
    try:
        await processes.start()
        yield processes
    finally:
        await processes.kill()
