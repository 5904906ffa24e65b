"""Brokers that a plan left behind."""

from __future__ import annotations

import pytest

from dynatops.v1.manager_pb2 import RCFG_FINISH, RCFG_TREE_REPAIR, RCFG_TREE_RESTORE
from overlay.base.identifiers import key_of
from reconfig_manager.model.plan import Phase
from reconfig_manager.model.refusals import Refused
from tests.support.managed import FakeBroker
from tests.support.managing import World, finish, over, reached


class TestLeftBehind:
    def test_one_that_was_cut_off_past_the_commit_is_caught_up_with(self) -> None:
        world = World(5)
        plan = world.begin(3)
        assert world.run(5.0, lambda: reached(world, plan, Phase.RESTORING))
        world.cut_off.add("b1")
        assert world.run(60.0, lambda: over(world, plan))
        assert world.stored(plan).flags == ("stragglers",)
        assert world.brokers["b1"].epoch == 0
        world.cut_off.clear()
        world.run(5.0)
        world.check()
        assert world.brokers["b1"].epoch == 1

    def test_and_when_it_registers_with_a_later_leader(self) -> None:
        world = World(5)
        plan = world.begin(3)
        assert world.run(5.0, lambda: reached(world, plan, Phase.RESTORING))
        world.cut_off.add("b1")
        assert world.run(60.0, lambda: over(world, plan))
        world.run(30.0)
        assert world.brokers["b1"].epoch == 0
        world.cut_off.clear()
        world.elect()
        world.run(5.0)
        world.check()
        assert world.brokers["b1"].seen[-3:] == [RCFG_TREE_RESTORE, RCFG_TREE_REPAIR, RCFG_FINISH]

    def test_one_frozen_by_a_plan_that_nobody_knows_is_thawed(self) -> None:
        world = World(4)
        broker = world.brokers["b2"]
        broker.frozen_by, broker.frozen_at_s, broker.frozen_max_s = "p9-9", world.now_s, 1e9
        world.elect()
        world.run(3.0)
        world.check()

    def test_no_plan_while_somebody_is_frozen(self) -> None:
        world = World(4)
        broker = world.brokers["b2"]
        broker.frozen_by, broker.frozen_at_s, broker.frozen_max_s = "p9-9", world.now_s, 1e9
        world.cut_off.add("b2")
        world.elect()
        world.run(1.0)
        plan = world.rotation(2)
        with pytest.raises(Refused, match="b2 is still frozen by plan p9-9"):
            world.manager.approve(plan.id, "alice", "", world.now_s)

    def test_a_newcomer_is_left_alone(self) -> None:
        world = World(4)
        finish(world, world.begin(2))
        world.brokers["new"] = FakeBroker("new", key_of("new"))
        world.attend(world.brokers["new"])
        world.run(2.0)
        assert world.brokers["new"].seen == []
