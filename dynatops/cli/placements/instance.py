"""`dynatops instance`: something to solve."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dynatops.cli.common import Commands, add_command, positive, print_json
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.placements.planning import (
    require_solvers,
)

PATTERNS = ("uniform", "zipf", "multimodal")


def add_commands(commands: Commands) -> None:
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
    parser.add_argument(
        "--sigma",
        type=positive(float),
        default=1.0,
        metavar="X",
        help="of zipf: topic i, from 1, has the weight (i + 1) ** -X (default: 1)",
    )
    parser.add_argument("--output", metavar="FILE", help="a file instead; .gz is compressed")


def run_instance(arguments: argparse.Namespace) -> int:
    require_solvers()
    from experiments.workloads.instances import make_instance
    from experiments.workloads.patterns import Pattern
    from reconfig_manager.placement.instance import CELLS_MAX, dump_instance, write_instance

    if arguments.brokers * arguments.topics > CELLS_MAX:
        raise UsageError(f"--brokers times --topics: at most {CELLS_MAX:,}")
    instance = make_instance(
        arguments.brokers,
        arguments.topics,
        Pattern(arguments.pattern),
        arguments.seed,
        arguments.topics_per_broker,
        arguments.sigma,
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
