"""What all parts of one broker's forwarding share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dynatops.v1.overlay_pb2 import StreamPlace
from overlay.base.peers import Peer
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.forwarding_effects import ForwardingEffect
from overlay.forwarding.links.neighbours import TreeNeighbour
from overlay.forwarding.streams.known_streams import KnownStream, KnownStreams
from overlay.forwarding.streams.stream_log import LogEntry, OwnedStreams, StreamLog
from overlay.forwarding.tables.subscription_tables import SubscriptionTables
from overlay.forwarding.tree.topology import Topology


@dataclass(slots=True)
class TreeContext:
    me: Peer
    settings: ForwardingSettings
    counters: ForwardingCounters
    topology: Topology
    started_s: float
    tables: SubscriptionTables
    streams: KnownStreams = field(init=False)
    # All that came by; and the streams that this broker holds.
    log: StreamLog = field(init=False)
    own: OwnedStreams = field(init=False)
    neighbours: dict[str, TreeNeighbour] = field(default_factory=dict)
    effects: list[ForwardingEffect] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings, counters = self.settings, self.counters
        self.streams = KnownStreams(settings, counters)
        self.log = StreamLog(
            settings.tree_log_entries_max, settings.tree_log_bytes_max, self._dropped
        )
        self.own = OwnedStreams(
            settings.own_log_entries_max, settings.own_log_bytes_max, self._own_dropped
        )

    def _dropped(self, entry: LogEntry) -> None:
        self.counters.tree_log_trimmed += 1
        known = self.streams.get(entry.stream)
        if known is not None:
            known.log_floor = max(known.log_floor, entry.last)
        for target in entry.targets:
            neighbour = self.neighbours.get(target)
            if neighbour is not None:
                neighbour.dropped[entry.stream] = max(
                    neighbour.dropped.get(entry.stream, 0), entry.last
                )

    def _own_dropped(self, entry: LogEntry) -> None:
        self.counters.tree_log_trimmed += 1

    @property
    def my_id(self) -> str:
        return self.me.broker_id

    def direction(self, holder: str) -> str | None:
        """The neighbour that the holder's streams come by; None of this broker, or of one that is
        not in the topology."""
        return self.topology.next_hop(self.my_id, holder)

    def is_orphan(self, holder: str) -> bool:
        return holder not in self.topology

    def is_beyond(self, neighbour: str, holder: str) -> bool:
        """Whether the holder's streams may come by this neighbour."""
        return self.is_orphan(holder) or self.direction(holder) == neighbour

    def streams_for(self, neighbour: str) -> Iterator[KnownStream]:
        """Those that the neighbour gets from here."""
        for known in self.streams:
            if self.is_orphan(known.holder) or self.direction(known.holder) != neighbour:
                yield known

    def places_from(self, neighbour: str) -> dict[int, int]:
        """Where the streams are that come by it."""
        return {
            known.stream: known.number
            for known in self.streams
            if self.direction(known.holder) == neighbour
        }

    def places_beyond(self, neighbour: str) -> Iterator[StreamPlace]:
        """This broker's positions in the streams that it gets from there."""
        for known in self.streams:
            if self.is_beyond(neighbour, known.holder):
                yield StreamPlace(stream=known.stream, number=known.number, holder=known.holder)
