"""Algorithms that look for a better placement: one a module, all `(Problem, Task) -> Solution`.

This is their registry: a solver is a module here and an entry below. What `--help`, the policy, the
schema of REST and the reference offer comes from it. A solver's module is imported when it is first
used, as they need packages that are large, and not installed everywhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconfig_manager.placement.problem import PlacementProblem, Solution, Task


@dataclass(frozen=True, slots=True)
class Solver:
    name: str
    module: str
    # Whether managers may run it; the others are for studies.
    in_managers: bool = False
    # Whether `dynatops compare` shows it.
    compared: bool = True
    # Whether it can limit how many brokers move, and can mind the cost of moving.
    limits_moves: bool = False
    minds_moving: bool = True
    function: str = "solve"

    def __call__(self, problem: PlacementProblem, task: Task) -> Solution:
        solve = getattr(importlib.import_module(f"{__name__}.{self.module}"), self.function)
        solution: Solution = solve(problem, task)
        return solution


_SOLVERS = (
    # The published algorithm: quick, modest; and the same in its other reading, to compare with.
    Solver("ssbr-greedy", "ssbr_greedy", in_managers=True, minds_moving=False),
    Solver("ssbr-greedy-overhead", "ssbr_greedy", minds_moving=False, function="solve_by_overhead"),
    # ssbr-greedy, stopping where moving further does not pay.
    Solver("dynatops-greedy", "dynatops_greedy", in_managers=True),
    # Least delay, relays or not; milliseconds up to a thousand brokers.
    Solver("lsap", "lsap", in_managers=True),
    # Proof, on ten brokers at most.
    Solver("exact", "exact", limits_moves=True),
    # The best placement for the time there is.
    Solver("refine", "refine", in_managers=True, limits_moves=True),
    # The published algorithm word for word, for tests: slow.
    Solver("reference", "reference", compared=False, minds_moving=False),
)
SOLVERS: Mapping[str, Solver] = MappingProxyType({solver.name: solver for solver in _SOLVERS})
DEFAULT_ALGORITHM = "refine"
# Those that may run in a manager.
ALGORITHMS = tuple(solver.name for solver in _SOLVERS if solver.in_managers)
