"""A network of brokers on this machine: all in this process, or each in a process of its own.

    async with LocalCluster(brokers=8) as cluster:
        async with dynatops.connect(cluster.addresses) as client: ...

Both talk over loopback with the real protocol; a client or another broker cannot tell the
difference.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.selection.selection_settings import AdviceSettings, SelectionSettings
from broker_agent.process_settings import BrokerSettings, KeepingSettings, ManagerLinkSettings
from broker_agent.runtime.agent import Agent, StartError
from dynatops.kit.background import EXIT_CODE, BackgroundError, Supervisor
from dynatops.lake.lake_settings import LakeSettings
from dynatops.local.child_process import ChildProcess
from dynatops.local.managers import LocalManagers, ProcessManagers
from overlay.base.identifiers import NodeId
from overlay.base.overlay_settings import OverlaySettings
from overlay.placement.geometry import RingGeometry

HOST = "127.0.0.1"
_JOIN_AT_ONCE = 8
SETTLE_TIMEOUT_S = 30.0
_LOOK_S = 0.5


def broker_names(brokers: int) -> list[str]:
    return [f"b{i}" for i in range(brokers)]


def folder_of(name: str, data_dir: str) -> str:
    """Where a broker keeps its sessions, if at all."""
    return str(Path(data_dir) / name) if data_dir else ""


def stores_among(brokers: int) -> int:
    """How many of these are stores, if any are, and have events before they count as stored."""
    return min(brokers, 2)


def store_settings(index: int, brokers: int, keep: Sequence[str]) -> dict[str, Any]:
    """Of the broker with this number, where the first ones keep these topics."""
    if not keep:
        return {}
    stores = stores_among(brokers)
    kept = KeepingSettings(keep=tuple(keep)) if index < stores else KeepingSettings()
    return {"store": kept, "core": CoreSettings(stores_needed=stores)}


def store_options(index: int, brokers: int, keep: Sequence[str]) -> list[str]:
    """The same, of `dynatops broker`."""
    if not keep:
        return []
    stores = stores_among(brokers)
    kept = ["--store", ",".join(keep)] if index < stores else []
    return [*kept, "--set", f"core.stores_needed={stores}"]


def lake_options(lake: LakeSettings) -> list[str]:
    """Of `dynatops broker`."""
    values = lake.model_dump(exclude_defaults=True).items()
    return [option for name, value in values for option in ("--set", f"lake.{name}={value}")]


def _advice_url(lake: LakeSettings, managers: LocalManagers | ProcessManagers) -> str:
    """Where analytics of this cluster's lake leave their advice, if there are managers."""
    return managers.store_url if lake.url else ""


