"""A manager whose store has lost its past, beside brokers that obeyed those who led before it."""

from __future__ import annotations

from reconfig_manager.model.plan import Plan, PlanState
from reconfig_manager.ports import Outranked
from reconfig_manager.store.memory import KeptState
from tests.support.managing import SETTINGS, World, finish


def moved(brokers: int = 4) -> World:
    """A plan is over, and all have obeyed fence 1."""
    world = World(brokers)
    plan = finish(world, world.begin())
    assert (plan.id, plan.state) == ("p1-1", PlanState.COMMITTED)
    assert {broker.fence for broker in world.brokers.values()} == {1}
    world.effects.clear()
    return world


def outranked_by(world: World) -> list[int]:
    return [effect.fence for effect in world.effects if isinstance(effect, Outranked)]


def begin(world: World) -> Plan:
    plan = world.rotation(3)
    world.do(world.manager.approve(plan.id, "alice", "better so", world.now_s))
    return plan


def test_the_next_leads_above_all_that_brokers_obeyed_and_moves_them() -> None:
    world = moved()
    world.store.kept = KeptState()
    world.elect()
    assert world.manager.leader_state.fence == 1
    world.run(2.0)
    assert outranked_by(world) == [1]
    assert world.manager.leader_state.fence == 2
    plan = finish(world, begin(world))
    assert (plan.id, plan.epoch, plan.state) == ("p2-1", 2, PlanState.COMMITTED)


def test_an_older_copy_of_the_store() -> None:
    world = moved()
    world.store.kept.fence = 0
    world.elect()
    world.run(2.0)
    assert world.manager.leader_state.fence == 2


def test_who_obeyed_this_leader_may_say_so_again() -> None:
    world = moved()
    for broker in world.brokers.values():
        world.do(world.manager.gone(broker.agent, world.now_s))
        world.attend(broker)
    world.run(1.0)
    assert world.manager.leader_state.members.unready() == ""
    assert outranked_by(world) == []


def test_also_after_it_was_thought_to_be_gone() -> None:
    world = moved()
    broker = world.brokers["b0"]
    world.do(world.manager.gone(broker.agent, world.now_s))
    world.run(SETTINGS.execution.gone_s + 1.0)
    assert world.manager.leader_state.members.get("b0") is None
    world.attend(broker)
    world.run(1.0)
    assert world.manager.leader_state.members.get("b0") is not None
    assert outranked_by(world) == []


def test_nothing_is_begun_once_it_is_known() -> None:
    """The lease takes a moment to give back."""
    world = moved()
    world.store.kept = KeptState()
    world.elect()
    leader_state = world.manager.leader_state
    for broker in world.brokers.values():
        world.manager.register(broker.agent, broker.registration(), world.now_s)
    plan = begin(world)
    world.run(0.2, lambda: plan.id in world.store.kept.plans and world.stored(plan).state.over)
    assert world.manager.leader_state is leader_state
    assert world.stored(plan).state is PlanState.EXPIRED
    assert "the store has lost its past: b0 has obeyed fence 1" in world.stored(plan).note
