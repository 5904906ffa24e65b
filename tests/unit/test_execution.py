"""Plans carried out and undone, with brokers, messages, stores and leaders that fail."""

from __future__ import annotations

from copy import deepcopy

import pytest

from dynatops.v1.manager_pb2 import (
    RCFG_DHT_UPDATE,
    RCFG_FINISH,
    RCFG_INIT,
    RCFG_ROLL_BACK,
    RCFG_TREE_REPAIR,
    RCFG_TREE_RESTORE,
    STEP_PROBLEM_NOT_HOST,
    StepProblem,
    StepReply,
)
from overlay.base.identifiers import key_of, show_node
from reconfig_manager.model.plan import PHASES, TRANSITIONS, Execution, Phase, PlanState
from reconfig_manager.model.refusals import Busy, IllegalTransition, StalePlan
from reconfig_manager.ports import Audit, Record, SendStep
from reconfig_manager.store.memory import at_once
from tests.support.managed import FakeBroker
from tests.support.manager_store import plan
from tests.support.managing import SETTINGS, Mishaps, World, finish, over, reached

ALL = [RCFG_INIT, RCFG_TREE_RESTORE, RCFG_FINISH]
MOVER = [RCFG_INIT, RCFG_DHT_UPDATE, RCFG_TREE_RESTORE, RCFG_TREE_REPAIR, RCFG_FINISH]


class TestWhenAllGoesWell:
    def test_brokers_change_places(self) -> None:
        world = World(6)
        plan = finish(world, world.begin(3))
        assert plan.state is PlanState.COMMITTED
        assert world.brokers["b0"].node_id == key_of("b1")
        assert world.brokers["b2"].node_id == key_of("b0")
        assert world.brokers["b3"].node_id == key_of("b3")
        assert [world.brokers[name].seen for name in ("b0", "b5")] == [MOVER, ALL]
        assert {broker.epoch for broker in world.brokers.values()} == {1}
        assert world.store.kept.placement.epoch == 1
        assert len(world.store.kept.placement.hosts) == 6
        assert [placed.broker_id for placed in world.store.kept.placement.moved] == [
            "b0",
            "b1",
            "b2",
        ]

    def test_every_phase_is_journalled_in_order(self) -> None:
        world = World(4)
        plan = finish(world, world.begin(2))
        assert plan.execution is not None
        assert [entry.phase for entry in plan.execution.journal] == [
            Phase.FREEZING,
            Phase.MOVING,
            Phase.RESTORING,
            Phase.REPAIRING,
            Phase.FINISHING,
        ]

    def test_messages_are_counted_and_pauses_too(self) -> None:
        world = World(6)
        plan = finish(world, world.begin(3))
        assert plan.execution is not None
        counted = {name: (s.manager, s.brokers) for name, s in plan.execution.messages.items()}
        assert counted == {
            "RCFG_INIT": (12, 0),
            "RCFG_DHT_UPDATE": (6, 6),
            "RCFG_TREE_RESTORE": (12, 0),
            "RCFG_TREE_REPAIR": (6, 18),
            "RCFG_FINISH": (12, 0),
        }
        assert plan.execution.messages_total == 72
        assert plan.execution.paused.brokers == 6
        assert plan.execution.paused.p99_s == pytest.approx(0.2)

    def test_a_phase_is_recorded_before_it_is_acted_on(self) -> None:
        world = World(4)
        world.begin(2)
        world.store_away = True
        world.run(3.0)
        assert all(not broker.seen for broker in world.brokers.values())

    def test_the_end_is_in_the_audit_log(self) -> None:
        world = World(4)
        plan = finish(world, world.begin(2))
        entries = [effect.entry for effect in world.effects if isinstance(effect, Audit)]
        assert [(e.action, e.subject, e.outcome) for e in entries] == [
            ("approve", plan.id, "accepted"),
            ("execute", plan.id, "COMMITTED"),
        ]

    def test_one_after_the_other(self) -> None:
        world = World(5)
        finish(world, world.begin(2))
        second = world.rotation(3)
        world.do(world.manager.approve(second.id, "bob", "", world.now_s))
        assert finish(world, second).state is PlanState.COMMITTED
        assert world.store.kept.placement.epoch == 2

    def test_the_epoch_is_above_whatever_a_broker_has_seen(self) -> None:
        world = World(4)
        world.brokers["b3"].epoch = 41
        plan = finish(world, world.begin(2))
        assert plan.epoch == 42


