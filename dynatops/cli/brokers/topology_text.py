"""Topologies for people: drawn, as the YAML that brokers are given, and what changes from one to
another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import yaml

from overlay.forwarding.topology import Topology
from overlay.forwarding.topology_changes import BrokerMove, TopologyDifference


def headline(topology: Topology) -> str:
    told = ["covering"] * topology.covering + ["advertisements"] * topology.advertisements
    ways = f", with {' and '.join(told)}" if told else ""
    count = len(topology.addresses)
    brokers = f"{count} broker{'s' * (count != 1)}"
    return f"a tree of {brokers}, {topology.mode.value}, version {topology.version}{ways}"


def left_out_line(topology: Topology) -> str:
    """Empty if none is."""
    if not topology.left_out:
        return ""
    return f"left out, as they would close cycles: {', '.join(map(str, topology.left_out))}"


def drawn(topology: Topology, remark: Callable[[str], str] = lambda _: "") -> list[str]:
    """A line for each broker, with a remark if there is one."""
    lines: list[str] = []
    # Each with what stands before its name, and before the names below it; depth first.
    waiting = [(topology.root, "", "")]
    while waiting:
        broker_id, head, indent = waiting.pop()
        said = remark(broker_id)
        lines.append(f"{head}{broker_id}  {topology.addresses[broker_id]}{'  ' * bool(said)}{said}")
        above = topology.parent(broker_id)
        below = [name for name in topology.neighbours(broker_id) if name != above]
        for name in reversed(below):
            is_last = name == below[-1]
            branch, further = ("└── ", "    ") if is_last else ("├── ", "│   ")
            waiting.append((name, indent + branch, indent + further))
    return lines


def as_yaml(topology: Topology) -> str:
    """What `dynatops topology apply` takes, and brokers do when they are started."""
    mapping = topology.to_mapping()
    links = mapping.pop("links")
    lines = [yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True), "links:\n"]
    for link in links:
        entry = link["between"] if link["weight"] == 1.0 else link
        flow = yaml.safe_dump(entry, default_flow_style=True, allow_unicode=True, width=10_000)
        lines.append(f"- {flow}")
    return "".join(lines) if links else lines[0]


def change_lines(change: TopologyDifference, after: Topology) -> list[str]:
    """A line for each thing that changes."""
    if change.is_empty:
        return ["nothing changes but the version"]
    lines = [f"{key}: {new}, which was {old}" for key, old, new in change.settings]
    lines += [f"+ {name}  {after.addresses[name]}" for name in change.added]
    lines += [f"- {name}" for name in change.removed]
    lines += [line for move in change.moved for line in _move_lines(move)]
    lines += [f"+ link {one}-{other}" for one, other in change.links_added]
    lines += [f"- link {one}-{other}" for one, other in change.links_removed]
    return lines


def _move_lines(move: BrokerMove) -> Iterator[str]:
    if move.address != move.new_address:
        yield f"~ {move.broker_id} is at {move.new_address}, and was at {move.address}"
    if move.parent != move.new_parent:
        yield f"~ {move.broker_id} goes from {move.parent} to {move.new_parent}"
