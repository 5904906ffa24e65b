"""A publisher that is faster than all who read it waits for them, and for nobody else."""

from __future__ import annotations

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.kit.bundles import events_with
from dynatops.v1.overlay_pb2 import Publication
from overlay.base.identifiers import NodeId
from overlay.base.peers import Peer
from tests.support.brokers import LoneBroker

QUEUE_MAX = 100
OTHER = Peer(NodeId(7), "b7", "b7")
SETTINGS = CoreSettings(session_queue_events_max=QUEUE_MAX, reader_patience_s=1.0)


class Flood:
    """A publisher on one topic, and sessions that read it."""

    def __init__(self, *readers: str) -> None:
        self.broker = LoneBroker(SETTINGS)
        self.broker.connect("publisher")
        for reader in readers:
            self.broker.connect(reader)
            self.broker.subscribe(reader, "t")
        self.broker.run(0.3)
        for reader in readers:
            self.broker.hear_all(reader)
        self._number = 0

    def publish(self, events: int) -> None:
        for _ in range(events):
            self._number += 1
            alone = events_with(b"x", 1)
            event = Publication(topic="t", first_number=self._number, count=1, events=alone)
            self.broker.publish("publisher", event)

    def read(self, reader: str) -> int:
        return sum(run.count for run in self.broker.runs(reader))

    @property
    def waits(self) -> bool:
        return self.broker.is_paused("publisher")

    @property
    def dropped(self) -> int:
        return self.broker.core.counters.dropped_events


def test_it_waits_until_they_have_little_left() -> None:
    flood = Flood("reader")
    flood.publish(QUEUE_MAX // 2)
    assert not flood.waits
    flood.publish(1)
    assert flood.waits
    flood.broker.run(0.2)
    assert flood.waits
    assert flood.read("reader") == QUEUE_MAX // 2 + 1
    flood.broker.run(0.1)
    assert not flood.waits
    assert flood.dropped == 0


def test_a_flood_that_waits_loses_nothing() -> None:
    flood = Flood("reader", "other")
    heard = {"reader": 0, "other": 0}
    for _ in range(20):
        while not flood.waits:
            flood.publish(7)
        for reader in heard:
            heard[reader] += flood.read(reader)
        flood.broker.run(0.1)
    assert flood.dropped == 0
    assert heard == {"reader": flood._number, "other": flood._number}


def test_who_keeps_up_is_not_held_up() -> None:
    flood = Flood("slow", "quick")
    for _ in range(3 * QUEUE_MAX):
        flood.publish(1)
        assert flood.read("quick") == 1
        assert not flood.waits
    assert flood.dropped == 2 * QUEUE_MAX


def test_who_is_elsewhere_is_not_held_up() -> None:
    flood = Flood("reader")
    # Another broker hears of the topic, too.
    ring_of(flood.broker.core).node.trees.topics["t"].children = (OTHER,)
    flood.publish(2 * QUEUE_MAX)
    assert not flood.waits
    assert flood.dropped == QUEUE_MAX


def test_who_reads_nothing_is_waited_for_once() -> None:
    flood = Flood("stuck")
    flood.publish(QUEUE_MAX // 2 + 1)
    assert flood.waits
    flood.broker.run(1.1)
    assert not flood.waits
    flood.publish(QUEUE_MAX)
    assert not flood.waits
    assert flood.dropped == QUEUE_MAX // 2 + 1
    # It reads again: it is one like all others.
    flood.read("stuck")
    flood.publish(QUEUE_MAX // 2 + 1)
    assert flood.waits


def test_nobody_waits_for_who_is_gone() -> None:
    flood = Flood("reader")
    flood.publish(QUEUE_MAX // 2 + 1)
    assert flood.waits
    flood.broker.disconnect("reader")
    flood.broker.run(0.1)
    assert not flood.waits


def test_it_does_not_wait_for_itself() -> None:
    flood = Flood("reader")
    flood.broker.subscribe("publisher", "t")
    flood.broker.disconnect("reader")
    flood.broker.run(0.3)
    flood.publish(QUEUE_MAX)
    assert not flood.waits
