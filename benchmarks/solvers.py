"""Solvers against the published algorithm word for word: speed, quality, growth.

    python -m benchmarks.solvers [--json] [--large] [--quick]

Speed: the six points of DYNATOPS Table II and three larger ones; beside each, `reference` in the
same run, taken on from a few iterations where all would take too long. Quality: totals of `refine`
and `lsap` over those of `ssbr-greedy`. Growth: how time grows with brokers and with topics, as the
exponent of the power law that fits best. `--large` adds 10,000 brokers by 10,000 topics.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.workloads.instances import make_instance
from experiments.workloads.patterns import Pattern
from overlay.placement.cost import CostedPlacement
from reconfig_manager.placement.problem import PlacementProblem, Task
from reconfig_manager.solvers import SOLVERS
from reconfig_manager.solvers.search_kernels import mean_change
from reconfig_manager.solvers.warm_up import warm_up

# Brokers, topics, what the paper took (DYNATOPS Table II).
TABLE_II = (
    (10, 100, 0.028),
    (100, 100, 0.184),
    (1000, 100, 96.0),
    (100, 50, 0.098),
    (100, 500, 0.502),
    (100, 5000, 1.9),
)
LARGER = ((2000, 100, None), (1000, 1000, None), (2000, 1000, None))
REFERENCE_S = 10.0
# Brokers, topics, seconds, instances.
QUALITY = ((100, 100, 2.0, 20), (1000, 100, 5.0, 20))
GROWTH_BROKERS = (125, 250, 500, 1000, 2000)
GROWTH_TOPICS = (125, 250, 500, 1000, 2000)
LARGE_REFINE_S = 60.0
RELAXATION_STEPS = 5


def problem_of(
    brokers: int, topics: int, seed: int = 1, per_broker: int | None = None
) -> PlacementProblem:
    return make_instance(brokers, topics, Pattern.MULTIMODAL, seed, per_broker).problem()


def best_of(times: int, work: Callable[[], object]) -> float:
    """The least of several: what disturbs only ever adds."""
    seconds = []
    for _ in range(times):
        started_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started_s)
    return min(seconds)


# ---- speed ---------------------------------------------------------------------------------------


def measure_speed(quick: bool) -> Iterable[dict[str, Any]]:
    points = TABLE_II[:2] if quick else (*TABLE_II, *LARGER)
    for brokers, topics, paper_s in points:
        problem = problem_of(brokers, topics)
        greedy = SOLVERS["ssbr-greedy"](problem, Task())
        greedy_s = best_of(3, partial(SOLVERS["ssbr-greedy"], problem, Task()))
        reference_s, extrapolated = _reference_seconds(problem, greedy.iterations)
        yield {
            "brokers": brokers,
            "topics": topics,
            "swaps": greedy.iterations,
            "ssbr_greedy_s": greedy_s,
            "reference_s": reference_s,
            "extrapolated": extrapolated,
            "times_faster": reference_s / greedy_s,
            "paper_s": paper_s,
        }


def _reference_seconds(problem: PlacementProblem, swaps: int) -> tuple[float, bool]:
    """One iteration for each swap, and one more that finds nothing better."""
    cut = SOLVERS["reference"](problem, Task(time_limit_s=REFERENCE_S))
    if cut.finished:
        return cut.seconds, False
    return cut.seconds / cut.iterations * (swaps + 1), True


def measure_start() -> dict[str, Any]:
    """What a second process pays before it can solve: loading, not compiling."""
    program = (
        "import time; t = time.perf_counter();"
        "from reconfig_manager.solvers.warm_up import warm_up; warm_up();"
        "print(time.perf_counter() - t)"
    )
    seconds = [
        float(
            subprocess.run(  # noqa: S603  # our own interpreter, our own text
                [sys.executable, "-c", program], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(2)
    ]
    return {"second_process_s": min(seconds)}


# ---- quality -------------------------------------------------------------------------------------


def measure_quality(quick: bool) -> Iterable[dict[str, Any]]:
    points = ((100, 100, 0.5, 2),) if quick else QUALITY
    for brokers, topics, seconds, instances in points:
        greedy = ("ssbr-greedy", "ssbr-greedy-overhead")
        totals = dict.fromkeys(("before", *greedy, "lsap", "refine", "bound"), 0.0)
        for seed in range(1, instances + 1):
            problem = problem_of(brokers, topics, seed)
            totals["before"] += problem.model.evaluate(problem.place).total
            for name in (*greedy, "lsap"):
                totals[name] += SOLVERS[name](problem, Task()).after.total
            refined = SOLVERS["refine"](problem, Task(time_limit_s=seconds))
            totals["refine"] += refined.after.total
            totals["bound"] += refined.bound or 0.0
        yield {
            "brokers": brokers,
            "topics": topics,
            "seconds": seconds,
            "instances": instances,
            "of_before": {
                name: total / totals["before"] for name, total in totals.items() if name != "before"
            },
            "refine_below_ssbr_greedy": 1.0 - totals["refine"] / totals["ssbr-greedy"],
        }


# ---- growth --------------------------------------------------------------------------------------


def measure_growth(quick: bool) -> Iterable[dict[str, Any]]:
    steps = 3 if quick else 5
    by_brokers = [(n, 100, 10) for n in GROWTH_BROKERS[:steps]]
    by_topics = [(100, n, n // 10) for n in GROWTH_TOPICS[:steps]]
    for name, sizes in (("brokers", by_brokers), ("topics", by_topics)):
        problems = [problem_of(b, t, 1, per_broker) for b, t, per_broker in sizes]
        scale = [b if name == "brokers" else t for b, t, _ in sizes]
        greedy = [best_of(2, partial(SOLVERS["ssbr-greedy"], p, Task())) for p in problems]
        evaluation = [best_of(5, partial(p.model.evaluate, p.place)) for p in problems]
        swap = [_swap_seconds(p) for p in problems]
        refine = [_refine_seconds(p) for p in problems]
        yield {
            "grows": name,
            "sizes": scale,
            "exponents": {
                "evaluate": fitted_exponent(scale, evaluation),
                "swap_delta": fitted_exponent(scale, swap),
                "ssbr-greedy": fitted_exponent(scale, greedy),
                "refine": fitted_exponent(scale, refine),
            },
            "seconds": {
                "evaluate": evaluation,
                "swap_delta": swap,
                "ssbr-greedy": greedy,
                "refine": refine,
            },
        }


def _swap_seconds(problem: PlacementProblem, repeats: int = 20_000) -> float:
    """One swap_delta, calls from Python taken out by letting a kernel make many."""
    placement = CostedPlacement.of(problem.model, problem.place)
    random = np.array([1], dtype=np.uint64)
    tables, state = problem.model.tables, placement.state
    return best_of(3, lambda: mean_change(tables, state, random, repeats)) / repeats


def _refine_seconds(problem: PlacementProblem) -> float:
    """Its starts, and a few steps of the relaxation; what follows takes what time there is."""
    swaps = SOLVERS["ssbr-greedy"](problem, Task()).iterations
    task = Task(iterations_max=1 + swaps + RELAXATION_STEPS)
    return SOLVERS["refine"](problem, task).seconds


def fitted_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of the straight line through the logarithms."""
    x = [math.log(size) for size in sizes]
    y = [math.log(second) for second in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - mean_x) ** 2 for a in x)


