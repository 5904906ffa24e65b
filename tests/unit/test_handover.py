"""A node changes hands: what its next host makes of its state, and what others notice."""

from __future__ import annotations

from random import Random

import pytest

from dynatops.v1.overlay_pb2 import PeerFrame, PeerMessage, Ping
from overlay.base.effects import Send, Superseded
from overlay.base.identifiers import NodeId
from overlay.base.peers import Peer
from overlay.handover import parts_of, put_together, restore
from overlay.node import Node
from tests.support.nodes import NodeNet, publication

TOPIC = "quake/ca"  # at 0.878 of the circle: n0's on a ring of 4
OTHER = "quake/ny"


@pytest.fixture
def net() -> NodeNet:
    net = NodeNet()
    net.ring(i << 62 for i in range(4))
    for name in ("n1", "n2"):
        net.want(name, TOPIC)
    net.run(1.0)
    net.publish("n3", publication(TOPIC, 1), publication(OTHER, 1))
    net.run(1.0)
    return net


def restored_at(net: NodeNet, name: str, former: Node, hosts: list[Peer]) -> Node:
    """The former host's node, at this one."""
    me = next(peer for peer in hosts if peer.address == name)
    state = put_together(parts_of(former))
    node = restore(
        state,
        me,
        [*state.known, *(p.ref for p in hosts)],
        net.settings,
        Random(1),
        former.counters,
        net.now_s,
    )
    for topic, term in net.nodes[name].interests.terms().items():
        node.interests.want(topic, net.now_s, term)
    return node


def swap(net: NodeNet, one: str, other: str) -> None:
    """Each gets the other's node, as a reconfiguration does it."""
    nodes = {name: net.nodes[name] for name in (one, other)}
    for node in nodes.values():
        node.seal()
    net.run(0.2)
    hosts = [
        Peer(nodes[b].me.node_id, a, a, epoch=1, incarnation=9)
        for a, b in ((one, other), (other, one))
    ]
    moved = {
        one: restored_at(net, one, nodes[other], hosts),
        other: restored_at(net, other, nodes[one], hosts),
    }
    for name, node in net.nodes.items():
        if name not in moved:
            net.perform(name, node.learn_hosts([p.ref for p in hosts], net.now_s))
    for name, node in moved.items():
        net.replace(name, node)


class TestSwap:
    def test_the_ring_is_as_it_was_with_other_hosts(self, net: NodeNet) -> None:
        swap(net, "n0", "n2")
        net.run(1.0)
        assert net.is_settled()
        assert net.nodes["n0"].me.node_id == 2 << 62
        assert all(node.counters.peers_condemned == 0 for node in net.nodes.values())

    def test_events_go_to_those_who_subscribe_and_the_term_goes_on(self, net: NodeNet) -> None:
        term = net.nodes["n0"].reigns.by_topic[TOPIC].log.term
        swap(net, "n0", "n2")
        net.run(1.0)
        net.publish("n3", publication(TOPIC, 2))
        net.run(1.0)
        assert net.rendezvous_point(TOPIC) == "n2"
        assert net.nodes["n2"].reigns.by_topic[TOPIC].log.position == (term, 2)
        assert net.delivered("n1", TOPIC) == [1, 2]
        assert net.delivered("n2", TOPIC) == [1, 2]
        assert net.delivered("n0", TOPIC) == []
        assert net.acknowledged("n3", TOPIC) == 2

    def test_a_topic_without_members_is_still_known_where_it_was(self, net: NodeNet) -> None:
        root = net.rendezvous_point(OTHER)
        swap(net, root, "n1" if root != "n1" else "n2")
        host = net.rendezvous_point(OTHER)
        assert net.nodes[host].trees.topics[OTHER].is_root
        net.nodes[host].reigns.end(OTHER)
        assert OTHER not in net.nodes[host].trees.topics

    def test_repeats_are_still_known(self, net: NodeNet) -> None:
        swap(net, "n0", "n2")
        net.publish("n3", publication(TOPIC, 1))
        net.run(1.0)
        assert net.nodes["n2"].reigns.by_topic[TOPIC].log.seq == 1

    def test_copies_go_along_so_that_a_crash_loses_nothing(self, net: NodeNet) -> None:
        # n0's node is the rendezvous point; its successor, n1's node, keeps the copy.
        swap(net, "n1", "n3")
        net.run(0.3)
        net.crash("n0")
        net.run(8.0)
        assert net.rendezvous_point(TOPIC) == "n3"
        assert net.nodes["n3"].reigns.by_topic[TOPIC].log.ends()
        assert len(net.nodes["n3"].reigns.by_topic[TOPIC].log.entries) == 1

    def test_nothing_is_sent_again_to_a_successor_that_only_moved(self, net: NodeNet) -> None:
        sent: list[str] = []
        net.on_frame = lambda source, destination, frame: sent.extend(
            "states" for m in frame.messages if m.HasField("replicate") and m.replicate.states
        )
        swap(net, "n1", "n3")
        net.run(2.0)
        assert sent == []

    def test_trees_agree_at_once(self, net: NodeNet) -> None:
        swap(net, "n0", "n3")
        net.run(3.0)
        assert sum(node.counters.tree_resyncs for node in net.nodes.values()) == 0


