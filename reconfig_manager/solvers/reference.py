"""Algorithm 2 word for word, every neighbour evaluated from nothing: for tests and benchmarks."""

from __future__ import annotations

import numpy as np

from overlay.cost import Placement
from reconfig_manager.problem import (
    Problem,
    Run,
    Solution,
    Task,
    UnsuitableProblemError,
    least_gain,
)
from reconfig_manager.solvers.ssbr_greedy import refuse_move_limits


def solve(problem: Problem, task: Task) -> Solution:
    refuse_move_limits(task, "reference")
    if task.objective is not task.objective.COST:
        raise UnsuitableProblemError("reference minds cost alone")
    run = Run(problem, task)
    finished = False
    while not run.over:
        place = run.place
        overhead, delay = Placement.of(problem.model, place).broker_costs()
        bottleneck = int(np.argmax(overhead + delay))
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