class TestRollingBack:
    def refusing(self, world: World, kind: int, problem: StepProblem.ValueType) -> None:
        world.brokers["b1"].answers[kind] = StepReply(problem=problem)

    @pytest.mark.parametrize("kind", [RCFG_INIT, RCFG_DHT_UPDATE])
    def test_a_refusal_before_the_commit_point(self, kind: int) -> None:
        world = World(5)
        self.refusing(world, kind, STEP_PROBLEM_NOT_HOST)
        plan = finish(world, world.begin(3))
        assert plan.state is PlanState.ROLLED_BACK
        assert "b1 refused RCFG_" in plan.note
        assert "not host" in plan.note
        assert world.brokers["b0"].node_id == key_of("b0")
        assert world.store.kept.placement.epoch == 0

    @pytest.mark.parametrize("kind", [RCFG_TREE_RESTORE, RCFG_TREE_REPAIR])
    def test_a_refusal_past_it_makes_a_straggler(self, kind: int) -> None:
        world = World(5)
        self.refusing(world, kind, STEP_PROBLEM_NOT_HOST)
        plan = world.begin(3)
        assert world.run(60.0, lambda: over(world, plan))
        plan = world.stored(plan)
        assert plan.state is PlanState.COMMITTED
        assert plan.flags == ("stragglers",)
        assert plan.execution is not None
        assert plan.execution.stragglers == ("b1",)

    @pytest.mark.parametrize("phase", [Phase.FREEZING, Phase.MOVING])
    def test_a_broker_that_dies(self, phase: Phase) -> None:
        world = World(5)
        plan = world.begin(3)
        be_silent(world.brokers["b2"], phase)
        assert world.run(5.0, lambda: reached(world, plan, phase))
        world.crash("b2")
        plan = finish(world, plan)
        assert plan.state is PlanState.ROLLED_BACK
        assert plan.note.startswith("b2 is gone")

    def test_one_that_was_restarted_is_another(self) -> None:
        world = World(5)
        plan = world.begin(3)
        be_silent(world.brokers["b2"], Phase.MOVING)
        assert world.run(5.0, lambda: reached(world, plan, Phase.MOVING))
        world.crash("b2")
        world.restart("b2")
        began_s = world.now_s
        assert world.run(5.0, lambda: over(world, plan))
        assert world.now_s - began_s < SETTINGS.execution.gone_s
        assert finish(world, plan).state is PlanState.ROLLED_BACK

    def test_out_of_time(self) -> None:
        world = World(5)
        plan = world.begin(3)
        world.cut_off.add("b4")
        assert world.run(20.0, lambda: reached(world, plan, Phase.ROLLING_BACK))
        world.cut_off.clear()
        plan = finish(world, plan)
        assert plan.state is PlanState.ROLLED_BACK
        assert plan.note == "out of time while freezing: 1 not ready (b4 ...)"

    def test_who_cannot_be_reached_thaws_by_itself(self) -> None:
        world = World(5)
        plan = world.begin(3)
        assert world.run(5.0, lambda: world.brokers["b4"].frozen_by != "")
        world.cut_off.add("b4")
        assert world.run(60.0, lambda: over(world, plan))
        plan = world.stored(plan)
        assert plan.state is PlanState.ROLLED_BACK
        assert plan.flags == ("stragglers",)
        world.run(1.0)
        world.check()

    def test_cancelled(self) -> None:
        world = World(5)
        plan = world.begin(3)
        be_silent(world.brokers["b2"], Phase.MOVING)
        assert world.run(5.0, lambda: reached(world, plan, Phase.MOVING))
        world.run(0.5)
        world.do(world.manager.cancel(plan.id, "bob", "not now", world.now_s))
        plan = finish(world, plan)
        assert (plan.state, plan.note) == (PlanState.ROLLED_BACK, "cancelled by bob: not now")
        assert RCFG_ROLL_BACK in world.brokers["b0"].seen

    def test_past_the_commit_point_it_cannot_be_cancelled(self) -> None:
        world = World(5)
        plan = world.begin(3)
        assert world.run(5.0, lambda: reached(world, plan, Phase.RESTORING))
        with pytest.raises(IllegalTransition):
            world.manager.cancel(plan.id, "bob", "", world.now_s)
        assert finish(world, plan).state is PlanState.COMMITTED


