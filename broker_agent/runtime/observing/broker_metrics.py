"""Every figure of a broker: what it is called, what it means, where it is read.

Reading all of them takes a millisecond, however many topics and sessions there are: they are read
from one status of the core, and what would have to be counted is taken from the census. Names that
begin with `dynatops_node_` are of the node, the position of the ring that is hosted here; a
reconfiguration may change it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.selection.selection_counters import SelectionCounters
from broker_agent.core.status.broker_status import BrokerStatus
from broker_agent.runtime.manager.uplink import UplinkCounters
from broker_agent.runtime.observing.counter_sets import metrics_of
from broker_agent.runtime.observing.readings import BrokerReadings
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
from dynatops.version import VERSION, build_kind
from overlay.base.counters import OverlayCounters
from overlay.base.membership import Status
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.stores.past_counters import PastCounters

Figures = list[Metric[BrokerReadings]]


def _g(
    name: str, text: str, read: Callable[[BrokerReadings], Reading], *labels: str
) -> Metric[BrokerReadings]:
    return gauge(f"dynatops_{name}", text, read, *labels)


def _counted(name: str, text: str, read: Callable[[BrokerCounts], float]) -> Metric[BrokerReadings]:
    return _g(name, text, lambda r: read(r.counts))


def _sessions(readings: BrokerReadings) -> Reading:
    status = readings.status
    absent = status.absent_sessions
    return {"connected": status.sessions - absent, "absent": absent}


PROCESS: Figures = [
    _g(
        "broker_info",
        "1, with the broker's id, its version, and which build of it runs.",
        lambda r: {(r.agent.broker_id, VERSION, build_kind()): 1.0},
        "broker",
        "version",
        "build",
    ),
    _g(
        "broker_uptime_seconds",
        "Since the broker was started.",
        lambda r: asyncio.get_running_loop().time() - r.agent.started_s,
    ),
    *process_metrics("dynatops_broker_"),
    histogram(
        "dynatops_broker_loop_lag_seconds",
        "How much later than wished the event loop's tick came, 20 times a second. Late: everything"
        " else at this broker is as late.",
        lambda r: r.agent.watch.lag_s,
    ),
    counter(
        "dynatops_broker_http_requests_total",
        "Requests for probes and metrics, by path and status.",
        lambda r: dict(r.agent.http.requests) if r.agent.http is not None else {},
        "path",
        "status",
    ),
    counter(
        "dynatops_broker_http_closed_total",
        "Connections for these that the broker ended, by reason: `slow`, or `crowded` by others.",
        lambda r: dict(r.agent.http.closed) if r.agent.http is not None else {},
        "reason",
    ),
]

CLIENTS: Figures = [
    _g("broker_sessions", "Sessions, by whether their client is there.", _sessions, "state"),
    _g(
        "broker_sessions_limit",
        "Sessions that there may be (`core.sessions_max`).",
        lambda r: r.agent.settings.core.sessions_max,
    ),
    _g(
        "broker_connections_unnamed",
        "Connections that have not said hello.",
        lambda r: r.status.unnamed_connections,
    ),
    _g(
        "broker_subscriptions",
        "Pairs of a session and a pattern that it subscribes to.",
        lambda r: r.status.subscriptions,
    ),
    _g(
        "broker_subscribed_patterns",
        "Different patterns among them.",
        lambda r: r.status.subscribed_patterns,
    ),
    _counted(
        "broker_topics_read",
        "Topics that this broker reads for its sessions.",
        lambda c: c.topics_read,
    ),
    counter(
        "dynatops_broker_frozen_seconds_total",
        "For how long reconfigurations held this broker's clients back.",
        lambda r: r.status.counters.frozen_ms / 1_000,
    ),
    *metrics_of(BrokerCounters),
]

LATENCY: Figures = [
    histogram(
        "dynatops_broker_delivery_seconds",
        "From publication, by the publisher's clock, until a run of events was here for this "
        "broker's clients. Sampled: 20 runs a second at most.",
        lambda r: r.agent.watch.delivery_s,
    ),
    histogram(
        "dynatops_broker_acknowledge_seconds",
        "From a publication's arrival at this broker, a batch of events, to its acknowledgement.",
        lambda r: r.status.acknowledged_s,
    ),
    histogram(
        "dynatops_broker_queue_wait_seconds",
        "How long the oldest event had waited in a session's queue, each time something was sent.",
        lambda r: r.status.queued_s,
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
        lambda r: r.agent.settings.core.session_queue_events_max,
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
        lambda r: r.status.open_publication_streams,
    ),
    _g("broker_link_streams", "Open streams with brokers.", lambda r: r.agent.links.open_streams),
    _g("broker_link_queued_bytes", "Waiting for brokers.", lambda r: r.agent.links.queued_bytes),
    _g(
        "broker_link_longest_queue_bytes",
        "Waiting for the broker that has most waiting.",
        lambda r: r.agent.links.longest_queue_bytes,
    ),
    _g(
        "broker_link_queue_bytes_limit",
        "What may wait for one (`runtime.link_queue_bytes_max`).",
        lambda r: r.agent.settings.runtime.link_queue_bytes_max,
    ),
    *metrics_of(LinkCounters),
]

NODE: Figures = [
    _g(
        "node_status",
        "1 for what the node is to its ring.",
        lambda r: one_of([s.value for s in Status], r.status.hosted.ring.value),
        "status",
    ),
    _g(
        "node_ready",
        "Whether it has the state of its whole range.",
        lambda r: r.status.hosted.is_ready,
    ),
    _g("node_range_ratio", "Its share of all keys, 0 to 1.", lambda r: r.status.hosted.range_share),
    _g(
        "node_successors",
        "Nodes in its successor list. 0: it is alone.",
        lambda r: len(r.status.hosted.successors),
    ),
    _g(
        "node_predecessor_known",
        "Whether it has a predecessor.",
        lambda r: r.status.hosted.predecessor is not None,
    ),
    _g(
        "node_fingers",
        "Different nodes in its routing table.",
        lambda r: len(r.status.hosted.fingers),
    ),
    _counted("node_topics", "Topics whose rendezvous point it is.", lambda c: c.node.topics),
    _counted("node_copies", "Topics that it stands by for.", lambda c: c.node.copies),
    _counted("node_trees", "Topic trees through it.", lambda c: c.node.trees),
    _counted(
        "node_member_trees",
        "Of these, those that its broker subscribes to.",
        lambda c: c.node.member_trees,
    ),
    _counted(
        "node_relay_trees",
        "Of these, those that it only passes on: external overhead.",
        lambda c: c.node.relay_trees,
    ),
    _counted(
        "node_tree_branches", "Branches of all trees that begin here.", lambda c: c.node.branches
    ),
    _g(
        "node_tree_children",
        "Nodes that these lead to.",
        lambda r: r.status.hosted.tree_children,
    ),
    _g(
        "node_unsettled_interests",
        "Topics that its broker has subscribed to (or ceased to) and whose trees do not know yet.",
        lambda r: r.status.hosted.unsettled_interests,
    ),
    _g("node_retained_bytes", "Of recent events.", lambda r: r.status.hosted.retained_bytes),
    _g(
        "node_retained_bytes_limit",
        "What there may be of these (`overlay.log_total_bytes_max`).",
        lambda r: r.agent.settings.overlay.log_total_bytes_max,
    ),
    _g(
        "node_unsent_topics",
        "Topics whose state the replica has not been sent: should the node die now, they are lost.",
        lambda r: r.status.hosted.unsent_topics,
    ),
    _g(
        "node_unconfirmed_topics",
        "Topics of which the replica has not confirmed everything.",
        lambda r: r.status.hosted.unconfirmed_topics,
    ),
    _counted(
        "node_waiting_acknowledgements",
        "Acknowledgements that wait for the replica.",
        lambda c: c.node.waiting_acknowledgements,
    ),
    _counted(
        "node_held_acknowledgements",
        "Acknowledgements that wait until their topic is in the catalogue.",
        lambda c: c.node.held_acknowledgements,
    ),
    counter(
        "dynatops_node_tree_delivered_way_seconds_total",
        "Round trips of the links that delivered events had passed, summed, where a manager has "
        "them measured.",
        lambda r: r.status.hosted.counters.tree_delivered_way_us / 1_000_000,
    ),
    *metrics_of(OverlayCounters),
]

SELECTION: Figures = [
    _g(
        "broker_selection_neighbours",
        "Other brokers of its cluster that it knows.",
        lambda r: r.status.neighbours,
    ),
    counter(
        "dynatops_broker_subscription_changes_total",
        "Patterns that this broker began or ceased to subscribe to.",
        lambda r: r.status.subscription_changes,
    ),
    *metrics_of(SelectionCounters),
    _g(
        "broker_advice_fresh",
        "Whether there is advice that is fresh.",
        lambda r: r.status.is_advised,
    ),
    *metrics_of(AdviceCounters),
]

RECONFIGURATION: Figures = [
    _g(
        "broker_frozen",
        "Whether a plan holds this broker's clients back now.",
        lambda r: r.status.is_frozen,
    ),
    _g("broker_epoch", "Of the placement that it uses.", lambda r: r.status.epoch),
    _g(
        "broker_fence",
        "The highest fencing number of a manager that it has obeyed.",
        lambda r: r.status.fence,
    ),
    _g(
        "broker_manager_attended",
        "Whether it has a stream to a manager that leads.",
        lambda r: bool(r.agent.uplink and r.agent.uplink.manager),
    ),
    _g(
        "broker_manager_configured",
        "Whether it is to have one (`--manager`).",
        lambda r: bool(r.agent.settings.manager.addresses),
    ),
    *metrics_of(UplinkCounters),
]

DISK: Figures = [
    _g(
        "broker_saving_failing",
        "Whether sessions cannot be written to disk.",
        lambda r: r.agent.saving_fails,
    ),
    _g(
        "broker_lake_failing",
        "Whether the lake cannot be written to.",
        lambda r: r.agent.lake_writer is not None and r.agent.lake_writer.is_failing,
    ),
    _g(
        "broker_lake_rows_waiting",
        "Rows that wait to be written.",
        lambda r: r.agent.lake_writer.waiting_rows if r.agent.lake_writer is not None else 0,
    ),
    *metrics_of(LakeCounters),
]

# Of brokers that forward events in a tree.
TREE: Figures = [
    _g(
        "forwarding_topology_version",
        "Of the topology in use: the same at all brokers, but for a moment while it changes.",
        lambda r: r.status.in_tree.topology_version,
    ),
    _g(
        "forwarding_ready",
        "Whether it knows what it published before it was restarted, and takes publications.",
        lambda r: r.status.in_tree.is_ready,
    ),
    _g("forwarding_links", "Links that the topology gives it.", lambda r: r.status.in_tree.links),
    _g("forwarding_links_up", "Of these, those that are up.", lambda r: r.status.in_tree.links_up),
    _g(
        "forwarding_filters",
        "Different filters of its neighbours and its clients.",
        lambda r: r.status.in_tree.tables.filters,
    ),
    _g(
        "forwarding_filters_covered",
        "Of these, those that some neighbour is not told because a wider one covers them.",
        lambda r: r.status.in_tree.tables.covered,
    ),
    _g(
        "forwarding_filters_told",
        "Filters that its neighbours have been told, all together.",
        lambda r: sum(r.status.in_tree.tables.told.values()),
    ),
    _g(
        "forwarding_advertisements",
        "Different advertisements of its neighbours and its publishers.",
        lambda r: r.status.in_tree.tables.advertisements,
    ),
    *metrics_of(ForwardingCounters),
]

PAST: Figures = [
    _g(
        "past_units",
        "Topics and patterns of topics that this broker knows stores of.",
        lambda r: r.status.known_units,
    ),
    _g(
        "past_asks_open",
        "Requests for the past that are open here, of clients of this broker and its store.",
        lambda r: r.status.past_asks,
    ),
    _g(
        "past_serves_open",
        "Requests for the past that the store here has open.",
        lambda r: r.status.past_serves,
    ),
    *metrics_of(PastCounters),
]

# As they are documented.
SECTIONS: tuple[tuple[str, Figures], ...] = (
    ("Traffic, sessions and subscriptions", CLIENTS),
    ("Latency", LATENCY),
    ("Queues, acknowledgements and links", QUEUES),
    ("Ring and trees", NODE),
    ("Forwarding in a tree of brokers", TREE),
    ("Finding the past", PAST),
    ("Broker selection", SELECTION),
    ("Reconfiguration, as the broker sees it", RECONFIGURATION),
    ("Sessions on disk, lake", DISK),
    ("Process", PROCESS),
)
METRICS: Figures = [metric for _, metrics in SECTIONS for metric in metrics]
_OF_A_RING = frozenset(metric.name for metric in NODE)
_OF_A_TREE = frozenset(metric.name for metric in TREE)


def metrics_for(status: BrokerStatus) -> Figures:
    """A broker hosts a node of a ring, or forwards events in a tree: it has the metrics of one."""
    left_out = _OF_A_TREE if status.node is not None else _OF_A_RING
    return [metric for metric in METRICS if metric.name not in left_out]
