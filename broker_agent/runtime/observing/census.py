"""Counting what is too much to count at once: a broker may have 100,000 topics and more sessions.

A round takes a few thousand things at each step, so that nobody waits for it; its result stands
until the next one is there. Figures made of it are some seconds old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker_agent.core.broker import Broker
from overlay.catalogue import is_system

_AT_ONCE = 2_000
_PERIOD_S = 2.0


@dataclass(slots=True)
class Counted:
    """Of one round. Topics of the system's own are not counted."""

    # Topics whose rendezvous point the node is, those that it stands by for, trees through it, and
    # topics that the broker reads.
    topics: int = 0
    copies: int = 0
    trees: int = 0
    topics_read: int = 0
    # Trees through the node: with its broker subscribed, and with it only passing events on.
    member_topics: int = 0
    relay_topics: int = 0
    # Branches of all trees that begin here.
    branches: int = 0
    # Acknowledgements that wait for the replica, and for the catalogue.
    waiting_acknowledgements: int = 0
    held_acknowledgements: int = 0
    queued_events: int = 0
    queued_bytes: int = 0
    # Of the session that has most.
    longest_queue_events: int = 0
    # Sent, and not taken by the application yet.
    untaken_bytes: int = 0
    # Published, and not taken by rendezvous points yet.
    unsettled_bytes: int = 0
    paused: int = 0


class Census:
    def __init__(self, core: Broker) -> None:
        self.last = Counted()
        self._core = core
        self._round: Iterator[None] | None = None
        self._next_s = 0.0

    def step(self, now_s: float) -> None:
        if self._round is None:
            if now_s < self._next_s:
                return
            self._round = self._count(Counted())
            self._next_s = now_s + _PERIOD_S
        if next(self._round, self) is self:
            self._round = None

    def _count(self, counted: Counted) -> Iterator[None]:
        yield from self._count_trees(counted)
        yield from self._count_reigns(counted)
        yield from self._count_copies(counted)
        yield from self._count_sessions(counted)
        self.last = counted

    def _count_trees(self, counted: Counted) -> Iterator[None]:
        node = self._core.node
        me = node.me.node_id
        for number, tree in enumerate(list(node.trees.topics.values()), 1):
            if not tree.is_system:
                counted.trees += 1
                if me in tree.entrusted:
                    counted.member_topics += 1
                elif tree.entrusted and not tree.is_root:
                    counted.relay_topics += 1
                counted.branches += len(tree.children or ())
            if not number % _AT_ONCE:
                yield

    def _count_reigns(self, counted: Counted) -> Iterator[None]:
        for number, (topic, reign) in enumerate(list(self._core.node.reigns.by_topic.items()), 1):
            counted.topics += not is_system(topic)
            if reign.waiting:
                counted.waiting_acknowledgements += len(reign.waiting)
            if reign.held:
                counted.held_acknowledgements += len(reign.held)
            if not number % _AT_ONCE:
                yield

    def _count_copies(self, counted: Counted) -> Iterator[None]:
        for number, topic in enumerate(list(self._core.node.replication.copies), 1):
            counted.copies += not is_system(topic)
            if not number % _AT_ONCE:
                yield
        for number, topic in enumerate(list(self._core.subscriptions.readers.names()), 1):
            counted.topics_read += not is_system(topic)
            if not number % _AT_ONCE:
                yield

    def _count_sessions(self, counted: Counted) -> Iterator[None]:
        for number, session in enumerate(list(self._core.registry.clients.values()), 1):
            queued = session.queued_events
            counted.queued_events += queued
            counted.queued_bytes += session.queued_bytes
            counted.longest_queue_events = max(counted.longest_queue_events, queued)
            counted.untaken_bytes += session.untaken_bytes
            counted.unsettled_bytes += session.unsettled_bytes
            counted.paused += session.paused
            if not number % _AT_ONCE:
                yield
