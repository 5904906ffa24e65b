"""The brokers of a topology on this machine: all in this process, or each in a process of its own.

    async with LocalTree(placed_tree("tree.yaml")) as cluster: ...

Each listens where the file has it. A file that is for many machines is placed on this one first:
its brokers go to ports of loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent, StartError
from broker_agent.runtime.peers.topology_file import read_topology
from dynatops.client.inspection import Inspector
from dynatops.kit.addresses import split_address
from dynatops.kit.background import BackgroundError, Supervisor
from dynatops.lake.lake_settings import LakeSettings
from dynatops.local.cluster import (
    HOST,
    SETTLE_TIMEOUT_S,
    BrokerProcess,
    failed_process,
    folder_of,
    lake_options,
    store_options,
    store_settings,
)
from overlay.forwarding.tree.topology import Topology

_LOOK_S = 0.05
_CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class PlacedTree:
    """A topology, and the file that brokers are given."""

    topology: Topology
    path: str

    @property
    def names(self) -> list[str]:
        """In the order of the file."""
        return list(self.topology.addresses)


@contextlib.contextmanager
def placed_tree(path: str, port: int | None = None) -> Iterator[PlacedTree]:
    """As the file has it; with a port, on this one and those that follow, whatever the file says
    (0: on any). Raises TopologyError, StartError."""
    topology = read_topology(path)
    if port is None:
        yield PlacedTree(topology, path)
        return
    names = list(topology.addresses)
    ports = [port + index for index in range(len(names))] if port else free_ports(len(names))
    placed = zip(names, (f"{HOST}:{each}" for each in ports), strict=True)
    with written_tree({**topology.to_mapping(), "brokers": dict(placed)}) as tree:
        yield tree


@contextlib.contextmanager
def star(leaves: int) -> Iterator[PlacedTree]:
    """A hub with leaves, on free ports; the hub is the second."""
    names = [f"leaf{number}" for number in range(1, leaves + 1)]
    names.insert(1, "hub")
    addresses = (f"{HOST}:{port}" for port in free_ports(len(names)))
    mapping = {
        "root": "hub",
        "brokers": dict(zip(names, addresses, strict=True)),
        "links": [["hub", name] for name in names if name != "hub"],
    }
    with written_tree(mapping) as tree:
        yield tree


@contextlib.contextmanager
def written_tree(mapping: dict[str, Any]) -> Iterator[PlacedTree]:
    """In a file for as long as it is needed."""
    topology = Topology.from_mapping(mapping)
    with TemporaryDirectory(prefix="dynatops-") as folder:
        path = Path(folder) / "topology.json"
        path.write_text(topology.to_text(), encoding="utf-8")
        yield PlacedTree(topology, str(path))


def free_ports(count: int) -> list[int]:
    """Nobody else is given them at the same time."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def check_addresses(tree: PlacedTree) -> None:
    """Whether brokers can listen there. Raises StartError, which names all that cannot."""
    problems = [
        f"{name} cannot listen on {address}: {why}"
        for name, address in tree.topology.addresses.items()
        if (why := _why_not_free(address))
    ]
    if problems:
        raise StartError(
            f"{'; '.join(problems)}. End what is there, change {tree.path}, or put all brokers on "
            "ports of this machine with --port (--port 0: any that are free)"
        )


def _why_not_free(address: str) -> str:
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"nobody knows {host} ({error.strerror})"
    family, kind, protocol, _, place = found[0]
    with socket.socket(family, kind, protocol) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(place)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "it is taken"
            if error.errno == errno.EADDRNOTAVAIL:
                return "it is another machine's"
            return os.strerror(error.errno or 0)
    return ""


class LocalTree:
    """Brokers in this process, in one event loop."""

    def __init__(
        self,
        tree: PlacedTree,
        *,
        data_dir: str = "",
        lake: LakeSettings | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        """`keep`: topics that the first brokers are stores of."""
        self.agents: list[Agent] = []
        self.ready_s = 0.0
        self._tree = tree
        self._data_dir = data_dir
        self._lake = lake or LakeSettings()
        self._keep = keep
        self._supervisor = Supervisor()

    @property
    def addresses(self) -> list[str]:
        return [agent.address for agent in self.agents]

    async def __aenter__(self) -> Self:
        started_s = time.monotonic()
        check_addresses(self._tree)
        try:
            await _all_of(self._start(name) for name in self._tree.names)
            order = {name: index for index, name in enumerate(self._tree.names)}
            self.agents.sort(key=lambda agent: order[agent.broker_id])
            await _links_up(self.addresses)
        except BaseException:
            await self.stop()
            raise
        self.ready_s = time.monotonic() - started_s
        return self

    async def _start(self, name: str) -> None:
        settings = BrokerSettings(
            broker_id=name,
            listen=self._tree.topology.addresses[name],
            topology=self._tree.path,
            data_dir=folder_of(name, self._data_dir),
            lake=self._lake,
            **store_settings(self._tree.names.index(name), len(self._tree.names), self._keep),
        )
        agent = Agent(settings)
        try:
            await agent.start()
        except asyncio.CancelledError:
            # It is not waited for any more.
            if agent.started_s:
                await agent.kill()
            raise
        self.agents.append(agent)
        self._supervisor.start(f"broker {name}", agent.run_until_stopped(), may_end=True)

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def failure(self) -> BackgroundError:
        """Wait until a broker has failed, which is a bug."""
        return await self._supervisor.failure()

    async def stop(self) -> None:
        await asyncio.gather(*(agent.stop() for agent in self.agents))
        await self._supervisor.stop()


class ProcessTree:
    """Brokers in processes of their own."""

    def __init__(
        self,
        tree: PlacedTree,
        *,
        data_dir: str = "",
        lake: LakeSettings | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        """`keep`: topics that the first brokers are stores of."""
        self.brokers: list[BrokerProcess] = []
        self.ready_s = 0.0
        self._tree = tree
        self._data_dir = data_dir
        self._lake = lake or LakeSettings()
        self._keep = keep

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers]

    async def __aenter__(self) -> Self:
        started_s = time.monotonic()
        check_addresses(self._tree)
        try:
            await _all_of(self._start(name) for name in self._tree.names)
            order = {name: index for index, name in enumerate(self._tree.names)}
            self.brokers.sort(key=lambda broker: order[broker.name])
            await _links_up(self.addresses)
        except BaseException:
            await self.stop()
            raise
        self.ready_s = time.monotonic() - started_s
        return self

    async def _start(self, name: str) -> None:
        folder = folder_of(name, self._data_dir)
        options = [*(["--data-dir", folder] if folder else []), *lake_options(self._lake)]
        names = self._tree.names
        options += store_options(names.index(name), len(names), self._keep)
        self.brokers.append(await BrokerProcess.in_tree(name, self._tree.path, options))

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def failure(self) -> BackgroundError:
        """Wait until a broker has ended as one does that has failed, which is a bug."""
        return await failed_process(self.brokers)

    async def stop(self) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers))


async def _all_of(starts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them, so that none is still at it when what has started is stopped again.
    Raises what the first one raised."""
    for outcome in await asyncio.gather(*starts, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _links_up(addresses: Sequence[str]) -> None:
    """Wait until all brokers say that all their links are up."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S), Inspector(addresses) as inspector:
        while True:
            reports = await asyncio.gather(*map(inspector.broker, addresses))
            states = {link.state for report in reports for link in report.forwarder.links}
            if _CLOSED not in states:
                return
            await asyncio.sleep(_LOOK_S)
