"""A manager served over real HTTP on loopback, from a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from reconfig_manager.rest.app import create_app
from reconfig_manager.rest.serving.admission import CallerTraffic
from reconfig_manager.rest.serving.server import RestServer
from tests.support.manager_driver import ManagerDriver

Answer = TypeVar("Answer")
TIMEOUT_S = 30.0


class Served:
    def __init__(self, driver: ManagerDriver, loop: asyncio.AbstractEventLoop) -> None:
        self.driver = driver
        self.loop = loop
        self.app = create_app(driver.facade, driver.settings)
        self.server = RestServer(self.app, driver.settings)

    @property
    def tls(self) -> bool:
        return bool(self.driver.settings.tls_cert)

    @property
    def closed(self) -> dict[str, float]:
        """Connections that it ended, by reason."""
        traffic: CallerTraffic = self.app.state.traffic
        return traffic.closed

    @property
    def url(self) -> str:
        return self.server.url

    def do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """In the loop of the manager."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)

    async def stop(self) -> None:
        self.driver.broadcast.close()
        await self.server.stop()


@contextmanager
def served(driver: ManagerDriver) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    served = Served(driver, loop)
    try:
        served.do(served.server.start())
        yield served
    finally:
        served.do(served.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()
