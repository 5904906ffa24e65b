"""What other nodes and clients can make a node remember has a bound each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynatops.v1.overlay_pb2 import (
    Acknowledged,
    NotHere,
    PeerFrame,
    PeerMessage,
    Replicate,
    Run,
    TreeChange,
    TreeUpdate,
)
from overlay.base.identifiers import TermOwner
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Peer
from overlay.base.retention import LogBudget
from overlay.history.topic_log import TopicLog
from overlay.node import Node
from tests.support.nodes import NodeNet, publication

MAX = 20
SETTINGS = replace(
    OverlaySettings(),
    topics_held_max=MAX,
    tallied_topics_max=MAX,
    peers_known_max=MAX,
    acknowledgements_waiting_max=MAX,
)


@pytest.fixture
def net() -> NodeNet:
    net = NodeNet(settings=SETTINGS)
    net.ring(i << 62 for i in range(4))
    return net


def say(net: NodeNet, **body: object) -> Node:
    """n3 says it to n0."""
    node = net.nodes["n0"]
    frame = PeerFrame(sender=net.nodes["n3"].me.ref, to=node.me.node_id)
    frame.messages.append(PeerMessage(**body))  # type: ignore[arg-type]
    net.perform("n0", node.handle(frame, net.now_s))
    return node


def test_topics_that_clients_publish_on() -> None:
    net = NodeNet(settings=SETTINGS)
    net.ring([0])
    node = net.nodes["n0"]
    for i in range(3 * MAX):
        net.publish("n0", publication(f"topic/{i}", 1))
    assert len(node.reigns.by_topic) == MAX
    assert node.counters.topics_refused >= 2 * MAX
    assert net.acknowledged("n0", f"topic/{3 * MAX - 1}") == 0


def test_topics_that_a_predecessor_has_copied(net: NodeNet) -> None:
    for i in range(3 * MAX):
        run = Run(topic=f"t/{i}", term=1 << 24, first_seq=1, count=1, publisher=1, first_number=1)
        node = say(net, replicate=Replicate(runs=[run]))
    assert len(node.replication.copies) == MAX
    assert node.counters.topics_refused >= 2 * MAX


def test_topics_whose_trees_lead_through(net: NodeNet) -> None:
    member = net.nodes["n1"].me.node_id
    for i in range(3 * MAX):
        node = say(net, tree_update=TreeUpdate(changes=[TreeChange(topic=f"t/{i}", add=[member])]))
    assert len(node.trees.topics) == MAX


def test_histories_that_nobody_takes_over(net: NodeNet) -> None:
    for i in range(3 * MAX):
        log = TopicLog("quake/nv", SETTINGS, LogBudget(1 << 20))
        log.open_next_term(TermOwner(i))
        log.stamp(publication("quake/nv", 1, publisher=i + 1), 0.0)
        node = say(net, replicate=Replicate(states=[log.to_state([])]))
    assert 1 < node.succession.handing <= MAX
    assert node.counters.histories_dropped > 0


def test_nodes_that_are_said_not_to_be_there(net: NodeNet) -> None:
    node = net.nodes["n0"]
    for i in range(3 * MAX):
        say(net, not_here=NotHere(node_id=1_000 + i))
    assert node.counters.sentences_dropped == 2 * MAX


def test_acknowledgements_that_wait_for_a_replica_which_says_nothing(net: NodeNet) -> None:
    net.want("n2", "quake/ca")
    net.publish("n1", publication("quake/ca", 1))
    net.run(1.0)
    net.drops = lambda source, destination, frame: any(
        message.HasField("replica_ack") for message in frame.messages
    )
    for number in range(2, 3 * MAX):
        net.publish("n1", publication("quake/ca", number))
    net.run(0.1)
    reign = net.nodes["n0"].reigns.by_topic["quake/ca"]
    assert len(reign.waiting or ()) == MAX
    newest = (reign.waiting or [])[-1]
    assert isinstance(newest[2], Acknowledged)
    assert newest[2].number == 3 * MAX - 1


def test_counts_that_nobody_takes_and_heartbeats_planned_anew() -> None:
    net = NodeNet(settings=replace(SETTINGS, topic_idle_s=1.0))
    net.ring([0])
    node = net.nodes["n0"]
    node.reigns.keeps_tally = True
    for i in range(3 * MAX):
        net.publish("n0", publication(f"topic/{i}", 1))
        net.run(0.5)
        for reign in list(node.reigns.by_topic.values()):
            node.reigns.renew(reign, net.now_s)
    assert node.counters.tallies_dropped > 0
    assert len(node.reigns.take_tally()) == MAX
    assert len(node.reigns._beats) <= 250 + 4 * MAX + 1


def test_a_directory_of_peers(net: NodeNet) -> None:
    node = net.nodes["n0"]
    for i in range(3 * MAX):
        stranger = Peer(net.nodes["n1"].me.node_id + i + 1, f"b{i}", f"b{i}")  # type: ignore[arg-type]
        net.perform("n0", node.handle(PeerFrame(sender=stranger.ref), net.now_s))
    assert len(node.directory) == MAX