class LocalCluster:
    """Brokers in this process, in one event loop."""

    def __init__(
        self,
        brokers: int,
        *,
        port: int = 0,
        overlay: OverlaySettings | None = None,
        selection: SelectionSettings | None = None,
        data_dir: str = "",
        lake: LakeSettings | None = None,
        labels: Sequence[Mapping[str, str]] = (),
        managers: int = 0,
        http_port: int = 0,
        manager_values: Mapping[str, Any] | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        """With managers, brokers attend to them; `manager_values` are those of their settings.
        `labels` are those of the first brokers, in order. `keep`: topics that the first brokers are
        stores of."""
        self.agents: list[Agent] = []
        self.managers = LocalManagers(
            managers, data_dir=data_dir, http_port=http_port, values=manager_values
        )
        self._managed = managers > 0
        self._supervisor = Supervisor()
        # From the first broker's start until the ring was whole.
        self.ready_s = 0.0
        self._names = broker_names(brokers)
        self._port = port
        self._overlay = overlay or OverlaySettings()
        self._selection = selection or SelectionSettings()
        self._data_dir = data_dir
        self._lake = lake or LakeSettings()
        self._labels = labels
        self._keep = keep

    @property
    def addresses(self) -> list[str]:
        return [agent.address for agent in self.agents]

    async def __aenter__(self) -> Self:
        started_s = time.monotonic()
        try:
            if self._managed:
                await self.managers.start(self._supervisor)
            await self._start(0, ())
            seeds = (self.agents[0].address,)
            for first in range(1, len(self._names), _JOIN_AT_ONCE):
                batch = range(first, min(first + _JOIN_AT_ONCE, len(self._names)))
                await asyncio.gather(*(self._start(i, seeds) for i in batch))
            # They were let in as it came.
            order = {name: index for index, name in enumerate(self._names)}
            self.agents.sort(key=lambda agent: order[agent.broker_id])
            await self.settle()
        except BaseException:
            await self.stop()
            raise
        self.ready_s = time.monotonic() - started_s
        return self

    async def _start(self, index: int, seeds: Sequence[str]) -> None:
        port = self._port + index if self._port else 0
        settings = BrokerSettings(
            broker_id=self._names[index],
            listen=f"{HOST}:{port}",
            join=tuple(seeds),
            overlay=self._overlay,
            selection=self._selection,
            data_dir=folder_of(self._names[index], self._data_dir),
            lake=self._lake,
            labels=dict(self._labels[index]) if index < len(self._labels) else {},
            manager=ManagerLinkSettings(addresses=self.managers.addresses),
            advice=AdviceSettings(redis_url=_advice_url(self._lake, self.managers)),
            **store_settings(index, len(self._names), self._keep),
        )
        agent = Agent(settings)
        await agent.start()
        self.agents.append(agent)
        name = f"broker {agent.broker_id}"
        self._supervisor.start(name, agent.run_until_stopped(), may_end=True)

    async def settle(self, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Wait until every broker's neighbours and routes are what they should be."""
        async with asyncio.timeout(timeout_s):
            while not self.is_settled():  # noqa: ASYNC110  # no single event says so
                await asyncio.sleep(0.02)

    def is_settled(self) -> bool:
        nodes = {node.me.node_id: node for node in (a.core.status().hosted for a in self.agents)}
        geometry = RingGeometry(nodes)
        fingers = geometry.fingers()
        for i in range(len(geometry)):
            node = nodes[NodeId(int(geometry.node_ids[i]))]
            expected = {int(geometry.node_ids[k]) for k in fingers[i] if k != i}
            if not node.is_ready or node.range_low != int(geometry.node_ids[i - 1]):
                return False
            if {peer.node_id for peer in node.fingers} != expected:
                return False
        return True

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def failure(self) -> BackgroundError:
        """Wait until a broker or manager has failed, which is a bug."""
        return await self._supervisor.failure()

    async def stop(self) -> None:
        await asyncio.gather(*(agent.stop() for agent in self.agents))
        if self._managed:
            await self.managers.stop()
        await self._supervisor.stop()


class BrokerProcess(ChildProcess):
    """One broker in a process of its own."""

    @classmethod
    async def start(
        cls, name: str, *, port: int = 0, join: Sequence[str] = (), options: Sequence[str] = ()
    ) -> Self:
        """Start it, and wait until it is a member of its ring. Raises StartError."""
        arguments = ["broker", "--json", "--broker-id", name, "--listen", f"{HOST}:{port}"]
        arguments += options
        for seed in join:
            arguments += ["--join", seed]
        return await cls.spawn(name, arguments, StartError)

    @classmethod
    async def in_tree(cls, name: str, topology: str, options: Sequence[str] = ()) -> Self:
        """Start a broker of this file, and wait until it serves. Raises StartError."""
        arguments = ["broker", "--json", "--broker-id", name, "--topology", topology, *options]
        return await cls.spawn(name, arguments, StartError)


async def failed_process(brokers: Sequence[BrokerProcess]) -> BackgroundError:
    """Wait until one has ended as one does that has failed."""
    while True:
        for broker in brokers:
            if broker.process.returncode == EXIT_CODE:
                return BackgroundError(f"broker {broker.name}", StartError(broker.said))
        await asyncio.sleep(_LOOK_S)


class ProcessCluster:
    """Brokers in processes of their own."""

    def __init__(
        self,
        brokers: int,
        *,
        port: int = 0,
        data_dir: str = "",
        lake: LakeSettings | None = None,
        managers: int = 0,
        http_port: int = 0,
        options: Sequence[str] = (),
        manager_options: Sequence[str] = (),
        keep: Sequence[str] = (),
    ) -> None:
        """With managers, brokers attend to them; options are those of `dynatops broker` and
        `dynatops manager`. `keep`: topics that the first brokers are stores of."""
        self.brokers: list[BrokerProcess] = []
        self.managers = ProcessManagers(
            managers, data_dir=data_dir, http_port=http_port, options=manager_options
        )
        self._managed = managers > 0
        self.ready_s = 0.0
        self._names = broker_names(brokers)
        self._port = port
        self._data_dir = data_dir
        self._lake = lake or LakeSettings()
        self._options = list(options)
        self._keep = keep

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers]

    async def __aenter__(self) -> Self:
        started_s = time.monotonic()
        try:
            if self._managed:
                await self.managers.start()
            for index, name in enumerate(self._names):
                port = self._port + index if self._port else 0
                await self.add(name, port=port)
        except BaseException:
            await self.stop()
            raise
        self.ready_s = time.monotonic() - started_s
        return self

    async def add(self, name: str, *, port: int = 0) -> BrokerProcess:
        """Start one more broker, which joins the others."""
        living = [b.address for b in self.brokers if b.lives]
        folder = folder_of(name, self._data_dir)
        options = [*self._options, *(["--data-dir", folder] if folder else [])]
        options += lake_options(self._lake)
        index = self._names.index(name) if name in self._names else len(self._names)
        options += store_options(index, len(self._names), self._keep)
        for address in self.managers.addresses:
            options += ["--manager", address]
        if advice_url := _advice_url(self._lake, self.managers):
            options += ["--set", f"advice.redis_url={advice_url}"]
        broker = await BrokerProcess.start(name, port=port, join=living[:3], options=options)
        self.brokers.append(broker)
        return broker

    async def failure(self) -> BackgroundError:
        """Wait until a broker has ended as one does that has failed, which is a bug."""
        return await failed_process(self.brokers)

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers))
        if self._managed:
            await self.managers.stop()
