"""SSBR-Greedy, DYNATOPS Algorithm 2, as published.

Take the broker with the highest cost (eq. 7 to 9), find the best of the |V| - 1 placements in which
it changes places with another, go there if it is better, else stop. Among equals the first broker
wins, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlay.cost import CostModel, Placement
from reconfig_manager.problem import (
    Problem,
    Run,
    Solution,
    Task,
    UnsuitableProblemError,
    least_gain,
)
from reconfig_manager.solvers.search_kernels import best_swap


def improvement_path(model: CostModel, placement: Placement) -> Iterator[tuple[int, int]]:
    """Improve the placement swap by swap; yields which two brokers changed places."""
    while True:
        overhead, delay = placement.broker_costs()
        bottleneck = int(np.argmax(overhead + delay))
        other, delta = best_swap(model.tables, placement.state, bottleneck)
        if other < 0 or -delta <= least_gain(model, placement.total):
            return
        placement.swap(bottleneck, other)
        yield bottleneck, other


def refuse_move_limits(task: Task, name: str) -> None:
    if task.max_moves is not None:
        raise UnsuitableProblemError(f"{name} cannot limit how many brokers move; refine can")


def walk(problem: Problem, run: Run) -> bool:
    """Offer every placement on the improvement path; False if a limit cut it short."""
    placement = Placement.of(problem.model, problem.place)
    for _ in improvement_path(problem.model, placement):
        run.iterations += 1
        run.offer(placement.place, placement.total)
        if run.over:
            return False
    return True


def solve(problem: Problem, task: Task) -> Solution:
    refuse_move_limits(task, "ssbr-greedy")
    if task.objective is not task.objective.COST:
        raise UnsuitableProblemError("ssbr-greedy minds cost alone; dynatops-greedy minds moving")
    run = Run(problem, task)
    finished = walk(problem, run)
    return run.solution("ssbr-greedy", finished=finished)
