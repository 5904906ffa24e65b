"""Sessions of brokers in a tree that cannot know whether they have everything: they are told."""

from __future__ import annotations

import pytest

from tests.support.routings import ROUTINGS
from tests.support.wired_brokers import WiredBrokers

NAMES = ("b0", "b1", "b2")


@pytest.fixture
def net() -> WiredBrokers:
    return WiredBrokers(ROUTINGS["forwarding"], NAMES)


def test_a_loss_that_nobody_can_make_up_for_is_told_once(net: WiredBrokers) -> None:
    """Whoever goes on elsewhere afterwards names streams that nobody knows any more."""
    reader = net.connect("ann", "b0")
    net.subscribe("ann", "quake/ca")
    net.connect("pub", "b2")
    net.publish("pub", "quake/ca", b"1")
    net.run(2.0)
    for name in NAMES:
        net.crash(name)
    for name in NAMES:
        net.restart(name)
    net.run_until_ready()
    net.connect("ann", "b1")
    net.subscribe("ann", "quake/ca", resume=True)
    net.run(2.0)
    assert "missed" in reader.kinds()
    net.disconnect("ann")
    reader.said.clear()
    net.connect("ann", "b2")
    net.subscribe("ann", "quake/ca", resume=True)
    net.run(2.0)
    assert "missed" not in reader.kinds()


def test_a_process_that_does_not_know_where_its_session_stood_is_told(net: WiredBrokers) -> None:
    reader = net.connect("ann", "b0")
    net.subscribe("ann", "quake/ca", resume=True)
    assert "missed" in reader.kinds()