class TestSealed:
    def test_it_answers_who_asks_whether_it_lives_and_heeds_nothing_else(
        self, net: NodeNet
    ) -> None:
        net.nodes["n0"].seal()
        net.publish("n3", publication(TOPIC, 2))
        net.run(6.0)
        assert net.nodes["n0"].reigns.by_topic[TOPIC].log.seq == 1
        assert net.nodes["n0"].counters.messages_sealed > 0
        assert all(node.counters.peers_condemned == 0 for node in net.nodes.values())

    def test_unsealed_it_goes_on(self, net: NodeNet) -> None:
        node = net.nodes["n0"]
        term = node.reigns.by_topic[TOPIC].log.term
        node.seal()
        net.perform("n0", node.unseal(net.now_s, certain=True))
        net.publish("n3", publication(TOPIC, 2))
        net.run(1.0)
        assert node.reigns.by_topic[TOPIC].log.position == (term, 2)

    def test_not_certain_that_it_is_alone_it_uses_terms_that_nobody_else_does(
        self, net: NodeNet
    ) -> None:
        node = net.nodes["n0"]
        node.seal()
        before = node.reigns.by_topic[TOPIC].log.term
        next_host = restored_at(
            net, "n2", node, [Peer(node.me.node_id, "n2", "n2", epoch=1, incarnation=9)]
        )
        net.perform("n0", node.unseal(net.now_s, certain=False))
        mine = node.reigns.by_topic[TOPIC].log.term
        next_host.reigns.renew_all(net.now_s)
        theirs = next_host.reigns.by_topic[TOPIC].log.term
        assert mine > before
        assert theirs > before
        assert mine != theirs


class TestState:
    def test_parts_are_bounded_and_add_up(self, net: NodeNet) -> None:
        node = net.nodes["n0"]
        whole = put_together(parts_of(node))
        parts = parts_of(node, part_bytes=100)
        assert len(parts) > 3
        assert put_together(parts) == whole

    def test_a_node_restored_has_the_state_it_was_restored_from(self, net: NodeNet) -> None:
        former = net.nodes["n0"]
        me = Peer(former.me.node_id, "n2", "n2", epoch=1, incarnation=9)
        before = put_together(parts_of(former))
        after = put_together(parts_of(restored_at(net, "n2", former, [me])))
        for field in ("predecessor", "successors", "fingers", "trees", "copies", "handing"):
            assert getattr(after, field) == getattr(before, field)
        assert [r.state.SerializeToString() for r in after.reigns] == [
            r.state.SerializeToString() for r in before.reigns
        ]


class TestTwoHosts:
    def frame(self, sender: Peer) -> PeerFrame:
        return PeerFrame(sender=sender.ref, messages=[PeerMessage(ping=Ping(nonce=1))])

    def test_who_speaks_for_a_node_hosted_elsewhere_is_told_so(self, net: NodeNet) -> None:
        node = net.nodes["n1"]
        new = Peer(NodeId(0), "n2", "n2", epoch=1, incarnation=9)
        node.learn_hosts([new.ref], net.now_s)
        old = net.nodes["n0"].me
        (effect,) = node.handle(self.frame(old), net.now_s)
        assert isinstance(effect, Send)
        assert effect.to == old
        assert effect.frame.messages[0].hosted.node == new.ref
        assert net.nodes["n0"].handle(effect.frame, net.now_s) == [Superseded(new)]

    def test_who_meets_a_newer_host_of_its_own_node_has_been_superseded(self, net: NodeNet) -> None:
        new = Peer(NodeId(0), "n2", "n2", epoch=1, incarnation=9)
        assert net.nodes["n0"].handle(self.frame(new), net.now_s) == [Superseded(new)]

    def test_an_older_host_of_its_own_node_is_told(self, net: NodeNet) -> None:
        old = Peer(NodeId(0), "n2", "n2", epoch=0, incarnation=0)
        (effect,) = net.nodes["n0"].handle(self.frame(old), net.now_s)
        assert isinstance(effect, Send)
        assert effect.frame.messages[0].hosted.node == net.nodes["n0"].me.ref

    def test_who_would_join_where_another_is_does_not(self, net: NodeNet) -> None:
        net.add("n9", ["n0"], 1 << 62)
        net.run(0.5)
        superseded = [e for _, who, e in net.effects if who == "n9" and isinstance(e, Superseded)]
        assert superseded
        assert superseded[0].by == net.nodes["n1"].me
