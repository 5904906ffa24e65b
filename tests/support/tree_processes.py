"""Brokers of a tree as processes that are really killed, and clients that keep books."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dynatops
from dynatops.client.errors import DynatopsError
from dynatops.client.inspection import Inspector
from dynatops.kit import filters
from dynatops.local.cluster import HOST, BrokerProcess
from tests.support.ports import free_addresses
from tests.support.waiting import until

# Machines that do much else take their time; and clients know no brokers but those named to them.
PATIENT = (
    "core.alternatives_max=0",
    "selection.enabled=false",
    "forwarding.fetch_patience_s=60",
    "forwarding.recovery_patience_s=60",
    "forwarding.start_patience_s=30",
)
STARTED_S = 120.0
# Between two events of one publisher.
_PAUSE_S = 0.01


class TreeProcesses:
    """`children`: by parent; the first parent is the root."""

    def __init__(
        self,
        folder: Path,
        children: Mapping[str, Sequence[str]],
        values: Iterable[str] = PATIENT,
    ) -> None:
        names = list(dict.fromkeys(n for p, below in children.items() for n in (p, *below)))
        self.addresses = dict(zip(names, free_addresses(len(names)), strict=True))
        self.running: dict[str, BrokerProcess] = {}
        self._folder = folder
        self._values = tuple(values)
        self._file = folder / "tree.yaml"
        brokers = "".join(f"  {name}: {at}\n" for name, at in self.addresses.items())
        links = "".join(f"  - [{p}, {child}]\n" for p, below in children.items() for child in below)
        self._file.write_text(f"version: 1\nbrokers:\n{brokers}links:\n{links}")

    async def start(self, *names: str) -> None:
        """Until they know what they published before, which they ask each other."""
        async with asyncio.timeout(STARTED_S):
            await asyncio.gather(*map(self._start, names))

    async def _start(self, name: str) -> None:
        host, _, port = self.addresses[name].rpartition(":")
        assert host == HOST
        options = ["--topology", str(self._file), "--data-dir", str(self._folder / name)]
        for value in self._values:
            options += ["--set", value]
        self.running[name] = await BrokerProcess.start(name, port=int(port), options=options)

    async def kill(self, *names: str) -> None:
        """At the same instant."""
        gone = [self.running.pop(name) for name in names]
        for broker in gone:
            broker.kill()
        await asyncio.gather(*(broker.process.communicate() for broker in gone))

    async def counters(self, name: str) -> dict[str, int]:
        async with Inspector([self.addresses[name]]) as inspector:
            [report] = [each for each in await inspector.brokers() if each.broker_id == name]
            return dict(report.counters)

    async def is_whole(self) -> bool:
        """Whether all brokers are there, and all links serve events."""
        try:
            async with Inspector(list(self.addresses.values())[:1]) as inspector:
                reports = await inspector.brokers()
        except DynatopsError:
            return False
        states = {link.state for report in reports for link in report.forwarder.links}
        return len(reports) == len(self.addresses) and states == {"live"}

    async def settle(self) -> None:
        await until(self.is_whole, STARTED_S, "all links of the tree")


@contextlib.asynccontextmanager
async def tree_of_processes(
    folder: Path, children: Mapping[str, Sequence[str]], *values: str
) -> AsyncIterator[TreeProcesses]:
    tree = TreeProcesses(folder, children, (*PATIENT, *values))
    try:
        await tree.start(*tree.addresses)
        await tree.settle()
        yield tree
    finally:
        await tree.kill(*tree.running)


@dataclass(eq=False)
class BookedPublisher:
    """Publishes all the time; what it was acknowledged stands in its books."""

    name: str
    topics: Sequence[str]
    ack: dynatops.Ack
    # (topic, number), with a value for conditions: in the order in which they were acknowledged.
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    refused: int = 0
    count: int = 0

    async def publish(self, client: dynatops.Client) -> None:
        self.count += 1
        number, value = self.count, self.count % 8
        topic = self.topics[number % len(self.topics)]
        payload = b"%s %d" % (self.name.encode(), number)
        try:
            await client.publish(
                topic, payload, attributes={"v": value}, ack=self.ack, timeout_s=90.0
            )
        except DynatopsError:
            self.refused += 1
        else:
            self.acknowledged[topic, number] = value

    async def run(self, address: str) -> None:
        async with dynatops.connect(address, stay=True) as client:
            while True:
                await self.publish(client)
                await asyncio.sleep(_PAUSE_S)


@dataclass(eq=False)
class BookedReader:
    """Reads all the time, and writes down what it got, and what it was told that it did not."""

    name: str
    wanted: filters.Filter
    got: list[tuple[str, str, int]] = field(default_factory=list)
    gaps: list[dynatops.Gap] = field(default_factory=list)

    async def run(self, addresses: Sequence[str], is_there: asyncio.Event) -> None:
        async with (
            dynatops.connect(list(addresses), client_id=self.name, keep_s=600, stay=True) as client,
            client.subscribe(
                self.wanted.pattern, where=self.wanted.where, on_gap=self.gaps.append
            ) as events,
        ):
            is_there.set()
            async for event in events:
                publisher, _, number = event.payload.decode().partition(" ")
                self.got.append((publisher, event.topic, int(number)))

    def wants(self, topic: str, value: int) -> bool:
        return self.wanted.matches(topic, {"v": value})

    def lacks(self, publishers: Iterable[BookedPublisher]) -> list[tuple[str, str, int]]:
        """What it should have got of what was acknowledged."""
        got = set(self.got)
        return [
            (publisher.name, topic, number)
            for publisher in publishers
            for (topic, number), value in publisher.acknowledged.items()
            if self.wants(topic, value) and (publisher.name, topic, number) not in got
        ]

    def disorder(self) -> list[tuple[str, str, int]]:
        """What came twice, or after what is newer of the same publisher and topic."""
        newest: dict[tuple[str, str], int] = {}
        found = []
        for publisher, topic, number in self.got:
            if number <= newest.get((publisher, topic), 0):
                found.append((publisher, topic, number))
            newest[publisher, topic] = max(number, newest.get((publisher, topic), 0))
        return found


class BookedLoad:
    """Publishers and readers that go on while brokers are killed."""

    def __init__(
        self,
        tree: TreeProcesses,
        publishers: Mapping[str, BookedPublisher],
        readers: Mapping[str, BookedReader],
        *,
        roams: bool = True,
    ) -> None:
        """By the broker that they are at. Readers that roam have two others to go to."""
        self._tree = tree
        self._publishers = publishers
        self._readers = readers
        self._steps = (0, 4, 7) if roams else (0,)
        self._publishing: list[asyncio.Task[None]] = []

    @property
    def publishers(self) -> Iterable[BookedPublisher]:
        return self._publishers.values()

    @property
    def readers(self) -> Iterable[BookedReader]:
        return self._readers.values()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[BookedLoad]:
        tasks = []
        try:
            there = []
            for name, reader in self._readers.items():
                there.append(asyncio.Event())
                tasks.append(asyncio.create_task(reader.run(self._places(name), there[-1])))
            async with asyncio.timeout(STARTED_S):
                await asyncio.gather(*(each.wait() for each in there))
            self.resume()
            yield self
        finally:
            self.pause()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _places(self, name: str) -> list[str]:
        names = list(self._tree.addresses)
        at = names.index(name)
        return [self._tree.addresses[names[(at + step) % len(names)]] for step in self._steps]

    def resume(self) -> None:
        self._publishing = [
            asyncio.create_task(publisher.run(self._tree.addresses[name]))
            for name, publisher in self._publishers.items()
        ]

    def pause(self) -> None:
        for task in self._publishing:
            task.cancel()

    async def publishes(self, events: int) -> None:
        """Until each publisher has been acknowledged so many more."""
        before = {p.name: len(p.acknowledged) for p in self.publishers}

        def has_published() -> bool:
            return all(len(p.acknowledged) >= before[p.name] + events for p in self.publishers)

        await until(has_published, STARTED_S, "publishers go on")

    async def check(self, timeout_s: float = 60.0) -> None:
        """All that has been acknowledged until now arrives, once and in order."""
        books = [(each, dict(each.acknowledged)) for each in self.publishers]
        due = [BookedPublisher(p.name, p.topics, p.ack, acked) for p, acked in books]

        def is_there() -> bool:
            return not any(reader.lacks(due) for reader in self.readers)

        try:
            await until(is_there, timeout_s)
        except AssertionError:
            lacking = {r.name: r.lacks(due)[:3] for r in self.readers if r.lacks(due)}
            raise AssertionError(f"acknowledged, and not there: {lacking}") from None
        assert {r.name: r.disorder()[:3] for r in self.readers if r.disorder()} == {}
