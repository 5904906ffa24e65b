"""Kept sessions, and brokers that are really killed, stopped, or short of disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path

import pytest

import dynatops
from broker_agent.runtime.agent import StartError
from broker_agent.runtime.disk.session_store import FILE_NAME
from dynatops.client.inspection import Inspector
from dynatops.local.cluster import HOST, BrokerProcess
from tests.support.http import ask
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

TOPICS = ("quake/ca", "quake/nv")
# Clients know no other broker than the one named to them: they wait for it to come back.
ALONE = ("--set", "core.alternatives_max=0")


class Brokers:
    """Three brokers; the last one is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.others: list[BrokerProcess] = []
        self.victim: BrokerProcess

    async def start(self) -> None:
        self.others.append(await BrokerProcess.start("b0", options=ALONE))
        join = [self.others[0].address]
        self.others.append(await BrokerProcess.start("b1", join=join, options=ALONE))
        await self.start_victim()

    async def start_victim(self, port: int = 0) -> None:
        options = [*ALONE, "--data-dir", str(self.folder)]
        join = [self.others[0].address]
        self.victim = await BrokerProcess.start("b2", port=port, join=join, options=options)

    async def restart_victim(self) -> None:
        await self.start_victim(int(self.victim.address.rpartition(":")[2]))

    async def kill_victim(self) -> None:
        self.victim.kill()
        await self.victim.process.communicate()

    async def counters(self) -> dict[str, int]:
        async with Inspector([self.victim.address]) as inspector:
            (report,) = [r for r in await inspector.brokers() if r.broker_id == "b2"]
            return dict(report.counters)

    async def has_resumed(self) -> bool:
        """Whether the victim's client has come back to its session."""
        return (await self.counters())["sessions_resumed"] == 1

    async def stop(self) -> None:
        await asyncio.gather(*(broker.stop() for broker in (self.victim, *self.others)))


@contextlib.asynccontextmanager
async def brokers(folder: Path) -> AsyncIterator[Brokers]:
    started = Brokers(folder)
    await started.start()
    try:
        yield started
    finally:
        await started.stop()


async def publish(client: dynatops.Client, numbers: Iterable[int]) -> None:
    """Acknowledged as `replicated`, on both topics in turn."""
    for number in numbers:
        await client.publish(TOPICS[number % 2], b"%d" % number)


async def listen(events: dynatops.Subscription, heard: list[int]) -> None:
    async for event in events:
        heard.append(int(event.payload))  # noqa: PERF401  # it is to be seen growing


def has_heard(heard: list[int], count: int) -> bool:
    return len(heard) >= count


def of_topic(heard: Iterable[int], topic: int) -> list[int]:
    return [number for number in heard if number % 2 == topic]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_the_same_process_hears_everything_once_and_in_order(how: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            brokers(tmp_path) as network,
            dynatops.connect(network.others[0].address) as publisher,
            dynatops.connect(network.victim.address, client_id="ann", keep_s=600) as ann,
        ):
            heard: list[int] = []
            events = await ann.subscribe(TOPICS[0], "quake/+")
            listening = asyncio.create_task(listen(events, heard))
            for first in (0, 400):
                publishing = asyncio.create_task(publish(publisher, range(first, first + 200)))
                await until(partial(has_heard, heard, first + 50))
                if how == "SIGKILL":
                    await network.kill_victim()
                else:
                    assert await network.victim.stop() == 0
                await publishing
                publishing = asyncio.create_task(
                    publish(publisher, range(first + 200, first + 400))
                )
                await network.restart_victim()
                assert (await network.counters())["sessions_restored"] == 1
                await until(network.has_resumed)
                await publishing
                await until(partial(has_heard, heard, first + 400), 20.0)
            assert events.missed == 0
            listening.cancel()
            for topic in (0, 1):
                assert of_topic(heard, topic) == of_topic(range(800), topic)

    asyncio.run(scenario())


_ONE_LIFE = """
import asyncio, sys, dynatops

async def main(address):
    async with dynatops.connect(address, client_id="ann", keep_s=600) as client:
        print("resumed", *sorted(map(str, client.resumed)), flush=True)
        async with client.subscribe("quake/+") as events:
            print("ready", flush=True)
            async for event in events:
                print(event.payload.decode(), flush=True)

asyncio.run(main(sys.argv[1]))
"""


