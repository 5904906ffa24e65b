"""What a manager holds while it leads, and how its plans, words and commands get out.

Everything here began when this leader took over, with what the store knew and what brokers have
said since; all of it is dropped when the lease is lost.
"""

from __future__ import annotations

from dynatops.kit.advice.freshness import fresh_for_s, is_fresh
from reconfig_manager.leader.journal import LeaderJournal
from reconfig_manager.model.core_settings import ManagerSettings
from reconfig_manager.model.network import Model
from reconfig_manager.model.notices import PlanChanged
from reconfig_manager.model.plan import Base, Placement, Plan, PlanState
from reconfig_manager.model.policy import Policy, VersionedPolicy
from reconfig_manager.model.refusals import UnknownPlan
from reconfig_manager.monitor.measuring import Meter
from reconfig_manager.monitor.members import Members
from reconfig_manager.monitor.monitor import Monitor
from reconfig_manager.monitor.stores import StoreMonitor
from reconfig_manager.ports import (
    Audit,
    AuditEntry,
    Constants,
    ManagerEffect,
    Notify,
    Record,
    StoredState,
)

# Of the parts of the store that are not plans.
POLICY, CONSTANTS = "policy", "constants"


class LeaderState:
    def __init__(
        self,
        settings: ManagerSettings,
        me: str,
        fence: int,
        state: StoredState,
        now_s: float,
        *,
        advice_ttl_s: float,
    ) -> None:
        """Rates of the leader before are as good as advice of their age."""
        self.settings = settings
        self.me = me
        self.fence = fence
        self.since_s = now_s
        self.plans: dict[str, Plan] = {
            plan.id: plan for plan in sorted(state.plans, key=lambda p: (p.created_s, p.id))
        }
        self.placement: Placement = state.placement
        self.policy: VersionedPolicy = state.policy
        self.constants: Constants = state.constants
        self._epoch = max([state.epoch, state.placement.epoch, *(p.epoch for p in state.plans)])
        self.members = Members(settings.execution.gone_s, settings.monitor.brokers_max)
        self.monitor = Monitor(settings.monitor, now_s)
        self.stores = StoreMonitor(settings.monitor, settings.storing, now_s)
        kept_for_s = fresh_for_s(age_s=now_s - state.rates_at_s, ttl_s=advice_ttl_s)
        if is_fresh(now_s, now_s + kept_for_s):
            self.monitor.restore(state.rates)
        measuring = settings.measuring
        self.meter = Meter(2 * measuring.measure_s + measuring.settle_s)
        self.journal = LeaderJournal(settings.execution.record_retry_s)
        self._plans_made = 0
        # Said with the next answer to anybody: a refusal has no effects of its own.
        self.outbox: list[ManagerEffect] = []

    @property
    def rules(self) -> Policy:
        return self.policy.policy

    # ---- plans -----------------------------------------------------------------------------------

    def plan(self, plan_id: str) -> Plan:
        plan = self.plans.get(plan_id)
        if plan is None:
            raise UnknownPlan(plan_id)
        return plan

    def new_plan_id(self) -> str:
        """Of this leader, and of no other: fences are given out once."""
        self._plans_made += 1
        return f"p{self.fence}-{self._plans_made}"

    def next_epoch(self) -> int:
        """Above all that was ever used, of placements and of assignments of stores."""
        self._epoch = max(self._epoch, self.members.epoch_max, self.stores.epoch_max) + 1
        return self._epoch

    def write(self, plan: Plan, placement: Placement | None = None) -> list[ManagerEffect]:
        """The plan is so from now on; what must wait for the record waits for `recorded`."""
        former = self.plans.get(plan.id)
        self.plans[plan.id] = plan
        self._let_old_plans_go()
        return [
            self.journal.write(plan.id, Record(0, plan=plan, placement=placement)),
            Notify(PlanChanged(plan, former)),
        ]

    def _let_old_plans_go(self) -> None:
        finished = [plan.id for plan in self.plans.values() if plan.state.over]
        for plan_id in finished[: max(0, len(finished) - self.settings.plans_kept)]:
            if self.journal.waits_for(plan_id) is None:
                del self.plans[plan_id]

    def open_proposals(self) -> list[Plan]:
        return [plan for plan in self.plans.values() if plan.state is PlanState.PROPOSED]

    # ---- the network as it is --------------------------------------------------------------------

    def base(self) -> Base:
        return self.members.base(self.placement.epoch)

    def model(self, policy: Policy, now_s: float) -> Model:
        """Raises ModelTooThin."""
        return self.monitor.snapshot(self.members, policy, self.base(), now_s)

    def plan_is_stale(self, plan: Plan) -> str:
        """How things are other than when it was made; empty if they are not."""
        why = self.changed_since(plan.base)
        if why or plan.stores is None:
            return why
        newest = self.stores.epoch_max
        return f"assignment {newest} is in use" if newest > plan.stores.base_epoch else ""

    def changed_since(self, base: Base) -> str:
        """How brokers stand elsewhere than in a plan's base; empty if they do not."""
        present = self.base()
        if present == base:
            return ""
        if present.epoch != base.epoch:
            return f"a newer placement is in use (epoch {present.epoch}, not {base.epoch})"
        if present.brokers != base.brokers:
            return f"there are {present.brokers} brokers now, not {base.brokers}"
        return "brokers are at other nodes now"


def audit(
    now_s: float, actor: str, action: str, subject: str, reason: str, outcome: str, detail: str = ""
) -> Audit:
    return Audit(
        AuditEntry(
            at_s=now_s,
            actor=actor,
            action=action,
            subject=subject,
            reason=reason,
            outcome=outcome,
            detail=detail,
        )
    )
