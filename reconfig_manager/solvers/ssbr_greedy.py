"""SSBR-Greedy, DYNATOPS Algorithm 2, as published.

Take one broker, find the best of the |V| - 1 placements in which it changes places with another, go
there if it is better, else stop. Among equals the first broker wins, so that a run can be repeated.

Which broker, the paper says in two ways: "the broker with the highest broker cost" (eq. 7 to 9),
and, in the same sentence, "the broker with the highest external overhead grade" (eq. 7 alone). The
former is taken, as the text then speaks of "the bottleneck broker who has the worst broker cost";
the latter is there to compare with.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import numpy as np

from overlay.placement.cost import CostedPlacement, CostModel
from reconfig_manager.placement.problem import (
    PlacementProblem,
    Solution,
    SolverRun,
    Task,
    UnsuitableProblemError,
    least_gain,
)
from reconfig_manager.solvers.search_kernels import best_swap


class Grade(enum.Enum):
    """By what the broker is chosen that is to change places."""

    BROKER_COST = "broker cost"
    EXTERNAL_OVERHEAD = "external overhead"


def bottleneck_of(placement: CostedPlacement, grade: Grade) -> int:
    """The broker with the highest grade, which is C_b or C_b^O (eq. 7, 8)."""
    overhead, delay = placement.broker_costs()
    return int(np.argmax(overhead if grade is Grade.EXTERNAL_OVERHEAD else overhead + delay))


def improvement_path(
    model: CostModel, placement: CostedPlacement, grade: Grade = Grade.BROKER_COST
) -> Iterator[tuple[int, int]]:
    """Improve the placement swap by swap; yields which two brokers changed places."""
    while True:
        bottleneck = bottleneck_of(placement, grade)
        other, delta = best_swap(model.tables, placement.state, bottleneck)
        if other < 0 or -delta <= least_gain(model, placement.total):
            return
        placement.swap(bottleneck, other)
        yield bottleneck, other


def refuse_move_limits(task: Task, name: str) -> None:
    if task.max_moves is not None:
        raise UnsuitableProblemError(f"{name} cannot limit how many brokers move; refine can")


def walk(problem: PlacementProblem, run: SolverRun, grade: Grade = Grade.BROKER_COST) -> bool:
    """Offer every placement on the improvement path; False if a limit cut it short."""
    placement = CostedPlacement.of(problem.model, problem.place)
    for _ in improvement_path(problem.model, placement, grade):
        run.iterations += 1
        run.offer(placement.place, placement.total)
        if run.over:
            return False
    return True


def solve(problem: PlacementProblem, task: Task) -> Solution:
    return _solve(problem, task, "ssbr-greedy", Grade.BROKER_COST)


def solve_by_overhead(problem: PlacementProblem, task: Task) -> Solution:
    return _solve(problem, task, "ssbr-greedy-overhead", Grade.EXTERNAL_OVERHEAD)


def _solve(problem: PlacementProblem, task: Task, name: str, grade: Grade) -> Solution:
    refuse_move_limits(task, name)
    if task.objective is not task.objective.COST:
        raise UnsuitableProblemError(f"{name} minds cost alone; dynatops-greedy minds moving")
    run = SolverRun(problem, task)
    finished = walk(problem, run, grade)
    return run.solution(name, finished=finished)
