"""Who else takes part in a run, beside its publishers and subscribers.

An actor is a function that is called once, before the start, and plans what it does from then on
with `run.later`. Each has a generator of its own, so that one more changes nothing for the others.
What is to be looked at in the end it adds to `run.checks`. A new one is a function and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from simulator.hostile import plan_hostile_clients
from simulator.workers import plan_workers

if TYPE_CHECKING:
    from simulator.run import SimulatedRun

Actor = Callable[["SimulatedRun", Random], None]

# By name, which seeds its generator.
ACTORS: dict[str, Actor] = {"hostile clients": plan_hostile_clients, "workers": plan_workers}


def plan_actors(run: SimulatedRun) -> None:
    for name, actor in ACTORS.items():
        actor(run, Random(f"{name} {run.scenario.seed}"))
