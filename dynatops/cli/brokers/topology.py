"""`dynatops topology check`: the file with a tree of brokers, before brokers are given it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dynatops.cli.common import Commands, add_command, print_json
from dynatops.cli.errors import CommandError
from dynatops.cli.terminal import visible

if TYPE_CHECKING:
    from overlay.forwarding.topology import Topology


def add_commands(commands: Commands) -> None:
    parser = commands.add_parser(
        "topology",
        help="check the file that says how brokers in a tree are linked",
        description="Check the file that says how brokers in a tree are linked.",
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


def run_check(arguments: argparse.Namespace) -> int:
    from broker_agent.runtime.peers.topology_file import read_topology
    from overlay.forwarding.topology import TopologyError

    try:
        topology = read_topology(arguments.file)
    except TopologyError as error:
        raise CommandError(f"{arguments.file}: {error}") from None
    left_out = [str(link) for link in topology.left_out]
    if arguments.json:
        print_json({**topology.to_mapping(), "left_out": left_out})
        return 0
    count = len(topology.addresses)
    print(
        f"a tree of {count} broker{'s' * (count != 1)}, {topology.mode.value}, {_extras(topology)}"
    )
    for line in _drawn(topology, topology.root, None, "", ""):
        print(visible(line))
    if left_out:
        print(f"left out, as they would close cycles: {visible(', '.join(left_out))}")
    return 0


def _extras(topology: Topology) -> str:
    told = ["covering"] * topology.covering + ["advertisements"] * topology.advertisements
    ways = f", with {' and '.join(told)}" if told else ""
    return f"version {topology.version}{ways}"


def _drawn(
    topology: Topology, broker_id: str, above: str | None, head: str, indent: str
) -> list[str]:
    lines = [f"{head}{broker_id}  {topology.addresses[broker_id]}"]
    below = [name for name in topology.neighbours(broker_id) if name != above]
    for name in below:
        is_last = name == below[-1]
        branch, further = ("└── ", "    ") if is_last else ("├── ", "│   ")
        lines += _drawn(topology, name, broker_id, indent + branch, indent + further)
    return lines
