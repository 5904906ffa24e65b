"""Loads, and the first time compiles, what the solvers run, so that time limits mean solving."""

from __future__ import annotations

from reconfig_manager.placement.problem import Task
from reconfig_manager.placement.workloads import Pattern, make_instance
from reconfig_manager.solvers import SOLVERS


def warm_up_model() -> None:
    """What a manager does in its own process."""
    problem = make_instance(10, 10, Pattern.MULTIMODAL, seed=1).problem()
    problem.model.evaluate(problem.place)


def warm_up() -> None:
    for brokers in (4, 10):
        problem = make_instance(brokers, 10, Pattern.MULTIMODAL, seed=1).problem()
        for algorithm in ("ssbr-greedy", "refine"):
            SOLVERS[algorithm](problem, Task(iterations_max=80))
