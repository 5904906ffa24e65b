"""The simulator: frames a second of one process, and which messages grow faster than the brokers.

    python -m benchmarks.simulator [--brokers 50,200] [--minutes 1] [--seed 1] [--json]

Runs are those of `dynatops simulate`, faults and clients included. Each number of brokers is run
twice: once for the time, and once for the trace, of which messages are counted; both must have the
same digest (exit code 1 if not). Seconds are of processor time: other processes do not count.

Messages are counted as they set out or are lost, by kind; a frame carries several. For each kind it
says by which power of the number of brokers it grows from the least to the most: 1 is a constant
number for each broker. Those above 1.1 are marked.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from simulator.run import simulate

GROWS_FASTER = 1.1
# Kinds with less than this share of all messages are summed up.
SHARE_LEAST = 0.002


@dataclass(frozen=True, slots=True)
class Run:
    brokers: int
    frames: int
    processor_s: float
    identical: bool
    messages: dict[str, int]

    @property
    def frames_a_second(self) -> float:
        return self.frames / self.processor_s


class MessageKinds(io.TextIOBase):
    """A trace that is not kept, but counted: `b1->b2 120 ping pong`, or LOST or DEAD before it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def write(self, line: str) -> int:
        words = line.split()
        if len(words) > 3 and "->" in words[1]:
            self.counts.update(word for word in words[2:] if word.islower())
        return len(line)


def measure(brokers: int, minutes: float, seed: int) -> Run:
    began_s = time.process_time()
    verdict = simulate(seed, brokers, minutes)
    processor_s = time.process_time() - began_s
    kinds = MessageKinds()
    again = simulate(seed, brokers, minutes, out=kinds)
    return Run(
        brokers, verdict.frames, processor_s, again.trace == verdict.trace, dict(kinds.counts)
    )


def growth(least: Run, most: Run) -> dict[str, float]:
    """Kind -> the power of the number of brokers by which it grows, of kinds that both have."""
    factor = math.log(most.brokers / least.brokers)
    return {
        kind: math.log(count / least.messages[kind]) / factor
        for kind, count in most.messages.items()
        if least.messages.get(kind)
    }


def _print_runs(runs: Sequence[Run]) -> None:
    print(
        f"{'brokers':>8} {'frames':>10} {'a broker':>9} {'seconds':>8} {'frames/s':>9}  identical"
    )
    for run in runs:
        print(
            f"{run.brokers:8} {run.frames:10,} {run.frames / run.brokers:9,.0f} "
            f"{run.processor_s:8.1f} {run.frames_a_second:9,.0f}  "
            f"{'yes' if run.identical else 'NO'}"
        )


def _print_kinds(runs: Sequence[Run]) -> None:
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
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    sizes = sorted({int(size) for size in arguments.brokers.split(",")})
    runs = [measure(size, arguments.minutes, arguments.seed) for size in sizes]
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