def be_silent(broker: FakeBroker, phase: Phase) -> None:
    """No answer that counts, in this phase."""
    kind = {Phase.FREEZING: RCFG_INIT, Phase.MOVING: RCFG_DHT_UPDATE}[phase]
    broker.answers[kind] = StepReply(plan="another")


class TestTheStoreIsAway:
    def test_before_the_commit_it_is_rolled_back_by_the_deadline(self) -> None:
        world = World(4)
        plan = world.begin(2)
        assert world.run(5.0, lambda: reached(world, plan, Phase.FREEZING))
        world.store_away = True
        world.run(SETTINGS.execution.prepare_timeout_s + 1.0)
        assert all(not broker.frozen_by for broker in world.brokers.values())
        world.store_away = False
        assert finish(world, plan).state is PlanState.ROLLED_BACK

    def test_a_commit_in_doubt_is_overwritten_before_anybody_hears_of_it(self) -> None:
        """The store has taken the commit, but nobody knows; then it is away until the deadline."""
        world = World(4)
        plan = world.begin(2)

        def lose_the_answer(record: Record) -> None:
            written = record.plan
            if written is not None and written.phase is Phase.RESTORING and not world.store_away:
                at_once(world.store.write(world.manager.leader_state.fence, record))
                world.store_away = True

        world.before_record = lose_the_answer
        assert world.run(5.0, lambda: world.store_away)
        assert world.store.kept.placement.epoch == 1
        world.run(SETTINGS.execution.prepare_timeout_s + 2.0)
        assert all(RCFG_ROLL_BACK not in broker.seen for broker in world.brokers.values())
        world.before_record = lambda record: None
        world.store_away = False
        plan = finish(world, plan)
        assert plan.state is PlanState.ROLLED_BACK
        assert world.store.kept.placement.epoch == 0

    def test_past_the_commit_brokers_are_not_kept_waiting(self) -> None:
        world = World(4)
        plan = world.begin(2)
        assert world.run(5.0, lambda: world.brokers["b0"].epoch == 1)
        world.store_away = True
        world.run(1.0)
        assert all(not broker.frozen_by for broker in world.brokers.values())
        world.store_away = False
        assert finish(world, plan).state is PlanState.COMMITTED


class TestALeaderIsLost:
    @pytest.mark.parametrize("phase", Phase)
    def test_in_each_phase_of_the_journal(self, phase: Phase) -> None:
        world = World(6)
        plan = world.begin(3)
        if phase is Phase.ROLLING_BACK:
            assert world.run(5.0, lambda: reached(world, plan, Phase.MOVING))
            world.do(world.manager.cancel(plan.id, "bob", "", world.now_s))
        assert world.run(5.0, lambda: reached(world, plan, phase))
        world.kill_leader()
        world.run(2.0)
        world.elect()
        began_s = world.now_s
        assert world.run(10.0, lambda: over(world, plan))
        assert world.now_s - began_s < 5.0
        plan = finish(world, plan)
        expected = PlanState.COMMITTED if phase.committed else PlanState.ROLLED_BACK
        assert plan.state is expected
        assert plan.execution is not None
        assert plan.execution.fence == 2

    @pytest.mark.parametrize("phase", Phase)
    def test_with_a_broker(self, phase: Phase) -> None:
        world = World(6)
        plan = world.begin(3)
        if phase is Phase.ROLLING_BACK:
            assert world.run(5.0, lambda: reached(world, plan, Phase.MOVING))
            world.do(world.manager.cancel(plan.id, "bob", "", world.now_s))
        assert world.run(5.0, lambda: reached(world, plan, phase))
        world.kill_leader()
        world.crash("b1")
        world.run(2.0)
        world.elect()
        finish(world, plan)

    def test_the_one_before_is_not_heard_any_more(self) -> None:
        world = World(4)
        plan = world.begin(2)
        world.mishaps = Mishaps(delay_max_s=4.0)
        assert world.run(5.0, lambda: reached(world, plan, Phase.FREEZING))
        old = world.manager
        world.elect()
        world.run(1.0)
        assert old.leads
        for effect in old.tick(world.now_s + 1.0):
            assert isinstance(effect, SendStep)
            assert effect.step.fence == 1
        finish(world, plan)

    def test_a_journal_that_lost_its_commit(self) -> None:
        """A broker uses the placement, whatever the store has forgotten."""
        world = World(4)
        plan = world.begin(2)
        assert world.run(5.0, lambda: reached(world, plan, Phase.MOVING))
        forgetful = deepcopy(world.store.kept)
        assert world.run(5.0, lambda: all(broker.epoch == 1 for broker in world.brokers.values()))
        world.kill_leader()
        world.store.kept = forgetful
        world.elect()
        plan = finish(world, plan)
        assert plan.state is PlanState.COMMITTED
        assert "commit_recovered" in plan.flags


