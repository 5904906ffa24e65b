"""The simulator: frames a second of one process, and which messages grow faster than the brokers.

    python -m benchmarks.simulator [--brokers 50,200] [--minutes 1] [--seed 1] [--drawn] [--json]

Brokers of any number have one scenario: two clients each, eight topics and those that come new,
ten publications a second, frames that take up to 20 ms, no faults. (`--drawn`: the scenarios of
`dynatops simulate`, in which weather, topics, publications and faults differ with the number of
brokers.) Each is run twice: once for the time, and once for the trace, of which messages are
counted; both must have the same digest (exit code 1 if not). Seconds are of processor time: other
processes do not count.

Messages are counted as they set out or are lost, by kind; a frame carries several. For each kind it
says by which power of the number of brokers it grows from the least to the most: 1 is a constant
number for each broker. Those above 1.1 are marked.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from simulator.growing import MessageKinds
from simulator.network import Weather
from simulator.run import SimulatedRun
from simulator.scenario import Scenario, scenario_of

GROWS_FASTER = 1.1
# Kinds with less than this share of all messages are summed up.
SHARE_LEAST = 0.002


@dataclass(frozen=True, slots=True)
class SimulatorRun:
    brokers: int
    frames: int
    processor_s: float
    identical: bool
    messages: dict[str, int]

    @property
    def frames_a_second(self) -> float:
        return self.frames / self.processor_s


def alike(seed: int, brokers: int, minutes: float) -> Scenario:
    return Scenario(
        seed=seed,
        brokers=brokers,
        minutes=minutes,
        weather=Weather(delay_max_s=0.02),
        clients=2 * brokers,
        topics=8,
        publications_per_s=10.0,
        faults=(),
    )


def measure(scenario: Scenario) -> SimulatorRun:
    began_s = time.process_time()
    verdict = SimulatedRun(scenario).play()
    processor_s = time.process_time() - began_s
    kinds = MessageKinds()
    again = SimulatedRun(scenario, kinds).play()
    identical = again.trace == verdict.trace
    return SimulatorRun(
        scenario.brokers, verdict.frames, processor_s, identical, dict(kinds.counts)
    )


def growth(least: SimulatorRun, most: SimulatorRun) -> dict[str, float]:
    """Kind -> the power of the number of brokers by which it grows, of kinds that both have."""
    factor = math.log(most.brokers / least.brokers)
    return {
        kind: math.log(count / least.messages[kind]) / factor
        for kind, count in most.messages.items()
        if least.messages.get(kind)
    }


def _print_runs(runs: Sequence[SimulatorRun]) -> None:
    print(
        f"{'brokers':>8} {'frames':>10} {'a broker':>9} {'seconds':>8} {'frames/s':>9}  identical"
    )
    for run in runs:
        print(
            f"{run.brokers:8} {run.frames:10,} {run.frames / run.brokers:9,.0f} "
            f"{run.processor_s:8.1f} {run.frames_a_second:9,.0f}  "
            f"{'yes' if run.identical else 'NO'}"
        )


def _print_kinds(runs: Sequence[SimulatorRun]) -> None:
    least, most = runs[0], runs[-1]
    powers = growth(least, most) if most.brokers > least.brokers else {}
    total = sum(most.messages.values())
    print()
    columns = "".join(f"{run.brokers:>11}" for run in runs)
    print(f"{'messages, by brokers':24}{columns}    share  power")
    for kind, count in sorted(most.messages.items(), key=lambda item: -item[1]):
        if count < SHARE_LEAST * total:
            continue
        counts = "".join(f"{run.messages.get(kind, 0):11,}" for run in runs)
        power = powers.get(kind)
        said = "" if power is None else f"{power:7.2f}{' *' if power > GROWS_FASTER else ''}"
        print(f"{kind:24}{counts} {count / total:8.1%}{said}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--brokers", default="50,200", metavar="N,…")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    sizes = sorted({int(size) for size in arguments.brokers.split(",")})
    scenario = scenario_of if arguments.drawn else alike
    runs = [measure(scenario(arguments.seed, size, arguments.minutes)) for size in sizes]
    if arguments.json:
        found = [{**asdict(run), "frames_a_second": round(run.frames_a_second)} for run in runs]
        machine = {"cores": os.cpu_count(), "processor": platform.machine()}
        powers = growth(runs[0], runs[-1]) if len(runs) > 1 else {}
        print(json.dumps({"machine": machine, "runs": found, "growth": powers}, indent=1))
    else:
        _print_runs(runs)
        _print_kinds(runs)
    return 0 if all(run.identical for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
