"""A broker's part in a reconfiguration, step by step, and what it does when steps do not come."""

from __future__ import annotations

import pytest

from broker_agent.core.routing.rendezvous.plans.part import PART_STATES, IllegalPartError, PartState
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.v1.manager_pb2 import (
    RCFG_DHT_UPDATE,
    RCFG_FINISH,
    RCFG_INIT,
    RCFG_ROLL_BACK,
    RCFG_TREE_REPAIR,
    RCFG_TREE_RESTORE,
    STEP_PROBLEM_IN_USE,
    STEP_PROBLEM_NOT_FROZEN,
    STEP_PROBLEM_NOT_HOST,
    STEP_PROBLEM_STALE,
)
from simulator.checkers import check_deliveries
from simulator.ring.ring_checkers import check_rest
from tests.support.brokers import LoneBroker
from tests.support.steps import StepNet

TOPIC = "quake/ca"


@pytest.fixture
def net() -> StepNet:
    return StepNet()


def all_is_well(net: StepNet) -> None:
    """Everyone is thawed, every node has one host, ring and trees are right, nothing is lost."""
    net.run(20.0)
    net.hosts()
    assert not [b.broker_id for b in net.world.living() if ring_of(b.core).plans.is_frozen]
    assert check_rest(list(net.world.brokers.values())) == []
    assert check_deliveries(net.world) == []


def prepare(net: StepNet, *movers: str) -> list:  # type: ignore[type-arg]
    moved = net.cycle(*movers)
    assert len(net.step(RCFG_INIT, net.names, moved)) == len(net.names)
    assert len(net.step(RCFG_DHT_UPDATE, movers, moved)) == len(movers)
    return moved


class TestWithoutMishap:
    def test_brokers_are_where_the_plan_says(self, net: StepNet) -> None:
        moved = net.cycle("b0", "b2", "b3")
        net.carry_out(moved)
        assert {ref.node_id: ref.broker_id for ref in moved}.items() <= net.hosts().items()
        all_is_well(net)

    def test_what_clients_say_meanwhile_is_done_afterwards(self, net: StepNet) -> None:
        reader, writer = net.client("reader", "b1"), net.client("writer", "b3")
        reader.subscribe([(TOPIC, "")])
        net.run(1.0)
        net.step(RCFG_INIT, net.names)
        writer.publish(TOPIC)
        late = net.client("late", "b2")
        late.subscribe([(TOPIC, "")])
        net.run(1.0)
        assert ring_of(net.broker("b3").core).node.counters.stamped_events == 0
        before = len(net.world.subscriptions[0].heard)
        net.step(RCFG_FINISH, net.names)
        assert len(net.world.subscriptions[0].heard) == before + 1
        writer.publish(TOPIC)
        all_is_well(net)
        assert len(net.world.subscriptions[1].heard) == 1 or len(net.world.subscriptions) > 1

    def test_it_says_for_how_long_it_was_frozen(self, net: StepNet) -> None:
        net.step(RCFG_INIT, net.names, wait_s=2.0)
        replies = net.step(RCFG_FINISH, net.names)
        assert replies["b1"].frozen_s == pytest.approx(2.0)

    def test_steps_said_twice_are_answered_twice_and_done_once(self, net: StepNet) -> None:
        moved = prepare(net, "b1", "b2")
        for kind in (RCFG_TREE_RESTORE, RCFG_TREE_REPAIR, RCFG_FINISH):
            for _ in range(2):
                assert len(net.step(kind, net.names, moved)) == len(net.names)
        assert net.broker("b1").core.counters.moves == 1
        all_is_well(net)

    def test_again_and_again(self, net: StepNet) -> None:
        for epoch in range(1, 5):
            moved = net.cycle("b4", "b0", "b2", epoch=epoch)
            net.carry_out(moved, plan=f"p{epoch}", epoch=epoch)
        all_is_well(net)

    def test_sessions_and_their_topics_stay(self, net: StepNet) -> None:
        reader, writer = net.client("reader", "b1"), net.client("writer", "b3")
        reader.subscribe([("quake/#", ""), (TOPIC, "")])
        for _ in range(3):
            writer.publish(TOPIC)
            net.run(0.3)
        net.carry_out(net.cycle("b1", "b3", "b0"))
        for _ in range(3):
            writer.publish(TOPIC)
            net.run(0.3)
        all_is_well(net)


