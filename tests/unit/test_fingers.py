"""Fingers are made sure of by pongs, which come anyway, and looked up only where those say no."""

from __future__ import annotations

import pytest

from dynatops.v1.overlay_pb2 import PeerFrame
from overlay.base.overlay_settings import OverlaySettings
from tests.support.nodes import NodeNet

SIZE = 24
REST_S = 10.0


@pytest.fixture
def net() -> NodeNet:
    net = NodeNet()
    net.ring(i * 0x9E3779B97F4A7C15 % (1 << 64) for i in range(SIZE))
    # Rounds are as seldom as they get.
    net.run(REST_S)
    return net


class Lookups:
    """Lookups of fingers that come by; not of nodes that ask where they belong themselves."""

    def __init__(self, net: NodeNet) -> None:
        self.keys: list[int] = []
        net.on_frame = self._on_frame

    def _on_frame(self, source: str, destination: str, frame: PeerFrame) -> None:
        for message in frame.messages:
            lookup = message.lookup
            if message.HasField("lookup") and lookup.key != lookup.origin.node_id:
                self.keys.append(lookup.key)


def test_at_rest_none_is_looked_up(net: NodeNet) -> None:
    lookups = Lookups(net)
    net.run(REST_S)
    assert not lookups.keys


def test_a_node_that_comes_between_is_a_finger_within_a_round(net: NodeNet) -> None:
    newcomer = net.add("new", ["n3"], node_id=1 << 63)
    net.run(0.5)
    net.settle(OverlaySettings().finger_period_max_s)
    assert any(newcomer.me in net.nodes[f"n{i}"].ring.fingers.routes.targets for i in range(SIZE))


def test_only_fingers_that_may_have_changed_are_looked_up(net: NodeNet) -> None:
    lookups = Lookups(net)
    newcomer = net.add("new", ["n3"], node_id=1 << 63).me.node_id
    net.settle()
    net.run(REST_S)
    others = [net.nodes[f"n{i}"].ring for i in range(SIZE)]
    keys = {(node.me.node_id + (1 << k)) % (1 << 64) for node in others for k in range(64)}
    asked = keys & set(lookups.keys)
    successor = min(n.me.node_id for n in others if n.me.node_id > newcomer)
    predecessor = max(n.me.node_id for n in others if n.me.node_id < newcomer)
    assert asked
    assert all(predecessor < key <= successor for key in asked)


def test_one_that_never_says_where_its_range_begins_is_looked_up(net: NodeNet) -> None:
    """As brokers of before do."""

    def forget_low(source: str, destination: str, frame: PeerFrame) -> None:
        for message in frame.messages:
            if message.HasField("pong"):
                message.pong.ClearField("low")

    net.on_frame = forget_low
    net.add("new", ["n3"], node_id=1 << 63)
    net.run(0.5)
    net.settle(3 * OverlaySettings().finger_period_max_s)


def test_a_node_whose_predecessor_is_lost_says_nothing(net: NodeNet) -> None:
    ring = net.nodes["n0"].ring
    assert ring.predecessor is not None
    assert ring.told_low == ring.predecessor.node_id
    ring.lost(ring.predecessor.node_id, net.now_s)
    assert ring.told_low is None
