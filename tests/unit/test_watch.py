"""What is measured about a broker beside its counters: the census, samples, timings, readiness."""

from __future__ import annotations

import time

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.runtime.observing.census import Census
from broker_agent.runtime.observing.probes import unready
from broker_agent.runtime.observing.watch import Watch, first_event
from dynatops.v1.overlay_pb2 import Event, Events, Publication, Run
from tests.support.brokers import LoneBroker


def publication(topic: str, number: int = 1, count: int = 1, published_us: int = 0) -> Publication:
    events = Events(events=[Event(payload=b"x", published_us=published_us)] * count)
    return Publication(
        topic=topic, publisher=7, first_number=number, count=count,
        events=events.SerializeToString(),
    )  # fmt: skip


class TestCensus:
    def test_it_counts_what_there_is(self) -> None:
        broker = LoneBroker()
        broker.connect("ann", keep_s=60)
        broker.connect("bob")
        broker.subscribe("ann", "a", "b")
        broker.subscribe("bob", "b")
        broker.hear("ann")
        broker.publish("bob", publication("a", count=3), publication("b"))
        census = Census(broker.core)
        census.step(0.0)
        counted = census.last
        assert (counted.node.member_trees, counted.node.relay_trees) == (2, 0)
        assert counted.queued_events == 3 + 1 + 1
        assert counted.longest_queue_events == 4
        assert counted.queued_bytes > 0
        # Where topics begin, which she was told, is a delivery, too.
        told_bytes = counted.untaken_bytes
        broker.hear("ann")
        census.step(10.0)
        assert census.last.queued_events == 1
        assert census.last.untaken_bytes > told_bytes > 0

    def test_a_round_takes_some_steps_and_stands_until_the_next(self) -> None:
        broker = LoneBroker(CoreSettings(filters_per_session_max=10_000))
        broker.connect("ann")
        broker.subscribe("ann", *(f"t/{i}" for i in range(5_000)))
        census = Census(broker.core)
        census.step(0.0)
        assert census.last.node.member_trees == 0
        steps = 1
        while not census.last.node.member_trees:
            census.step(0.05 * steps)
            steps += 1
        assert census.last.node.member_trees == 5_000
        assert 3 <= steps <= 8
        broker.unsubscribe("ann", *(f"t/{i}" for i in range(5_000)))
        census.step(0.5)
        assert census.last.node.member_trees == 5_000

    def test_what_goes_while_it_counts_does_no_harm(self) -> None:
        broker = LoneBroker()
        broker.connect("ann")
        broker.subscribe("ann", *(f"t/{i}" for i in range(5_000)))
        census = Census(broker.core)
        census.step(0.0)
        broker.disconnect("ann")
        for _ in range(10):
            census.step(0.0)
        assert census.last.queued_events == 0


class TestSamples:
    def test_the_age_of_a_run_is_told_once(self) -> None:
        broker = LoneBroker()
        watch = Watch(broker.core, closely=True)
        watch.tick(0.0, 0.0)
        broker.connect("ann")
        broker.subscribe("ann", "a")
        ago_us = time.time_ns() // 1_000 - 2_000_000
        for number in range(1, 5):
            broker.publish("ann", publication("a", number, published_us=ago_us))
        watch.tick(0.01, 0.0)
        assert watch.delivery_s.count == 1
        assert 1.9 < watch.delivery_s.sum < 30.0
        watch.tick(0.0, 0.05)
        assert watch.delivery_s.count == 1
        assert watch.lag_s.count == 3
        assert watch.lag_s.sum == pytest.approx(0.01)

    def test_no_run_is_kept_unless_somebody_wants_it(self) -> None:
        broker = LoneBroker()
        watch = Watch(broker.core, closely=False)
        broker.connect("ann")
        broker.subscribe("ann", "a")
        broker.publish("ann", publication("a", published_us=1))
        watch.tick(0.0, 0.0)
        assert broker.core._context.timings.take_run() is None

    @pytest.mark.parametrize("payload", [b"", b"x", b"x" * 200, b"x" * 70_000])
    def test_the_first_event_of_many(self, payload: bytes) -> None:
        events = Events(events=[Event(payload=payload, published_us=5), Event(payload=b"other")])
        found = first_event(Run(events=events.SerializeToString()))
        assert found == Event(payload=payload, published_us=5)

    @pytest.mark.parametrize(
        "raw",
        [b"", b"\x0a", b"\x10\x01", b"\x0a\x05ab", b"\x0a" + b"\xff" * 20, b"\x0a\x02\xff\xff"],
    )
    def test_what_is_no_event_is_none(self, raw: bytes) -> None:
        assert first_event(Run(events=raw)) is None


class TestTimings:
    def test_a_publication_until_it_is_acknowledged(self) -> None:
        broker = LoneBroker()
        broker.connect("ann")
        broker.publish("ann", publication("a", count=10))
        broker.run(0.5)
        assert broker.core._context.timings.acknowledged_s.count == 1

    def test_events_that_wait_for_their_client(self) -> None:
        broker = LoneBroker()
        broker.connect("ann")
        broker.subscribe("ann", "a")
        broker.hear("ann")
        broker.publish("ann", publication("a"))
        broker.run(3.0)
        waited = broker.core._context.timings.queued_s
        before_s = waited.sum
        broker.hear("ann")
        assert waited.sum - before_s == pytest.approx(3.0, abs=0.1)


class TestReadiness:
    def test_joining_member_leaving(self) -> None:
        broker = LoneBroker(joining=True)
        assert "not joined" in unready(broker.core.status())
        broker.found_a_ring()
        broker.run(0.2)
        assert unready(broker.core.status()) == ""
        broker.core.leave(broker.now_s)
        assert "leaving" in unready(broker.core.status())

    def test_a_member_whose_range_is_still_to_come(self) -> None:
        broker = LoneBroker()
        broker.run(0.2)
        ring_of(broker.core).node.reigns.ready = False
        assert "taking over" in unready(broker.core.status())