class Life:
    """A client in a process of its own, that writes down what it takes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.resumed = ""
        self.heard: list[int] = []
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, address: str) -> Life:
        life = cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", _ONE_LIFE, address, stdout=asyncio.subprocess.PIPE
            )
        )
        assert life.process.stdout is not None
        life.resumed = (await life.process.stdout.readline()).decode().strip()
        assert await life.process.stdout.readline() == b"ready\n"
        life._reading = asyncio.create_task(life._read(life.process.stdout))
        return life

    async def _read(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            self.heard.append(int(line))

    async def end(self) -> None:
        """SIGKILL; what it had taken by then is known."""
        self.process.kill()
        await self.process.wait()
        assert self._reading is not None
        await self._reading


@pytest.mark.timeout(120)
def test_a_new_process_hears_everything_at_least_once(tmp_path: Path) -> None:
    """Client and broker are both killed, in the middle of it all, and start again."""

    async def scenario() -> None:
        async with (
            brokers(tmp_path) as network,
            dynatops.connect(network.others[0].address) as publisher,
        ):
            first = await Life.begin(network.victim.address)
            assert first.resumed == "resumed"
            # Killed at once: what it was told is in place is on disk.
            await network.kill_victim()
            await first.end()
            await publish(publisher, range(50))
            await network.restart_victim()
            second = await Life.begin(network.victim.address)
            assert second.resumed == "resumed quake/+"
            publishing = asyncio.create_task(publish(publisher, range(50, 400)))
            await until(lambda: len(second.heard) > 150)
            await network.kill_victim()
            await second.end()
            await network.restart_victim()
            third = await Life.begin(network.victim.address)
            await publishing
            everything = set(range(400))
            heard_before = [*first.heard, *second.heard]
            await until(lambda: everything <= {*heard_before, *third.heard}, 20.0, "all events")
            # In each life, each event once and in order.
            for life in (second, third):
                for topic in (0, 1):
                    in_order = of_topic(life.heard, topic)
                    assert in_order == sorted(set(in_order))
            await third.end()

    asyncio.run(scenario())


@pytest.mark.timeout(120)
def test_what_waits_for_an_absent_client_survives(tmp_path: Path) -> None:
    """Also what its topics retain no longer: it comes from the disk."""

    async def scenario() -> None:
        small = [*ALONE, "--data-dir", str(tmp_path), "--set", "overlay.log_events_max=10"]
        broker = await BrokerProcess.start("b0", options=small)
        async with dynatops.connect(broker.address, client_id="ann", keep_s=600) as ann:
            await ann.subscribe(*TOPICS)
        async with dynatops.connect(broker.address) as publisher:
            await publish(publisher, range(100))
        assert await broker.stop() == 0
        port = int(broker.address.rpartition(":")[2])
        broker = await BrokerProcess.start("b0", port=port, options=small)
        async with dynatops.connect(broker.address, client_id="ann", keep_s=600) as ann:
            assert {str(f) for f in ann.resumed} == set(TOPICS)
            heard: list[int] = []
            listening = asyncio.create_task(listen(await ann.subscribe(*TOPICS), heard))
            await until(lambda: len(heard) >= 100)
            assert heard == list(range(100))
            listening.cancel()
        await broker.stop()

    asyncio.run(scenario())


_BOUNDED = """
import resource, sys
from dynatops.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
main(sys.argv[2:])
"""


@pytest.mark.timeout(120)
def test_a_broker_whose_disk_is_full_serves_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _BOUNDED, str(200_000),
            "broker", "--json", "--listen", f"{HOST}:0", "--broker-id", "b0",
            "--data-dir", str(tmp_path),
            "--http", f"{HOST}:0", "--set", "runtime.session_unsaved_s=0.1",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        addresses = json.loads(await process.stdout.readline())
        address, http = addresses["address"], addresses["http"]
        payload = bytes(10_000)
        assert (await ask(http, "/readyz"))[0] == 200
        async with dynatops.connect(address) as publisher:
            async with dynatops.connect(address, client_id="ann", keep_s=600) as ann:
                await ann.subscribe(*TOPICS)
            for _ in range(40):
                await publisher.publish(TOPICS[0], payload)
            async with Inspector([address]) as inspector:

                async def has_failed() -> bool:
                    (report,) = await inspector.brokers()
                    return report.counters["session_writes_failed"] > 0

                await until(has_failed)

            async def is_unready() -> bool:
                status, said = await ask(http, "/readyz")
                return status == 503 and "have not been written to disk" in said

            await until(is_unready)
            # What was kept, and who keeps nothing: as ever. Nothing more is said to be kept.
            async with dynatops.connect(address, client_id="bob", keep_s=600) as bob:
                with pytest.raises(dynatops.SubscribeError, match="cannot write it to its disk"):
                    await bob.subscribe(TOPICS[1])
            async with dynatops.connect(address, client_id="eve") as eve:
                await eve.subscribe(TOPICS[1])
            async with dynatops.connect(address, client_id="ann", keep_s=600) as ann:
                events = await ann.subscribe(*TOPICS)
                for _ in range(40):
                    assert (await events.__anext__()).payload == payload
        process.terminate()
        _, errors = await process.communicate()
        assert process.returncode == 0
        complaints = [line for line in errors.decode().splitlines() if "not being saved" in line]
        assert len(complaints) == 1

    asyncio.run(scenario())


class TestStarting:
    def start(self, folder: Path) -> str:
        """What the broker says instead of starting."""

        async def scenario() -> str:
            with pytest.raises(StartError) as caught:
                await BrokerProcess.start("b0", options=["--data-dir", str(folder)])
            return str(caught.value)

        return asyncio.run(scenario())

    def test_one_broker_a_folder(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            options = ["--data-dir", str(tmp_path)]
            broker = await BrokerProcess.start("b0", options=options)
            with pytest.raises(StartError, match=r"another broker has .* open"):
                await BrokerProcess.start("b1", options=options)
            await broker.stop()

        asyncio.run(scenario())

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / FILE_NAME).write_bytes(b"not a database " * 100)
        assert "move it away" in self.start(tmp_path)
        assert (tmp_path / FILE_NAME).read_bytes() == b"not a database " * 100

    def test_somebody_elses_database(self, tmp_path: Path) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as file:
            file.execute("CREATE TABLE theirs (x)")
        assert "is not a file of sessions" in self.start(tmp_path)
