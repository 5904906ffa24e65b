"""What moving is predicted to take (eq. 11), and what brokers count, on plans carried out.

A real manager core and real brokers, in virtual time: 16 brokers, 48 topics, eight a broker.
"""

from __future__ import annotations

from random import Random

import pytest

from reconfig_manager.model.plan import Plan, PlanState
from simulator.managers import Managers
from simulator.reconfiguring import SETTINGS
from simulator.rotation import rotation
from tests.support.steps import StepNet

BROKERS, TOPICS, TOPICS_OF_BROKER = 16, 48, 8
# A prediction is a bound: above what is counted, by no more than this.
FACTOR_MAX = 2.0


class ManagedNet(StepNet):
    """Brokers with interests, and a manager that they are registered with."""

    def __init__(self) -> None:
        super().__init__(BROKERS)
        rng = Random(7)
        topics = [f"price/{i}" for i in range(TOPICS)]
        for name in self.names:
            client = self.client(f"of-{name}", name)
            client.subscribe([(topic, "") for topic in rng.sample(topics, TOPICS_OF_BROKER)])
        self.managers = Managers(self.world, ("m0",), SETTINGS)
        self.run(5.0)

    def move(self, movers: int) -> Plan:
        """So many brokers take each other's places, as a plan with its price."""
        leader = self.managers.leader
        assert leader is not None
        leader_state = leader.core.leader_state
        nodes = {name: self.node_of(name) for name in self.names[:movers]}
        price = leader_state.constants.moving().of(BROKERS, TOPICS, movers)
        now_s = self.scheduler.now_s
        plan = rotation(leader_state, nodes, BROKERS, now_s, topics=TOPICS, moving_cost=price)
        leader.carry_out(plan)
        self.run(10.0)
        plan = self.managers.store.kept.plans[plan.id]
        assert plan.state is PlanState.COMMITTED
        return plan


def counted(plan: Plan) -> int:
    assert plan.execution is not None
    return plan.execution.messages_total


def predicted(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.moving_cost


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    """The first is priced by default; it teaches, and so do those that follow."""
    net = ManagedNet()
    return [net.move(movers) for movers in (8, 2, 8, 16, 2)]


def test_default_constants_are_a_bound(plans: list[Plan]) -> None:
    assert counted(plans[0]) <= predicted(plans[0])


@pytest.mark.parametrize(("which", "movers"), [(1, 2), (2, 8), (3, 16), (4, 2)])
def test_calibrated_constants_say_what_is_counted(
    plans: list[Plan], which: int, movers: int
) -> None:
    plan = plans[which]
    assert len(plan.moves) == movers
    ratio = predicted(plan) / counted(plan)
    assert 1.0 <= ratio <= FACTOR_MAX, f"{movers}: {predicted(plan):.0f} / {counted(plan)}"


def test_the_price_depends_on_the_moves(plans: list[Plan]) -> None:
    """All sixteen against one swap: predicted and counted grow alike."""
    grew = counted(plans[3]) / counted(plans[1])
    assert grew > 2.0
    assert predicted(plans[3]) / predicted(plans[1]) == pytest.approx(grew, rel=0.5)


def test_trees_are_counted_where_they_are_repaired(plans: list[Plan]) -> None:
    for plan in plans:
        assert plan.execution is not None
        brokers = {name: step.brokers for name, step in plan.execution.messages.items()}
        assert brokers["RCFG_FINISH"] == 0
        assert brokers["RCFG_TREE_REPAIR"] > 0
