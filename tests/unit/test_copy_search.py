"""Copies that the dead had not passed on yet are looked for where they still are."""

from __future__ import annotations

from dynatops.v1.overlay_pb2 import PeerFrame
from overlay.base.identifiers import key_of, within
from tests.support.nodes import NodeNet, publication

TOPICS = [
    name for name in (f"topic/{i}" for i in range(200)) if within(key_of(name), 4 << 60, 8 << 60)
][:5]


def kinds(frame: PeerFrame) -> set[str]:
    return {message.WhichOneof("body") or "" for message in frame.messages}


def settled_ring() -> NodeNet:
    """Nodes at 0, 4, 8 and 12 sixteenths; n2, at 8, is the rendezvous point of all topics."""
    net = NodeNet()
    net.ring(i << 62 for i in range(4))
    for topic in TOPICS:
        net.want("n0", topic)
        net.publish("n1", publication(topic, 1, count=3))
    net.run(2.0)
    assert {net.rendezvous_point(topic) for topic in TOPICS} == {"n2"}
    assert {net.acknowledged("n1", topic) for topic in TOPICS} == {3}
    return net


def nothing_is_copied_to(net: NodeNet, *names: str) -> None:
    net.drops = lambda source, to, frame: to in names and "replicate" in kinds(frame)


def assert_everything_is_there(net: NodeNet, name: str) -> None:
    assert all(node.counters.copy_searches_abandoned == 0 for node in net.nodes.values())
    for topic in TOPICS:
        log = net.nodes[name].reigns.by_topic[topic].log
        assert (log.events, log.uncertain) == (3, frozenset())
    # What follows is simply the next.
    net.drops = lambda *_: False
    for topic in TOPICS:
        net.publish("n1", publication(topic, 4, settled=3))
    net.run(2.0)
    for topic in TOPICS:
        assert net.delivered("n0", topic)[-1] == 4
        assert net.acknowledged("n1", topic) == 4
    assert not any(repaired.answer.unknown_loss for repaired in net.repairs("n0"))


def test_a_newcomer_asks_who_had_the_copies_before_it() -> None:
    net = settled_ring()
    nothing_is_copied_to(net, "new")
    net.add("new", ["n0"], 10 << 60)
    net.run(1.5)
    assert not net.nodes["new"].replication.copies
    net.crash("n2")
    net.run(8.0)
    assert_everything_is_there(net, "new")


def test_behind_several_newcomers_too() -> None:
    net = settled_ring()
    nothing_is_copied_to(net, "new", "newer")
    net.add("new", ["n0"], 10 << 60)
    net.run(1.0)
    net.add("newer", ["n0"], 9 << 60)
    net.run(1.0)
    net.crash("n2")
    net.run(8.0)
    assert_everything_is_there(net, "newer")


def test_what_is_published_meanwhile_waits() -> None:
    net = settled_ring()
    net.drops = lambda source, to, frame: (
        (to == "new" and "replicate" in kinds(frame)) or "ask_copies" in kinds(frame)
    )
    net.add("new", ["n0"], 10 << 60)
    net.run(1.5)
    net.crash("n2")
    net.run(3.5)
    assert net.nodes["new"].ring.is_responsible(key_of(TOPICS[0]))
    net.publish("n1", publication(TOPICS[0], 4, settled=3))
    net.run(0.5)
    assert TOPICS[0] not in net.nodes["new"].reigns.by_topic
    net.drops = lambda *_: False
    net.run(2.0)
    assert_everything_is_there(net, "new")


def test_it_does_not_wait_for_ever() -> None:
    net = settled_ring()
    net.drops = lambda source, to, frame: (
        (to == "new" and "replicate" in kinds(frame)) or "ask_copies" in kinds(frame)
    )
    net.add("new", ["n0"], 10 << 60)
    net.run(1.5)
    net.crash("n2")
    net.run(3.5 + net.settings.copy_search_patience_s)
    net.publish("n1", publication(TOPICS[0], 4, settled=3))
    net.run(0.5)
    assert TOPICS[0] in net.nodes["new"].reigns.by_topic
    assert net.nodes["new"].counters.copy_searches_abandoned == 1


def test_a_restart_is_given_them_as_well() -> None:
    """Its successor, a newcomer, has none to give back; the node behind that has."""
    net = settled_ring()
    nothing_is_copied_to(net, "new")
    net.add("new", ["n0"], 10 << 60)
    net.run(1.5)
    position = net.nodes["n2"].me.node_id
    net.crash("n2")
    net.add("n2", ["n0"], position)
    net.run(8.0)
    assert_everything_is_there(net, "n2")


def test_one_given_the_topics_of_the_dead_is_not_served_by_them() -> None:
    """n2 is given its topics, and is killed before it may serve; one has come between meanwhile."""
    net = settled_ring()
    position = net.nodes["n2"].me.node_id
    net.leave("n2")
    net.run(3.0)
    net.drops = lambda source, to, frame: to == "n2" and "range_granted" in kinds(frame)
    net.add("n2", ["n0"], position)
    net.run(1.0)
    net.drops = lambda source, to, frame: (
        to == "new" and bool(kinds(frame) & {"replicate", "adopt"})
    )
    assert not net.nodes["n2"].reigns.ready
    net.add("new", ["n0"], 10 << 60)
    net.run(0.5)
    net.crash("n2")
    net.run(1.0)
    net.drops = lambda *_: False
    net.run(8.0)
    assert_everything_is_there(net, "new")


def test_nobody_asks_where_everything_was_copied() -> None:
    net = settled_ring()
    asked: list[str] = []
    net.on_frame = lambda source, to, frame: (
        asked.append(source) if "ask_copies" in kinds(frame) else None
    )
    net.add("new", ["n0"], 10 << 60)
    net.run(1.0)
    net.crash("n2")
    net.run(8.0)
    assert_everything_is_there(net, "new")
    assert not asked


def test_what_may_be_outdated_is_given_back_as_such() -> None:
    """An old copy is all that is left, as when the node that had the newer one died as well."""
    net = settled_ring()
    position = net.nodes["n2"].me.node_id
    for copy in net.nodes["n3"].replication.copies.values():
        copy.is_outdated = True
    net.crash("n2")
    net.add("n2", ["n0"], position)
    net.run(8.0)
    for topic in TOPICS:
        assert net.nodes["n2"].reigns.by_topic[topic].log.uncertain


def test_what_one_that_was_never_ready_had_been_handed_is_handed_over_again() -> None:
    """All start at once: the first one alone has acknowledged, and hands its topics to a newcomer.
    Before that is ready it dies, and so many have come between that nobody asks the first."""
    net = NodeNet()
    net.add("first", [], 0)
    net.run(0.5)
    for topic in TOPICS:
        net.publish("first", publication(topic, 1, count=3))
    net.run(0.5)
    assert {net.acknowledged("first", topic) for topic in TOPICS} == {3}
    net.drops = lambda source, to, frame: "range_granted" in kinds(frame)
    net.add("second", ["first"], 8 << 60)
    net.run(1.0)
    assert set(TOPICS) <= net.nodes["second"].replication.copies.keys()
    for i in range(6):
        net.add(f"other{i}", ["first"], (9 + i) << 60)
        net.run(0.4)
    assert not net.nodes["second"].reigns.ready
    net.crash("second")
    net.drops = lambda *_: False
    net.run(12.0)
    for topic in TOPICS:
        assert net.rendezvous_point(topic) == "other0"
        assert net.nodes["other0"].reigns.by_topic[topic].log.events == 3
