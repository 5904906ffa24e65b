"""A store in memory, with the rules of `ports.Store`: what tests put in place of Redis.

`away` makes it unreachable; `lose` lets the next write arrive, and its answer not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reconfig_manager.model.plan import Placement, Plan
from reconfig_manager.model.policy import VersionedPolicy
from reconfig_manager.model.refusals import Deposed, StoreAway
from reconfig_manager.ports import (
    AuditEntry,
    Constants,
    LeaderState,
    Page,
    Record,
)


class MemoryStore:
    """`now_s` is the store's own clock: leases end by it, and idempotency keys."""

    def __init__(self, now_s: Callable[[], float], plans_read: int = 100) -> None:
        self._now_s = now_s
        self._plans_read = plans_read
        self.away = False
        self.lose = False
        self._leader: tuple[str, int, float] | None = None
        self.fence = 0
        self._plans: dict[str, Plan] = {}
        self._placement = Placement()
        self._policy = VersionedPolicy()
        self._constants = Constants()
        self._rates: dict[str, float] = {}
        self._rates_at_s = 0.0
        self._epoch = 0
        self._audit: list[AuditEntry] = []
        self._audit_keys: set[str] = set()
        self._keys: dict[str, tuple[str, float]] = {}

    # ---- who leads -------------------------------------------------------------------------------

    async def acquire(self, me: str, ttl_s: float, fence_min: int = 0) -> int | None:
        self._reach()
        # Not even itself: it may be a former life of the same name.
        if self._leads() is not None:
            return None
        self.fence = max(self.fence + 1, fence_min)
        self._leader = (me, self.fence, self._now_s() + ttl_s)
        return self.fence

    async def renew(self, me: str, fence: int, ttl_s: float) -> None:
        self._reach()
        # A lease that has run out while nobody else led is taken up again.
        self._check(fence)
        self._leader = (me, fence, self._now_s() + ttl_s)

    async def release(self, me: str, fence: int) -> None:
        self._reach()
        if self._leader is not None and self._leader[:2] == (me, fence):
            self._leader = None

    async def leader(self) -> tuple[str, int] | None:
        self._reach()
        return self._leads()

    def _leads(self) -> tuple[str, int] | None:
        if self._leader is None or self._leader[2] <= self._now_s():
            return None
        return self._leader[:2]

    # ---- what the leader keeps -------------------------------------------------------------------

    async def read_state(self) -> LeaderState:
        self._reach()
        newest = list(self._plans)[-self._plans_read :]
        former = sorted(
            plan.id
            for plan in self._plans.values()
            if not plan.state.over and plan.id not in newest
        )
        return LeaderState(
            plans=tuple(self._plans[plan_id] for plan_id in (*former, *newest)),
            placement=self._placement,
            policy=self._policy,
            constants=self._constants,
            rates=self._rates,
            rates_at_s=self._rates_at_s,
            epoch=self._epoch,
        )

    async def write(self, fence: int, record: Record) -> None:
        self._reach()
        self._check(fence)
        plan, policy = record.plan, record.policy
        if policy is not None and self._policy.version and self._policy.version >= policy.version:
            return
        if plan is not None:
            stored = self._plans.get(plan.id)
            if stored is not None and stored.version >= plan.version:
                return
            self._plans[plan.id] = plan
            self._epoch = max(self._epoch, plan.epoch)
        if record.placement is not None:
            self._placement = record.placement
        if record.policy is not None:
            self._policy = record.policy
        if record.constants is not None:
            self._constants = record.constants
        if self.lose:
            self.lose = False
            raise StoreAway("no answer")

    async def keep_rates(self, fence: int, rates: Mapping[str, float], at_s: float) -> None:
        self._reach()
        self._check(fence)
        self._rates, self._rates_at_s = dict(rates), at_s

    def _reach(self) -> None:
        if self.away:
            raise StoreAway("connection refused")

    def _check(self, fence: int) -> None:
        if fence != self.fence:
            raise Deposed(fence, self.fence)

    # ---- what everybody reads --------------------------------------------------------------------

    async def placement(self) -> Placement:
        self._reach()
        return self._placement

    async def policy(self) -> VersionedPolicy:
        self._reach()
        return self._policy

    async def plan(self, plan_id: str) -> Plan | None:
        self._reach()
        return self._plans.get(plan_id)

    async def plans(self, cursor: str | None, limit: int) -> Page[Plan]:
        self._reach()
        # In the order of their first write; the cursor is a place in it.
        end = len(self._plans) if cursor is None else min(_number(cursor), len(self._plans))
        newest = list(self._plans.values())[:end][::-1][:limit]
        return Page(newest, str(end - limit) if end > limit else None)

    async def append_audit(self, entry: AuditEntry, key: str = "", *, again: bool = False) -> None:
        self._reach()
        if again and key in self._audit_keys:
            return
        self._audit_keys.add(key)
        self._audit.append(entry.model_copy(update={"number": len(self._audit) + 1}))

    async def audit(self, cursor: str | None, limit: int) -> Page[AuditEntry]:
        self._reach()
        end = len(self._audit) + 1 if cursor is None else _number(cursor)
        page = [entry for entry in reversed(self._audit) if entry.number < end][: limit + 1]
        following = str(page[limit - 1].number) if len(page) > limit else None
        return Page(page[:limit], following)

    # ---- idempotency -----------------------------------------------------------------------------

    async def plan_for_key(self, key: str) -> str | None:
        self._reach()
        plan_id, until_s = self._keys.get(key, ("", 0.0))
        return plan_id if until_s > self._now_s() else None

    async def remember_key(self, key: str, plan_id: str, ttl_s: float) -> str:
        first = await self.plan_for_key(key)
        if first is not None:
            return first
        self._keys[key] = (plan_id, self._now_s() + ttl_s)
        return plan_id


def _number(cursor: str) -> int:
    """Raises ValueError."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
        raise ValueError(f"{cursor[:40]!r} is no cursor")
    return int(cursor)
