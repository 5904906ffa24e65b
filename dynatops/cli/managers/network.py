"""`dynatops status` and `cost`: the network as its reconfiguration manager sees it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from dynatops.cli.common import Commands, add_command, print_json
from dynatops.cli.durations import brief_duration
from dynatops.cli.managers.manager_client import ManagerClient, add_manager
from dynatops.cli.managers.plan_text import delay_unit, rates_text, table

_NAME_WIDTH = 12


def add_commands(commands: Commands) -> None:
    add_manager(
        add_command(
            commands,
            "status",
            run_status,
            summary="show who leads, what is known, and what goes on",
            description="Show the network as its reconfiguration manager sees it.",
        )
    )
    add_manager(
        add_command(
            commands,
            "cost",
            run_cost,
            summary="show what the present placement of brokers costs",
            description="Show what the present placement of brokers costs, and whether that is "
            "enough to look for a better one.",
        )
    )


def run_status(arguments: argparse.Namespace) -> int:
    cluster = ManagerClient.of(arguments).get("/v1/cluster")
    if arguments.json:
        print_json(cluster)
    else:
        print("\n".join(describe_cluster(cluster)))
    return 0


def describe_cluster(cluster: Mapping[str, Any]) -> Iterator[str]:
    model, executing = cluster["model"], cluster["executing"]
    attached, brokers = cluster["brokers_attached"], cluster["brokers"]
    away = "" if attached == brokers else f", {brokers - attached:,} not connected"
    known = f"{model['completeness']:.0%} of brokers heard lately"
    pairs, rate = f"{cluster['subscriptions']:,}", f"{cluster['events_per_s']:,.1f}"
    rows = [
        ("leader", f"{cluster['manager']} (fence {cluster['fence']}), {cluster['version']}"),
        ("brokers", f"{brokers:,}{away}; {cluster['sessions']:,} sessions"),
        ("topics", f"{cluster['topics']:,}, {pairs} subscriptions of brokers, {rate} events/s"),
        ("placement", f"epoch {cluster['epoch']}"),
        ("policy", cluster["mode"]),
        ("model", known if model["ready"] else f"too thin to plan: {model['problem']}"),
        ("going on", _going_on(executing, cluster["proposals"])),
    ]
    return (f"{name:<{_NAME_WIDTH}} {text}" for name, text in rows)


def _going_on(executing: Mapping[str, Any] | None, proposals: int) -> str:
    parts: list[str] = []
    if executing is not None:
        phase = str(executing["phase"] or "starting").lower().replace("_", " ")
        parts.append(f"plan {executing['plan_id']} is being executed: {phase}")
    if proposals:
        noun = "proposal waits" if proposals == 1 else "proposals wait"
        parts.append(f"{proposals:,} {noun} for approval (dynatops plans)")
    return "; ".join(parts) or "nothing"


def run_cost(arguments: argparse.Namespace) -> int:
    cost = ManagerClient.of(arguments).get("/v1/cost")
    if arguments.json:
        print_json(cost)
    else:
        print("\n".join(describe_cost(cost)))
    return 0


def describe_cost(cost: Mapping[str, Any]) -> Iterator[str]:
    figures, model, constants = cost["cost"], cost["model"], cost["constants"]
    unit = delay_unit(model)
    rows = [
        ("relay messages", f"{figures['overhead']:,.0f}"),
        (f"delay{unit}", f"{figures['delay']:,.0f}"),
        ("total", f"{figures['total']:,.0f}"),
    ]
    yield from table((f"cost in {brief_duration(cost['t_free_s'])}", ""), rows)
    yield f"{cost['relays_per_event']:.3f} relay messages an event"
    yield ""
    threshold, most = f"{cost['threshold']:,.0f}", f"{cost['moving_cost_max']:,.0f}"
    if cost["reconfigurable"]:
        yield f"above the threshold of {threshold}: worth looking for a better placement"
    else:
        yield f"below the threshold of {threshold}: too little to save"
    source = f"calibrated by {constants['plans']:,} plan(s)" if constants["plans"] else "as assumed"
    yield (
        f"moving everybody would cost {most} messages at most "
        f"(a, b, c = {constants['a']:g}, {constants['b']:g}, {constants['c']:g}, {source})"
    )
    yield (
        f"known: {model['completeness']:.0%} of {model['brokers']:,} brokers heard, "
        f"{model['topics']:,} topics, {model['events_per_s']:,.1f} events/s"
    )
    yield f"rates: {rates_text(model)}"
    yield from (f"note: {note}" for note in model["notes"])
