"""What every store of a manager keeps to: one suite for all that are registered in
`reconfig_manager/store/opening.py`, opened as managers open them.

A store whose URL names a folder or file of its own needs nothing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reconfig_manager.model.plan import Phase, PlacedNode, Placement, PlanState
from reconfig_manager.model.policy import Mode, Policy, VersionedPolicy
from reconfig_manager.model.refusals import Deposed, StoreAway
from reconfig_manager.ports import (
    FENCE_MAX,
    AuditEntry,
    Constants,
    ManagerFacts,
    Record,
    Store,
)
from reconfig_manager.store.cursors import StoreCursorError
from reconfig_manager.store.embedded import EmbeddedServer
from reconfig_manager.store.memory import MemoryStore, at_once
from reconfig_manager.store.opening import STORES, StoreContext, open_store
from reconfig_manager.store.store_settings import StoreSettings
from tests.support.manager_store import DEBIAN, TTL_S, executing, plan, program
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")
SHORT_S = 0.05
PLANS_READ = 5


@dataclass(slots=True)
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class Case:
    store: Store
    # Not of servers: for these time passes by itself.
    clock: Clock

    async def time_passes(self) -> None:
        """What was to end after SHORT_S ends now, or soon."""
        self.clock.now_s += 2 * SHORT_S

    async def lease_is_over(self) -> None:
        await self.time_passes()

        async def is_free() -> bool:
            return await self.store.leader() is None

        await until(is_free)

    async def leading(self, me: str = "m1", ttl_s: float = TTL_S, fence_min: int = 0) -> int:
        fence = await self.store.acquire(me, ttl_s, fence_min)
        assert fence is not None
        return fence


@asynccontextmanager
async def opened(kind: str, folder: Path, **bounds: Any) -> AsyncIterator[Case]:
    clock = Clock()
    async with AsyncExitStack() as stack:
        if kind == "redis":
            server = await EmbeddedServer.start(folder / "server", program(DEBIAN))
            stack.push_async_callback(server.stop)
            url = server.url
        else:
            url = "memory:" if kind == "memory" else f"{kind}:{folder / 'state'}"
        context = StoreContext(StoreSettings(**bounds), clock, plans_read=PLANS_READ)
        store = await open_store(url, context)
        stack.push_async_callback(store.close)
        yield Case(store.store, clock)


Scenario = Callable[[Case], Awaitable[None]]
every_store = pytest.mark.parametrize("kind", [kind.schemes[0] for kind in STORES])


def run(kind: str, folder: Path, scenario: Scenario, **bounds: Any) -> None:
    async def all_of_it() -> None:
        async with opened(kind, folder, **bounds) as case:
            await scenario(case)

    asyncio.run(all_of_it())


@every_store
class TestLease:
    def test_one_leads_at_a_time(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            first = await case.leading("m1")
            assert await case.store.acquire("m2", TTL_S) is None
            # Not even itself: it may be a former life of the same name.
            assert await case.store.acquire("m1", TTL_S) is None
            await case.store.release("m2", first)
            await case.store.release("m1", first - 1)
            assert await case.store.leader() == ("m1", first)
            await case.store.release("m1", first)
            assert await case.store.leader() is None
            assert await case.leading("m2") == first + 1

        run(kind, tmp_path, scenario)

    def test_a_lease_that_ran_out_is_taken_up_again(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading("m1", SHORT_S)
            await case.lease_is_over()
            await case.store.renew("m1", fence, TTL_S)
            assert await case.store.leader() == ("m1", fence)

        run(kind, tmp_path, scenario)

    def test_unless_another_led_meanwhile(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            old = await case.leading("m1", SHORT_S)
            await case.lease_is_over()
            new = await case.leading("m2")
            assert new == old + 1
            with pytest.raises(Deposed) as raised:
                await case.store.renew("m1", old, TTL_S)
            assert (raised.value.fence, raised.value.current) == (old, new)
            await case.store.release("m1", old)
            assert await case.store.leader() == ("m2", new)

        run(kind, tmp_path, scenario)

    def test_fences_only_grow(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            most = FENCE_MAX - 1
            fence = 0
            for least, given in ((0, 1), (70, 70), (3, 71), (71, 72), (most, most)):
                await case.store.release("m1", fence)
                fence = await case.leading(fence_min=least)
                assert fence == given
            await case.store.renew("m1", most, TTL_S)
            with pytest.raises(Deposed):
                await case.store.renew("m1", most - 1, TTL_S)
            with pytest.raises(ValueError, match="cannot be given out"):
                await case.store.acquire("m2", TTL_S, FENCE_MAX + 1)

        run(kind, tmp_path, scenario)

    def test_managers_know_each_other(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            store = case.store
            assert await store.managers() == []
            here = ManagerFacts(manager_id="m1", agents="h:1", http="http://h:2")
            await store.announce(here, TTL_S)
            await store.announce(ManagerFacts(manager_id="m0"), SHORT_S)
            await store.announce(ManagerFacts(manager_id="m2"), TTL_S)
            await case.time_passes()

            async def two_are_left() -> bool:
                return len(await store.managers()) == 2

            await until(two_are_left)
            assert await store.managers() == [here, ManagerFacts(manager_id="m2")]

        run(kind, tmp_path, scenario)


@every_store
class TestWrites:
    def test_a_deposed_leader_writes_nothing(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            store = case.store
            old = await case.leading("m1")
            await store.write(old, Record(1, executing("p1", Phase.MOVING, 7)))
            await store.release("m1", old)
            new = await case.leading("m2")
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
            assert (state.placement, state.policy.version) == (Placement(), 0)
            assert (state.constants, state.rates) == (Constants(), {})
            await store.write(new, late)
            state = await store.read_state()
            assert [p.phase for p in state.plans] == [Phase.RESTORING]
            assert (state.placement.epoch, state.policy.version, state.constants.a) == (7, 1, 9.0)

        run(kind, tmp_path, scenario)

    def test_an_older_policy_is_overtaken_with_all_else(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            newer = VersionedPolicy(policy=Policy(mode=Mode.AUTO), version=10)
            await case.store.write(fence, Record(1, policy=newer))
            for version in (9, 10):
                late = VersionedPolicy(policy=Policy(mode=Mode.OFF), version=version)
                record = Record(2, plan("p2"), Placement(epoch=3), late, Constants(a=9.0))
                await case.store.write(fence, record)
            state = await case.store.read_state()
            assert state.policy == newer == await case.store.policy()
            assert (state.plans, state.placement, state.constants) == ((), Placement(), Constants())
            assert await case.store.plan("p2") is None

        run(kind, tmp_path, scenario)

    def test_an_older_plan_is_overtaken_with_all_else(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            await case.store.write(fence, Record(1, plan("p1", 3, note="newer")))
            for version in (2, 3):
                late = plan("p1", version, note="late")
                await case.store.write(fence, Record(2, late, Placement(epoch=1)))
            stored = await case.store.plan("p1")
            assert stored is not None
            assert (stored.version, stored.note) == (3, "newer")
            assert await case.store.placement() == Placement()

        run(kind, tmp_path, scenario)

    def test_the_epoch_is_that_of_plans(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            await case.store.write(fence, Record(1, placement=Placement(epoch=9)))
            assert (await case.store.read_state()).epoch == 0
            await case.store.write(fence, Record(2, executing("p1", Phase.MOVING, 7)))
            await case.store.write(fence, Record(3, executing("p2", Phase.MOVING, 5)))
            assert (await case.store.read_state()).epoch == 7

        run(kind, tmp_path, scenario)

    def test_plans_are_bounded(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            await case.store.write(fence, Record(0, plan("open")))
            for number in range(9):
                done = plan(f"p{number}", state=PlanState.CANCELLED)
                await case.store.write(fence, Record(number, done))
            found = [p.id for p in (await case.store.plans(None, 50)).items]
            assert found == ["p8", "p7", "p6", "open"]
            assert await case.store.plan("p0") is None

        run(kind, tmp_path, scenario, plans_max=4)


@every_store
class TestReading:
    def test_nothing_yet(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            state = await case.store.read_state()
            assert (state.plans, state.placement, state.rates) == ((), Placement(), {})
            assert await case.store.plan("p1") is None
            assert (await case.store.plans(None, 10)).items == []
            assert (await case.store.audit(None, 10)).items == []
            assert await case.store.placement() == Placement()
            assert (await case.store.policy()).version == 0

        run(kind, tmp_path, scenario)

    def test_what_a_leader_leaves_to_the_next(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            store = case.store
            fence = await case.leading()
            hosts = (
                PlacedNode(node="1" * 16, broker_id="b1"),
                PlacedNode(node="2" * 16, broker_id="b0"),
            )
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

        run(kind, tmp_path, scenario)

    def test_plans_come_in_the_order_of_their_first_write(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            for number, plan_id in enumerate(("pc", "pa", "pb")):
                made = plan(plan_id, created_s=float(-number))
                await case.store.write(fence, Record(number, made))
            await case.store.write(fence, Record(9, plan("pc", 2, state=PlanState.REJECTED)))
            state = await case.store.read_state()
            assert [p.id for p in state.plans] == ["pc", "pa", "pb"]

        run(kind, tmp_path, scenario)

    def test_open_plans_are_read_however_old(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            for number in range(12):
                state = PlanState.PROPOSED if number == 2 else PlanState.REJECTED
                await case.store.write(fence, Record(number, plan(f"p{number:02}", state=state)))
            read = [p.id for p in (await case.store.read_state()).plans]
            assert read == ["p02", "p07", "p08", "p09", "p10", "p11"]
            await case.store.write(fence, Record(20, plan("p02", 2, state=PlanState.EXPIRED)))
            assert "p02" not in [p.id for p in (await case.store.read_state()).plans]

        run(kind, tmp_path, scenario)

    def test_pages_of_plans(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            for number in range(7):
                await case.store.write(fence, Record(number, plan(f"p{number}")))
            # A change does not move it to the front.
            await case.store.write(fence, Record(8, plan("p3", 2)))
            pages: list[list[str]] = []
            cursor: str | None = None
            while True:
                page = await case.store.plans(cursor, 3)
                pages.append([p.id for p in page.items])
                cursor = page.next_cursor
                if cursor is None:
                    break
                # New ones do not shift what comes next.
                await case.store.write(fence, Record(9, plan(f"new{len(pages)}")))
            assert pages == [["p6", "p5", "p4"], ["p3", "p2", "p1"], ["p0"]]
            for cursor in ("x", "-1", "9" * 30, "²"):
                with pytest.raises(StoreCursorError):
                    await case.store.plans(cursor, 3)

        run(kind, tmp_path, scenario)

    def test_no_page_is_empty_but_the_first(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            for number in range(6):
                await case.store.write(fence, Record(number, plan(f"p{number}")))
                await case.store.append_audit(entry(number))
            for read in (case.store.plans, case.store.audit):
                sizes: list[int] = []
                cursor: str | None = None
                while True:
                    page = await read(cursor, 3)
                    sizes.append(len(page.items))
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                assert sizes == [3, 3]

        run(kind, tmp_path, scenario)


@every_store
class TestAuditAndKeys:
    def test_pages_of_the_audit_log(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            for number in range(5):
                # Numbers are the store's.
                await case.store.append_audit(entry(number).model_copy(update={"number": 99}))
            page = await case.store.audit(None, 2)
            assert [(e.number, e.at_s) for e in page.items] == [(5, 4.0), (4, 3.0)]
            page = await case.store.audit(page.next_cursor, 10)
            assert [e.number for e in page.items] == [3, 2, 1]
            assert page.next_cursor is None
            assert (await case.store.audit("1", 10)).items == []
            with pytest.raises(StoreCursorError):
                await case.store.audit("+", 10)

        run(kind, tmp_path, scenario)

    def test_an_audit_entry_that_is_written_again(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            await case.store.append_audit(entry(1), "k1")
            await case.store.append_audit(entry(1), "k1", again=True)
            await case.store.append_audit(entry(2), "k2", again=True)
            await case.store.append_audit(entry(2), "k3")
            found = (await case.store.audit(None, 10)).items
            assert [(e.number, e.at_s) for e in found] == [(3, 2.0), (2, 2.0), (1, 1.0)]

        run(kind, tmp_path, scenario)

    def test_idempotency_keys(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            store = case.store
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

        run(kind, tmp_path, scenario, keys_max=3)


def entry(number: int) -> AuditEntry:
    return AuditEntry(at_s=float(number), actor="ann", action="propose")


class TestFaultsOfTheStoreInMemory:
    """Those that simulator and tests ask for."""

    def test_away(self) -> None:
        store = MemoryStore(Clock())
        fence = at_once(store.acquire("m1", TTL_S))
        assert fence is not None
        store.away = True
        for operation in (
            lambda: store.acquire("m1", TTL_S),
            lambda: store.renew("m1", fence, TTL_S),
            lambda: store.release("m1", fence),
            store.leader,
            lambda: store.announce(ManagerFacts(manager_id="m1"), TTL_S),
            store.managers,
            store.read_state,
            lambda: store.write(fence, Record(1, plan())),
            lambda: store.keep_rates(fence, {}, 0.0),
            store.placement,
            store.policy,
            lambda: store.plan("p1"),
            lambda: store.plans(None, 1),
            lambda: store.append_audit(entry(1)),
            lambda: store.audit(None, 1),
            lambda: store.plan_for_key("k"),
            lambda: store.remember_key("k", "p", 1.0),
        ):
            with pytest.raises(StoreAway):
                at_once(operation())
        store.away = False
        assert at_once(store.read_state()).plans == ()

    def test_an_older_copy_of_it(self) -> None:
        store = MemoryStore(Clock())
        fence = at_once(store.acquire("m1", TTL_S))
        assert fence is not None
        at_once(store.write(fence, Record(1, plan("p1"))))
        older = deepcopy(store.kept)
        at_once(store.write(fence, Record(2, plan("p2"))))
        store.kept = older
        assert [p.id for p in at_once(store.read_state()).plans] == ["p1"]

    def test_only_what_waits_for_nothing_is_answered_at_once(self) -> None:
        async def waiting() -> None:
            await asyncio.sleep(0)

        with pytest.raises(RuntimeError, match="waits for nothing"):
            at_once(waiting())
