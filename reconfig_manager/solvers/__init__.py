"""Algorithms that look for a better placement: one a module, all `(Problem, Task) -> Solution`.

| name | for |
|---|---|
| ssbr-greedy | the published algorithm: quick, modest |
| ssbr-greedy-overhead | the same in its other reading, to compare with |
| dynatops-greedy | ssbr-greedy, stopping where moving further does not pay |
| lsap | least delay, relays or not; milliseconds up to a thousand brokers |
| exact | proof, on ten brokers at most |
| refine | the best placement for the time there is |
| reference | the published algorithm word for word, to compare with |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from reconfig_manager.placement.problem import PlacementProblem, Solution, Task
from reconfig_manager.solvers import dynatops_greedy, exact, lsap, reference, refine, ssbr_greedy

Solver = Callable[[PlacementProblem, Task], Solution]

SOLVERS: Mapping[str, Solver] = MappingProxyType(
    {
        "ssbr-greedy": ssbr_greedy.solve,
        "ssbr-greedy-overhead": ssbr_greedy.solve_by_overhead,
        "dynatops-greedy": dynatops_greedy.solve,
        "lsap": lsap.solve,
        "exact": exact.solve,
        "refine": refine.solve,
        "reference": reference.solve,
    }
)
