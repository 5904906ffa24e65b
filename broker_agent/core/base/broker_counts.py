"""What is too much to count at once: a broker may have 100,000 topics and more sessions.

`Broker.count_in_steps` walks a part of them at a time, in the modules that keep them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from overlay.base.node_counts import NodeCounts


@dataclass(slots=True)
class BrokerCounts:
    # Zeros, if routing has no nodes.
    node: NodeCounts = field(default_factory=NodeCounts)
    # Topics that the broker reads for its sessions; those of the system's own are not counted.
    topics_read: int = 0
    queued_events: int = 0
    queued_bytes: int = 0
    # Of the session that has most.
    longest_queue_events: int = 0
    # Sent, and not taken by the application yet.
    untaken_bytes: int = 0
    # Published, and not taken by rendezvous points yet.
    unsettled_bytes: int = 0
    # Sessions that are not read from.
    paused: int = 0
