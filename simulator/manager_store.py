"""What managers keep in Redis, in dictionaries: plans, placement, lease and fence.

It outlives managers, is away now and then, and may lose an answer: what was written then is there,
though whoever wrote it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reconfig_manager.model.plan import Placement, Plan
from reconfig_manager.model.policy import VersionedPolicy
from reconfig_manager.model.refusals import Deposed, StoreAway
from reconfig_manager.ports import AuditEntry, Constants, LeaderState, Record


@dataclass(slots=True)
class SimulatedStore:
    away: bool = False
    fence: int = 0
    # Who leads, and until when unless it renews.
    leader: str = ""
    lease_until_s: float = 0.0
    plans: dict[str, Plan] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    policy: VersionedPolicy = field(default_factory=VersionedPolicy)
    constants: Constants = field(default_factory=Constants)
    rates: Mapping[str, float] = field(default_factory=dict)
    rates_at_s: float = 0.0
    epoch: int = 0
    audit: list[AuditEntry] = field(default_factory=list)

    def _reach(self) -> None:
        if self.away:
            raise StoreAway("the store does not answer")

    def acquire(self, me: str, ttl_s: float, now_s: float, fence_min: int = 0) -> int | None:
        self._reach()
        if self.leader and now_s < self.lease_until_s:
            return None
        self.leader, self.lease_until_s = me, now_s + ttl_s
        self.fence = max(self.fence + 1, fence_min)
        return self.fence

    def renew(self, me: str, fence: int, ttl_s: float, now_s: float) -> None:
        self._reach()
        # A lease that has run out while nobody else led is taken up again.
        if fence != self.fence:
            raise Deposed(fence, self.fence)
        self.leader, self.lease_until_s = me, now_s + ttl_s

    def release(self, me: str, fence: int) -> None:
        self._reach()
        if self.leader == me and fence == self.fence:
            self.leader = ""

    def read_state(self) -> LeaderState:
        self._reach()
        return LeaderState(
            plans=tuple(self.plans.values()),
            placement=self.placement,
            policy=self.policy,
            constants=self.constants,
            rates=dict(self.rates),
            rates_at_s=self.rates_at_s,
            epoch=self.epoch,
        )

    def write(self, fence: int, record: Record) -> None:
        self._reach()
        if fence != self.fence:
            raise Deposed(fence, self.fence)
        plan, policy = record.plan, record.policy
        if policy is not None and self.policy.version and self.policy.version >= policy.version:
            return
        if plan is not None:
            stored = self.plans.get(plan.id)
            if stored is not None and stored.version >= plan.version:
                return
            self.plans[plan.id] = plan
            self.epoch = max(self.epoch, plan.epoch)
        if record.placement is not None:
            self.placement = record.placement
        if record.policy is not None:
            self.policy = record.policy
        if record.constants is not None:
            self.constants = record.constants
