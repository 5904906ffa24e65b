"""What commands about topologies share: the file, the brokers, and both as JSON."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dynatops.cli.access import access_options
from dynatops.cli.errors import CommandError

if TYPE_CHECKING:
    from dynatops.cli.brokers.topology_spread import TopologySpread
    from dynatops.client.tree_administration import TreeAdministrator
    from overlay.forwarding.topology import Topology


def topology_in(path: str) -> Topology:
    from broker_agent.runtime.peers.topology_file import read_topology
    from overlay.forwarding.topology import TopologyError

    try:
        return read_topology(path)
    except TopologyError as error:
        raise CommandError(f"{path}: {error}") from None


def tree_administrator(arguments: argparse.Namespace) -> TreeAdministrator:
    from dynatops.client.tree_administration import TreeAdministrator

    return TreeAdministrator(arguments.broker, **access_options(arguments))


async def topology_at(brokers: TreeAdministrator) -> tuple[str, Topology]:
    """And where the broker is that has it."""
    from overlay.forwarding.topology import Topology, TopologyError

    address, report = await brokers.topology()
    if not report.topology:
        raise CommandError(
            f"the broker at {address} is on a ring, which has no topology: try `dynatops ring`"
        )
    try:
        return address, Topology.from_text(report.topology)
    except TopologyError as error:
        raise CommandError(f"what the broker at {address} has is no topology: {error}") from None


def topology_as_json(topology: Topology) -> dict[str, Any]:
    return {**topology.to_mapping(), "left_out": [str(link) for link in topology.left_out]}


def spread_as_json(spread: TopologySpread) -> dict[str, Any]:
    return {
        "links_down": [list(pair) for pair in spread.links_down],
        "links_unknown": [list(pair) for pair in spread.links_unknown],
        "unreachable": list(spread.silent),
        "behind": dict(spread.behind),
        "starting": list(spread.starting),
    }
