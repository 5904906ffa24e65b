"""Algorithm 2 word for word, every neighbour evaluated from nothing: for tests and benchmarks."""

from __future__ import annotations

from overlay.placement.cost import CostedPlacement
from reconfig_manager.placement.problem import (
    PlacementProblem,
    Solution,
    SolverRun,
    Task,
    UnsuitableProblemError,
    least_gain,
)
from reconfig_manager.solvers.ssbr_greedy import Grade, bottleneck_of, refuse_move_limits


def solve(problem: PlacementProblem, task: Task) -> Solution:
    return solve_literally(problem, task, Grade.BROKER_COST)


def solve_literally(problem: PlacementProblem, task: Task, grade: Grade) -> Solution:
    """In either reading of which broker is to change places."""
    refuse_move_limits(task, "reference")
    if task.objective is not task.objective.COST:
        raise UnsuitableProblemError("reference minds cost alone")
    run = SolverRun(problem, task)
    finished = False
    while not run.over:
        place = run.place
        bottleneck = bottleneck_of(CostedPlacement.of(problem.model, place), grade)
        best, best_total = None, run.total - least_gain(problem.model, run.total)
        for other in range(problem.brokers):
            neighbour = place.copy()
            neighbour[bottleneck], neighbour[other] = place[other], place[bottleneck]
            total = problem.model.evaluate(neighbour).total
            if total < best_total:
                best, best_total = neighbour, total
        if best is None:
            finished = True
            break
        run.iterations += 1
        run.offer(best, best_total)
    return run.solution("reference", finished=finished)
