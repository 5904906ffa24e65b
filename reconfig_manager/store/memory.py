"""A store in memory, with all rules of `ports.Store`: for tests, for the simulator, and for one
manager alone that is tried out.

    store = MemoryStore(now_s)            # leases and idempotency keys end by this clock
    fence = await store.acquire("m1", ttl_s=4.0)
    fence = at_once(store.acquire("m1", ttl_s=4.0))    # without an event loop

Its methods are coroutines because those of every store are; none of them waits for anything, which
is what `at_once` relies on. It touches neither clock nor disk. The suite that Redis is held to
holds for this store, too (`tests/integration/test_store_contract.py`).

Two faults can be had. While `away` is true every operation raises StoreAway, and nothing is
written. All that is kept is one value, `kept`: with an older copy of it in its place, or an empty
one, the store has lost its past. An answer that is lost is the network's: callers ignore it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from reconfig_manager.model.plan import Placement, Plan
from reconfig_manager.model.policy import VersionedPolicy
from reconfig_manager.model.refusals import Deposed, StoreAway
from reconfig_manager.ports import (
    FENCE_MAX,
    AuditEntry,
    Constants,
    ManagerFacts,
    Page,
    Record,
    StoredState,
)
from reconfig_manager.store.cursors import number_of, page_size
from reconfig_manager.store.opening import OpenedStore, StoreContext, StoreOpenError

Answer = TypeVar("Answer")


async def open_store(url: str, context: StoreContext) -> OpenedStore:
    """For `opening`. Raises StoreOpenError."""
    if url.partition(":")[2]:
        raise StoreOpenError("a store in memory has no place: write memory:")
    settings = context.settings
    store = MemoryStore(
        context.now_s,
        plans_read=context.plans_read,
        plans_max=settings.plans_max,
        audit_max=settings.audit_max,
        keys_max=settings.keys_max,
    )

    async def close() -> None:
        """What it knew goes with it."""

    async def durability_problem() -> str:
        return "it is in this process's memory: the end of the process forgets all of it"

    return OpenedStore(store, close, durability_problem)


class Lease(NamedTuple):
    manager_id: str
    fence: int
    until_s: float


class Remembered(NamedTuple):
    """An idempotency key's."""

    plan_id: str
    until_s: float


class Appended(NamedTuple):
    """An audit entry, and the key that it came with."""

    entry: AuditEntry
    key: str


@dataclass(slots=True)
class KeptState:
    """All that the store knows."""

    fence: int = 0
    lease: Lease | None = None
    # In the order of their first write, which numbers them.
    plans: dict[str, Plan] = field(default_factory=dict)
    plan_numbers: dict[str, int] = field(default_factory=dict)
    plans_numbered: int = 0
    placement: Placement = field(default_factory=Placement)
    # Version 0: none was ever written.
    policy: VersionedPolicy = field(default_factory=VersionedPolicy)
    constants: Constants = field(default_factory=Constants)
    rates: Mapping[str, float] = field(default_factory=dict)
    rates_at_s: float = 0.0
    epoch: int = 0
    audit: list[Appended] = field(default_factory=list)
    audit_numbered: int = 0
    keys: dict[str, Remembered] = field(default_factory=dict)
    # Until when each is known to live.
    managers: dict[str, tuple[ManagerFacts, float]] = field(default_factory=dict)


