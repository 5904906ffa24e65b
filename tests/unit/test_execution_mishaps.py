"""Plans amid everything that can go wrong at once."""

from __future__ import annotations

from random import Random

import pytest

from reconfig_manager.model.plan import PlanState
from tests.support.managing import SETTINGS, Mishaps, World


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens(seed: int) -> None:
    """Messages lost, doubled, reordered; writes in doubt; brokers and leaders lost at any time."""
    rng = Random(seed)
    mishaps = Mishaps(
        lost=rng.choice([0.0, 0.1, 0.3]),
        doubled=rng.choice([0.0, 0.2]),
        delay_max_s=rng.choice([0.02, 0.4, 1.5]),
        unwritten=rng.choice([0.0, 0.3]),
    )
    world = World(rng.randint(2, 7), seed, mishaps)
    plan = world.begin(rng.randint(2, len(world.brokers)))
    end_s = world.now_s + 15.0
    while world.now_s < end_s:
        world.run(rng.uniform(0.05, 3.0))
        misfortune(world, rng)
    world.mishaps = Mishaps()
    world.store_away = False
    world.cut_off.clear()
    if not world.manager.leads:
        world.elect()
    # Streams that were cut are opened again.
    world.run(SETTINGS.execution.frozen_max_s + 40.0)
    for broker in world.brokers.values():
        world.attend(broker)
    world.run(30.0)
    world.check()
    # Its approval may have been lost with the leader.
    lost = plan.id not in world.store.kept.plans
    assert lost or world.stored(plan).state not in (PlanState.APPROVED, PlanState.EXECUTING)


def misfortune(world: World, rng: Random) -> None:
    alive = sorted(name for name, broker in world.brokers.items() if broker.alive)
    match rng.randrange(7):
        case 0 if len(alive) > 1:
            world.crash(rng.choice(alive))
        case 1:
            dead = sorted(set(world.brokers) - set(alive))
            if dead:
                world.restart(rng.choice(dead))
        case 2:
            world.kill_leader()
            world.run(rng.uniform(0.0, 2.0))
            world.elect()
        case 3:
            world.store_away = not world.store_away
        case 4:
            world.cut_off.add(rng.choice(sorted(world.brokers)))
        case 5:
            world.cut_off.clear()
        case 6:
            broker = world.brokers[rng.choice(alive)]
            world.do(world.manager.gone(broker.agent, world.now_s))
            world.attend(broker)
