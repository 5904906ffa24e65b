"""`dynatops topology apply`: another topology for brokers that run, and how far it has come."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING, Any

from dynatops.cli.brokers.topology_access import (
    spread_as_json,
    topology_at,
    topology_in,
    tree_administrator,
)
from dynatops.cli.common import print_json, run_async
from dynatops.cli.errors import CommandError
from dynatops.cli.terminal import visible

if TYPE_CHECKING:
    from dynatops.cli.brokers.topology_spread import TopologySpread
    from dynatops.client.tree_administration import TreeAdministrator
    from dynatops.v1.administration_pb2 import TopologyTaken
    from overlay.forwarding.topology import Topology
    from overlay.forwarding.topology_changes import TopologyDifference

_LOOK_S = 0.2


def run_apply(arguments: argparse.Namespace) -> int:
    topology = topology_in(arguments.file)
    outcome: dict[str, Any] = run_async(_apply(arguments, topology))
    if arguments.json:
        print_json(outcome)
    return 0 if outcome["done"] else 1


async def _apply(arguments: argparse.Namespace, topology: Topology) -> dict[str, Any]:
    """What came of it; it is said, too, as it comes."""
    from overlay.forwarding.topology_changes import difference

    started_s = time.monotonic()
    async with tree_administrator(arguments) as brokers:
        told, current = await topology_at(brokers)
        change = difference(current, topology)
        _say(arguments, _announced(current, topology, change))
        await _refuse_if_others_are_ahead(brokers, current, topology)
        text, dry_run = topology.to_text(), bool(arguments.dry_run)
        taken = await brokers.change_topology(told, text, dry_run=dry_run)
        outcome = {
            "version": topology.version,
            "before": current.version,
            "dry_run": dry_run,
            "change": _change_as_json(change),
        }
        if dry_run:
            _say(arguments, [f"{taken.broker_id} would take it; nothing has been changed"])
            return {**outcome, "done": True}
        _say(arguments, _taken_lines(taken))
        spread = await _wait(brokers, topology, started_s + arguments.timeout)
    seconds = time.monotonic() - started_s
    _say(arguments, _conclusion(arguments.file, topology, change, spread))
    missing = spread.missing()
    if missing:
        lines = [f"! after {seconds:.1f} s: {line}" for line in missing]
    else:
        have = len(topology.addresses) - len(spread.silent)
        lines = [f"{have} of {len(topology.addresses)} brokers have it, after {seconds:.1f} s"]
    _say(arguments, lines)
    done = {"done": not missing, "seconds": round(seconds, 3)}
    return {**outcome, **done, **spread_as_json(spread)}


def _say(arguments: argparse.Namespace, lines: list[str]) -> None:
    if not arguments.json:
        for line in lines:
            print(visible(line), flush=True)


def _taken_lines(taken: TopologyTaken) -> list[str]:
    lines = [f"{taken.broker_id} has it{' already' if taken.was_known else ''}"]
    if taken.not_kept:
        lines.append(f"! {taken.broker_id} has it in memory only: {taken.not_kept}")
    return lines


def _announced(current: Topology, topology: Topology, change: TopologyDifference) -> list[str]:
    from dynatops.cli.brokers.topology_text import change_lines, left_out_line

    if current.digest == topology.digest:
        return []
    heading = f"version {topology.version}, in place of {current.version}:"
    lines = [heading, *(f"  {line}" for line in change_lines(change, topology))]
    return [*lines, left_out] if (left_out := left_out_line(topology)) else lines


def _change_as_json(change: TopologyDifference) -> dict[str, Any]:
    return {
        "added": list(change.added),
        "removed": list(change.removed),
        "moved": {
            move.broker_id: {
                "address": move.new_address,
                "from": move.parent,
                "to": move.new_parent,
            }
            for move in change.moved
        },
        "links_added": [list(pair) for pair in change.links_added],
        "links_removed": [list(pair) for pair in change.links_removed],
        "settings": {key: new for key, _, new in change.settings},
    }


async def _refuse_if_others_are_ahead(
    brokers: TreeAdministrator, current: Topology, topology: Topology
) -> None:
    """Somebody may have told another broker of another topology, which is still on its way."""
    addresses = {**current.addresses, **topology.addresses}.values()
    for report in (await brokers.reports(addresses)).values():
        if report is None or not report.HasField("forwarder"):
            continue
        version, digest = report.forwarder.topology_version, report.forwarder.topology_digest
        if version < topology.version or digest == topology.digest:
            continue
        what = "another topology of " if version == topology.version else ""
        raise CommandError(
            f"{report.broker_id} at {report.address} has {what}version {version}, and the file is "
            f"version {topology.version}: see `dynatops topology show --broker {report.address}`, "
            f"and give yours version {version + 1}"
        )


async def _wait(brokers: TreeAdministrator, topology: Topology, end_s: float) -> TopologySpread:
    """Until all that answer have it, and their links are up, or the time is over."""
    from dynatops.cli.brokers.topology_spread import spread_of

    while True:
        spread = spread_of(topology, await brokers.reports(topology.addresses.values()))
        if not spread.missing() or time.monotonic() >= end_s:
            return spread
        await asyncio.sleep(_LOOK_S)


def _conclusion(
    file: str, topology: Topology, change: TopologyDifference, spread: TopologySpread
) -> list[str]:
    """Of brokers that are not told by waiting for them."""
    lines = [
        f"! {name} at {topology.addresses[name]} does not answer: others will tell it once it is "
        f"there; one that is new is started with {file}"
        for name in spread.silent
    ]
    return lines + [
        f"{name} is not in it any more: it sends its clients away, and may be ended"
        for name in change.removed
    ]
