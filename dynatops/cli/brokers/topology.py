"""`dynatops topology check`, `show` and `apply`: the file with a tree of brokers, what brokers that
run have of it, and another in its place."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dynatops.cli.brokers.topology_access import (
    spread_as_json,
    topology_as_json,
    topology_at,
    topology_in,
    tree_administrator,
)
from dynatops.cli.brokers.topology_apply import run_apply
from dynatops.cli.common import Commands, add_address, add_command, positive, print_json, run_async
from dynatops.cli.terminal import visible

if TYPE_CHECKING:
    from dynatops.cli.brokers.topology_spread import TopologySpread
    from dynatops.v1.inspection_pb2 import BrokerReport
    from overlay.forwarding.topology import Topology

_TIMEOUT_S = 30.0


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser(
        "topology",
        help="brokers in a tree: who is linked to whom, and how that is changed",
        description="Brokers in a tree: who is linked to whom, and how that is changed.",
    )
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = add_command(
        kinds,
        "check",
        run_check,
        summary="check a topology, and draw the tree that it comes to",
        description="Check a topology, and draw the tree that it comes to. Links that would close "
        "a cycle are left out, and named. Exit code 1 if it is no good.",
    )
    check.add_argument("file", metavar="FILE", help="as for `dynatops broker --topology`")
    _add_show(kinds)
    _add_apply(kinds)


def _add_show(kinds: Commands) -> None:
    show = add_command(
        kinds,
        "show",
        run_show,
        summary="draw the tree that a broker is in, and which links are up",
        description="Draw the topology that a running broker has. All of its brokers are asked "
        "which of their links are up; who does not answer, or has another version, is marked.",
    )
    show.add_argument(
        "--yaml",
        action="store_true",
        help="print the topology alone, as `dynatops topology apply` takes it",
    )
    add_address(show)


def _add_apply(kinds: Commands) -> None:
    apply = add_command(
        kinds,
        "apply",
        run_apply,
        summary="give running brokers another topology",
        description="Give the broker another topology, which passes it on to all others, and wait "
        "until those that can be reached have it and their links are up. Nothing that was "
        "acknowledged is lost on the way. The version must be higher than what any of them has.",
        epilog='Where brokers ask for tokens: one with `role = "admin"` and `inspect = true`. '
        "Exit code 1 if it was refused, or did not get everywhere in time. Brokers that are new "
        "are started with the file, before or after.",
    )
    apply.add_argument("file", metavar="FILE", help="as for `dynatops broker --topology`")
    apply.add_argument(
        "--dry-run", action="store_true", help="only say what would change, and whether it may"
    )
    apply.add_argument(
        "--timeout",
        type=positive(float),
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help="wait no longer than this; the change goes on all the same (default: %(default)g)",
    )
    add_address(apply)


# ---- check ---------------------------------------------------------------------------------------


def run_check(arguments: argparse.Namespace) -> int:
    from dynatops.cli.brokers.topology_text import drawn, headline, left_out_line

    topology = topology_in(arguments.file)
    if arguments.json:
        print_json(topology_as_json(topology))
        return 0
    for line in (headline(topology), *drawn(topology), left_out_line(topology)):
        if line:
            print(visible(line))
    return 0


# ---- show ----------------------------------------------------------------------------------------


def run_show(arguments: argparse.Namespace) -> int:
    from dynatops.cli.brokers.topology_spread import spread_of
    from dynatops.cli.brokers.topology_text import as_yaml

    topology, reports = run_async(_look(arguments))
    if arguments.yaml:
        print(as_yaml(topology), end="")
        return 0
    spread = spread_of(topology, reports)
    if arguments.json:
        print_json({**topology_as_json(topology), **spread_as_json(spread)})
    else:
        for line in _shown(topology, spread):
            print(visible(line))
    return 0


async def _look(
    arguments: argparse.Namespace,
) -> tuple[Topology, Mapping[str, BrokerReport | None]]:
    """The topology, and what each of its brokers says, if that is asked for."""
    async with tree_administrator(arguments) as brokers:
        _, topology = await topology_at(brokers)
        if arguments.yaml:
            return topology, {}
        return topology, await brokers.reports(topology.addresses.values())


def _shown(topology: Topology, spread: TopologySpread) -> list[str]:
    from dynatops.cli.brokers.topology_text import drawn, headline, left_out_line

    down = {frozenset(pair) for pair in spread.links_down}
    unknown = {frozenset(pair) for pair in spread.links_unknown}

    def remark(name: str) -> str:
        said = []
        link = frozenset((name, topology.parent(name) or name))
        if link in down:
            said.append("its link upwards is down")
        elif link in unknown:
            said.append("nobody knows of its link upwards")
        if name in spread.silent:
            said.append("it does not answer")
        elif name in spread.behind:
            said.append(spread.behind[name])
        elif name in spread.starting:
            said.append("starting")
        return f"! {', '.join(said)}" if said else ""

    lines = [headline(topology), *drawn(topology, remark)]
    if line := left_out_line(topology):
        lines.append(line)
    count = len(topology.links)
    up = count - len(spread.links_down) - len(spread.links_unknown)
    lines.append(f"{up} of {count} link{'s' * (count != 1)} up")
    return lines
