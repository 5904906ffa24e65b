"""Every figure of a broker: what it is called, what it means, where it is read.

Reading all of them takes a millisecond, however many topics and sessions there are: what would have
to be counted is taken from the census. Names that begin with `dynatops_node_` are of the node, the
position of the ring that is hosted here; a reconfiguration may change it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_agent.core.counters import BrokerCounters
from broker_agent.core.selection.selection_counters import SelectionCounters
from broker_agent.runtime.manager.uplink import UplinkCounters
from broker_agent.runtime.observing.census import Counted
from broker_agent.runtime.observing.counter_sets import metrics_of
from broker_agent.runtime.peers.links import LinkCounters
from dynatops.kit.advice.advice_counters import AdviceCounters
from dynatops.kit.observing.metrics import (
    Metric,
    Reading,
    counter,
    gauge,
    histogram,
    one_of,
)
from dynatops.kit.observing.process_metrics import process_metrics
from dynatops.lake.counters import LakeCounters
from dynatops.version import VERSION
from overlay.counters import OverlayCounters
from overlay.identifiers import distance
from overlay.status import Status

if TYPE_CHECKING:
    from broker_agent.runtime.agent import Agent

Figures = list[Metric["Agent"]]
_RING = 1 << 64


def _g(name: str, text: str, read: Callable[[Agent], Reading], *labels: str) -> Metric[Agent]:
    return gauge(f"dynatops_{name}", text, read, *labels)


def _counted(name: str, text: str, read: Callable[[Counted], float]) -> Metric[Agent]:
    return _g(name, text, lambda a: read(a.watch.census.last))


def _sessions(agent: Agent) -> Reading:
    registry = agent.core.registry
    return {"connected": len(registry) - registry.absent, "absent": registry.absent}


def _range_share(agent: Agent) -> float:
    ring = agent.core.node.ring
    if ring.status is not Status.MEMBER:
        return 0.0
    return (distance(ring.range_low, ring.me.node_id) or _RING) / _RING


PROCESS: Figures = [
    _g(
        "broker_info",
        "1, with the broker's id and version.",
        lambda a: {(a.broker_id, VERSION): 1.0},
        "broker",
        "version",
    ),
    _g(
        "broker_uptime_seconds",
        "Since the broker was started.",
        lambda a: asyncio.get_running_loop().time() - a.started_s,
    ),
    *process_metrics("dynatops_broker_"),
    histogram(
        "dynatops_broker_loop_lag_seconds",
        "How much later than wished the event loop's tick came, 20 times a second. Late: everything"
        " else at this broker is as late.",
        lambda a: a.watch.lag_s,
    ),
    counter(
        "dynatops_broker_http_requests_total",
        "Requests for probes and metrics, by path and status.",
        lambda a: dict(a.http.requests) if a.http is not None else {},
        "path",
        "status",
    ),
    counter(
        "dynatops_broker_http_closed_total",
        "Connections for these that the broker ended, by reason: `slow`, or `crowded` by others.",
        lambda a: dict(a.http.closed) if a.http is not None else {},
        "reason",
    ),
]

CLIENTS: Figures = [
    _g("broker_sessions", "Sessions, by whether their client is there.", _sessions, "state"),
    _g(
        "broker_sessions_limit",
        "Sessions that there may be (`core.sessions_max`).",
        lambda a: a.settings.core.sessions_max,
    ),
    _g(
        "broker_connections_unnamed",
        "Connections that have not said hello.",
        lambda a: a.core.reception.unnamed,
    ),
    _g(
        "broker_subscriptions",
        "Pairs of a session and a pattern that it subscribes to.",
        lambda a: a.core.cluster.selection.local.subscriptions,
    ),
    _g(
        "broker_subscribed_patterns",
        "Different patterns among them.",
        lambda a: len(a.core.cluster.selection.local.counts),
    ),
    _counted(
        "broker_topics_read",
        "Topics that this broker reads for its sessions.",
        lambda c: c.topics_read,
    ),
    counter(
        "dynatops_broker_frozen_seconds_total",
        "For how long reconfigurations held this broker's clients back.",
        lambda a: a.core.counters.frozen_ms / 1_000,
    ),
    *metrics_of(BrokerCounters),
]

LATENCY: Figures = [
    histogram(
        "dynatops_broker_delivery_seconds",
        "From publication, by the publisher's clock, until a run of events was here for this "
        "broker's clients. Sampled: 20 runs a second at most.",
        lambda a: a.watch.delivery_s,
    ),
    histogram(
        "dynatops_broker_acknowledge_seconds",
        "From a publication's arrival at this broker, a batch of events, to its acknowledgement.",
        lambda a: a.core.publishing.timings.acknowledged_s,
    ),
    histogram(
        "dynatops_broker_queue_wait_seconds",
        "How long the oldest event had waited in a session's queue, each time something was sent.",
        lambda a: a.core.publishing.timings.queued_s,
    ),
]

QUEUES: Figures = [
    _counted("broker_queued_events", "Events in sessions' queues.", lambda c: c.queued_events),
    _counted("broker_queued_bytes", "Their bytes.", lambda c: c.queued_bytes),
    _counted(
        "broker_longest_queue_events",
        "Events in the longest of these.",
        lambda c: c.longest_queue_events,
    ),
    _g(
        "broker_queue_events_limit",
        "Events that one of these may have (`core.session_queue_events_max`).",
        lambda a: a.settings.core.session_queue_events_max,
    ),
    _counted(
        "broker_untaken_bytes",
        "Sent to clients with kept sessions, and not yet taken by their applications.",
        lambda c: c.untaken_bytes,
    ),
    _counted(
        "broker_unsettled_bytes",
        "Of publications that their rendezvous points have not taken yet.",
        lambda c: c.unsettled_bytes,
    ),
    _counted(
        "broker_publishers_paused",
        "Sessions that are not read from: too much is under way, or too fast.",
        lambda c: c.paused,
    ),
    _g(
        "broker_open_publication_streams",
        "Pairs of a publisher and a topic with publications that are not acknowledged.",
        lambda a: a.core.publishing.open_streams,
    ),
    _g("broker_link_streams", "Open streams with brokers.", lambda a: a.links.open_streams),
    _g("broker_link_queued_bytes", "Waiting for brokers.", lambda a: a.links.queued_bytes),
    _g(
        "broker_link_longest_queue_bytes",
        "Waiting for the broker that has most waiting.",
        lambda a: a.links.longest_queue_bytes,
    ),
    _g(
        "broker_link_queue_bytes_limit",
        "What may wait for one (`runtime.link_queue_bytes_max`).",
        lambda a: a.settings.runtime.link_queue_bytes_max,
    ),
    *metrics_of(LinkCounters),
]

NODE: Figures = [
    _g(
        "node_status",
        "1 for what the node is to its ring.",
        lambda a: one_of([s.value for s in Status], a.core.node.ring.status.value),
        "status",
    ),
    _g(
        "node_ready",
        "Whether it has the state of its whole range.",
        lambda a: a.core.node.reigns.ready,
    ),
    _g("node_range_ratio", "Its share of all keys, 0 to 1.", _range_share),
    _g(
        "node_successors",
        "Nodes in its successor list. 0: it is alone.",
        lambda a: len(a.core.node.ring.successors),
    ),
    _g(
        "node_predecessor_known",
        "Whether it has a predecessor.",
        lambda a: a.core.node.ring.predecessor is not None,
    ),
    _g(
        "node_fingers",
        "Different nodes in its routing table.",
        lambda a: len(a.core.node.ring.fingers.routes.targets),
    ),
    _counted("node_topics", "Topics whose rendezvous point it is.", lambda c: c.topics),
    _counted("node_copies", "Topics that it stands by for.", lambda c: c.copies),
    _counted("node_trees", "Topic trees through it.", lambda c: c.trees),
    _counted(
        "node_member_trees",
        "Of these, those that its broker subscribes to.",
        lambda c: c.member_topics,
    ),
    _counted(
        "node_relay_trees",
        "Of these, those that it only passes on: external overhead.",
        lambda c: c.relay_topics,
    ),
    _counted("node_tree_branches", "Branches of all trees that begin here.", lambda c: c.branches),
    _g(
        "node_tree_children",
        "Nodes that these lead to.",
        lambda a: a.core.node.trees.child_nodes,
    ),
    _g(
        "node_unsettled_interests",
        "Topics that its broker has subscribed to (or ceased to) and whose trees do not know yet.",
        lambda a: a.core.node.interests.unsettled,
    ),
    _g("node_retained_bytes", "Of recent events.", lambda a: a.core.node.status().retained_bytes),
    _g(
        "node_retained_bytes_limit",
        "What there may be of these (`overlay.log_total_bytes_max`).",
        lambda a: a.settings.overlay.log_total_bytes_max,
    ),
    _g(
        "node_unsent_topics",
        "Topics whose state the replica has not been sent: should the node die now, they are lost.",
        lambda a: a.core.node.replication.unsent_topics,
    ),
    _g(
        "node_unconfirmed_topics",
        "Topics of which the replica has not confirmed everything.",
        lambda a: a.core.node.replication.unconfirmed_topics,
    ),
    _counted(
        "node_waiting_acknowledgements",
        "Acknowledgements that wait for the replica.",
        lambda c: c.waiting_acknowledgements,
    ),
    _counted(
        "node_held_acknowledgements",
        "Acknowledgements that wait until their topic is in the catalogue.",
        lambda c: c.held_acknowledgements,
    ),
    counter(
        "dynatops_node_tree_delivered_way_seconds_total",
        "Round trips of the links that delivered events had passed, summed, where a manager has "
        "them measured.",
        lambda a: a.core.node.counters.tree_delivered_way_us / 1_000_000,
    ),
    *metrics_of(OverlayCounters),
]

SELECTION: Figures = [
    _g(
        "broker_selection_neighbours",
        "Other brokers of its cluster that it knows.",
        lambda a: len(a.core.cluster.selection.neighbours),
    ),
    counter(
        "dynatops_broker_subscription_changes_total",
        "Patterns that this broker began or ceased to subscribe to.",
        lambda a: a.core.cluster.selection.local.changes,
    ),
    *metrics_of(SelectionCounters),
    _g(
        "broker_advice_fresh",
        "Whether there is advice that is fresh.",
        lambda a: a.core.cluster.selection.is_advised(a.core.now_s),
    ),
    *metrics_of(AdviceCounters),
]

RECONFIGURATION: Figures = [
    _g(
        "broker_frozen",
        "Whether a plan holds this broker's clients back now.",
        lambda a: a.core.reconfiguration.is_frozen,
    ),
    _g("broker_epoch", "Of the placement that it uses.", lambda a: a.core.reconfiguration.epoch),
    _g(
        "broker_fence",
        "The highest fencing number of a manager that it has obeyed.",
        lambda a: a.core.reconfiguration.fence,
    ),
    _g(
        "broker_manager_attended",
        "Whether it has a stream to a manager that leads.",
        lambda a: bool(a.uplink and a.uplink.manager),
    ),
    _g(
        "broker_manager_configured",
        "Whether it is to have one (`--manager`).",
        lambda a: bool(a.settings.manager.addresses),
    ),
    *metrics_of(UplinkCounters),
]

DISK: Figures = [
    _g(
        "broker_saving_failing",
        "Whether sessions cannot be written to disk.",
        lambda a: a.saving_fails,
    ),
    _g(
        "broker_lake_failing",
        "Whether the lake cannot be written to.",
        lambda a: a.lake_writer is not None and a.lake_writer.is_failing,
    ),
    _g(
        "broker_lake_rows_waiting",
        "Rows that wait to be written.",
        lambda a: a.lake_writer.waiting_rows if a.lake_writer is not None else 0,
    ),
    *metrics_of(LakeCounters),
]

# As they are documented.
SECTIONS: tuple[tuple[str, Figures], ...] = (
    ("Traffic, sessions and subscriptions", CLIENTS),
    ("Latency", LATENCY),
    ("Queues, acknowledgements and links", QUEUES),
    ("Ring and trees", NODE),
    ("Broker selection", SELECTION),
    ("Reconfiguration, as the broker sees it", RECONFIGURATION),
    ("Sessions on disk, lake", DISK),
    ("Process", PROCESS),
)
METRICS: Figures = [metric for _, metrics in SECTIONS for metric in metrics]
