"""Better placements for some brokers at a time, for rings too large to assign all at once.

Some hundred brokers are lifted out of the trees; what each would cost on each of the nodes so freed
is worked out in the trees of all others; they are assigned anew. What they do to each other is not
foreseen, so the outcome is kept only if it is better. Costs by hops only.
"""

from __future__ import annotations

from random import Random

import numpy as np

from overlay.placement.cost import CostedPlacement
from overlay.placement.cost_kernels import Ints
from reconfig_manager.placement.problem import SolverRun
from reconfig_manager.solvers.lsap import assign
from reconfig_manager.solvers.search_kernels import lift, settle, settling_costs

BROKERS = 512
# How often a broker is lifted in one pass, on average.
LIFTS = 4


def improve_blocks(run: SolverRun, placement: CostedPlacement, rng: Random) -> None:
    """From the best found so far; offers what it finds."""
    problem = run.problem
    placement.restore(run.place)
    size = min(BROKERS, problem.brokers)
    for _ in range(LIFTS * problem.brokers // size):
        if run.over:
            return
        brokers = np.array(rng.sample(range(problem.brokers), size), dtype=np.int32)
        _improve_block(run, placement, brokers)
        run.iterations += 1


def _improve_block(run: SolverRun, placement: CostedPlacement, brokers: Ints) -> None:
    tables, state, problem = placement.model.tables, placement.state, run.problem
    nodes = state.place[brokers]
    lift(tables, state, brokers)
    costs = settling_costs(tables, state, brokers, nodes)
    price = problem.price_per_move(run.task.objective)
    costs += price * (nodes[None, :] != problem.place[brokers][:, None])
    settle(tables, state, brokers, nodes[assign(costs)])
    if not run.offer(state.place, placement.total):
        lift(tables, state, brokers)
        settle(tables, state, brokers, nodes)
