"""What a broker says of itself: to metrics, probes, its log and tests.

A value, made by `Broker.status` without walking topics or sessions: what takes longer is counted in
steps (`Broker.count_in_steps`), or asked for by name (`Broker.list_sessions`, `describe_tree`, …).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.base.identity import Identity
from broker_agent.core.selection.selection_counters import SelectionCounters
from dynatops.kit.observing.metrics import Histogram
from overlay.forwarding.tree_status import TreeStatus
from overlay.status.node_status import NodeStatus
from overlay.stores.past_counters import PastCounters


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    identity: Identity
    # The node that is hosted here now; None: routing has no nodes.
    node: NodeStatus | None
    # Why routing would have no client sent here; empty if one may.
    unready: str
    # It is on its way out, and lets nobody in any more.
    is_leaving: bool
    # Sessions; those of them that nobody is connected to; connections that have not said hello.
    sessions: int
    absent_sessions: int
    unnamed_connections: int
    # Pairs of a session and a pattern that it subscribes to; different patterns among them; and how
    # many the broker began or ceased to subscribe to.
    subscriptions: int
    subscribed_patterns: int
    subscription_changes: int
    # Pairs of a publisher and a topic with publications that are not acknowledged.
    open_publication_streams: int
    # A plan holds clients back now.
    is_frozen: bool
    # Of the placement that it uses, and of the newest manager that it has obeyed.
    epoch: int
    fence: int
    # Other brokers of its cluster that it knows.
    neighbours: int
    # There is advice that is fresh.
    is_advised: bool
    # These go on counting.
    counters: BrokerCounters
    # Of a broker in a tree.
    tree: TreeStatus | None
    selection_counters: SelectionCounters
    # Topics and patterns that stores are known for; requests for the past made for clients here,
    # and those that the store here has open.
    known_units: int
    past_asks: int
    past_serves: int
    past_counters: PastCounters
    # From a publication's arrival to its acknowledgement; of the oldest event in what a client is
    # sent, since it was queued.
    acknowledged_s: Histogram
    queued_s: Histogram

    @property
    def in_tree(self) -> TreeStatus:
        """Of a broker in a tree."""
        assert self.tree is not None
        return self.tree

    @property
    def hosted(self) -> NodeStatus:
        """The node, of a broker on a ring."""
        assert self.node is not None
        return self.node