# ---- large ---------------------------------------------------------------------------------------


def measure_large() -> dict[str, Any]:
    """10,000 brokers, 10,000 topics, 100 topics a broker; memory is the most this process had."""
    problem = problem_of(10_000, 10_000, 1, 100)
    started_s = time.perf_counter()
    before = problem.model.evaluate(problem.place)
    evaluated_s = time.perf_counter() - started_s
    refined = SOLVERS["refine"](problem, Task(time_limit_s=LARGE_REFINE_S))
    greedy = SOLVERS["ssbr-greedy"](problem, Task(time_limit_s=LARGE_REFINE_S))
    return {
        "evaluate_s": evaluated_s,
        "refine_s": refined.seconds,
        "refine_of_before": refined.after.total / before.total,
        "ssbr_greedy_s": greedy.seconds,
        "ssbr_greedy_swaps": greedy.iterations,
        "ssbr_greedy_finished": greedy.finished,
        "ssbr_greedy_of_before": greedy.after.total / before.total,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
    }


# ---- report --------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--large", action="store_true", help="10,000 x 10,000 too: minutes more")
    parser.add_argument("--quick", action="store_true", help="the smallest points only")
    arguments = parser.parse_args()
    warm_up()
    report: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "start": measure_start(),
        "speed": list(measure_speed(arguments.quick)),
        "growth": list(measure_growth(arguments.quick)),
        "quality": list(measure_quality(arguments.quick)),
    }
    if arguments.large:
        report["large"] = measure_large()
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    print(f"a second process is ready after {report['start']['second_process_s']:.2f} s\n")
    print("brokers  topics  swaps  ssbr-greedy s  reference s  times faster  paper s")
    for point in report["speed"]:
        paper = "" if point["paper_s"] is None else f"{point['paper_s']:7.3f}"
        mark = "~" if point["extrapolated"] else " "
        print(
            f"{point['brokers']:7}  {point['topics']:6}  {point['swaps']:5}"
            f"  {point['ssbr_greedy_s']:13.4f}  {mark}{point['reference_s']:10.3f}"
            f"  {point['times_faster']:12,.0f}  {paper}"
        )
    print("(~ taken on from a few iterations)\n")
    for growth in report["growth"]:
        exponents = ", ".join(f"{name} {value:.2f}" for name, value in growth["exponents"].items())
        print(f"time grows with {growth['grows']} to the power: {exponents}")
    print()
    for quality in report["quality"]:
        shares = ", ".join(f"{name} {share:.3f}" for name, share in quality["of_before"].items())
        print(
            f"{quality['brokers']} x {quality['topics']}, {quality['instances']} instances, of the "
            f"cost before: {shares}; refine in {quality['seconds']:g} s is "
            f"{100 * quality['refine_below_ssbr_greedy']:.1f}% below ssbr-greedy"
        )
    if "large" in report:
        large = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in report["large"].items()
        )
        print(f"\n10,000 x 10,000: {large}")


if __name__ == "__main__":
    sys.exit(main())
