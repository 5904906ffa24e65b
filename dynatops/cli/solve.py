"""`dynatops solve`, `instance` and `compare`: planning offline, no network needed."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynatops.cli.common import Commands, add_command, positive, print_json, print_table
from dynatops.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from reconfig_manager.decision import Decision
    from reconfig_manager.instance import Instance
    from reconfig_manager.problem import Problem, Solution, Task

ALGORITHMS = ("ssbr-greedy", "dynatops-greedy", "lsap", "exact", "refine", "reference")
COMPARED = ("ssbr-greedy", "dynatops-greedy", "lsap", "exact", "refine")
PATTERNS = ("uniform", "zipf", "multimodal")
TIME_LIMIT_S = 10.0


def add_commands(commands: Commands) -> None:
    _add_solve(commands)
    _add_instance(commands)
    _add_compare(commands)


def _add_solve(commands: Commands) -> None:
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
        "--algorithm", choices=ALGORITHMS, default="refine", help="(default: refine)"
    )
    _add_limits(parser)
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


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--time-limit",
        type=positive(float),
        default=TIME_LIMIT_S,
        metavar="S",
        help=f"seconds at most (default: {TIME_LIMIT_S:g})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")


def _add_decision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--moving-cost",
        metavar="A,B,C",
        help="messages to move: A|V| + B log2(V)^2 moved + C|P| log2(V) moved (default: 4,1,1)",
    )
    parser.add_argument(
        "--beta",
        type=_share,
        metavar="SHARE",
        help="of the cost of moving everybody, which the present cost must exceed (default: 0.1)",
    )


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return value


def _add_instance(commands: Commands) -> None:
    parser = add_command(
        commands,
        "instance",
        run_instance,
        summary="make up an instance to solve",
        description="Make up brokers, subscriptions and publications, and write them as JSON to "
        "standard output or a file. The same arguments make the same instance.",
    )
    parser.add_argument("--brokers", type=positive(int), default=100, metavar="N")
    parser.add_argument("--topics", type=positive(int), default=100, metavar="N")
    parser.add_argument("--pattern", choices=PATTERNS, default="multimodal")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument(
        "--topics-per-broker",
        type=positive(int),
        metavar="N",
        help="on average (default: a tenth of the topics, 100 at most)",
    )
    parser.add_argument("--output", metavar="FILE", help="a file instead; .gz is compressed")


def _add_compare(commands: Commands) -> None:
    parser = add_command(
        commands,
        "compare",
        run_compare,
        summary="run all solvers on the same instances, side by side",
        description="Run all solvers on each instance and print what they achieve, as shares of "
        "the cost before. Solvers that refuse an instance are shown with the reason.",
    )
    parser.add_argument("instances", metavar="INSTANCE", nargs="+")
    _add_limits(parser)
    parser.add_argument(
        "--plot", metavar="FILE", help="draw cost against time (.svg, .png, .pdf), one instance"
    )


# ---- solve ---------------------------------------------------------------------------------------


def run_solve(arguments: argparse.Namespace) -> int:
    _require_solvers()
    from reconfig_manager.decision import BETA
    from reconfig_manager.problem import Objective, Task, UnsuitableProblemError, judge
    from reconfig_manager.solvers import SOLVERS

    instance = _read(arguments.instance)
    problem = instance.problem(_moving_cost(arguments.moving_cost))
    task = Task(
        objective=Objective.NET if arguments.net else Objective.COST,
        time_limit_s=arguments.time_limit,
        iterations_max=arguments.iterations or math.inf,
        seed=arguments.seed,
        max_moves=arguments.max_moves,
    )
    _warm_up()
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
    instance: Instance, problem: Problem, solution: Solution, decision: Decision
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
    instance: Instance, problem: Problem, solution: Solution, decision: Decision
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
    instance: Instance, problem: Problem, solution: Solution, shown_max: int = 10
) -> None:
    old, new = instance.placement_of(problem.place), instance.placement_of(solution.place)
    moves = [(b, old[b], new[b]) for b in old if old[b] != new[b]]
    for broker, source, target in moves[:shown_max]:
        print(f"  {broker}: {source} -> {target}")
    if len(moves) > shown_max:
        print(f"  and {len(moves) - shown_max:,} more; --json has them all")


# ---- instance ------------------------------------------------------------------------------------


def run_instance(arguments: argparse.Namespace) -> int:
    _require_solvers()
    from reconfig_manager.instance import CELLS_MAX, dump_instance, write_instance
    from reconfig_manager.workloads import Pattern, make_instance

    if arguments.brokers * arguments.topics > CELLS_MAX:
        raise UsageError(f"--brokers times --topics: at most {CELLS_MAX:,}")
    instance = make_instance(
        arguments.brokers,
        arguments.topics,
        Pattern(arguments.pattern),
        arguments.seed,
        arguments.topics_per_broker,
    )
    if arguments.output is None:
        sys.stdout.write(dump_instance(instance))
        return 0
    try:
        write_instance(instance, Path(arguments.output))
    except OSError as error:
        raise CommandError(f"{arguments.output}: {error.strerror}") from None
    if arguments.json:
        print_json({"output": arguments.output})
    else:
        print(f"{arguments.output}: {arguments.brokers:,} brokers, {arguments.topics:,} topics")
    return 0


# ---- compare -------------------------------------------------------------------------------------


def run_compare(arguments: argparse.Namespace) -> int:
    _require_solvers()
    from reconfig_manager.problem import Task

    if arguments.plot and len(arguments.instances) > 1:
        raise UsageError("--plot goes with one instance")
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs: pip install 'dynatops[plot]'")
    instances = [(name, _read(name)) for name in arguments.instances]
    _warm_up()
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


def _attempt(algorithm: str, problem: Problem, task: Task) -> Solution | str:
    """What it found, or why it refused."""
    from reconfig_manager.problem import UnsuitableProblemError
    from reconfig_manager.solvers import SOLVERS

    try:
        return SOLVERS[algorithm](problem, task)
    except UnsuitableProblemError as error:
        return str(error)


def _compared(problem: Problem, outcomes: dict[str, Solution | str]) -> list[dict[str, Any]]:
    from reconfig_manager.problem import judge

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


def _print_comparison(name: str, problem: Problem, outcomes: dict[str, Solution | str]) -> None:
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
    from reconfig_manager.plot import plot_progress

    solutions = [outcome for outcome in outcomes.values() if not isinstance(outcome, str)]
    try:
        plot_progress(solutions, Path(target))
    except (OSError, ValueError) as error:
        raise CommandError(f"{target}: {error}") from None


# ---- shared --------------------------------------------------------------------------------------


def _require_solvers() -> None:
    for package in ("numba", "scipy"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is missing: pip install 'dynatops[solve]'")


def _read(name: str) -> Instance:
    from reconfig_manager.instance import InstanceError, parse_instance

    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return parse_instance(raw)
    except InstanceError as error:
        raise UsageError(f"{name}: {error}") from None
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from None


def _moving_cost(text: str | None) -> Any:
    from reconfig_manager.decision import MovingCost

    if text is None:
        return MovingCost()
    parts = text.split(",")
    if len(parts) != 3:
        raise UsageError(f"--moving-cost: three numbers A,B,C, not {text!r}")
    try:
        values = [_share(part) for part in parts]
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--moving-cost: {error}") from None
    return MovingCost(*values)


def _warm_up() -> None:
    from reconfig_manager.warm_up import warm_up

    if sys.stderr.isatty():
        print("compiling, if this is the first time ...", end="\r", file=sys.stderr, flush=True)
    warm_up()
    if sys.stderr.isatty():
        print(" " * 50, end="\r", file=sys.stderr, flush=True)