class TestRefusals:
    def test_a_second_execution(self) -> None:
        world = World(4)
        plan = world.begin(2)
        other = world.rotation(3)
        with pytest.raises(Busy, match=plan.id):
            world.manager.approve(other.id, "bob", "", world.now_s)

    def test_of_a_plan_whose_brokers_have_moved_since(self) -> None:
        world = World(4)
        world.elect()
        world.run(1.0)
        first, second = world.rotation(2), world.rotation(3)
        world.do(world.manager.approve(first.id, "bob", "", world.now_s))
        finish(world, first)
        with pytest.raises(StalePlan, match="a newer placement is in use"):
            world.manager.approve(second.id, "bob", "", world.now_s)

    def test_of_a_plan_whose_brokers_have_changed_since(self) -> None:
        world = World(4)
        world.elect()
        world.run(1.0)
        plan = world.rotation(2)
        world.crash("b3")
        world.run(3.0)
        with pytest.raises(StalePlan, match="there are 3 brokers now, not 4"):
            world.manager.approve(plan.id, "bob", "", world.now_s)


def test_a_broker_that_has_obeyed_a_higher_fence() -> None:
    world = World(4)
    world.brokers["b2"].fence = 7
    world.elect()
    world.run(2.0)
    assert world.manager.leader_state.fence == 8
    plan = world.rotation(2)
    world.do(world.manager.approve(plan.id, "alice", "", world.now_s))
    assert finish(world, plan).state is PlanState.COMMITTED


class TestTables:
    def test_every_state_and_phase_has_its_row(self) -> None:
        assert set(TRANSITIONS) == set(PlanState)
        assert set(PHASES) == {None, *Phase}

    def test_every_state_but_the_first_can_be_reached_and_none_follows_itself(self) -> None:
        reached = {following for followers in TRANSITIONS.values() for following in followers}
        assert reached == set(PlanState) - {PlanState.PROPOSED}
        assert {following for followers in PHASES.values() for following in followers} == set(Phase)
        assert all(state not in followers for state, followers in TRANSITIONS.items())

    @pytest.mark.parametrize("state", PlanState)
    @pytest.mark.parametrize("following", PlanState)
    def test_a_plan_goes_where_its_table_says(self, state: PlanState, following: PlanState) -> None:
        there = plan(state=state)
        if following in TRANSITIONS[state]:
            assert there.became(following, 2.0, "").state is following
            return
        with pytest.raises(IllegalTransition):
            there.became(following, 2.0, "")

    @pytest.mark.parametrize("phase", [None, *Phase])
    @pytest.mark.parametrize("following", Phase)
    def test_a_phase_is_entered_as_its_table_says(
        self, phase: Phase | None, following: Phase
    ) -> None:
        execution = Execution(epoch=1, fence=1, manager="m1", started_s=1.0)
        there = plan(state=PlanState.EXECUTING, phase=phase, execution=execution)
        if following in PHASES[phase]:
            assert there.entered(following, 2.0, 1, "m1").phase is following
            return
        with pytest.raises(IllegalTransition):
            there.entered(following, 2.0, 1, "m1")

    def test_only_ends_are_over(self) -> None:
        assert [state for state in PlanState if not state.over] == [
            PlanState.PROPOSED,
            PlanState.APPROVED,
            PlanState.EXECUTING,
        ]

    def test_nodes_are_shown_as_instances_have_them(self) -> None:
        assert show_node(key_of("b0")) == f"{key_of('b0'):016x}"
