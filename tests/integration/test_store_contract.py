"""What stands for Redis in tests and in the simulator keeps Redis's rules: one suite for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reconfig_manager.model.plan import Phase, Placement, PlanState
from reconfig_manager.model.policy import Mode, Policy, VersionedPolicy
from reconfig_manager.model.refusals import Deposed
from reconfig_manager.ports import AuditEntry, Constants, LeaderState, Record
from simulator.manager_store import SimulatedStore
from tests.support.manager_store import TTL_S, executing, plan, storing
from tests.support.memory_store import MemoryStore
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")
SHORT_S = 0.05


class SimulatedAsStore:
    """The simulator's, as others are spoken to."""

    def __init__(self, store: SimulatedStore, now_s: Callable[[], float]) -> None:
        self._store = store
        self._now_s = now_s

    async def acquire(self, me: str, ttl_s: float, fence_min: int = 0) -> int | None:
        return self._store.acquire(me, ttl_s, self._now_s(), fence_min)

    async def renew(self, me: str, fence: int, ttl_s: float) -> None:
        self._store.renew(me, fence, ttl_s, self._now_s())

    async def release(self, me: str, fence: int) -> None:
        self._store.release(me, fence)

    async def leader(self) -> tuple[str, int] | None:
        store = self._store
        leads = store.leader and self._now_s() < store.lease_until_s
        return (store.leader, store.fence) if leads else None

    async def read_state(self) -> LeaderState:
        return self._store.read_state()

    async def write(self, fence: int, record: Record) -> None:
        self._store.write(fence, record)


@dataclass(slots=True)
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class Case:
    store: Any
    # None where time passes by itself.
    clock: Clock | None = None

    async def lease_is_over(self) -> None:
        if self.clock is not None:
            self.clock.now_s += 2 * SHORT_S

        async def is_free() -> bool:
            return await self.store.leader() is None

        await until(is_free)

    async def leading(self, me: str = "m1", ttl_s: float = TTL_S) -> int:
        fence = await self.store.acquire(me, ttl_s)
        assert fence is not None
        return int(fence)


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Case]:
    clock = Clock()
    match kind:
        case "memory":
            yield Case(MemoryStore(clock, plans_read=5), clock)
        case "simulated":
            yield Case(SimulatedAsStore(SimulatedStore(), clock), clock)
        case _:
            async with storing(folder) as (_, store):
                yield Case(store)


Scenario = Callable[[Case], Awaitable[None]]
every_store = pytest.mark.parametrize("kind", ["redis", "memory", "simulated"])
# The simulator has no HTTP side, nor reads pages.
readable_store = pytest.mark.parametrize("kind", ["redis", "memory"])


def run(kind: str, folder: Path, scenario: Scenario) -> None:
    async def all_of_it() -> None:
        async with opened(kind, folder) as case:
            await scenario(case)

    asyncio.run(all_of_it())


@every_store
class TestLease:
    def test_nobody_takes_a_lease_that_is_held(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading("m1")
            assert await case.store.acquire("m2", TTL_S) is None
            # Not even itself: it may be a former life of the same name.
            assert await case.store.acquire("m1", TTL_S) is None
            await case.store.release("m2", fence)
            await case.store.release("m1", fence - 1)
            assert await case.store.leader() == ("m1", fence)

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
            assert await case.leading() == 1
            for least, given in ((70, 70), (3, 71), (71, 72)):
                await case.store.release("m1", given - 1 if given != 70 else 1)
                assert await case.store.acquire("m1", TTL_S, least) == given

        run(kind, tmp_path, scenario)


@every_store
class TestWrites:
    def test_a_deposed_leader_writes_nothing(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            old = await case.leading("m1")
            await case.store.release("m1", old)
            await case.leading("m2")
            with pytest.raises(Deposed):
                await case.store.write(old, Record(1, plan(), Placement(epoch=1)))
            state = await case.store.read_state()
            assert (state.plans, state.placement) == ((), Placement())

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
            assert state.policy == newer
            assert (state.plans, state.placement, state.constants) == ((), Placement(), Constants())

        run(kind, tmp_path, scenario)

    def test_an_older_plan_is_overtaken_with_all_else(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            await case.store.write(fence, Record(1, plan("p1", 3, note="newer")))
            for version in (2, 3):
                late = plan("p1", version, note="late")
                await case.store.write(fence, Record(2, late, Placement(epoch=1)))
            state = await case.store.read_state()
            assert [p.note for p in state.plans] == ["newer"]
            assert state.placement == Placement()

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


@readable_store
class TestReading:
    def test_open_plans_are_read_however_old(self, kind: str, tmp_path: Path) -> None:
        async def scenario(case: Case) -> None:
            fence = await case.leading()
            for number in range(12):
                state = PlanState.PROPOSED if number == 2 else PlanState.REJECTED
                await case.store.write(fence, Record(number, plan(f"p{number:02}", state=state)))
            read = [p.id for p in (await case.store.read_state()).plans]
            assert read == ["p02", "p07", "p08", "p09", "p10", "p11"]

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
            assert await case.store.plan_for_key("k") is None
            assert await case.store.remember_key("k", "p1", 100.0) == "p1"
            assert await case.store.remember_key("k", "p2", 100.0) == "p1"
            assert await case.store.plan_for_key("k") == "p1"
            await case.store.remember_key("over", "p3", -1.0)
            assert await case.store.plan_for_key("over") is None

        run(kind, tmp_path, scenario)


def entry(number: int) -> AuditEntry:
    return AuditEntry(at_s=float(number), actor="ann", action="propose")
