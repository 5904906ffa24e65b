"""Many join at once: how soon each has its range, and is where others look for it."""

from __future__ import annotations

from dynatops.v1.overlay_pb2 import NotHere, PeerFrame, PeerMessage, Ping
from overlay.base.membership import Status
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Peer
from tests.support.nodes import NodeNet, publication
from tests.unit.test_node import topic_between

CHAIN = 16


def test_each_has_its_range_as_soon_as_the_one_that_grants_it() -> None:
    """They come one behind the other, and only the first finds a neighbour that is ready."""
    net = NodeNet()
    for i in range(4):
        net.add(f"n{i}", ["n0"] if i else [], node_id=i << 62)
        net.run(0.2)
    net.settle()
    for i in range(CHAIN):
        net.add(f"new{i}", ["n0"], node_id=(1 << 62) - (i + 1) * (1 << 57))
        net.run(0.02)
    # If each were told at its next request only, they would take twice as long.
    net.run(1.0)
    assert all(net.ready(f"new{i}") for i in range(CHAIN))
    assert not any(node.counters.ranges_assumed for node in net.nodes.values())


def test_nobody_is_granted_a_range_whose_topics_are_on_their_way() -> None:
    net = NodeNet()
    net.ring(i << 62 for i in range(4))
    topic = topic_between(1 << 61, 3 << 60)
    net.publish("n3", publication(topic, 1))
    net.run(1.0)
    net.drops = lambda source, destination, frame: any(m.HasField("adopt") for m in frame.messages)
    net.add("new", ["n3"], node_id=3 << 60)
    net.run(1.0)
    assert not net.ready("new")
    net.drops = lambda source, destination, frame: False
    net.run(2 * OverlaySettings().adopt_retry_s)
    assert net.ready("new")
    assert topic in net.nodes["new"].reigns.by_topic


def test_one_that_was_no_member_yet_is_a_finger_once_a_lookup_finds_it() -> None:
    settings = OverlaySettings(condemned_s=1000.0)
    net = NodeNet(settings=settings)
    net.ring(i * 0x9E3779B97F4A7C15 % (1 << 64) for i in range(24))
    me = net.nodes["n0"]
    targets = me.ring.fingers.routes.targets[1:]
    # It says nothing by itself.
    finger = next(p for p in targets if me.me not in _targets(net, p.address))
    refusal = PeerMessage(not_here=NotHere(node_id=finger.node_id))
    frame = PeerFrame(sender=net.nodes["n1"].me.ref, messages=[refusal])
    net.perform("n0", me.handle(frame, net.now_s))
    assert finger not in _targets(net, "n0")
    net.run(2 * settings.finger_period_max_s)
    assert finger in _targets(net, "n0")


def test_one_that_was_asked_before_it_had_joined_is_taken_in_at_once() -> None:
    """Its predecessor to be has been told that it is no member, and takes it for dead."""
    net = NodeNet(settings=OverlaySettings(condemned_s=1000.0))
    net.ring(i * 0x9E3779B97F4A7C15 % (1 << 64) for i in range(24))
    new = net.add("new", ["nobody"], node_id=1 << 63)
    before = max(
        (node for node in net.nodes.values() if node.me.node_id < 1 << 63),
        key=lambda node: node.me.node_id,
    )
    ping = PeerFrame(sender=before.me.ref, messages=[PeerMessage(ping=Ping())])
    net.perform("new", new.handle(ping, net.now_s))
    net.run(1.0)
    assert before.condemned_peers() == [new.me]
    new.ring.seeds = ["n2"]
    while new.ring.status is not Status.MEMBER:
        net.run(0.01)
    # It would ping its predecessor a second later.
    net.run(0.1)
    assert before.ring.successor == new.me


def _targets(net: NodeNet, name: str) -> tuple[Peer, ...]:
    return net.nodes[name].ring.fingers.routes.targets
