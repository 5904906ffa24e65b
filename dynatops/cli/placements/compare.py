"""`dynatops compare`: all solvers side by side."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynatops.cli.common import Commands, add_command, print_json, print_table
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.placements.planning import (
    add_limits,
    read_instance_file,
    require_solvers,
    warm_up_solvers,
)
from reconfig_manager.solvers import SOLVERS

if TYPE_CHECKING:
    from reconfig_manager.placement.problem import PlacementProblem, Solution, Task

COMPARED = tuple(name for name, solver in SOLVERS.items() if solver.compared)


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "compare",
        run_compare,
        summary="run all solvers on the same instances, side by side",
        description="Run all solvers on each instance and print what they achieve, as shares of "
        "the cost before. Solvers that refuse an instance are shown with the reason.",
    )
    parser.add_argument("instances", metavar="INSTANCE", nargs="+")
    add_limits(parser)
    parser.add_argument(
        "--plot", metavar="FILE", help="draw cost against time (.svg, .png, .pdf), one instance"
    )


def run_compare(arguments: argparse.Namespace) -> int:
    require_solvers()
    from reconfig_manager.placement.problem import Task

    if arguments.plot and len(arguments.instances) > 1:
        raise UsageError("--plot goes with one instance")
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs: pip install 'dynatops[plot]'")
    instances = [(name, read_instance_file(name)) for name in arguments.instances]
    warm_up_solvers()
    task = Task(time_limit_s=arguments.time_limit, seed=arguments.seed)
    documents = []
    for name, instance in instances:
        problem = instance.problem()
        outcomes = {algorithm: _attempt(algorithm, problem, task) for algorithm in COMPARED}
        documents.append({"instance": name, "solvers": _compared(problem, outcomes)})
        if not arguments.json:
            _print_comparison(name, problem, outcomes)
        if arguments.plot:
            _plot(arguments.plot, outcomes)
    if arguments.json:
        print_json(documents)
    return 0


def _attempt(algorithm: str, problem: PlacementProblem, task: Task) -> Solution | str:
    """What it found, or why it refused."""
    from reconfig_manager.placement.problem import UnsuitableProblemError

    try:
        return SOLVERS[algorithm](problem, task)
    except UnsuitableProblemError as error:
        return str(error)


def _compared(
    problem: PlacementProblem, outcomes: dict[str, Solution | str]
) -> list[dict[str, Any]]:
    from reconfig_manager.placement.problem import judge

    documents: list[dict[str, Any]] = []
    for algorithm, outcome in outcomes.items():
        if isinstance(outcome, str):
            documents.append({"algorithm": algorithm, "refused": outcome})
            continue
        decision = judge(problem, outcome)
        documents.append(
            {
                "algorithm": algorithm,
                "seconds": round(outcome.seconds, 6),
                "iterations": outcome.iterations,
                "finished": outcome.finished,
                "overhead": outcome.after.overhead,
                "delay": outcome.after.delay,
                "total": outcome.after.total,
                "moved": problem.moved(outcome.place),
                "benefit": decision.benefit,
                "moving_cost": decision.moving_cost,
                "accept": decision.accept,
                "bound": outcome.bound,
            }
        )
    return documents


def _print_comparison(
    name: str, problem: PlacementProblem, outcomes: dict[str, Solution | str]
) -> None:
    before = problem.model.evaluate(problem.place)
    print(f"{name}: {problem.brokers:,} brokers, {problem.topics:,} topics\n")
    rows = [["(as it is)", *_figures(before.overhead, before.delay, before.total, before.total)]]
    refusals = []
    bounds = []
    for algorithm, outcome in outcomes.items():
        if isinstance(outcome, str):
            refusals.append(f"{algorithm}: {outcome}")
            continue
        after = outcome.after
        rows.append(
            [
                algorithm,
                *_figures(after.overhead, after.delay, after.total, before.total),
                f"{problem.moved(outcome.place):,}",
                f"{outcome.seconds:.2f}",
            ]
        )
        if outcome.bound is not None:
            bounds.append(outcome.bound)
    headings = ["algorithm", "relays", "delay", "total", "of before", "moved", "seconds"]
    print_table(headings, [row + [""] * (len(headings) - len(row)) for row in rows])
    if bounds:
        print(f"\nno placement costs less than {max(bounds):,.0f}")
    print("".join(f"\n{refusal}" for refusal in refusals))


def _figures(overhead: float, delay: float, total: float, before: float) -> list[str]:
    share = f"{total / before:.3f}" if before else "-"
    return [f"{overhead:,.0f}", f"{delay:,.0f}", f"{total:,.0f}", share]


def _plot(target: str, outcomes: dict[str, Solution | str]) -> None:
    from reconfig_manager.placement.plot import plot_progress

    solutions = [outcome for outcome in outcomes.values() if not isinstance(outcome, str)]
    try:
        plot_progress(solutions, Path(target))
    except (OSError, ValueError) as error:
        raise CommandError(f"{target}: {error}") from None