class TestRefusals:
    def test_a_lower_fence_is_not_obeyed(self, net: StepNet) -> None:
        net.step(RCFG_INIT, net.names, fence=7)
        net.step(RCFG_ROLL_BACK, net.names, fence=7)
        replies = net.step(RCFG_INIT, net.names, fence=6, plan="p2", epoch=2)
        assert {reply.problem for reply in replies.values()} == {STEP_PROBLEM_STALE}

    def test_an_older_placement_is_not_begun(self, net: StepNet) -> None:
        net.carry_out(net.cycle("b1", "b2", epoch=4), epoch=4)
        replies = net.step(RCFG_INIT, net.names, plan="p2", epoch=4)
        assert {reply.problem for reply in replies.values()} == {STEP_PROBLEM_STALE}

    def test_who_is_not_frozen_gives_nothing_away(self, net: StepNet) -> None:
        replies = net.step(RCFG_DHT_UPDATE, ["b1"], net.cycle("b1", "b2"))
        assert replies["b1"].problem == STEP_PROBLEM_NOT_FROZEN

    def test_who_does_not_host_the_node_says_so(self, net: StepNet) -> None:
        moved = net.cycle("b1", "b2")
        net.step(RCFG_INIT, net.names)
        assert net.step(RCFG_DHT_UPDATE, ["b3"], moved)["b3"].problem == STEP_PROBLEM_NOT_HOST

    def test_what_is_in_use_is_not_rolled_back(self, net: StepNet) -> None:
        net.carry_out(net.cycle("b1", "b2"))
        replies = net.step(RCFG_ROLL_BACK, ["b1"])
        assert replies["b1"].problem == STEP_PROBLEM_IN_USE

    def test_who_leaves_takes_no_part(self, net: StepNet) -> None:
        net.broker("b4").leave()
        assert net.step(RCFG_INIT, ["b4"], wait_s=0.0)["b4"].problem == STEP_PROBLEM_NOT_HOST

    def test_a_plan_rolled_back_is_not_begun_again_by_an_old_word(self, net: StepNet) -> None:
        net.step(RCFG_INIT, net.names)
        net.step(RCFG_ROLL_BACK, net.names)
        assert net.step(RCFG_INIT, ["b1"])["b1"].problem == STEP_PROBLEM_STALE


class TestRolledBack:
    def test_all_is_as_it_was(self, net: StepNet) -> None:
        before = net.hosts()
        prepare(net, "b0", "b2", "b3")
        net.step(RCFG_ROLL_BACK, net.names)
        assert net.hosts() == before
        all_is_well(net)
        assert all(ring_of(b.core).node.counters.merges == 0 for b in net.world.living())

    def test_another_plan_can_follow(self, net: StepNet) -> None:
        prepare(net, "b0", "b2")
        net.step(RCFG_ROLL_BACK, net.names)
        net.carry_out(net.cycle("b2", "b3", epoch=2), plan="p2", epoch=2)
        all_is_well(net)


