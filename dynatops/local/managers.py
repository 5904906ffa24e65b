"""Reconfiguration managers on this machine, beside a cluster of brokers: all in this process, or
each in a process of its own. They share a server for their state, which is this process's child.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from broker_agent.runtime.agent import StartError
from dynatops.kit.background import Supervisor
from dynatops.local.child_process import ChildProcess

if TYPE_CHECKING:
    from reconfig_manager.service.manager_service import ManagerService
    from reconfig_manager.store.opening import OpenedStore

HOST = "127.0.0.1"
_PORT_MAX = 65_535
_LEAD_TIMEOUT_S = 15.0
# Sockets have short paths.
_FOLDER = "store"


class ManagersError(StartError):
    """They cannot be started; the message says why."""


class _SharedStore:
    """The store that keeps their state, in a folder that may be for this time only."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._opened: OpenedStore | None = None

    @property
    def url(self) -> str:
        """For each manager; empty if it was not started."""
        return self._opened.shared_url if self._opened is not None else ""

    async def start(self, supervisor: Supervisor | None = None) -> None:
        # Programs that only talk to brokers do without.
        from reconfig_manager.store.opening import StoreContext, StoreOpenError, open_store  # noqa: PLC0415
        from reconfig_manager.store.store_settings import StoreSettings  # noqa: PLC0415

        folder = self._data_dir
        if not folder:
            self._temporary = tempfile.TemporaryDirectory(prefix="dynatops-")
            folder = self._temporary.name
        url = f"embedded:{Path(folder) / _FOLDER}"
        try:
            context = StoreContext(StoreSettings(), time.time, supervisor=supervisor)
            self._opened = await open_store(url, context)
        except StoreOpenError as error:
            raise ManagersError(str(error)) from error

    async def stop(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


def _http_port(first: int, index: int) -> int:
    """Ports follow each other from the first. Where one is taken, by a manager of another network
    perhaps, any will do, and the address is told."""
    port = first + index
    if not first or port > _PORT_MAX:
        return 0
    with socket.socket() as trial:
        # As a server would.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError:
            return 0
    return port


class LocalManagers:
    """Managers in this process, in one event loop."""

    def __init__(
        self,
        managers: int,
        *,
        data_dir: str = "",
        http_port: int = 0,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """`values` of their settings, as `ManagerProcessSettings` takes them. HTTP ports follow
        each other from the first; 0 takes any."""
        self.services: list[ManagerService] = []
        self._names = [f"m{i}" for i in range(managers)]
        self._values = dict(values or {})
        self._http_port = http_port
        self._store = _SharedStore(data_dir)

    @property
    def store_url(self) -> str:
        """Empty if there are no managers, or they were not started."""
        return self._store.url

    @property
    def addresses(self) -> tuple[str, ...]:
        """For brokers."""
        return tuple(service.address for service in self.services)

    @property
    def urls(self) -> list[str]:
        return [service.http_url for service in self.services]

    @property
    def leader(self) -> ManagerService | None:
        return next((service for service in self.services if service.leads), None)

    async def start(self, supervisor: Supervisor) -> None:
        """Until one leads. Raises ManagersError."""
        from reconfig_manager.service.manager_service import ManagerService, ManagerStartError  # noqa: PLC0415
        from reconfig_manager.service.process_settings import ManagerProcessSettings  # noqa: PLC0415

        await self._store.start(supervisor)
        for i, name in enumerate(self._names):
            http_port = _http_port(self._http_port, i)
            values = {
                **self._values,
                "manager_id": name,
                "listen": f"{HOST}:0",
                "rest": {**self._values.get("rest", {}), "listen": f"{HOST}:{http_port}"},
                "store": {**self._values.get("store", {}), "url": self.store_url},
            }
            service = ManagerService(ManagerProcessSettings.model_validate(values))
            try:
                await service.start()
            except ManagerStartError as error:
                raise ManagersError(str(error)) from error
            self.services.append(service)
            supervisor.start(f"manager {name}", service.run(), may_end=True)
        async with asyncio.timeout(_LEAD_TIMEOUT_S):
            while self.leader is None:  # noqa: ASYNC110  # no single event says so
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        await asyncio.gather(*(service.stop() for service in self.services))
        self.services.clear()
        await self._store.stop()


class ManagerProcess(ChildProcess):
    """One manager in a process of its own."""

    @property
    def url(self) -> str:
        """For people."""
        return self.http

    @classmethod
    async def start(
        cls,
        name: str,
        store_url: str,
        *,
        listen: str = f"{HOST}:0",
        http: str = f"{HOST}:0",
        options: Sequence[str] = (),
    ) -> Self:
        """Start it, and wait until it listens. Raises ManagersError."""
        arguments = ["manager", "--json", "--manager-id", name, "--store", store_url]
        arguments += ["--listen", listen, "--http", http, *options]
        return await cls.spawn(name, arguments, ManagersError)


class ProcessManagers:
    """Managers in processes of their own."""

    def __init__(
        self,
        managers: int,
        *,
        data_dir: str = "",
        http_port: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        """`options` of `dynatops manager`."""
        self.managers: list[ManagerProcess] = []
        self._names = [f"m{i}" for i in range(managers)]
        self._options = list(options)
        self._http_port = http_port
        self._store = _SharedStore(data_dir)

    @property
    def store_url(self) -> str:
        """Empty if there are no managers, or they were not started."""
        return self._store.url

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(manager.address for manager in self.managers)

    @property
    def urls(self) -> list[str]:
        return [manager.url for manager in self.managers]

    async def start(self) -> None:
        """Raises ManagersError."""
        await self._store.start()
        for name in self._names:
            await self.add(name)

    async def add(self, name: str, *, listen: str = f"{HOST}:0") -> ManagerProcess:
        port = _http_port(self._http_port, len(self.managers))
        manager = await ManagerProcess.start(
            name, self.store_url, listen=listen, http=f"{HOST}:{port}", options=self._options
        )
        self.managers.append(manager)
        return manager

    async def stop(self) -> None:
        await asyncio.gather(*(manager.stop() for manager in self.managers))
        await self._store.stop()
