"""Our own solver: starts from the best of the others, and searches on for as long as it may.

Up to eight brokers it looks at every placement. Otherwise it collects starts (the present
placement, the improvement path of SSBR-Greedy, the assignment of `lsap`, the placements that
`relaxation` meets) and anneals from the best found so far, in rounds that double in length and
begin hotter each time: the first ones walk downhill, the later ones cross hills, ever higher ones
while nothing is gained. Between rounds the relaxation is run again from other chances. Rings too
large for that are improved in `blocks` instead.

The steps follow from the problem and the seed alone; limits of time only say where they are cut
off. So more time is never worse, and a run is repeated by giving `iterations_max` what it reported.
It ends by itself once some rounds in a row, hotter and hotter, have gained nothing.
"""

from __future__ import annotations

from random import Random

import numpy as np

from overlay.placement.cost import CostedPlacement
from reconfig_manager.placement.problem import (
    Objective,
    PlacementProblem,
    Solution,
    SolverRun,
    Task,
)
from reconfig_manager.solvers import ssbr_greedy
from reconfig_manager.solvers.blocks import improve_blocks
from reconfig_manager.solvers.lsap import assign, least_delay
from reconfig_manager.solvers.relaxation import Relaxation, even_chances, leaning_chances
from reconfig_manager.solvers.search_kernels import Search, anneal, enumerate_all, mean_change

ENUMERATED_BROKERS_MAX = 8
# Assignments of more brokers than this take seconds each, and nothing can interrupt them.
ASSIGNED_BROKERS_MAX = 2048
# The unit of iterations, and how often the clock is read.
SWAPS_PER_ITERATION = 10_000
# Temperatures as shares of what a swap changes on average; rounds begin this hot once they are this
# long, in proposals for each pair of brokers, and twice as hot after each that gained nothing.
HOT, COLD = 0.1, 0.004
SWEEPS_WHEN_HOT = 64
FRUITLESS_ROUNDS_MAX = 5


def solve(problem: PlacementProblem, task: Task) -> Solution:
    run = SolverRun(problem, task)
    placement = CostedPlacement.of(problem.model, problem.place)
    if problem.brokers <= ENUMERATED_BROKERS_MAX:
        _enumerate(run, placement)
        return run.solution("refine", finished=True)
    finished = _search(run, placement, Random(task.seed))
    return run.solution("refine", finished=finished)


def _enumerate(run: SolverRun, placement: CostedPlacement) -> None:
    search = _search_from(run, placement, Random(0))
    run.iterations = enumerate_all(run.problem.model.tables, placement.state, search)
    run.offer(search.best, run.problem.model.evaluate(search.best).total)
    if run.task.objective is Objective.COST and run.task.max_moves is None:
        run.bound = run.total


def _search(run: SolverRun, placement: CostedPlacement, rng: Random) -> bool:
    """True if it ended by itself."""
    problem, task = run.problem, run.task
    small = problem.brokers <= ASSIGNED_BROKERS_MAX
    relaxation = None
    if small:
        _start(run)
        if task.max_moves is None and not run.over:
            relaxation = Relaxation(problem, problem.price_per_move(task.objective))
            relaxation.descend(run, even_chances(problem.brokers))
            if problem.model.by_pairs:
                # It minds hops, not pairs: good for a start, no more.
                relaxation = None
    in_blocks = not small and not problem.model.by_pairs and task.max_moves is None
    if in_blocks:
        improve_blocks(run, placement, rng)
    fruitless = 0
    sweeps = 1
    while not run.over and fruitless < FRUITLESS_ROUNDS_MAX:
        if run.bound is not None and run.total <= run.bound:
            return True
        gained = _anneal_round(run, placement, sweeps, HOT * 2**fruitless, rng)
        before = run.total
        if relaxation is not None:
            relaxation.descend(run, leaning_chances(run.place, rng.uniform(0.2, 0.8)))
        elif in_blocks:
            improve_blocks(run, placement, rng)
        gained = gained or run.total < before
        if run.over:
            return False
        fruitless = 0 if gained or sweeps < SWEEPS_WHEN_HOT else fruitless + 1
        sweeps *= 2
    return not run.over


def _start(run: SolverRun) -> None:
    costs = run.problem.model.delay_matrix()
    place = assign(costs)
    run.bound = least_delay(run.problem.model, costs, place)
    run.iterations += 1
    run.offer(place, run.problem.model.evaluate(place).total)
    if not run.over:
        ssbr_greedy.walk(run.problem, run)


def _anneal_round(
    run: SolverRun, placement: CostedPlacement, sweeps: int, heat: float, rng: Random
) -> bool:
    """From the best found so far, cooling down; True if it found better."""
    problem = run.problem
    placement.restore(run.place)
    search = _search_from(run, placement, rng)
    tables, state = problem.model.tables, placement.state
    unit = mean_change(tables, state, search.random, 1_000)
    if unit == 0.0:
        return False
    pairs = problem.brokers * (problem.brokers - 1) // 2
    chunks = max(1, sweeps * pairs // SWAPS_PER_ITERATION)
    swaps = chunks * SWAPS_PER_ITERATION
    hot = max(COLD, heat * min(1.0, swaps / pairs / SWEEPS_WHEN_HOT)) * unit
    search.temperature[0] = hot
    search.temperature[1] = (COLD * unit / hot) ** (1.0 / swaps)
    gained = False
    for _ in range(chunks):
        if run.over:
            break
        anneal(tables, state, search, SWAPS_PER_ITERATION)
        run.iterations += 1
        gained = run.offer(search.best, float(search.best_value[0])) or gained
    return gained


def _search_from(run: SolverRun, placement: CostedPlacement, rng: Random) -> Search:
    problem, task = run.problem, run.task
    price = problem.price_per_move(task.objective)
    moved = problem.moved(placement.place)
    total = placement.total
    return Search(
        home=problem.place,
        price_per_move=price,
        moves_max=problem.brokers if task.max_moves is None else task.max_moves,
        moved=np.array([moved], dtype=np.int64),
        best=placement.place,
        best_value=np.array([total, total + price * moved]),
        temperature=np.array([0.0, 1.0]),
        random=np.array([rng.getrandbits(64) | 1], dtype=np.uint64),
    )
