"""`dynatops brokers`, `topics`, `tree` and `ring`: look at a running network."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dynatops.cli.common import (
    Commands,
    add_address,
    add_command,
    ask_network,
    print_json,
    print_table,
)
from dynatops.cli.durations import brief_duration
from dynatops.cli.errors import CommandError, UsageError
from dynatops.cli.terminal import visible

if TYPE_CHECKING:
    from dynatops.client.inspection import TreeNode
    from dynatops.v1.inspection_pb2 import BrokerReport, NodeReport


def add_commands(commands: Commands) -> None:
    add_address(add_command(commands, "brokers", run_brokers, summary="list the network's brokers"))
    add_address(
        add_command(
            commands, "topics", run_topics, summary="list topics and their rendezvous points"
        )
    )
    tree = add_command(commands, "tree", run_tree, summary="draw a topic's tree")
    tree.add_argument("topic")
    add_address(tree)
    add_address(
        add_command(
            commands,
            "ring",
            run_ring,
            summary="show the ring: positions, neighbours, shares of the keys",
            description="Show the ring as its nodes see it, and whether their views fit together. "
            "Exit code 1 if they do not.",
        )
    )


# ---- brokers -------------------------------------------------------------------------------------


def run_brokers(arguments: argparse.Namespace) -> int:
    reports: list[BrokerReport] = ask_network(arguments, "brokers")
    if arguments.json:
        print_json([_broker_as_json(report) for report in reports])
        return 0
    rows = [
        (
            report.broker_id,
            report.address,
            _status_of(report),
            report.sessions,
            report.subscribed_topics,
            report.nodes[0].topics if report.nodes else "-",
            report.counters["published_events"],
            report.counters["delivered_events"],
            report.counters["relayed_events" if report.nodes else "tree_events_forwarded"],
            brief_duration(report.uptime_s),
        )
        for report in reports
    ]
    print_table(
        (
            "broker",
            "address",
            "status",
            "sessions",
            "subscribed",
            "topics",
            "published",
            "delivered",
            "relayed",
            "up",
        ),
        rows,
    )
    return 0


def _status_of(report: BrokerReport) -> str:
    if report.nodes:
        node = report.nodes[0]
        return node.status if node.ready else f"{node.status}, not ready"
    down = sum(link.state == "closed" for link in report.forwarder.links)
    if not report.forwarder.ready:
        return "starting"
    return f"{down} {_plural(down, 'link')} down" if down else "in the tree"


def _broker_as_json(report: BrokerReport) -> dict[str, Any]:
    return {
        "broker_id": report.broker_id,
        "address": report.address,
        "version": report.version,
        "uptime_s": round(report.uptime_s, 3),
        **(_node_figures(report.nodes[0]) if report.nodes else _forwarder_figures(report)),
        "sessions": report.sessions,
        "subscribed_topics": report.subscribed_topics,
        "counters": dict(sorted(report.counters.items())),
    }


def _node_figures(node: NodeReport) -> dict[str, Any]:
    return {
        "node_id": f"{node.node.node_id:016x}",
        "status": node.status,
        "ready": node.ready,
        "topics": node.topics,
        "replicas": node.replicas,
    }


def _forwarder_figures(report: BrokerReport) -> dict[str, Any]:
    forwarder = report.forwarder
    return {
        "status": _status_of(report),
        "ready": forwarder.ready,
        "topology_version": forwarder.topology_version,
        "mode": forwarder.mode,
        "keeper": forwarder.keeper or None,
        "links": [
            {
                "broker_id": link.neighbour.broker_id,
                "address": link.neighbour.address,
                "state": link.state,
                "wanted": link.wanted,
                "told": link.told,
            }
            for link in forwarder.links
        ],
    }


# ---- topics --------------------------------------------------------------------------------------


def run_topics(arguments: argparse.Namespace) -> int:
    found = ask_network(arguments, "topics")
    if arguments.json:
        print_json(
            [
                {
                    "topic": topic.topic,
                    "rendezvous_point": report.broker_id,
                    "subscribing_brokers": topic.members,
                    "published": topic.published,
                    "retained_events": topic.retained_events,
                    "term": topic.position.term,
                    "seq": topic.position.seq,
                }
                for report, topic in found
            ]
        )
    elif not found:
        print("no topics: nobody publishes or subscribes")
    else:
        print_table(
            ("topic", "rendezvous point", "subscribing brokers", "published", "retained"),
            [
                (t.topic, report.broker_id, t.members, t.published, t.retained_events)
                for report, t in found
            ],
        )
    return 0


# ---- tree ----------------------------------------------------------------------------------------


def run_tree(arguments: argparse.Namespace) -> int:
    _check_one_topic(arguments.topic)
    tree: TreeNode = ask_network(arguments, "tree", arguments.topic)
    if arguments.json:
        print_json({"topic": arguments.topic, "tree": _tree_as_json(tree)})
        return 0
    for line in describe_tree(arguments.topic, tree):
        print(visible(line))
    return 0


def _check_one_topic(topic: str) -> None:
    """Patterns have no tree; topics of the system do."""
    from dynatops.kit.topics import RESERVED_CHARACTERS, RESERVED_PREFIX, TopicError, check_topic

    if any(character in topic for character in RESERVED_CHARACTERS):
        hint = "each topic has a tree of its own; `dynatops topics` lists them"
        raise UsageError(f"{topic!r} is a pattern: {hint}")
    try:
        check_topic(topic.removeprefix(RESERVED_PREFIX))
    except TopicError as error:
        raise UsageError(str(error)) from None


def describe_tree(topic: str, tree: TreeNode) -> list[str]:
    from dynatops.client.inspection import draw_tree

    nodes = list(tree.walk())
    subscribing = sum(node.subscribes for node in nodes)
    relays = sum(node.is_relay for node in nodes)
    if not subscribing and not tree.is_rendezvous_point:
        return [f"{topic}: nobody subscribes"]
    if not subscribing:
        return [f"{topic}: nobody subscribes; its rendezvous point would be {tree.node.broker_id}"]
    summary = (
        f"{topic}: {subscribing} subscribing {_plural(subscribing, 'broker')}, "
        f"{relays} {_plural(relays, 'relay')}, at most {tree.depth} {_plural(tree.depth, 'hop')}"
    )
    return [summary, *draw_tree(tree)]


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _tree_as_json(tree: TreeNode) -> dict[str, Any]:
    return {
        "broker_id": tree.node.broker_id,
        "node_id": f"{tree.node.node_id:016x}",
        "rendezvous_point": tree.is_rendezvous_point,
        "subscribes": tree.subscribes,
        "relay": tree.is_relay,
        "children": [_tree_as_json(child) for child in tree.children],
    }


# ---- ring ----------------------------------------------------------------------------------------


def run_ring(arguments: argparse.Namespace) -> int:
    from dynatops.client.inspection import is_in_tree, ring_problems

    reports: list[BrokerReport] = ask_network(arguments, "brokers")
    if any(map(is_in_tree, reports)):
        raise CommandError("these brokers are in a tree, not on a ring: try `dynatops brokers`")
    problems = ring_problems(reports)
    if arguments.json:
        print_json({"nodes": [_node_as_json(report) for report in reports], "problems": problems})
    else:
        rows = [
            (
                f"{report.nodes[0].node.node_id:016x}",
                report.broker_id,
                f"{_share(reports, i):.1%}",
                _name(report.nodes[0].predecessor) if len(reports) > 1 else "-",
                " ".join(_name(peer) for peer in report.nodes[0].fingers) or "-",
            )
            for i, report in enumerate(reports)
        ]
        print_table(("position", "broker", "keys", "predecessor", "routes by"), rows)
        for problem in problems:
            print(f"! {problem}")
    if problems and not arguments.json:
        raise CommandError("the nodes do not agree on the ring (it may be healing: look again)")
    return 1 if problems else 0


def _name(reference: Any) -> str:
    return str(reference.broker_id)


def _share(reports: list[BrokerReport], i: int) -> float:
    """The part of all keys that this node is responsible for."""
    here = reports[i].nodes[0].node.node_id
    before = reports[i - 1].nodes[0].node.node_id
    return (((here - before) % (1 << 64)) or (1 << 64)) / (1 << 64)


def _node_as_json(report: BrokerReport) -> dict[str, Any]:
    node = report.nodes[0]
    return {
        "node_id": f"{node.node.node_id:016x}",
        "broker_id": report.broker_id,
        "address": report.address,
        "status": node.status,
        "ready": node.ready,
        "predecessor": _name(node.predecessor) if node.HasField("predecessor") else None,
        "successors": [_name(peer) for peer in node.successors],
        "routes_by": [_name(peer) for peer in node.fingers],
    }