class TestLeftAlone:
    """The manager falls silent; brokers are frozen for 10 s, and ask for 3 s how the plan ended."""

    def test_frozen_only_they_thaw(self, net: StepNet) -> None:
        net.step(RCFG_INIT, net.names)
        net.run(12.0)
        all_is_well(net)

    def test_sealed_they_go_on_with_their_nodes(self, net: StepNet) -> None:
        before = net.hosts()
        prepare(net, "b0", "b2", "b3")
        net.run(15.0)
        assert net.hosts() == before
        all_is_well(net)

    def test_one_that_knows_that_it_was_committed_tells_the_others(self, net: StepNet) -> None:
        moved = prepare(net, "b0", "b2", "b3")
        net.step(RCFG_TREE_RESTORE, ["b2"], moved)
        net.run(12.0)
        assert {ref.node_id: ref.broker_id for ref in moved}.items() <= net.hosts().items()
        all_is_well(net)

    def test_one_that_knows_that_it_was_rolled_back_tells_the_others(self, net: StepNet) -> None:
        before = net.hosts()
        prepare(net, "b0", "b2", "b3")
        net.step(RCFG_ROLL_BACK, ["b2"])
        net.run(9.0)
        assert net.hosts() == before
        assert net.broker("b0").core.counters.thaws_alone == 0
        all_is_well(net)

    def test_committed_after_all_they_move_late_and_nothing_is_lost(self, net: StepNet) -> None:
        reader, writer = net.client("reader", "b1"), net.client("writer", "b4")
        reader.subscribe([(TOPIC, ""), ("quake/ny", "")])
        moved = prepare(net, *net.names)
        net.run(15.0)
        for _ in range(5):
            # Under terms of the former hosts.
            writer.publish(TOPIC)
            writer.publish("quake/ny")
            net.run(0.2)
        for kind in (RCFG_TREE_RESTORE, RCFG_TREE_REPAIR, RCFG_FINISH):
            assert len(net.step(kind, net.names, moved, fence=2)) == len(net.names)
        assert net.hosts() == {ref.node_id: ref.broker_id for ref in moved}
        writer.publish(TOPIC)
        all_is_well(net)

    def test_the_news_reaches_one_that_was_cut_off(self, net: StepNet) -> None:
        moved = prepare(net, "b0", "b2", "b3")
        net.network.split([["b2"], ["b0", "b1", "b3", "b4"]])
        others = [name for name in net.names if name != "b2"]
        for kind in (RCFG_TREE_RESTORE, RCFG_TREE_REPAIR, RCFG_FINISH):
            net.step(kind, others, moved)
        net.run(20.0)
        assert net.broker("b2").core.counters.thaws_alone == 1
        net.network.heal()
        net.run(30.0)
        assert {ref.node_id: ref.broker_id for ref in moved}.items() <= net.hosts().items()
        all_is_well(net)


class TestCrashes:
    def test_a_broker_that_is_back_takes_another_place_than_the_one_it_gave_away(
        self, net: StepNet
    ) -> None:
        net.carry_out(net.cycle("b1", "b2"))
        net.world.crash_broker("b1", noticed=True)
        net.run(5.0)
        net.world.start_broker("b1", ["b0"])
        net.run(10.0)
        assert len(net.hosts()) == 5
        all_is_well(net)

    def test_a_broker_that_is_back_where_it_was_before_is_believed(self, net: StepNet) -> None:
        for epoch in (1, 2):
            net.carry_out(net.cycle("b1", "b2", epoch=epoch), plan=f"p{epoch}", epoch=epoch)
        home = net.node_of("b1")
        net.world.crash_broker("b1", noticed=True)
        net.run(1.0)
        net.world.start_broker("b1", ["b0"])
        net.run(10.0)
        assert net.node_of("b1") == home
        all_is_well(net)

    def test_a_broker_restarted_before_it_was_told_joins_anew(self, net: StepNet) -> None:
        moved = prepare(net, "b1", "b2", "b3")
        net.world.crash_broker("b2", noticed=True)
        net.run(0.5)
        net.world.start_broker("b2", ["b0"])
        for kind in (RCFG_TREE_RESTORE, RCFG_TREE_REPAIR, RCFG_FINISH):
            net.step(kind, net.names, moved, fence=2)
        net.run(10.0)
        assert len(net.hosts()) == 5
        all_is_well(net)

    def test_leaving_while_frozen_ends_the_freeze(self, net: StepNet) -> None:
        prepare(net, "b1", "b2")
        net.broker("b1").leave()
        net.run(3.0)
        net.step(RCFG_ROLL_BACK, [name for name in net.names if name != "b1"])
        all_is_well(net)


class TestTable:
    def test_every_state_has_its_row_and_can_be_reached(self) -> None:
        assert set(PART_STATES) == set(PartState)
        reached = {following for followers in PART_STATES.values() for following in followers}
        assert reached == set(PartState)
        assert all(state not in followers for state, followers in PART_STATES.items())

    @pytest.mark.parametrize("state", PartState)
    @pytest.mark.parametrize("following", PartState)
    def test_a_part_goes_where_its_table_says(self, state: PartState, following: PartState) -> None:
        part = ring_of(LoneBroker().core).plans
        part.state = state
        if following is state or following in PART_STATES[state]:
            part._become(following)
            assert part.state is following
            return
        with pytest.raises(IllegalPartError):
            part._become(following)
