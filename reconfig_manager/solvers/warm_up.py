"""Loads, and the first time compiles, what the solvers run, so that time limits mean solving."""

from __future__ import annotations

from overlay.base.identifiers import key_of
from reconfig_manager.placement.instance import Instance
from reconfig_manager.placement.problem import PlacementProblem, Task
from reconfig_manager.solvers import SOLVERS

_TOPICS = 10


def _any_problem(brokers: int) -> PlacementProblem:
    """Broker i subscribes to five topics from i on."""
    topics = [f"t{i}" for i in range(_TOPICS)]
    subscriptions = {
        f"b{i}": sorted(topics[(i + step) % _TOPICS] for step in range(5)) for i in range(brokers)
    }
    placement = {broker: f"{key_of(broker):016x}" for broker in subscriptions}
    return Instance(
        node_ids=sorted(placement.values()),
        brokers=subscriptions,
        publications=dict.fromkeys(topics, 10.0),
        placement=placement,
    ).problem()


def warm_up_model() -> None:
    """What a manager does in its own process."""
    problem = _any_problem(10)
    problem.model.evaluate(problem.place)


def warm_up() -> None:
    for brokers in (4, 10):
        problem = _any_problem(brokers)
        for algorithm in ("ssbr-greedy", "refine"):
            SOLVERS[algorithm](problem, Task(iterations_max=80))
