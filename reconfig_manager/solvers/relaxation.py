"""Placements by way of chances: brokers spread over nodes, drawn together step by step.

Let X[b, v] be the probability that broker b stands on node v, brokers apart from each other. The
expected cost is smooth in X, and its derivative says what each broker would cost on each node in
the trees that are likely to be there. An assignment on these costs is a placement; X moves a step
towards it, and again (the Frank-Wolfe method, as in scipy's `quadratic_assignment`). Each placement
met on the way is a candidate, and usually better than any that swaps lead to.

With matrices the derivative uses their mean: candidates are then mere starts for the search.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from scipy import sparse

from overlay.placement.cost import CostModel
from overlay.placement.cost_kernels import Floats, Ints
from reconfig_manager.placement.problem import PlacementProblem, SolverRun
from reconfig_manager.solvers.lsap import assign, with_moving
from reconfig_manager.solvers.search_kernels import marginal_costs

STEPS = 30


class Relaxation:
    def __init__(self, problem: PlacementProblem, price_per_move: float) -> None:
        self._problem = problem
        self._price_per_move = price_per_move
        tables = problem.model.tables
        topics = len(tables.row)
        self._subscribes = sparse.csr_array(
            (np.ones(len(tables.topics)), tables.topics, tables.first_topic),
            shape=(problem.brokers, topics),
        )
        self._order = np.argsort(tables.hops, axis=1, kind="stable").astype(np.int32)
        self._relay_price = tables.relay_price * _mean(problem.model.prices.relay_weight)
        self._delay_price = tables.delay_price * _mean(problem.model.prices.rtt_ms)
        self._marginal = np.empty((topics, problem.brokers))

    def descend(self, run: SolverRun, start: Floats) -> None:
        """From these chances; offers every placement on the way."""
        model, chances = self._problem.model, start
        for step in range(STEPS):
            if run.over:
                return
            place = assign(self._costs(model, chances))
            run.iterations += 1
            run.offer(place, model.evaluate(place).total)
            share = 2.0 / (step + 3.0)
            chances *= 1.0 - share
            chances[np.arange(len(place)), place] += share

    def _costs(self, model: CostModel, chances: Floats) -> Floats:
        """[broker, node] -> the derivative of the expected cost."""
        present = np.ascontiguousarray(self._subscribes.T @ chances)
        marginal_costs(
            model.tables,
            self._order,
            self._relay_price,
            self._delay_price,
            present,
            self._marginal,
        )
        costs = cast("Floats", self._subscribes @ self._marginal)
        return with_moving(costs, self._problem, self._price_per_move)


def even_chances(brokers: int) -> Floats:
    return np.full((brokers, brokers), 1.0 / brokers)


def leaning_chances(place: Ints, share: float) -> Floats:
    """Even, but for a share that stands where this placement says."""
    chances = even_chances(len(place)) * (1.0 - share)
    chances[np.arange(len(place)), place] += share
    return chances


def _mean(matrix: Floats | None) -> float:
    if matrix is None or len(matrix) < 2:
        return 1.0
    return float(matrix[~np.eye(len(matrix), dtype=bool)].mean())
