"""Plans of stores in the manager: from who asks for the past to who keeps it, and back again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from dynatops.v1.manager_pb2 import STEP_PROBLEM_CANNOT_KEEP, STORE_ASSIGN, StepReply
from reconfig_manager.manager import proposed
from reconfig_manager.model.plan import PlanState
from reconfig_manager.model.policy import Mode, Policy
from reconfig_manager.model.refusals import (
    Busy,
    IllegalTransition,
    ModelTooThin,
    Refused,
    StalePlan,
)
from reconfig_manager.model.store_plan import StorePhase
from reconfig_manager.monitor.measuring import NOT_MEASURED
from reconfig_manager.ports import ProposalRequest
from reconfig_manager.storing.demand import AdvisedDemand
from tests.support.store_driver import AWAY, OTHERS, StoreDriver

Test = Callable[[StoreDriver], Awaitable[None]]


def run(test: Test, keeps: Mapping[str, tuple[str, ...]] | None = None, **values: int) -> None:
    async def go() -> None:
        driver = StoreDriver()
        await driver.begin(keeps, **values)
        await test(driver)

    asyncio.run(go())


FARTHER = {"b0": ("quake/ca", "news", "old"), "b1": ("quake/ca", "news")}


class TestPlanning:
    def test_topics_without_a_store_get_some(self) -> None:
        async def test(driver: StoreDriver) -> None:
            plan = await driver.propose()
            assert (plan.state, plan.kind) == (PlanState.PROPOSED, "stores")
            assert plan.stores is not None
            assert plan.stores.prediction is not None
            assert plan.stores.prediction.accept
            assert plan.stores.prediction.reason == "topics_without_store"
            assert plan.stores.prediction.unserved_after == 0.0
            assert plan.stores.moves == 4
            # A dry run: nobody is told anything.
            assert all(STORE_ASSIGN not in broker.seen for broker in driver.brokers.values())

        run(test)

    def test_requests_of_users_are_what_it_is_made_from(self) -> None:
        async def test(driver: StoreDriver) -> None:
            plan = await driver.propose()
            assert plan.stores is not None
            facts = plan.stores.facts
            assert (facts.candidates, facts.topics, facts.requests_from) == (4, 2, "reports")
            assert facts.requests_per_s == pytest.approx(16.0)

        run(test)

    def test_what_it_is_not_about_stays_and_takes_room(self) -> None:
        async def test(driver: StoreDriver) -> None:
            plan = await driver.propose(replicas=1, execute=True)
            for _ in range(3):
                await driver.report()
            assert driver.plan(plan.id).state in (PlanState.COMMITTED, PlanState.REJECTED)
            assert driver.holders("old") == {"b0"}
            assert driver.holders("all/#") == {"b3"}

        run(test, {"b0": ("quake/ca", "old"), "b3": ("all/#",)})

    def test_what_spark_computed_takes_the_place_of_reports_while_it_is_fresh(self) -> None:
        async def test(driver: StoreDriver) -> None:
            advised = {"quake/nv": AdvisedDemand(3.0, {"b7": 1.0})}
            computed_s = driver.clock_s - 60.0
            driver.manager.advise_demand(advised, computed_s, driver.clock_s + 1.0)
            # Under a new leader too.
            await driver.depose()
            await driver.lead()
            await driver.know_the_network()
            stale = await driver.propose()
            assert stale.stores is not None
            assert stale.stores.facts.requests_from == "reports"
            driver.manager.advise_demand(advised, computed_s, driver.clock_s + 1.0)
            plan = await driver.propose()
            assert plan.stores is not None
            facts = plan.stores.facts
            assert (facts.requests_from, facts.topics) == ("advice", 1)
            assert facts.requests_per_s == 3.0
            assert facts.requests_age_s == driver.clock_s - computed_s

        run(test)

    def test_staying_is_an_answer(self) -> None:
        async def test(driver: StoreDriver) -> None:
            plan = await driver.propose(replicas=2)
            await driver.approve(plan.id)
            for _ in range(3):
                await driver.report()
            again = await driver.propose(replicas=2)
            assert again.state is PlanState.REJECTED
            assert again.stores is not None
            assert again.stores.prediction is not None
            assert again.stores.prediction.reason == "nothing_changes"

        run(test)

    def test_what_is_sent_to_get_there_may_be_too_much(self) -> None:
        async def test(driver: StoreDriver) -> None:
            plan = await driver.propose(period_s=0.001, events_per_request=0.01)
            assert plan.state is PlanState.REJECTED
            assert "reject" in plan.note

        run(test, FARTHER)

    def test_nothing_is_left_without_a_store(self) -> None:
        async def test(driver: StoreDriver) -> None:
            plan = await driver.propose(stores=1, replicas=1)
            assert plan.state is PlanState.REJECTED
            assert plan.stores is not None
            assert plan.stores.prediction is not None
            assert plan.stores.prediction.reason == "topics_left_without_store"

        run(test, {"b0": ("quake/ca",), "b1": ("news",)}, capacity=1)

    @pytest.mark.parametrize(
        ("capacity", "requests", "why"),
        [
            (0, {"b5": {"news": 1}}, "store.capacity"),
            (4, {"b5": {"a/#": 1, "$sys": 0}}, "nobody has asked"),
        ],
    )
    def test_too_little_is_known(
        self, capacity: int, requests: dict[str, dict[str, int]], why: str
    ) -> None:
        async def go() -> None:
            driver = StoreDriver()
            driver.requests = requests
            await driver.begin(capacity=capacity)
            with pytest.raises(ModelTooThin, match=why):
                await driver.propose()

        asyncio.run(go())

    def test_under_off_nothing_is_executed(self) -> None:
        async def test(driver: StoreDriver) -> None:
            off = driver.manager.set_policy(Policy(mode=Mode.OFF), "ann", "quiet", driver.clock_s)
            await driver.carry_out(off)
            plan = await driver.propose()
            with pytest.raises(Refused):
                await driver.approve(plan.id)
            with pytest.raises(Refused):
                await driver.propose(execute=True)

        run(test)


class TestExecuting:
    def test_new_stores_catch_up_before_former_ones_leave(self) -> None:
        async def test(driver: StoreDriver) -> None:
            driver.lag()
            plan = await driver.propose(replicas=1)
            assert plan.stores is not None
            former = driver.holders("quake/ca")
            await driver.approve(plan.id)
            for _ in range(3):
                await driver.report()
                assert driver.phase(plan.id) is StorePhase.KEEPING
                assert former < driver.holders("quake/ca")
            driver.catch_up()
            await driver.report()
            await driver.tick()
            done = driver.plan(plan.id)
            assert done.state is PlanState.COMMITTED
            assert done.stores is not None
            assert done.stores.execution is not None
            phases = [entry.phase for entry in done.stores.execution.journal]
            assert phases == [StorePhase.KEEPING, StorePhase.RELEASING]
            wanted = {change.broker_id: set(change.after) for change in done.stores.changes}
            assert {name: driver.kept().get(name, set()) for name in wanted} == wanted
            assert not former & driver.holders("quake/ca")

        run(test, AWAY)

    def test_who_does_not_catch_up_in_time_goes_again(self) -> None:
        async def test(driver: StoreDriver) -> None:
            driver.lag()
            before = driver.kept()
            plan = await driver.propose(replicas=1, execute=True)
            for _ in range(15):
                await driver.report()
            ended = driver.plan(plan.id)
            assert ended.state is PlanState.ROLLED_BACK
            assert "not caught up" in ended.note
            assert driver.kept() == before

        run(test, AWAY)

    def test_a_refusal_rolls_it_back(self) -> None:
        async def test(driver: StoreDriver) -> None:
            before = driver.kept()
            for name in OTHERS:
                refusal = StepReply(problem=STEP_PROBLEM_CANNOT_KEEP, message="disk full")
                driver.brokers[name].answers[STORE_ASSIGN] = refusal
            plan = await driver.propose(replicas=1, execute=True)
            for name in OTHERS:
                driver.brokers[name].answers.clear()
            for _ in range(5):
                await driver.report()
            ended = driver.plan(plan.id)
            assert ended.state is PlanState.ROLLED_BACK
            assert "disk full" in ended.note
            assert driver.kept() == before

        run(test, AWAY)

    def test_it_may_be_cancelled_until_former_stores_are_told(self) -> None:
        async def test(driver: StoreDriver) -> None:
            driver.lag()
            before = driver.kept()
            other = await driver.propose(replicas=1)
            plan = await driver.propose(replicas=1, execute=True)
            await driver.report()
            with pytest.raises(Busy):
                await driver.approve(other.id)
            cancel = driver.manager.cancel(plan.id, "bob", "not now", driver.clock_s)
            await driver.carry_out(cancel)
            await driver.report()
            ended = driver.plan(plan.id)
            assert ended.state is PlanState.ROLLED_BACK
            assert "cancelled by bob: not now" in ended.note
            assert driver.kept() == before
            with pytest.raises(IllegalTransition):
                driver.manager.cancel(plan.id, "bob", "again", driver.clock_s)

        run(test, AWAY)

    def test_another_assignment_makes_it_stale(self) -> None:
        async def test(driver: StoreDriver) -> None:
            first = await driver.propose(replicas=1)
            second = await driver.propose(replicas=1)
            await driver.approve(first.id)
            for _ in range(3):
                await driver.report()
            with pytest.raises(StalePlan, match="assignment"):
                await driver.approve(second.id)

        run(test, AWAY)

    @pytest.mark.parametrize("phase", [StorePhase.KEEPING, StorePhase.RELEASING])
    def test_a_new_leader_goes_on(self, phase: StorePhase) -> None:
        async def test(driver: StoreDriver) -> None:
            if phase is StorePhase.KEEPING:
                driver.lag()
            plan = await driver.propose(replicas=1)
            if phase is StorePhase.KEEPING:
                await driver.approve(plan.id)
                await driver.report()
            else:
                await driver.approve(plan.id)
                driver.hold_steps = True
                await driver.report()
            assert driver.phase(plan.id) is phase
            await driver.depose()
            driver.hold_steps = False
            driver.catch_up()
            await driver.lead()
            await driver.know_the_network()
            for _ in range(3):
                await driver.report()
            done = driver.plan(plan.id)
            assert done.state is PlanState.COMMITTED
            assert done.stores is not None
            wanted = {change.broker_id: set(change.after) for change in done.stores.changes}
            assert {name: driver.kept().get(name, set()) for name in wanted} == wanted

        run(test, AWAY)

    def test_plans_of_brokers_and_of_stores_wait_for_each_other(self) -> None:
        async def test(driver: StoreDriver) -> None:
            driver.lag()
            await driver.propose(replicas=1, execute=True)
            request = ProposalRequest(actor="ann", reason="r", execute=True)
            effects = driver.manager.propose(request, driver.clock_s)
            placement = proposed(effects)
            await driver.carry_out(effects)
            assert placement is not None
            assert driver.plan(placement.id).state is not PlanState.EXECUTING

        run(test, AWAY)


class TestMeasuring:
    def test_how_far_requests_go_is_told_beside_the_prediction(self) -> None:
        async def test(driver: StoreDriver) -> None:
            await driver.answer(periods=3, hops=4)
            plan = await driver.propose(replicas=1, execute=True)
            await driver.answer(periods=7, hops=1)
            done = driver.plan(plan.id)
            assert done.state is PlanState.COMMITTED
            assert done.stores is not None
            measured = done.stores.measurement
            assert measured is not None
            assert measured.before.hops_per_request == 4.0
            assert measured.after.hops_per_request == pytest.approx(1.0, abs=0.5)
            assert measured.measured_hops_saved == pytest.approx(3.0, abs=0.5)
            found = done.stores.prediction
            assert found is not None
            assert measured.predicted_hops_saved == found.hops_before - found.hops_after

        run(test, AWAY)

    def test_too_few_requests_say_nothing(self) -> None:
        async def test(driver: StoreDriver) -> None:
            plan = await driver.propose(replicas=1, execute=True)
            for _ in range(7):
                await driver.report()
            assert NOT_MEASURED in driver.plan(plan.id).flags

        run(test, AWAY)