class MemoryStore:
    def __init__(
        self,
        now_s: Callable[[], float],
        *,
        plans_read: int = 100,
        plans_max: int = 1_000,
        audit_max: int = 100_000,
        keys_max: int = 10_000,
    ) -> None:
        """`plans_read`: finished plans that a new leader reads; past the others the oldest go."""
        self.kept = KeptState()
        self.away = False
        self.failures: int = 0
        self._now_s = now_s
        self._plans_read = plans_read
        self._plans_max = plans_max
        self._audit_max = audit_max
        self._keys_max = keys_max

    def _reach(self) -> KeptState:
        if self.away:
            self.failures += 1
            raise StoreAway("the store does not answer")
        return self.kept

    def _reach_as(self, fence: int) -> KeptState:
        kept = self._reach()
        if fence != kept.fence:
            raise Deposed(fence, kept.fence)
        return kept

    # ---- leadership ------------------------------------------------------------------------------

    async def acquire(self, me: str, ttl_s: float, fence_min: int = 0) -> int | None:
        if not 0 <= fence_min <= FENCE_MAX:
            raise ValueError(f"a fence of {fence_min} cannot be given out")
        kept = self._reach()
        # Not even to itself: that may be a former life of the same name.
        if self._lease_in_force() is not None:
            return None
        kept.fence = max(kept.fence + 1, fence_min)
        kept.lease = Lease(me, kept.fence, self._now_s() + ttl_s)
        return kept.fence

    async def renew(self, me: str, fence: int, ttl_s: float) -> None:
        # A lease that has run out while no other manager led is taken up again.
        self._reach_as(fence).lease = Lease(me, fence, self._now_s() + ttl_s)

    async def release(self, me: str, fence: int) -> None:
        kept = self._reach()
        if kept.lease is not None and kept.lease[:2] == (me, fence):
            kept.lease = None

    async def leader(self) -> tuple[str, int] | None:
        self._reach()
        lease = self._lease_in_force()
        return lease[:2] if lease is not None else None

    def _lease_in_force(self) -> Lease | None:
        lease = self.kept.lease
        return lease if lease is not None and self._now_s() < lease.until_s else None

    async def announce(self, facts: ManagerFacts, ttl_s: float) -> None:
        self._reach().managers[facts.manager_id] = (facts, self._now_s() + ttl_s)

    async def managers(self) -> list[ManagerFacts]:
        kept, now_s = self._reach(), self._now_s()
        kept.managers = {name: known for name, known in kept.managers.items() if now_s < known[1]}
        return [kept.managers[name][0] for name in sorted(kept.managers)]

    # ---- the leader's state ----------------------------------------------------------------------

    async def read_state(self) -> StoredState:
        kept = self._reach()
        newest = list(kept.plans)[-self._plans_read :]
        older = sorted(
            plan.id for plan in kept.plans.values() if not plan.state.over and plan.id not in newest
        )
        return StoredState(
            plans=tuple(kept.plans[plan_id] for plan_id in (*older, *newest)),
            placement=kept.placement,
            policy=kept.policy,
            constants=kept.constants,
            rates=dict(kept.rates),
            rates_at_s=kept.rates_at_s,
            epoch=kept.epoch,
        )

    async def write(self, fence: int, record: Record) -> None:
        kept = self._reach_as(fence)
        if self._is_overtaken(record):
            return
        if record.plan is not None:
            self._write_plan(record.plan)
        if record.placement is not None:
            kept.placement = record.placement
        if record.policy is not None:
            kept.policy = record.policy
        if record.constants is not None:
            kept.constants = record.constants

    def _is_overtaken(self, record: Record) -> bool:
        kept, plan, policy = self.kept, record.plan, record.policy
        if policy is not None and kept.policy.version and kept.policy.version >= policy.version:
            return True
        known = kept.plans.get(plan.id) if plan is not None else None
        return plan is not None and known is not None and known.version >= plan.version

    def _write_plan(self, plan: Plan) -> None:
        kept = self.kept
        if plan.id not in kept.plans:
            kept.plans_numbered += 1
            kept.plan_numbers[plan.id] = kept.plans_numbered
        kept.plans[plan.id] = plan
        kept.epoch = max(kept.epoch, plan.epoch)
        excess = len(kept.plans) - self._plans_max
        over = [known.id for known in kept.plans.values() if known.state.over]
        for plan_id in over[: max(excess, 0)]:
            del kept.plans[plan_id], kept.plan_numbers[plan_id]

    async def keep_rates(self, fence: int, rates: Mapping[str, float], at_s: float) -> None:
        kept = self._reach_as(fence)
        kept.rates, kept.rates_at_s = dict(rates), at_s

    # ---- what everyone may read ------------------------------------------------------------------

    async def placement(self) -> Placement:
        return self._reach().placement

    async def policy(self) -> VersionedPolicy:
        return self._reach().policy

    async def plan(self, plan_id: str) -> Plan | None:
        return self._reach().plans.get(plan_id)

    async def plans(self, cursor: str | None, limit: int) -> Page[Plan]:
        kept, limit = self._reach(), page_size(limit)
        end = kept.plans_numbered + 1 if cursor is None else number_of(cursor)
        found = [plan for plan in kept.plans.values() if kept.plan_numbers[plan.id] < end][::-1]
        page = found[:limit]
        more = len(found) > limit
        return Page(page, str(kept.plan_numbers[page[-1].id]) if more else None)

    async def append_audit(self, entry: AuditEntry, key: str = "", *, again: bool = False) -> None:
        kept = self._reach()
        if again and any(appended.key == key for appended in kept.audit):
            return
        kept.audit_numbered += 1
        entry = entry.model_copy(update={"number": kept.audit_numbered})
        kept.audit.append(Appended(entry, key))
        del kept.audit[: max(len(kept.audit) - self._audit_max, 0)]

    async def audit(self, cursor: str | None, limit: int) -> Page[AuditEntry]:
        kept, limit = self._reach(), page_size(limit)
        end = kept.audit_numbered + 1 if cursor is None else number_of(cursor)
        found = [appended.entry for appended in kept.audit if appended.entry.number < end][::-1]
        page = found[:limit]
        return Page(page, str(page[-1].number) if len(found) > limit else None)

    async def plan_for_key(self, key: str) -> str | None:
        known = self._reach().keys.get(key)
        return known.plan_id if known is not None and self._now_s() < known.until_s else None

    async def remember_key(self, key: str, plan_id: str, ttl_s: float) -> str:
        kept, now_s = self._reach(), self._now_s()
        kept.keys = {name: known for name, known in kept.keys.items() if now_s < known.until_s}
        known = kept.keys.setdefault(key, Remembered(plan_id, now_s + ttl_s))
        ending_first = sorted(kept.keys, key=lambda name: (kept.keys[name].until_s, name))
        for name in ending_first[: max(len(kept.keys) - self._keys_max, 0)]:
            del kept.keys[name]
        return known.plan_id


def at_once(operation: Coroutine[Any, Any, Answer]) -> Answer:
    """What a store in memory answers, without an event loop; raises what the operation raises."""
    try:
        operation.send(None)
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer
    operation.close()
    raise RuntimeError("a store in memory waits for nothing")
