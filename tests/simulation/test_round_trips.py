"""Delays in round trips, from brokers that measure them to what a plan is said to have gained."""

from __future__ import annotations

import pytest

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from overlay.chord.round_trips import FLOOR_MS
from tests.support.steps import StepNet

BROKERS = 6


def begun() -> StepNet:
    """Everybody measures, and knows everybody."""
    net = StepNet(BROKERS)
    for broker in net.world.living():
        broker.core.reporting.begin(net.scheduler.now_s)
    net.run(40.0)
    return net


def known(net: StepNet, name: str) -> dict[str, float]:
    trips = net.broker(name).core.reporting.report(net.scheduler.now_s, full=True).round_trips
    return {trip.broker_id: trip.ms for trip in trips}


def counted(net: StepNet, counter: str) -> int:
    return sum(getattr(ring_of(b.core).node.counters, counter) for b in net.world.living())


def test_what_was_measured_goes_with_the_broker_to_its_next_node() -> None:
    net = begun()
    before = {name: known(net, name) for name in net.names}
    assert all(len(trips) == BROKERS - 1 for trips in before.values())
    net.carry_out(net.cycle("b0", "b2", "b3"))
    for name in net.names:
        assert known(net, name).keys() == before[name].keys()


def test_a_report_says_what_was_measured_since_the_last() -> None:
    net = begun()
    core = net.broker("b1").core
    assert len(known(net, "b1")) == BROKERS - 1
    assert not core.reporting.report(net.scheduler.now_s, full=False).round_trips
    net.run(3.0)
    news = core.reporting.report(net.scheduler.now_s, full=False).round_trips
    assert 0 < len(news) < BROKERS


def test_events_add_up_the_round_trips_of_the_links_that_they_pass() -> None:
    net = begun()
    trips = [ms for name in net.names for ms in known(net, name).values()]
    for name in net.names:
        net.client(f"reader at {name}", name).subscribe([("quake/ca", "")])
    writer = net.client("writer", "b0")
    net.run(2.0)
    for _ in range(20):
        writer.publish("quake/ca")
        net.run(0.2)
    hops, way_us = counted(net, "tree_delivered_hops"), counted(net, "tree_delivered_way_us")
    assert hops >= 20 * (BROKERS - 1)
    mean_ms = way_us / 1_000 / hops
    assert min(trips) <= mean_ms <= max(trips)
    assert mean_ms == pytest.approx(sum(trips) / len(trips), rel=0.5)
    assert mean_ms > FLOOR_MS


def test_without_a_manager_nothing_is_measured() -> None:
    net = StepNet(3)
    net.client("reader", "b1").subscribe([("quake/ca", "")])
    writer = net.client("writer", "b2")
    net.run(2.0)
    writer.publish("quake/ca")
    net.run(2.0)
    assert counted(net, "tree_delivered_hops") > 0
    assert counted(net, "tree_delivered_way_us") == 0
