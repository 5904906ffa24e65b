"""The optimum, as an integer program (DYNATOPS appendix B) solved by HiGHS. For tiny problems.

x[b, v] says that broker b stands on node v, y[p, v] that node v is in the tree of topic p, which it
is as soon as a subscriber is at or below it. (The inequalities 16e and 16f of the paper, as
printed, say that all must be; its text says one, and so do we.) A node in a tree without a
subscriber on it is a relay. Every x is 0 or 1; the smallest y that fits then is 0 or 1 as well.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from overlay.placement.cost_kernels import Floats, Ints
from reconfig_manager.placement.problem import (
    Objective,
    PlacementProblem,
    Solution,
    SolverRun,
    Task,
    UnsuitableProblemError,
)
from reconfig_manager.solvers.lsap import with_moving

BROKERS_MAX = 10
VARIABLES_MAX = 1_000
# HiGHS wants a number where there is no limit.
_SECONDS_MAX = 1e9


def solve(problem: PlacementProblem, task: Task) -> Solution:
    _refuse_unsuitable(problem)
    run = SolverRun(problem, task)
    tables = problem.model.tables
    size, topics = problem.brokers, len(tables.row)
    price = problem.price_per_move(task.objective)
    outcome = milp(
        np.concatenate([_costs_of_x(problem, price).ravel(), np.repeat(tables.relay_price, size)]),
        integrality=np.concatenate([np.ones(size * size), np.zeros(topics * size)]),
        bounds=Bounds(0, 1),
        constraints=[*_assignment(problem, task), _trees(problem)],
        options={"time_limit": min(task.time_limit_s, _SECONDS_MAX)},
    )
    run.iterations = 1
    if outcome.x is not None:
        x = outcome.x[: size * size].reshape(size, size)
        place = np.argmax(x, axis=1).astype(np.int32)
        run.offer(place, problem.model.evaluate(place).total)
    finished = outcome.status == 0
    if task.objective is Objective.COST and task.max_moves is None:
        run.bound = run.total if finished else outcome.get("mip_dual_bound")
    return run.solution("exact", finished=finished)


def _refuse_unsuitable(problem: PlacementProblem) -> None:
    if problem.model.by_pairs:
        raise UnsuitableProblemError("exact knows hops and plain relays only, no matrices")
    variables = problem.brokers * (problem.brokers + len(problem.model.tables.row))
    if problem.brokers > BROKERS_MAX or variables > VARIABLES_MAX:
        raise UnsuitableProblemError(
            f"too large for exact: {problem.brokers} brokers (at most {BROKERS_MAX}), "
            f"{variables} variables (at most {VARIABLES_MAX})"
        )


def _costs_of_x(problem: PlacementProblem, price_per_move: float) -> Floats:
    """Delay, less the message that a subscriber consumes itself and no relay does."""
    tables = problem.model.tables
    costs = problem.model.delay_matrix().copy()
    for broker in range(problem.brokers):
        for topic in _topics_of(problem, broker):
            elsewhere = np.arange(problem.brokers) != tables.roots[tables.row[topic]]
            costs[broker] -= tables.relay_price[topic] * elsewhere
    return with_moving(costs, problem, price_per_move)


def _topics_of(problem: PlacementProblem, broker: int) -> Ints:
    tables = problem.model.tables
    return tables.topics[tables.first_topic[broker] : tables.first_topic[broker + 1]]


def _assignment(problem: PlacementProblem, task: Task) -> list[LinearConstraint]:
    """One node for each broker, one broker for each node (16b, 16c); so many stay."""
    size = problem.brokers
    unused = sparse.csr_array((size, size * len(problem.model.tables.row)))
    eye, ones = sparse.eye_array(size), np.ones((1, size))
    one_node = sparse.hstack([sparse.kron(eye, ones), unused])
    one_broker = sparse.hstack([sparse.kron(ones, eye), unused])
    constraints = [LinearConstraint(one_node, 1, 1), LinearConstraint(one_broker, 1, 1)]
    if task.max_moves is not None:
        stay = np.zeros((1, one_node.shape[1]))
        stay[0, np.arange(size) * size + problem.place] = 1
        constraints.append(LinearConstraint(stay, size - task.max_moves, np.inf))
    return constraints


def _trees(problem: PlacementProblem) -> LinearConstraint:
    """A node is in the tree if a subscriber is on it, or a node below it is in the tree (16e)."""
    tables = problem.model.tables
    size, topics = problem.brokers, len(tables.row)
    first_y = size * size
    constraints = sparse.lil_array((2 * topics * size, first_y + topics * size))
    row = 0
    for topic in range(topics):
        brokers = tables.brokers[tables.first_broker[topic] : tables.first_broker[topic + 1]]
        for node in range(size):
            y = first_y + topic * size + node
            above = tables.parents[tables.row[topic], node]
            if above < 0:
                continue
            constraints[row, y] = 1
            for broker in brokers:
                constraints[row, broker * size + node] = -1
            row += 1
            if tables.parents[tables.row[topic], above] >= 0:
                constraints[row, first_y + topic * size + above] = 1
                constraints[row, y] = -1
                row += 1
    return LinearConstraint(constraints[: max(row, 1)].tocsr(), 0, np.inf)
