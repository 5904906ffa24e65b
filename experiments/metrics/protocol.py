"""Messages of a reconfiguration as the protocol sends them: a manager's core, and brokers' cores.

Some brokers take each other's places, twice: what the first plan takes is compared with eq. 11 and
a new manager's constants; from it the manager learns, and what the second takes is compared with
the constants as learnt.
"""

from __future__ import annotations

from random import Random

from experiments.systems.simulated import SimulatedBrokers
from reconfig_manager.model.plan import Plan, PlanState
from simulator.managers import Managers
from simulator.reconfiguring import SETTINGS
from simulator.rotation import rotation

_TOPICS_OF_BROKER = 8
_PLAN_S = 10.0


class ProtocolError(Exception):
    """The simulated plan did not end as it must."""


def measure_protocol(brokers: int, topics: int, movers: int, seed: int) -> dict[str, float]:
    net = SimulatedBrokers([f"{seed}/b{i}" for i in range(brokers)], seed)
    rng = Random(f"protocol {seed}")
    names = [f"topic/{i}" for i in range(topics)]
    for user in net.users:
        user.subscribe([(name, "") for name in rng.sample(names, _TOPICS_OF_BROKER)])
    managers = Managers(net.world, ("manager",), SETTINGS)
    net.run(5.0)
    first, bound = _move(net, managers, topics, movers)
    second, learnt = _move(net, managers, topics, movers)
    leader = managers.leader
    assert leader is not None
    constants = leader.core.leader_state.constants
    return {
        "messages": _messages(first),
        "bound": bound,
        "messages_again": _messages(second),
        "learnt": learnt,
        "a": constants.a,
        "b": constants.b,
        "c": constants.c,
    }


def _move(
    net: SimulatedBrokers, managers: Managers, topics: int, movers: int
) -> tuple[Plan, float]:
    leader = managers.leader
    if leader is None:
        raise ProtocolError("no manager leads")
    state = leader.core.leader_state
    nodes = {name: net.node_of(name) for name in net.names[:movers]}
    price = state.constants.moving().of(len(net.names), topics, movers)
    now_s = net.scheduler.now_s
    plan = rotation(state, nodes, len(net.names), now_s, topics=topics, moving_cost=price)
    leader.carry_out(plan)
    net.run(_PLAN_S)
    done = managers.store.kept.plans[plan.id]
    if done.state is not PlanState.COMMITTED:
        raise ProtocolError(f"the plan is {done.state}")
    return done, price


def _messages(plan: Plan) -> float:
    assert plan.execution is not None
    return float(plan.execution.messages_total)
