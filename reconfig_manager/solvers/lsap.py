"""The placement with the least delay, as a linear sum assignment (DYNATOPS appendix A, eq. 13-15).

Where delay is hops, what a broker's delays cost on a node does not depend on where the others are,
so brokers are assigned to nodes like jobs to machines. That is the optimum if only delay counts. It
is also a bound for every placement, as relays cost at least nothing.

With a matrix of round trip times hops stand in for them: no optimum then, but a fair start.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from overlay.placement.cost import CostModel
from overlay.placement.cost_kernels import Floats, Ints
from reconfig_manager.placement.problem import (
    PlacementProblem,
    Solution,
    SolverRun,
    Task,
    UnsuitableProblemError,
)
from reconfig_manager.solvers.ssbr_greedy import refuse_move_limits

# Beyond this one assignment takes minutes, and nothing can interrupt it.
BROKERS_MAX = 5_000


def assign(costs: Floats) -> Ints:
    """[broker] -> node, at the least sum of costs[broker, node]."""
    _, nodes = linear_sum_assignment(costs)
    return nodes.astype(np.int32)


def with_moving(costs: Floats, problem: PlacementProblem, price_per_move: float) -> Floats:
    """The same, where standing elsewhere than now has a price too."""
    if price_per_move == 0.0:
        return costs
    priced = costs + price_per_move
    priced[np.arange(problem.brokers), problem.place] -= price_per_move
    return priced


def least_delay(model: CostModel, costs: Floats, place: Ints) -> float:
    """A bound on the total of any placement, from the optimal assignment by hops."""
    hops = float(costs[np.arange(len(place)), place].sum())
    rtt_ms = model.prices.rtt_ms
    if rtt_ms is None:
        return hops
    between = ~np.eye(len(place), dtype=bool)
    return hops * float(rtt_ms[between].min(initial=np.inf)) if len(place) > 1 else 0.0


def solve(problem: PlacementProblem, task: Task) -> Solution:
    refuse_move_limits(task, "lsap")
    if problem.brokers > BROKERS_MAX:
        raise UnsuitableProblemError(
            f"too large for lsap: {problem.brokers:,} brokers (at most {BROKERS_MAX:,}); "
            "refine goes further"
        )
    run = SolverRun(problem, task)
    costs = problem.model.delay_matrix()
    place = assign(costs)
    run.bound = least_delay(problem.model, costs, place)
    price = problem.price_per_move(task.objective)
    if price:
        place = assign(with_moving(costs, problem, price))
    run.iterations = 1
    run.offer(place, problem.model.evaluate(place).total)
    return run.solution("lsap", finished=True)
