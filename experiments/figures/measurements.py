"""What is measured for a run: one function for each kind, `(spec, scale, seed) -> metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from experiments.figures.figure import RunSpec
from experiments.figures.mobility import HOURS, TABLES
from experiments.figures.storing import DRIFT
from experiments.metrics import storing
from experiments.metrics.mobility import measure_city
from experiments.metrics.protocol import measure_protocol
from experiments.metrics.run import Measuring, Metrics, run
from experiments.systems.catalogue import REFINE_ITERATIONS_MAX, SYSTEMS, Options, SystemKind
from experiments.workloads import instances
from experiments.workloads.checkins import visits_of_file
from experiments.workloads.grid import Grid
from experiments.workloads.location import LocationWorkload
from experiments.workloads.made_up_visits import USERS, made_up_visits
from experiments.workloads.mobility import RandomScenario
from experiments.workloads.patterns import Pattern
from experiments.workloads.poisson import PoissonWorkload
from experiments.workloads.workload import Workload
from overlay.forwarding.tables.subscription_tables import TableRules
from overlay.forwarding.tree.topology import TreeMode
from reconfig_manager.placement.problem import Objective, PlacementProblem, Task
from reconfig_manager.solvers import SOLVERS


def _visits(spec: RunSpec, scale: float, seed: int) -> Metrics:
    trace = dict(spec.parameters).get("trace")
    grid = Grid()
    if trace is not None:
        visits, scale = visits_of_file(Path(str(trace)), grid).visits, 1.0
    else:
        visits = made_up_visits(grid, max(1, round(USERS * scale)), seed)
    found = visits.statistics()
    return {
        "visits": found.visits / scale,
        "pairs": found.pairs / scale,
        "single": found.single,
        "below_day": found.below_day,
        "above_week": found.above_week,
    }


def _location(spec: RunSpec, scale: float, seed: int) -> Metrics:
    parameters = dict(spec.parameters)
    trace = parameters.get("trace")
    if trace is not None:
        workload = LocationWorkload.of_file(Path(str(trace)), scale, seed)
    else:
        workload = LocationWorkload.made_up(scale, seed)
    if "friends" in parameters:
        workload = workload.with_friends(int(parameters["friends"]))
    return _measured(workload, spec, seed)


def _poisson(spec: RunSpec, scale: float, seed: int) -> Metrics:
    parameters = dict(spec.parameters)
    workload = PoissonWorkload.scaled(
        scale,
        Pattern(str(parameters["pattern"])),
        float(parameters["rate"]),
        seed,
        mode_changes=float(parameters.get("mode_changes", 0.0)),
    )
    return _measured(workload, spec, seed)


def _measured(workload: Workload, spec: RunSpec, seed: int) -> Metrics:
    parameters = dict(spec.parameters)
    kind: SystemKind = SYSTEMS[str(parameters["system"])]
    if kind.adapt is not None:
        workload = kind.adapt(workload)
    defaults = Options()
    options = Options(
        cluster_size=int(parameters.get("c", defaults.cluster_size)),
        load_weight=float(parameters.get("w_l", defaults.load_weight)),
        delay_weight=float(parameters.get("w_d", defaults.delay_weight)),
        update_h=float(parameters.get("update_h", defaults.update_h)),
        by_rtt=bool(parameters["rtt"]) if "rtt" in parameters else None,
        counts_itself=bool(parameters["itself"]) if "itself" in parameters else None,
    )
    measuring = Measuring(
        free_h=float(parameters["t_free"]) if kind.rearranges else None,
        by_step=kind.by_step,
        deliveries=bool(parameters.get("deliveries", 1)),
    )
    selection = kind.selection(workload, options, seed)
    network = kind.network(workload, options, seed)
    return run(workload, selection, network, measuring, seed)


# ---- placements ----------------------------------------------------------------------------------


def _problem(spec: RunSpec, seed: int) -> PlacementProblem:
    pattern = Pattern(str(spec["pattern"]))
    brokers, topics = int(spec["brokers"]), int(spec["topics"])
    return instances.make_instance(brokers, topics, pattern, seed).problem()


def _saving(spec: RunSpec, scale: float, seed: int) -> Metrics:
    """What a placement saves over consistent hashing, which is where brokers begin."""
    problem = _problem(spec, seed)
    before = problem.model.evaluate(problem.place)
    metrics: dict[str, float] = {}
    solvers = (("ssbr-greedy", ""), ("ssbr-greedy-overhead", "graded_"), ("refine", "refine_"))
    for name, prefix in solvers:
        most = REFINE_ITERATIONS_MAX if name == "refine" else float("inf")
        after = SOLVERS[name](problem, Task(Objective.COST, iterations_max=most)).after
        metrics[f"{prefix}overhead_saved"] = 1 - after.overhead / before.overhead
        metrics[f"{prefix}delay_saved"] = 1 - after.delay / before.delay
        metrics[f"{prefix}saved"] = 1 - after.total / before.total
    return metrics


def _greedy_time(spec: RunSpec, scale: float, seed: int) -> Metrics:
    """Of the processor, as the machine may be busy; the second run, as the first may compile."""
    problem = _problem(spec, seed)
    SOLVERS["dynatops-greedy"](problem, Task(iterations_max=1))
    began_s = time.process_time()
    solution = SOLVERS["dynatops-greedy"](problem, Task())
    return {"seconds": time.process_time() - began_s, "iterations": float(solution.iterations)}


def _protocol(spec: RunSpec, scale: float, seed: int) -> Metrics:
    return measure_protocol(int(spec["brokers"]), int(spec["topics"]), int(spec["movers"]), seed)


def _mobility_tables(spec: RunSpec, scale: float, seed: int) -> Metrics:
    covering, advertisements = TABLES[str(spec["tables"])]
    mode = TreeMode(str(spec["mode"]))
    users = max(1, round(int(spec["users"]) * scale))
    rules = TableRules(mode, advertisements=advertisements, covering=covering)
    return measure_city(RandomScenario(users, HOURS, seed), rules)


# ---- stores --------------------------------------------------------------------------------------


def _storing_example(spec: RunSpec, scale: float, seed: int) -> Metrics:
    return storing.measure_example()


def _storing_alike(spec: RunSpec, scale: float, seed: int) -> Metrics:
    names = ("brokers", "capacity", "replicas")
    brokers, capacity, replicas = (int(spec[name]) for name in names)
    asked_by = float(dict(spec.parameters).get("asked", 1.0))
    system = str(spec["system"])
    return storing.measure_alike(
        scale, seed, system, brokers, capacity, replicas, asked_by=asked_by
    )


def _storing_minimum(spec: RunSpec, scale: float, seed: int) -> Metrics:
    parameters = dict(spec.parameters)
    return storing.measure_minimum(
        scale,
        seed,
        str(spec["system"]),
        *(int(spec[name]) for name in ("brokers", "capacity", "min_k")),
        tree=str(parameters.get("tree", "grown")),
        use=str(parameters.get("use", "")),
        rounded_up=bool(parameters.get("rounded_up", 0)),
    )


def _storing_places(spec: RunSpec, scale: float, seed: int) -> Metrics:
    return storing.measure_places(
        scale, seed, _store_network(spec), float(spec["s_p"]), float(spec["s_l"])
    )


def _storing_failures(spec: RunSpec, scale: float, seed: int) -> Metrics:
    return storing.measure_failures(
        scale,
        seed,
        _store_network(spec),
        float(spec["s_p"]),
        int(spec["failed"]),
        again=bool(dict(spec.parameters).get("again", 0)),
    )


def _storing_drift(spec: RunSpec, scale: float, seed: int) -> Metrics:
    """The system's name has what is done about the drift behind it."""
    network = _store_network(spec)
    system, mode = network.system.split(" ")
    of_popularity = spec["drifting"] == "popularity"
    before, after = (
        (value, 0.0) if of_popularity else (0.0, value)
        for value in (DRIFT[0], float(spec["exponent"]))
    )
    planned = replace(network, system=system)
    return storing.measure_drift(scale, seed, planned, before, after, mode)


def _store_network(spec: RunSpec) -> storing.PlannedNetwork:
    sizes = (int(spec[name]) for name in ("brokers", "stores", "capacity"))
    return storing.PlannedNetwork(str(spec["system"]), *sizes)


MEASUREMENTS: Mapping[str, Callable[[RunSpec, float, int], Metrics]] = MappingProxyType(
    {
        "visits": _visits,
        "location": _location,
        "poisson": _poisson,
        "saving": _saving,
        "greedy-time": _greedy_time,
        "protocol": _protocol,
        "mobility-tables": _mobility_tables,
        "storing-example": _storing_example,
        "storing-alike": _storing_alike,
        "storing-minimum": _storing_minimum,
        "storing-places": _storing_places,
        "storing-failures": _storing_failures,
        "storing-drift": _storing_drift,
    }
)


def measure(spec: RunSpec, scale: float, seed: int) -> Metrics:
    return dict(MEASUREMENTS[spec.kind](spec, scale, seed))
