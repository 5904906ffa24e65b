"""Managers beside a local cluster find a port, whatever listens where they are looked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from dynatops.kit.background import Supervisor
from dynatops.local.managers import HOST, LocalManagers
from tests.support.ports import free_addresses

pytestmark = pytest.mark.xdist_group("redis")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listening:
        yield listening.getsockname()[1]


def port_of(http_port: int) -> int:
    async def run() -> int:
        managers = LocalManagers(1, http_port=http_port)
        supervisor = Supervisor()
        await managers.start(supervisor)
        try:
            return int(managers.urls[0].rpartition(":")[2])
        finally:
            await supervisor.stop()
            await managers.stop()

    return asyncio.run(run())


def test_another_one_where_it_is_taken(taken: int) -> None:
    assert port_of(taken) not in (0, taken)


def test_the_one_asked_for_where_it_is_free() -> None:
    port = int(free_addresses(1)[0].rpartition(":")[2])
    assert port_of(port) == port
