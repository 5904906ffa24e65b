"""A broker that others know by a name, and that comes back at another address: a pod.

Names are those of a hosts file of the test's own, in a mount namespace; where the system does not
allow that, this is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import dynatops
from dynatops.client.errors import DynatopsError
from dynatops.client.inspection import Inspector, ring_problems
from tests.support.commands import COMMAND
from tests.support.ports import free_addresses
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

_WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


def _with_hosts(hosts: Path, *command: str) -> list[str]:
    return ["unshare", "-rm", "sh", "-c", _WITH_HOSTS, str(hosts), *command]


def _possible(hosts: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(_with_hosts(hosts, "true"), capture_output=True).returncode == 0


class Pods:
    def __init__(self, folder: Path) -> None:
        # Of this test alone, whatever else runs.
        self._net = f"127.{os.getpid() % 250 + 2}.{os.getpid() // 250 % 250}"
        self._hosts = folder / "hosts"
        self.places = [f"{self._net}.{i + 1}" for i in range(3)]
        self.write_hosts()
        # One port for all, as in pods.
        self.port = free_addresses(1)[0].rpartition(":")[2]
        self.processes: list[asyncio.subprocess.Process] = []

    @property
    def hosts(self) -> Path:
        return self._hosts

    def write_hosts(self) -> None:
        lines = [f"{place} pod-{i}.ring.test" for i, place in enumerate(self.places)]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    @property
    def names(self) -> list[str]:
        return [f"pod-{i}.ring.test:{self.port}" for i in range(3)]

    @property
    def addresses(self) -> list[str]:
        return [f"{place}:{self.port}" for place in self.places]

    async def start(self, index: int) -> asyncio.subprocess.Process:
        options = ["--broker-id", f"pod-{index}", "--listen", self.addresses[index]]
        options += ["--advertise", self.names[index], "--found-if-alone", "--json"]
        options += ["--set", "runtime.alone_s=1"]
        for name in self.names:
            options += ["--join", name]
        process = await asyncio.create_subprocess_exec(
            *_with_hosts(self._hosts, *COMMAND, "broker", *options),
            stdout=asyncio.subprocess.PIPE,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline())["address"] == self.names[index]
        return process

    def move(self, index: int) -> None:
        self.places[index] = f"{self._net}.{100 + index}"
        self.write_hosts()

    async def is_whole(self) -> bool:
        try:
            async with Inspector(self.addresses) as inspector:
                reports = await inspector.brokers()
        except DynatopsError:
            return False
        return len(reports) == 3 and not ring_problems(reports)

    async def exchange(self) -> None:
        for publisher, subscriber in ((0, 2), (2, 1)):
            async with (
                dynatops.connect(self.addresses[publisher], stay=True) as one,
                dynatops.connect(self.addresses[subscriber], stay=True) as other,
                other.subscribe("quake/#") as events,
            ):
                await one.publish("quake/ca", b"M5.1")
                assert (await anext(events)).payload == b"M5.1"

    async def stop(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.timeout(90)
def test_the_same_name_at_another_address(tmp_path: Path, index: int) -> None:
    async def scenario() -> None:
        pods = Pods(tmp_path)
        if not _possible(pods.hosts):
            pytest.skip("no mount namespaces here")
        try:
            processes = await asyncio.gather(*map(pods.start, range(3)))
            await until(pods.is_whole, 20.0)
            processes[index].kill()
            await processes[index].wait()
            pods.move(index)
            await pods.start(index)
            await until(pods.is_whole, 20.0)
            await pods.exchange()
        finally:
            await pods.stop()

    asyncio.run(scenario())
