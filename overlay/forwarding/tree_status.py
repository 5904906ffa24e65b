"""What a broker in a tree says of its place there, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.forwarding.tables.subscription_tables import TablesStatus


@dataclass(frozen=True, slots=True)
class TreeStatus:
    topology_version: int
    # Whether it knows what its former lives published.
    is_ready: bool
    # To neighbours, and those of them that are up.
    links: int
    links_up: int
    tables: TablesStatus
    # These go on counting.
    counters: ForwardingCounters
