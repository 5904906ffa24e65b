"""What every solver takes and gives back."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from overlay.placement.cost import Cost, CostModel
from overlay.placement.cost_kernels import Ints
from reconfig_manager.placement.decision import BETA, Decision, MovingCost, decide


class Objective(enum.StrEnum):
    """What to make small."""

    # The cost of the placement alone.
    COST = "cost"
    # The cost of the placement and of moving there: benefit minus moving cost, at its largest.
    NET = "net"


class UnsuitableProblemError(Exception):
    """This solver does not take this problem, and why."""


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    model: CostModel
    # [broker] -> node, as it is now.
    place: Ints
    # |P|, those without subscribers included.
    topics: int
    moving: MovingCost = field(default_factory=MovingCost)

    @property
    def brokers(self) -> int:
        return len(self.place)

    def moved(self, place: Ints) -> int:
        """Γ: how many brokers stand elsewhere."""
        return int(np.count_nonzero(place != self.place))

    def moving_cost(self, place: Ints) -> float:
        return self.moving.of(self.brokers, self.topics, self.moved(place))

    def price_per_move(self, objective: Objective) -> float:
        if objective is Objective.COST:
            return 0.0
        return self.moving.per_move(self.brokers, self.topics)


@dataclass(frozen=True, slots=True)
class Task:
    """How to go about it. A solver ignores nothing that it is given: it refuses what it cannot."""

    objective: Objective = Objective.COST
    time_limit_s: float = math.inf
    # Steps, as the solver counts them. Unlike time, they end a run at the same place everywhere.
    iterations_max: float = math.inf
    seed: int = 0
    max_moves: int | None = None


@dataclass(frozen=True, slots=True)
class SolverProgress:
    """The best so far, and when it was found."""

    seconds: float
    iterations: int
    total: float


@dataclass(frozen=True, slots=True)
class Solution:
    algorithm: str
    place: Ints
    after: Cost
    iterations: int
    seconds: float
    # No placement costs less than this; None where nothing is known.
    bound: float | None
    # False if a limit ended it before it was done.
    finished: bool
    progress: tuple[SolverProgress, ...]


# Where costs are sums of round trip times they are exact to rounding only; less is no gain.
ROUNDING = 1e-9


def least_gain(model: CostModel, total: float) -> float:
    return ROUNDING * total if model.by_pairs else 0.0


class SolverRun:
    """Keeps time, counts steps and remembers the best: what all solvers share.

    The cost of the present placement is where everyone starts, so nobody ends above it.
    """

    def __init__(
        self, problem: PlacementProblem, task: Task, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.problem = problem
        self.task = task
        self._clock = clock
        self._started_s = clock()
        self.iterations = 0
        self.bound: float | None = None
        self.place = problem.place.copy()
        self.total = problem.model.evaluate(problem.place).total
        self._value = self.total
        self.progress = [SolverProgress(0.0, 0, self.total)]

    @property
    def seconds(self) -> float:
        return self._clock() - self._started_s

    @property
    def over(self) -> bool:
        task = self.task
        return self.iterations >= task.iterations_max or self.seconds >= task.time_limit_s

    def value_of(self, place: Ints, total: float) -> float:
        """What the objective makes of a placement."""
        if self.task.objective is Objective.COST:
            return total
        return total + self.problem.moving_cost(place)

    def offer(self, place: Ints, total: float) -> bool:
        """Take it if it is allowed and better than the best."""
        limit = self.task.max_moves
        if limit is not None and self.problem.moved(place) > limit:
            return False
        value = self.value_of(place, total)
        if not value < self._value - least_gain(self.problem.model, self.total):
            return False
        self.place, self.total, self._value = place.copy(), total, value
        self.progress.append(SolverProgress(self.seconds, self.iterations, total))
        return True

    def solution(self, algorithm: str, *, finished: bool) -> Solution:
        seconds = self.seconds
        self.progress.append(SolverProgress(seconds, self.iterations, self.total))
        return Solution(
            algorithm,
            self.place,
            self.problem.model.evaluate(self.place),
            self.iterations,
            seconds,
            self.bound,
            finished,
            tuple(self.progress),
        )


def judge(problem: PlacementProblem, solution: Solution, beta: float = BETA) -> Decision:
    """Is it worth the trouble?"""
    return decide(
        problem.model.evaluate(problem.place).total,
        solution.after.total,
        problem.moved(solution.place),
        moving=problem.moving,
        brokers=problem.brokers,
        topics=problem.topics,
        beta=beta,
    )
