"""The live protocol ends up with exactly what the static geometry says: routes, trees, hops."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.base.identifiers import NodeId, key_of
from overlay.placement.geometry import RingGeometry
from tests.support.nodes import NodeNet, publication

SIZE = 1 << 64
rings = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=14, unique=True)


def check_trees(net: NodeNet, wanted: dict[str, list[str]]) -> None:
    """Every node's part of every tree is what the union of the routes says."""
    geometry = RingGeometry(node.me.node_id for node in net.nodes.values())
    by_index = {geometry.index_of(node.me.node_id): node for node in net.nodes.values()}
    for topic, names in wanted.items():
        members = [geometry.index_of(net.nodes[name].me.node_id) for name in names]
        root = geometry.successor_of(key_of(topic))
        shape = geometry.tree(root, members)
        present = {
            i
            for i, node in by_index.items()
            if topic in node.trees.topics and node.trees.topics[topic].entrusted
        }
        assert present == (shape.nodes if members else set())
        for i in present:
            tree = by_index[i].trees.topics[topic]
            children = {c.node_id for c in tree.delegates.values() if c is not None}
            assert children == {by_index[k].me.node_id for k in shape.children(i)}


@settings(max_examples=60)
@given(rings, st.data())
def test_trees_agree_after_subscribing_and_unsubscribing(
    ids: list[int], data: st.DataObject
) -> None:
    net = NodeNet(seed=len(ids))
    net.ring(ids)
    names = sorted(net.nodes)
    topics = ["quake/ca", "quake/nv", "fire"]
    wanted = {topic: sorted(data.draw(st.sets(st.sampled_from(names)))) for topic in topics}
    for topic, subscribers in wanted.items():
        for name in subscribers:
            net.want(name, topic)
    net.run(3.0)
    check_trees(net, wanted)
    for topic in topics:
        gone = sorted(data.draw(st.sets(st.sampled_from(names))))
        for name in gone:
            net.unwant(name, topic)
        wanted[topic] = [name for name in wanted[topic] if name not in gone]
    net.run(3.0)
    check_trees(net, wanted)


@settings(max_examples=40)
@given(rings, st.data())
def test_events_take_as_many_hops_as_the_geometry_says(ids: list[int], data: st.DataObject) -> None:
    net = NodeNet(seed=1)
    net.ring(ids)
    names = sorted(net.nodes)
    subscribers = sorted(data.draw(st.sets(st.sampled_from(names), min_size=1)))
    for name in subscribers:
        net.want(name, "quake/ca")
    net.run(3.0)
    geometry = RingGeometry(node.me.node_id for node in net.nodes.values())
    root = geometry.successor_of(key_of("quake/ca"))
    members = [geometry.index_of(net.nodes[name].me.node_id) for name in subscribers]
    shape = geometry.tree(root, members)
    before = sum(node.counters.tree_events for node in net.nodes.values())
    relayed = sum(node.counters.relayed_events for node in net.nodes.values())
    net.publish(names[0], publication("quake/ca", 1))
    net.run(1.0)
    for name in subscribers:
        assert net.delivered(name, "quake/ca") == [1]
    after = sum(node.counters.tree_events for node in net.nodes.values())
    assert after - before == len(shape.parents)
    assert sum(n.counters.relayed_events for n in net.nodes.values()) - relayed == len(shape.relays)


@settings(max_examples=25)
@given(rings, st.integers(0, 1 << 32))
def test_rings_and_trees_settle_after_joins_leaves_and_crashes(ids: list[int], seed: int) -> None:
    rng = Random(seed)
    net = NodeNet(seed)
    net.ring(ids[: len(ids) // 2 + 1])
    wanted = {"quake/ca": sorted(net.nodes)[::2], "fire": sorted(net.nodes)[:1]}
    for topic, names in wanted.items():
        for name in names:
            net.want(name, topic)
    for i, node_id in enumerate(ids[len(ids) // 2 + 1 :]):
        net.add(f"late{i}", [rng.choice(sorted(net.nodes))], node_id)
    net.settle()
    for depart in (net.crash, net.leave):
        if len(net.nodes) > 1:
            victim = rng.choice(sorted(net.nodes))
            depart(victim)
            net.run(12.0)
    net.settle()
    net.run(6.0)
    remaining = {t: [name for name in names if name in net.nodes] for t, names in wanted.items()}
    check_trees(net, remaining)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_rings_serve(size: int) -> None:
    net = NodeNet()
    net.ring(NodeId(i << 61) for i in range(size))
    for name in sorted(net.nodes):
        net.want(name, "quake/ca")
    net.run(2.0)
    net.publish("n0", publication("quake/ca", 1))
    net.run(1.0)
    for name in sorted(net.nodes):
        assert net.delivered(name, "quake/ca") == [1]
    assert net.acknowledged("n0", "quake/ca") == 1


def test_figure_2_on_the_live_protocol() -> None:
    """8 evenly spaced nodes: an event crosses exactly 3 hops to clockwise distance 7."""
    net = NodeNet()
    net.ring(i << 61 for i in range(8))
    topic = next(f"t{i}" for i in range(1_000) if key_of(f"t{i}") >> 61 == 7)
    assert topic  # its rendezvous point is n0, the successor of keys beyond n7
    net.want("n7", topic)
    net.run(2.0)
    hops: list[tuple[str, str]] = []
    net.on_frame = lambda source, destination, frame: hops.extend(
        (source, destination)
        for message in frame.messages
        if message.HasField("runs") and any(run.count for run in message.runs.runs)
    )
    net.publish("n0", publication(topic, 1))
    net.run(0.2)
    assert net.rendezvous_point(topic) == "n0"
    assert hops == [("n0", "n4"), ("n4", "n6"), ("n6", "n7")]


def test_many_join_at_once() -> None:
    net = NodeNet(seed=3)
    net.add("b0")
    net.run(0.5)
    for i in range(1, 64):
        net.add(f"b{i}", ["b0"])
    net.settle(timeout_s=15.0)
