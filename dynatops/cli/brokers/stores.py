"""`dynatops stores`: which stores keep what, as a broker knows it; the rest is the managers'."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from dynatops.cli.access import add_access
from dynatops.cli.common import (
    ADDRESS_VARIABLE,
    DEFAULT_ADDRESS,
    Commands,
    add_command,
    ask_network,
    print_json,
    print_table,
)
from dynatops.cli.errors import UsageError
from dynatops.cli.managers.store_plans import add_store_plans

if TYPE_CHECKING:
    from dynatops.v1.inspection_pb2 import KnownUnit, StoreWay

_HEADINGS = ("topics", "hops", "by way of", "stores", "and farther")


def add_commands(commands: Commands) -> None:
    group = commands.add_parser(
        "stores",
        help="who keeps the past of which topics, and who had better keep it",
        description="Who keeps the past of which topics, and who had better keep it.",
    )
    kinds = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_store_plans(kinds)
    parser = add_command(
        kinds,
        "known",
        run,
        summary="show which stores a broker knows, and how far they are",
        description="Show a broker's Advertisement Table: of each topic or pattern of topics that "
        "stores keep, how many hops away the nearest store is, by which neighbours it is reached, "
        "and which others there are.",
    )
    parser.add_argument(
        "broker",
        metavar="HOST:PORT",
        nargs="?",
        default=os.environ.get(ADDRESS_VARIABLE, DEFAULT_ADDRESS),
        help=f"the broker (default: ${ADDRESS_VARIABLE}, or %(default)s)",
    )
    parser.add_argument(
        "--topic",
        default="",
        metavar="PATTERN",
        help="only what has a topic in common with this one, a topic or a pattern",
    )
    add_access(parser)


def run(arguments: argparse.Namespace) -> int:
    address = str(arguments.broker)
    if "," in address:
        raise UsageError(f"{address}: what one broker knows is shown; name one")
    _check_topic(arguments.topic)
    units: list[KnownUnit] = ask_network(arguments, "stores", address, arguments.topic)
    if arguments.json:
        print_json([_as_json(unit) for unit in units])
    elif not units:
        of_topic = f" of {arguments.topic}" if arguments.topic else ""
        print(f"no stores{of_topic} are known at {address}")
    else:
        print_table(_HEADINGS, [_row(unit) for unit in units])
    return 0


def _check_topic(topic: str) -> None:
    """Raises UsageError if it is none, and no pattern."""
    from dynatops.cli.errors import explain_filter
    from dynatops.kit.filters import FilterError, check_pattern

    if topic:
        try:
            check_pattern(topic)
        except FilterError as error:
            raise UsageError(f"--topic: {explain_filter(error)}") from None


def _row(unit: KnownUnit) -> tuple[object, ...]:
    by_way_of = [way.brokers[0] if way.brokers else "here" for way in unit.nearest]
    farther = [f"{_store(way)} ({len(way.brokers)})" for way in unit.aside]
    return (
        unit.unit,
        unit.distance,
        ", ".join(by_way_of),
        ", ".join(map(_store, unit.nearest)),
        ", ".join(farther) or "-",
    )


def _store(way: StoreWay) -> str:
    """The broker that has it."""
    return way.brokers[-1] if way.brokers else "here"


def _as_json(unit: KnownUnit) -> dict[str, Any]:
    return {
        "topics": unit.unit,
        "hops": unit.distance,
        "nearest": [list(way.brokers) for way in unit.nearest],
        "farther": [list(way.brokers) for way in unit.aside],
    }
