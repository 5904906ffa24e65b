"""`dynatops solve`: a better placement, offline."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from dynatops.cli.common import Commands, add_command, positive, print_json, print_table
from dynatops.cli.errors import UsageError
from dynatops.cli.placements.planning import (
    add_limits,
    moving_cost,
    read_instance_file,
    require_solvers,
    share,
    warm_up_solvers,
)
from reconfig_manager.solvers import DEFAULT_ALGORITHM, SOLVERS

if TYPE_CHECKING:
    from reconfig_manager.placement.decision import Decision
    from reconfig_manager.placement.instance import Instance
    from reconfig_manager.placement.problem import PlacementProblem, Solution


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "solve",
        run_solve,
        summary="find a better placement of brokers on nodes, from a file",
        description="Read an instance (docs/algorithms.md has the format), find a placement that "
        "costs less, and say whether it is worth moving there.",
        epilog="Exit code 0 whether or not it is worth it; 2 if the instance makes no sense.",
    )
    parser.add_argument(
        "instance", metavar="INSTANCE", help="a JSON file, .gz if you like; -: stdin"
    )
    parser.add_argument(
        "--algorithm",
        choices=tuple(SOLVERS),
        default=DEFAULT_ALGORITHM,
        help=f"(default: {DEFAULT_ALGORITHM})",
    )
    add_limits(parser)
    parser.add_argument(
        "--iterations",
        type=positive(int),
        metavar="N",
        help="stop after so many steps: unlike time, the same everywhere",
    )
    parser.add_argument(
        "--max-moves", type=positive(int), metavar="N", help="move so many brokers at most"
    )
    parser.add_argument(
        "--net",
        action="store_true",
        help="make benefit minus moving cost large, instead of cost small",
    )
    _add_decision(parser)


def _add_decision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--moving-cost",
        metavar="A,B,C",
        help="messages to move: A|V| + B log2(V)^2 moved + C|P| log2(V) moved (default: 6,1,1)",
    )
    parser.add_argument(
        "--beta",
        type=share,
        metavar="SHARE",
        help="of the cost of moving everybody, which the present cost must exceed (default: 0.1)",
    )


def run_solve(arguments: argparse.Namespace) -> int:
    require_solvers()
    from reconfig_manager.placement.decision import BETA
    from reconfig_manager.placement.problem import Objective, Task, UnsuitableProblemError, judge

    instance = read_instance_file(arguments.instance)
    problem = instance.problem(moving_cost(arguments.moving_cost))
    task = Task(
        objective=Objective.NET if arguments.net else Objective.COST,
        time_limit_s=arguments.time_limit,
        iterations_max=arguments.iterations or math.inf,
        seed=arguments.seed,
        max_moves=arguments.max_moves,
    )
    warm_up_solvers()
    try:
        solution = SOLVERS[arguments.algorithm](problem, task)
    except UnsuitableProblemError as error:
        raise UsageError(str(error)) from None
    beta = BETA if arguments.beta is None else arguments.beta
    decision = judge(problem, solution, beta)
    if arguments.json:
        print_json(_as_json(instance, problem, solution, decision))
    else:
        _print_solution(instance, problem, solution, decision)
    return 0


def _as_json(
    instance: Instance, problem: PlacementProblem, solution: Solution, decision: Decision
) -> dict[str, Any]:
    before, after = problem.model.evaluate(problem.place), solution.after
    return {
        "algorithm": solution.algorithm,
        "seconds": round(solution.seconds, 6),
        "iterations": solution.iterations,
        "finished": solution.finished,
        "placement": instance.placement_of(solution.place),
        "before": {"overhead": before.overhead, "delay": before.delay, "total": before.total},
        "after": {"overhead": after.overhead, "delay": after.delay, "total": after.total},
        "moved": problem.moved(solution.place),
        "benefit": decision.benefit,
        "moving_cost": decision.moving_cost,
        "decision": {
            "accept": decision.accept,
            "reason": decision.reason.value,
            "threshold": decision.threshold,
        },
        "bound": solution.bound,
    }


def _print_solution(
    instance: Instance, problem: PlacementProblem, solution: Solution, decision: Decision
) -> None:
    before, after = problem.model.evaluate(problem.place), solution.after
    ended = "" if solution.finished else ", cut off by a limit"
    print(
        f"{solution.algorithm}: {problem.brokers:,} brokers, {problem.topics:,} topics, "
        f"{solution.seconds:.2f} s, {solution.iterations:,} iterations{ended}\n"
    )
    rows = [
        [name, f"{old:,.0f}", f"{new:,.0f}", _change(old, new)]
        for name, old, new in (
            ("relay messages", before.overhead, after.overhead),
            ("delay", before.delay, after.delay),
            ("total", before.total, after.total),
        )
    ]
    print_table(["cost", "before", "after", ""], rows)
    if solution.bound is not None:
        print(f"\nno placement costs less than {solution.bound:,.0f}")
    moved = problem.moved(solution.place)
    print(f"\n{moved:,} of {problem.brokers:,} brokers move; {decision}")
    _print_moves(instance, problem, solution)


def _change(old: float, new: float) -> str:
    return f"{100 * (new - old) / old:+.1f}%" if old else ""


def _print_moves(
    instance: Instance, problem: PlacementProblem, solution: Solution, shown_max: int = 10
) -> None:
    old, new = instance.placement_of(problem.place), instance.placement_of(solution.place)
    moves = [(b, old[b], new[b]) for b in old if old[b] != new[b]]
    for broker, source, target in moves[:shown_max]:
        print(f"  {broker}: {source} -> {target}")
    if len(moves) > shown_max:
        print(f"  and {len(moves) - shown_max:,} more; --json has them all")
