"""The manager as a whole: what people ask of it, and what it does when it leads and when not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dynatops.v1.manager_pb2 import LoadReport, StepReply
from reconfig_manager.manager import Manager, proposed
from reconfig_manager.model.core_settings import ManagerSettings
from reconfig_manager.model.plan import Origin, Placement, Plan, PlanState
from reconfig_manager.model.policy import Mode, Policy, RatesFrom, SolverOptions
from reconfig_manager.model.refusals import (
    Busy,
    IllegalTransition,
    ModelTooThin,
    NotLeading,
    Refused,
    StalePlan,
    StalePolicy,
    UnknownPlan,
)
from reconfig_manager.ports import (
    AgentId,
    Audit,
    AuditEntry,
    Constants,
    Drop,
    KeepRates,
    Notify,
    ProposalRequest,
    Record,
    SendStep,
    Solve,
    StoredState,
)
from reconfig_manager.rest.resources.cost import cost_work
from reconfig_manager.status import ManagerStatus
from reconfig_manager.store.memory import at_once
from tests.support.managed import REPAIR_MESSAGES, STATE_MESSAGES
from tests.support.workday import SETTINGS, Workday

QUICK = SolverOptions(iterations_max=40, budget_s=60.0)


def morning(constants: Constants | None = None, **changes: Any) -> Workday:
    """Enough is known to plan from."""
    day = Workday(Policy(**{"solver": QUICK, **changes}))
    day.store.kept.constants = constants or Constants()
    day.begin()
    day.run(1200.0)
    return day


def propose(day: Workday, **request: Any) -> Plan:
    effects = day.manager.propose(ProposalRequest(actor="alice", **request), day.now_s)
    plan = proposed(effects)
    assert plan is not None
    day.do(effects)
    return day.store.kept.plans[plan.id]


def audited(day: Workday) -> list[tuple[str, str, str, str]]:
    day.do(day.manager.tick(day.now_s))
    entries: list[AuditEntry] = [e.entry for e in day.effects if isinstance(e, Audit)]
    return [(entry.actor, entry.action, entry.subject, entry.outcome) for entry in entries]


class TestProposing:
    def test_a_dry_run(self) -> None:
        day = morning()
        plan = propose(day, reason="what if")
        assert (plan.state, plan.origin, plan.execute) == (
            PlanState.PROPOSED,
            Origin.REQUEST,
            False,
        )
        assert plan.prediction is not None
        assert plan.prediction.accept
        assert plan.prediction.benefit == pytest.approx(
            plan.prediction.cost_before.total - plan.prediction.cost_after.total
        )
        assert plan.moves
        assert not any(isinstance(effect, SendStep) for effect in day.effects)
        assert audited(day) == [("alice", "propose", plan.id, "accepted")]

    def test_is_recorded_before_it_is_solved(self) -> None:
        day = morning()
        day.store.away = True
        effects = day.manager.propose(ProposalRequest(), day.now_s)
        assert [type(effect) for effect in effects] == [Record, Notify, Audit]
        day.do(effects)
        assert not any(isinstance(effect, Solve) for effect in day.effects)
        day.store.away = False
        day.run(60.0)
        (plan,) = day.plans
        assert plan.prediction is not None

    def test_approved_and_executed(self) -> None:
        day = morning()
        plan = propose(day)
        day.do(day.manager.approve(plan.id, "bob", "do it", day.now_s))
        plan = day.store.kept.plans[plan.id]
        assert (plan.state, plan.approved_by) == (PlanState.COMMITTED, "bob")
        assert audited(day)[1:] == [
            ("bob", "approve", plan.id, "accepted"),
            ("bob", "execute", plan.id, "COMMITTED"),
        ]

    def test_executed_at_once(self) -> None:
        day = morning()
        plan = propose(day, execute=True)
        assert (plan.state, plan.approved_by) == (PlanState.COMMITTED, "alice")

    def test_what_is_not_worth_it_is_rejected(self) -> None:
        day = morning(Constants(a=1e6))
        plan = propose(day, execute=True)
        assert plan.state is PlanState.REJECTED
        assert plan.note.startswith("reject: ")
        with pytest.raises(IllegalTransition, match="is REJECTED: it cannot be APPROVED"):
            day.manager.approve(plan.id, "bob", "", day.now_s)

    def test_a_solver_that_fails(self) -> None:
        day = morning()
        day.solver_fails = "too large"
        plan = propose(day)
        assert (plan.state, plan.note) == (PlanState.REJECTED, "the solver failed: too large")

    def test_with_options(self) -> None:
        day = morning()
        options = SolverOptions(
            algorithm="refine", iterations_max=40, delay_weight=0.0, max_moves=3
        )
        plan = propose(day, options=options)
        assert plan.options == options
        assert plan.prediction is not None
        assert plan.prediction.cost_before.total == plan.prediction.cost_before.overhead
        assert len(plan.moves) <= 3

    def test_too_little_is_known(self) -> None:
        day = Workday(Policy())
        day.begin()
        with pytest.raises(ModelTooThin):
            day.manager.propose(ProposalRequest(actor="alice"), day.now_s)
        assert audited(day) == [("alice", "propose", "", "ModelTooThin")]

    def test_too_many(self) -> None:
        day = morning()
        for _ in range(SETTINGS.proposals_max):
            propose(day)
        with pytest.raises(Refused, match="20 proposals are open"):
            propose(day)

    def test_expire(self) -> None:
        day = morning()
        plan = propose(day)
        day.run(SETTINGS.proposal_ttl_s + 60.0)
        assert day.store.kept.plans[plan.id].state is PlanState.EXPIRED

    def test_off_means_dry_runs_only(self) -> None:
        day = morning(mode=Mode.OFF)
        with pytest.raises(Refused, match="`off`"):
            propose(day, execute=True)
        plan = propose(day)
        with pytest.raises(Refused, match="`off`"):
            day.manager.approve(plan.id, "bob", "", day.now_s)


class TestDeciding:
    def test_cancelled(self) -> None:
        day = morning()
        plan = propose(day)
        day.do(day.manager.cancel(plan.id, "bob", "no need", day.now_s))
        plan = day.store.kept.plans[plan.id]
        assert (plan.state, plan.note) == (PlanState.CANCELLED, "cancelled by bob: no need")
        with pytest.raises(IllegalTransition):
            day.manager.cancel(plan.id, "bob", "", day.now_s)

    def test_cancelled_while_it_is_computed(self) -> None:
        day = morning()
        effects = day.manager.propose(ProposalRequest(), day.now_s)
        plan = proposed(effects)
        assert plan is not None
        with pytest.raises(Refused, match="still being computed"):
            day.manager.approve(plan.id, "bob", "", day.now_s)
        cancelling = day.manager.cancel(plan.id, "bob", "", day.now_s)
        day.do([*effects, *cancelling])
        assert day.store.kept.plans[plan.id].state is PlanState.CANCELLED

    def test_of_an_unknown_plan(self) -> None:
        day = morning()
        with pytest.raises(UnknownPlan, match="p9-9"):
            day.manager.approve("p9-9", "bob", "", day.now_s)
        assert audited(day) == [("bob", "approve", "p9-9", "UnknownPlan")]

    def test_two_at_once(self) -> None:
        day = morning()
        first, second = propose(day), propose(day)
        approving = day.manager.approve(first.id, "bob", "", day.now_s)
        with pytest.raises(Busy, match=first.id):
            day.manager.approve(second.id, "carol", "", day.now_s)
        day.do(approving)
        with pytest.raises(StalePlan, match="propose again"):
            day.manager.approve(second.id, "carol", "", day.now_s)

    def test_a_broker_that_is_not_connected(self) -> None:
        day = morning()
        plan = propose(day)
        agent = next(iter(day.brokers.values())).agent
        day.manager.gone(agent, day.now_s)
        with pytest.raises(Refused, match=f"{agent.broker_id} is not connected"):
            day.manager.approve(plan.id, "bob", "", day.now_s)

    def test_one_to_be_executed_waits_for_a_person_where_it_cannot_be(self) -> None:
        day = morning()
        agent = next(iter(day.brokers.values())).agent
        effects = day.manager.propose(ProposalRequest(execute=True), day.now_s)
        day.manager.gone(agent, day.now_s)
        day.do(effects)
        (plan,) = day.plans
        assert plan.state is PlanState.PROPOSED
        assert "not executed: brokers cannot be moved now" in plan.note


class TestPolicy:
    def test_is_in_force_once_recorded(self) -> None:
        day = morning()
        day.store.away = True
        policy = Policy(mode=Mode.OFF)
        day.do(day.manager.set_policy(policy, "root", "holidays", day.now_s, if_version=0))
        assert day.manager.leader_state.rules.mode is Mode.MANUAL
        day.store.away = False
        day.run(60.0)
        assert day.manager.leader_state.policy.version == 1
        assert day.store.kept.policy.policy == policy
        assert audited(day) == [("root", "set_policy", "policy", "accepted")]

    def test_is_not_overwritten_unread(self) -> None:
        day = morning()
        day.do(day.manager.set_policy(Policy(), "root", "", day.now_s, if_version=0))
        with pytest.raises(StalePolicy, match="at version 1, not 0"):
            day.manager.set_policy(Policy(), "root", "", day.now_s, if_version=0)

    def test_two_in_a_row_while_the_store_is_away(self) -> None:
        day = morning()
        day.store.away = True
        for beta in (0.2, 0.3):
            day.do(day.manager.set_policy(Policy(beta=beta), "root", "", day.now_s))
        day.store.away = False
        day.run(60.0)
        assert (day.store.kept.policy.version, day.store.kept.policy.policy.beta) == (2, 0.3)


class TestStatus:
    def test_of_one_that_does_not_lead(self) -> None:
        assert Manager(SETTINGS, "m1").status(0.0) == ManagerStatus("m1")
        with pytest.raises(NotLeading):
            Manager(SETTINGS, "m1").topics_status(0.0)

    def test_is_a_value(self) -> None:
        day = morning()
        before, topics = day.status, day.manager.topics_status(day.now_s)
        assert [broker.broker_id for broker in before.brokers] == sorted(day.brokers)
        assert all(broker.attached and broker.subscriptions == 0 for broker in before.brokers)
        assert (before.open_proposals, before.executing, before.store_behind) == (0, None, 0)
        assert (topics.model_problem, topics.completeness) == ("", 1.0)
        assert set(topics.rates) <= set(day.topics)
        propose(day)
        day.manager.gone(day.brokers[before.brokers[0].broker_id].agent, day.now_s)
        assert before.open_proposals == 0
        assert before.brokers[0].attached
        assert day.status.open_proposals == 1
        assert not day.status.brokers[0].attached


class TestLeading:
    def test_who_does_not_lead_does_nothing(self) -> None:
        manager = Manager(SETTINGS, "m1")
        agent = AgentId("b0", 1, 1)
        assert manager.report(agent, LoadReport(), 0.0) == []
        assert manager.reply(agent, StepReply(), 0.0) == []
        assert (manager.tick(0.0), manager.gone(agent, 0.0)) == ([], [])
        assert (manager.recorded(1, 0.0), manager.depose(0.0)) == ([], [])
        commands: list[Callable[[], object]] = [
            lambda: manager.propose(ProposalRequest(), 0.0),
            lambda: manager.approve("p1-1", "bob", "", 0.0),
            lambda: manager.cancel("p1-1", "bob", "", 0.0),
            lambda: manager.set_policy(Policy(), "bob", "", 0.0),
        ]
        for command in commands:
            with pytest.raises(NotLeading):
                command()

    def test_what_was_not_brought_to_an_end_expires_with_its_leader(self) -> None:
        day = morning()
        open_one = propose(day)
        day.do(day.manager.propose(ProposalRequest(), day.now_s)[:1])
        computed = [plan for plan in day.plans if plan.id != open_one.id]
        approved = open_one.became(PlanState.APPROVED, day.now_s, "").model_copy(
            update={"id": "p1-9"}
        )
        state = at_once(day.store.read_state())
        unsolved = computed[0].model_copy(update={"prediction": None, "id": "p1-8"})
        state = state.model_copy(update={"plans": (open_one, unsolved, approved)})
        manager = Manager(SETTINGS, "m2")
        manager.lead(2, state, day.now_s)
        assert {plan.id: plan.state for plan in manager.leader_state.plans.values()} == {
            open_one.id: PlanState.PROPOSED,
            "p1-8": PlanState.EXPIRED,
            "p1-9": PlanState.EXPIRED,
        }

    def test_plan_ids_are_of_one_leader_only(self) -> None:
        day = morning()
        first = propose(day)
        day.begin()
        day.run(1200.0)
        assert (first.id, propose(day).id) == ("p1-1", "p2-1")

    def test_epochs_are_never_used_twice(self) -> None:
        for state in (
            StoredState(epoch=7),
            StoredState(placement=Placement(epoch=7)),
        ):
            manager = Manager(SETTINGS, "m1")
            manager.lead(1, state, 0.0)
            assert [manager.leader_state.next_epoch(), manager.leader_state.next_epoch()] == [8, 9]

    def test_rates_are_kept_for_the_next(self) -> None:
        day = morning()
        kept = [effect for effect in day.effects if isinstance(effect, KeepRates)]
        assert len(kept) > 10
        state = StoredState(rates=dict(kept[-1].rates), rates_at_s=day.now_s)
        manager = Manager(SETTINGS, "m2")
        manager.lead(2, state, day.now_s)
        assert manager.leader_state.monitor.rates() == kept[-1].rates

    def test_rates_that_are_too_old_are_not(self) -> None:
        for age_s, known in ((99.0, {"a": 2.0}), (100.0, {})):
            manager = Manager(SETTINGS, "m2", advice_ttl_s=100.0)
            manager.lead(2, StoredState(rates={"a": 2.0}, rates_at_s=1_000.0), 1_000.0 + age_s)
            assert manager.leader_state.monitor.rates() == known

    def test_a_stranger_is_dropped(self) -> None:
        day = morning()
        broker = next(iter(day.brokers.values()))
        agent = AgentId("other", 1, 99)
        (effect,) = day.manager.register(agent, broker.registration(), day.now_s)
        assert isinstance(effect, Drop)
        assert effect.agent == agent

    def test_finished_plans_are_let_go(self) -> None:
        settings = SETTINGS.model_copy(update={"plans_kept": 3})
        day = Workday(Policy(solver=QUICK), settings=settings)
        day.begin()
        day.run(1200.0)
        plans = [propose(day) for _ in range(6)]
        for plan in plans:
            day.do(day.manager.cancel(plan.id, "bob", "", day.now_s))
        assert list(day.manager.leader_state.plans) == [plan.id for plan in plans[3:]]
        assert len(day.plans) == 6

    def test_the_same_again(self) -> None:
        """One history, one answer, to the last byte."""
        texts = []
        for _ in range(2):
            day = morning()
            propose(day, execute=True)
            day.run(600.0)
            plan = day.plans[-1]
            assert plan.prediction is not None
            prediction = plan.prediction.model_copy(update={"seconds": 0.0})
            texts.append(
                plan.model_copy(update={"prediction": prediction}).model_dump_json()
                + "".join(str(e.step) for e in day.effects if isinstance(e, SendStep))
            )
        assert texts[0] == texts[1]

    def test_costs_now(self) -> None:
        day = morning()
        plan = propose(day)
        assert plan.prediction is not None
        work = cost_work(day.status, day.manager.model(day.now_s))
        assert work().cost == plan.prediction.cost_before


@pytest.mark.slow
def test_a_thousand_brokers_and_ten_thousand_topics() -> None:
    """Everybody is moved, in some seconds; it keeps up with reports in less."""
    day = Workday(
        Policy(solver=SolverOptions(algorithm="lsap", budget_s=30.0, objective="cost")),
        brokers=1000,
        topics=10_000,
        events_per_s=1.0,
    )
    day.begin()
    day.run(1200.0)
    plan = propose(day, execute=True)
    assert plan.state is PlanState.COMMITTED
    assert len(plan.moves) > 900
    assert (
        day.manager.leader_state.monitor.completeness(day.manager.leader_state.members, day.now_s)
        == 1.0
    )
    assert plan.execution is not None
    # Three commands for everyone, who repairs trees; two more, and some state, for those that move.
    of_all, of_movers = 6 + REPAIR_MESSAGES, 4 + STATE_MESSAGES
    assert plan.execution.messages_total == of_all * 1000 + of_movers * len(plan.moves)


class TestFirstPolicy:
    FIRST = Policy(mode=Mode.AUTO, t_free_s=1800.0)

    def day(self, first: Policy | None = FIRST) -> Workday:
        return Workday(Policy(), settings=SETTINGS.model_copy(update={"first_policy": first}))

    def test_a_network_without_one_gets_it_and_it_is_in_the_log(self) -> None:
        day = self.day()
        day.begin()
        kept = day.store.kept.policy
        assert (kept.policy, kept.version) == (self.FIRST, 1)
        assert ("m1", "set_policy", "policy", "accepted") in audited(day)
        # A leader that finds it there says nothing.
        day.manager = Manager(SETTINGS.model_copy(update={"first_policy": self.FIRST}), "m2")
        day.effects.clear()
        day.begin()
        assert audited(day) == []
        assert day.store.kept.policy == kept

    def test_what_a_person_has_said_stays_whatever_the_settings_become(self) -> None:
        day = self.day()
        day.begin()
        said = Policy(mode=Mode.OFF)
        day.do(day.manager.set_policy(said, "alice", "", day.now_s))
        for first in (self.FIRST, Policy(mode=Mode.AUTO, beta=0.2), None):
            day.manager = Manager(SETTINGS.model_copy(update={"first_policy": first}), "m2")
            day.begin()
            assert (day.store.kept.policy.policy, day.store.kept.policy.version) == (said, 2)

    def test_a_person_that_comes_before_it_is_written_is_not_undone(self) -> None:
        """The store was slow: both are under way, and the person's is the newer one."""
        day = self.day()
        (first,) = (
            effect
            for effect in day.manager.lead(1, StoredState(), day.now_s)
            if isinstance(effect, Record)
        )
        said = day.manager.set_policy(Policy(mode=Mode.OFF), "alice", "", day.now_s)
        assert first.policy is not None
        assert [e.policy.version for e in said if isinstance(e, Record) and e.policy] == [2]

    def test_without_one_nothing_is_written(self) -> None:
        day = self.day(None)
        day.begin()
        assert day.store.kept.policy.version == 0

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            ('{"mode": "auto"', "it is to be JSON"),
            ('{"mode": "always"}', "manual"),
            ('{"t_free": 5}', "Extra inputs"),
            ('{"t_free_s": 3}', "solver.budget_s must be shorter than t_free_s"),
        ],
    )
    def test_what_cannot_be_meant_is_refused_at_the_start(self, written: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            ManagerSettings.model_validate({"first_policy": written})
        taken = ManagerSettings.model_validate({"first_policy": '{"rates_from": "advice"}'})
        assert taken.first_policy == Policy(rates_from=RatesFrom.ADVICE)
