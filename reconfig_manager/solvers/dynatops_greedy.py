"""DYNATOPS-Greedy, Algorithm 4: on the improvement path of SSBR-Greedy, the placement with the best
benefit minus moving cost, which may be the one to begin with.
"""

from __future__ import annotations

from dataclasses import replace

from reconfig_manager.placement.problem import (
    Objective,
    PlacementProblem,
    Solution,
    SolverRun,
    Task,
)
from reconfig_manager.solvers.ssbr_greedy import refuse_move_limits, walk


def solve(problem: PlacementProblem, task: Task) -> Solution:
    refuse_move_limits(task, "dynatops-greedy")
    run = SolverRun(problem, replace(task, objective=Objective.NET))
    finished = walk(problem, run)
    return run.solution("dynatops-greedy", finished=finished)
