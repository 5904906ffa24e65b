"""A manager's core with brokers that may be told what to keep, and users who ask for the past."""

from __future__ import annotations

from collections.abc import Mapping

from reconfig_manager.manager import proposed
from reconfig_manager.model.plan import Plan
from reconfig_manager.model.store_plan import StorePhase, StorePlanOptions
from reconfig_manager.ports import StoreProposalRequest
from reconfig_manager.rest.rest_settings import RestSettings
from tests.support.manager_driver import ManagerDriver

# That may be stores, and keep nothing where `_away` begins.
OTHERS = ("b0", "b2", "b3")


class StoreDriver(ManagerDriver):
    """Eight brokers, of which the first four may be stores."""

    async def begin(
        self, keeps: Mapping[str, tuple[str, ...]] | None = None, capacity: int = 4
    ) -> None:
        for name in ("b0", "b1", "b2", "b3"):
            self.brokers[name].capacity = capacity
            self.brokers[name].keeps = (keeps or {}).get(name, ())
        if not self.requests:
            self.requests = {"b5": {"quake/ca": 100, "news": 10}, "b6": {"quake/ca": 50}}
        await self.lead()
        await self.know_the_network()

    async def propose(self, *, execute: bool = False, **options: object) -> Plan:
        chosen = StorePlanOptions.model_validate(options)
        request = StoreProposalRequest(actor="ann", reason="try", execute=execute, options=chosen)
        effects = self.manager.propose_stores(request, self.clock_s)
        plan = proposed(effects)
        assert plan is not None
        await self.carry_out(effects)
        return self.plan(plan.id)

    def plan(self, plan_id: str) -> Plan:
        return self.manager.plan(plan_id)

    async def approve(self, plan_id: str) -> Plan:
        await self.carry_out(self.manager.approve(plan_id, "ann", "go", self.clock_s))
        return self.plan(plan_id)

    def lag(self) -> None:
        """Whoever is new does not catch up for now."""
        for name in OTHERS:
            self.brokers[name].behind = {"quake/ca", "news"}

    def catch_up(self) -> None:
        for name in OTHERS:
            self.brokers[name].behind = set()

    async def answer(self, *, periods: int, hops: int) -> None:
        """Stores answer users, from so far away."""
        counts = self.answers.setdefault(
            "b5", {"past_answers": 0, "past_answer_hops": 0, "past_events_received": 0}
        )
        for _ in range(periods):
            counts["past_answers"] += 100
            counts["past_answer_hops"] += 100 * hops
            counts["past_events_received"] += 500
            await self.report()

    def kept(self) -> dict[str, set[str]]:
        return {name: set(b.keeps) for name, b in self.brokers.items() if b.keeps}

    def holders(self, topic: str) -> set[str]:
        return {name for name, broker in self.brokers.items() if topic in broker.keeps}

    def phase(self, plan_id: str) -> StorePhase | None:
        part = self.plan(plan_id).stores
        assert part is not None
        return part.phase


# Far from those who ask, so that moving is worth it.
AWAY = {"b1": ("quake/ca", "news")}


async def leading_stores(
    settings: RestSettings | None = None, keeps: Mapping[str, tuple[str, ...]] = AWAY
) -> StoreDriver:
    driver = StoreDriver(settings)
    await driver.begin(keeps)
    return driver
