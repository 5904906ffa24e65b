"""What a node does when something goes wrong, one thing at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random

import pytest

from dynatops.v1.overlay_pb2 import JoinTree, PeerFrame, PeerMessage, Ping, Replicate, TopicState
from overlay.base.effects import Send
from overlay.base.identifiers import (
    NUMBER_MAX,
    TERM_CLAIM_MAX,
    NodeId,
    first_node_id,
    key_of,
    within,
)
from overlay.base.membership import Status
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Peer
from overlay.base.retention import LogBudget
from overlay.history.topic_log import TopicLog
from overlay.node import Node
from tests.support.nodes import NodeNet, publication

TOPIC = "quake/ca"  # at 0.878 of the circle: n0's on a ring of 4


@pytest.fixture
def net() -> NodeNet:
    net = NodeNet()
    net.ring(i << 62 for i in range(4))
    return net


def has(frame: PeerFrame, kind: str) -> bool:
    return any(message.HasField(kind) for message in frame.messages)  # type: ignore[arg-type]


def drop_next(net: NodeNet, kind: str, times: int = 1) -> None:
    """Lose the next frames that carry such a message."""
    left = [times]

    def drops(source: str, destination: str, frame: PeerFrame) -> bool:
        if left[0] and has(frame, kind):
            left[0] -= 1
            return True
        return False

    net.drops = drops


def topic_between(low: int, high: int) -> str:
    names = (f"topic/{i}" for i in count())
    return next(name for name in names if within(key_of(name), low, high))


def topic_at(node_id: int) -> str:
    """One that a node there is responsible for, on a ring of 16."""
    return topic_between(node_id - (1 << 60), node_id)


class TestLostMessages:
    def test_a_lost_subscription_is_sent_again(self, net: NodeNet) -> None:
        drop_next(net, "join_tree")
        net.want("n2", TOPIC)
        net.run(0.3)
        assert not net.entered("n2", TOPIC)
        net.run(1.0)
        assert net.entered("n2", TOPIC)

    def test_a_lost_unsubscription_is_sent_again(self, net: NodeNet) -> None:
        net.want("n2", TOPIC)
        net.run(1.0)
        drop_next(net, "leave_tree")
        net.unwant("n2", TOPIC)
        net.run(2.0)
        assert TOPIC not in net.nodes["n2"].trees.topics

    def test_ends_of_an_edge_that_disagree_are_aligned(self, net: NodeNet) -> None:
        net.want("n2", TOPIC)
        net.run(1.0)
        drop_next(net, "tree_update")
        net.unwant("n2", TOPIC)
        net.run(0.1)
        net.want("n1", "some other topic")
        net.run(6.0)
        assert TOPIC not in net.nodes["n2"].trees.topics

    def test_a_lost_tree_update_is_made_good_by_the_digest(self, net: NodeNet) -> None:
        net.want("n2", "first")
        net.run(1.0)
        drop_next(net, "tree_update", times=100)
        net.want("n2", TOPIC)
        net.run(0.2)
        net.drops = lambda *_: False
        net.run(3.0)
        assert net.entered("n2", TOPIC)

    def test_the_last_event_lost_is_noticed(self, net: NodeNet) -> None:
        net.want("n2", TOPIC)
        net.run(1.0)
        drop_next(net, "runs")
        net.publish("n1", publication(TOPIC, 1))
        net.run(0.2)
        assert net.delivered("n2", TOPIC) == []
        heartbeats = len(net.effects)
        net.run(1.0)
        assert len(net.effects) > heartbeats

    def test_a_heartbeat_planned_for_much_later_gives_way_to_a_new_event(
        self, net: NodeNet
    ) -> None:
        net.want("n2", TOPIC)
        net.run(200.0)
        drop_next(net, "runs")
        net.publish("n1", publication(TOPIC, 1))
        before = len(net.effects)
        net.run(1.0)
        assert len(net.effects) > before

    def test_a_lost_copy_is_sent_again_before_anything_is_acknowledged(self, net: NodeNet) -> None:
        net.want("n2", TOPIC)
        net.run(1.0)
        drop_next(net, "replicate")
        net.publish("n1", publication(TOPIC, 1))
        net.run(0.3)
        assert net.acknowledged("n1", TOPIC) == 0
        net.run(1.0)
        assert net.acknowledged("n1", TOPIC) == 1

    def test_a_replica_with_a_gap_asks_for_what_it_lacks(self, net: NodeNet) -> None:
        net.want("n2", TOPIC)
        net.run(1.0)
        drop_next(net, "replicate")
        net.publish("n1", publication(TOPIC, 1))
        net.publish("n1", publication(TOPIC, 2))
        net.run(0.2)
        assert net.acknowledged("n1", TOPIC) == 2
        assert net.nodes["n1"].replication.copies[TOPIC].log.events == 2


class TestLostPeers:
    def test_a_member_that_is_gone_is_removed_at_the_rendezvous_point(self, net: NodeNet) -> None:
        net.want("n2", TOPIC)
        net.run(1.0)
        net.crash("n2")
        net.run(10.0)
        assert net.nodes["n0"].trees.members(TOPIC) == []

    def test_connections_refused_make_it_quick(self, net: NodeNet) -> None:
        net.crash("n1")
        for name, node in net.nodes.items():
            net.perform(name, node.unreachable("n1", net.now_s))
        net.settle(timeout_s=2.5)

    def test_frames_from_a_former_life_are_ignored(self, net: NodeNet) -> None:
        former = net.nodes["n2"].me
        net.crash("n2")
        net.add("n2", ["n0"], former.node_id)
        net.run(3.0)
        old = PeerFrame(sender=former.ref, to=net.nodes["n0"].me.node_id)
        old.messages.add(join_tree=JoinTree(topic=TOPIC, member=former.node_id))
        net.nodes["n0"].handle(old, net.now_s)
        assert net.nodes["n0"].counters.frames_stale == 1
        assert net.nodes["n0"].trees.members(TOPIC) == []

    def test_a_quick_restart_gets_its_topics_back(self, net: NodeNet) -> None:
        net.want("n2", TOPIC)
        net.publish("n1", publication(TOPIC, 1))
        net.run(1.0)
        position = net.nodes["n0"].me.node_id
        net.crash("n0")
        net.add("n0", ["n1"], position)
        net.settle()
        net.run(5.0)
        assert net.rendezvous_point(TOPIC) == "n0"
        assert net.nodes["n0"].reigns.by_topic[TOPIC].log.events == 1
        net.publish("n1", publication(TOPIC, 2, settled=1))
        net.run(1.0)
        assert net.delivered("n2", TOPIC)[-1] == 2

    def test_a_node_that_is_not_a_member_says_so(self) -> None:
        node = Node(Peer(NodeId(5), "a", "a"), OverlaySettings(), Random(1))
        node.start(["elsewhere"], 0.0)
        asker = Peer(NodeId(9), "b", "b")
        frame = PeerFrame(sender=asker.ref, to=5, messages=[PeerMessage(ping=Ping(nonce=1))])
        sends = [e for e in node.handle(frame, 1.0) if isinstance(e, Send)]
        assert [m.not_here.node_id for send in sends for m in send.frame.messages] == [5]
        assert node.ring.status is Status.JOINING

    def test_two_rings_become_one(self) -> None:
        net = NodeNet()
        names = [f"b{i}" for i in range(6)]
        one, other = names[:3], names[3:]
        for group in (one, other):
            net.add(group[0])
            net.run(0.3)
            for name in group[1:]:
                net.add(name, [group[0]])
        net.run(5.0)
        assert not net.is_settled()
        # One word from the other ring is enough.
        stranger = net.nodes["b3"].me
        frame = PeerFrame(sender=stranger.ref, to=first_node_id("b0"))
        net.perform("b0", net.nodes["b0"].handle(frame, net.now_s))
        net.settle(timeout_s=20.0)


class TestLeaving:
    """n0 leaves, which is the rendezvous point; n1 is to be it then, and n2 if n1 dies."""

    @pytest.fixture
    def net(self, net: NodeNet) -> NodeNet:
        net.publish("n3", publication(TOPIC, 1))
        net.run(1.0)
        assert net.acknowledged("n3", TOPIC) == 1
        return net

    @pytest.mark.parametrize("noticed", [True, False])
    def test_it_departs_once_two_others_have_its_topics(self, net: NodeNet, noticed: bool) -> None:
        net.drops = lambda source, _, frame: source == "n1" and has(frame, "replicate")
        net.leave("n0")
        net.run(1.0)
        assert "n0" in net.nodes
        net.crash("n1")
        for name, node in list(net.nodes.items()):
            if noticed:
                net.perform(name, node.unreachable("n1", net.now_s))
        net.run(10.0)
        assert "n0" not in net.nodes
        assert net.nodes["n2"].reigns.by_topic[TOPIC].log.events == 1

    def test_it_leaves_its_topics_to_the_only_one_that_is_left(self, net: NodeNet) -> None:
        net.leave("n2")
        net.leave("n3")
        net.settle()
        net.leave("n0")
        net.run(1.0)
        assert list(net.nodes) == ["n1"]
        assert net.nodes["n1"].reigns.by_topic[TOPIC].log.events == 1


class TestLeavingWithCopies:
    """n1 leaves, which has the copies of n0's topics; n2 is to have them."""

    @pytest.fixture
    def net(self, net: NodeNet) -> NodeNet:
        net.publish("n3", publication(TOPIC, 1))
        net.run(1.0)
        net.drops = lambda source, _, frame: source == "n0" and has(frame, "replicate")
        net.leave("n1")
        net.run(1.0)
        assert "n1" in net.nodes
        return net

    @pytest.mark.parametrize("noticed", [True, False])
    def test_it_gives_them_away_if_their_owner_dies(self, net: NodeNet, noticed: bool) -> None:
        net.crash("n0")
        for name, node in list(net.nodes.items()):
            if noticed:
                net.perform(name, node.unreachable("n0", net.now_s))
        net.run(10.0)
        assert "n1" not in net.nodes
        assert net.nodes["n2"].reigns.by_topic[TOPIC].log.events == 1

    def test_it_departs_when_they_are_where_they_belong(self, net: NodeNet) -> None:
        net.drops = lambda *_: False
        net.run(1.0)
        assert "n1" not in net.nodes
        assert TOPIC in net.nodes["n2"].replication.copies

    def test_its_patience_has_an_end(self, net: NodeNet) -> None:
        net.run(net.settings.leave_patience_s)
        assert "n1" not in net.nodes


class TestOldCopies:
    """n0 was the rendezvous point, and n1 had the copy, until "between" came: n0 has it now."""

    @pytest.fixture
    def net(self, net: NodeNet) -> NodeNet:
        net.publish("n3", publication(TOPIC, 1))
        net.run(1.0)
        net.add("between", ["n0"], 15 << 60)
        net.settle()
        net.publish("n3", publication(TOPIC, 2, settled=1))
        net.run(1.0)
        assert net.rendezvous_point(TOPIC) == "between"
        assert net.acknowledged("n3", TOPIC) == 2
        return net

    def crash(self, net: NodeNet, *names: str) -> None:
        for victim in names:
            net.crash(victim)
        for name, node in list(net.nodes.items()):
            for victim in names:
                net.perform(name, node.unreachable(victim, net.now_s))
        net.settle()

    def test_what_they_may_lack_is_said_when_there_are_no_others(self, net: NodeNet) -> None:
        first, *_ = list(net.nodes["n1"].replication.copies[TOPIC].log.entries)
        self.crash(net, "between", "n0")
        answer = net.nodes["n1"].reigns.by_topic[TOPIC].log.since({first.term: 1})
        assert answer.unknown_loss

    def test_those_that_were_kept_up_to_date_again_lack_nothing(self, net: NodeNet) -> None:
        net.leave("between")
        net.settle()
        net.run(1.0)
        first, second = list(net.nodes["n1"].replication.copies[TOPIC].log.entries)
        self.crash(net, "n0")
        log = net.nodes["n1"].reigns.by_topic[TOPIC].log
        answer = log.since({first.term: 1, second.term: 1})
        assert not answer.unknown_loss
        assert not answer.lost

    def test_they_are_forgotten(self, net: NodeNet) -> None:
        net.run(net.settings.replica_keep_s + 10.0)
        assert TOPIC not in net.nodes["n1"].replication.copies
        assert TOPIC in net.nodes["n0"].replication.copies


class TestBounds:
    def test_a_message_that_goes_round_and_round_is_dropped(self, net: NodeNet) -> None:
        node = net.nodes["n1"]
        frame = PeerFrame(sender=net.nodes["n2"].me.ref, to=node.me.node_id)
        frame.messages.add(join_tree=JoinTree(topic=TOPIC, member=1, hops=node.settings.hops_max))
        assert node.handle(frame, net.now_s) == []
        assert node.counters.hops_exceeded == 1

    @pytest.mark.parametrize("back", [1, 5, 14])
    def test_a_history_finds_its_node_however_far_back_on_the_ring_that_is(self, back: int) -> None:
        """Nodes that join together may be given what belongs to the other side of a large ring."""
        settings = replace(OverlaySettings(), successors_max=2, hops_max=8)
        net = NodeNet(settings=settings)
        net.ring(i << 60 for i in range(16))
        holder, owner = net.nodes["n15"], f"n{15 - back}"
        topic = topic_at(net.nodes[owner].me.node_id)
        history = TopicLog(topic, settings, LogBudget(1 << 20))
        history.open_next_term(holder.me.term_owner)
        history.stamp(publication(topic, 1), net.now_s)
        holder.succession.unknown_history(history.to_state([]), net.now_s)
        net.run(2.0)
        assert holder.succession.handing == 0
        assert net.rendezvous_point(topic) == owner
        assert net.nodes[owner].reigns.by_topic[topic].log.events == 1
        assert all(node.counters.hops_exceeded == 0 for node in net.nodes.values())

    @pytest.mark.parametrize("known_term", [TERM_CLAIM_MAX, TERM_CLAIM_MAX + 1, NUMBER_MAX])
    def test_a_term_that_cannot_be_outdone_is_not_believed(
        self, net: NodeNet, known_term: int
    ) -> None:
        """Else all that the rendezvous point says would be ignored, by everybody, for ever."""
        net.want("n1", TOPIC)
        net.run(1.0)
        join = JoinTree(topic=TOPIC, member=net.nodes["n2"].me.node_id, known_term=known_term)
        frame = PeerFrame(sender=net.nodes["n3"].me.ref, to=net.nodes["n0"].me.node_id)
        frame.messages.add(join_tree=join)
        net.perform("n0", net.nodes["n0"].handle(frame, net.now_s))
        net.run(1.0)
        net.publish("n3", publication(TOPIC, 1))
        net.run(1.0)
        assert net.delivered("n1", TOPIC) == [1]
        assert net.acknowledged("n3", TOPIC) == 1

    def test_a_message_of_an_unknown_kind_is_counted(self, net: NodeNet) -> None:
        node = net.nodes["n1"]
        frame = PeerFrame(sender=net.nodes["n2"].me.ref, to=node.me.node_id)
        frame.messages.add()
        assert node.handle(frame, net.now_s) == []
        assert node.counters.messages_unknown == 1

    def test_an_idle_topic_is_forgotten_everywhere(self) -> None:
        net = NodeNet(settings=replace(OverlaySettings(), topic_idle_s=30.0))
        net.ring(i << 62 for i in range(4))
        net.want("n2", TOPIC)
        net.publish("n1", publication(TOPIC, 1))
        net.run(60.0)
        assert TOPIC in net.nodes["n0"].reigns.by_topic
        net.unwant("n2", TOPIC)
        net.run(60.0)
        assert TOPIC not in net.nodes["n0"].reigns.by_topic
        assert TOPIC not in net.nodes["n1"].replication.copies

    def test_topics_are_handed_over_in_frames_of_bounded_size(self) -> None:
        net = NodeNet(settings=replace(OverlaySettings(), sync_bytes_per_tick=4_000))
        net.ring([0])
        topics = [f"topic/{i}" for i in range(60)]
        for topic in topics:
            net.publish("n0", publication(topic, 1, count=100))
        sizes: list[int] = []

        def measure(source: str, destination: str, frame: PeerFrame) -> None:
            if has(frame, "adopt"):
                sizes.append(frame.ByteSize())

        net.on_frame = measure
        net.add("late", ["n0"], 1 << 63)
        net.settle()
        taken = [topic for topic in topics if topic in net.nodes["late"].reigns.by_topic]
        assert len(taken) > 20
        assert len(sizes) > 5
        assert max(sizes) < 2 * 4_000

    def test_a_copy_that_comes_after_what_was_handed_over_takes_nothing_back(self) -> None:
        net = NodeNet()
        net.ring([0])
        topic = topic_between(0, 1 << 63)
        net.want("n0", topic)
        net.publish("n0", publication(topic, 1))
        handed: list[TopicState] = []

        def note(source: str, destination: str, frame: PeerFrame) -> None:
            states = (m.adopt.state for m in frame.messages if m.HasField("adopt"))
            handed.extend(state for state in states if state.topic == topic)

        net.on_frame = note
        net.drops = lambda source, destination, frame: has(frame, "range_granted")
        late = net.add("late", ["n0"], 1 << 63)
        while not handed or net.nodes["n0"].succession.handing:
            net.run(0.05)
        net.run(1.0)
        assert not net.ready("late")
        overtaken = PeerFrame(sender=net.nodes["n0"].me.ref, to=late.me.node_id)
        overtaken.messages.add(replicate=Replicate(states=handed[:1]))
        net.perform("late", late.handle(overtaken, net.now_s))
        net.drops = lambda source, destination, frame: False
        net.settle()
        assert topic in late.reigns.by_topic
        net.publish("n0", publication(topic, 2, settled=1))
        net.run(1.0)
        assert net.acknowledged("n0", topic) == 2
        assert net.delivered("n0", topic) == [1, 2]

    def test_a_publisher_of_a_forgotten_topic_goes_on(self) -> None:
        net = NodeNet(settings=replace(OverlaySettings(), topic_idle_s=30.0))
        net.ring(i << 62 for i in range(4))
        net.publish("n1", publication(TOPIC, 1))
        net.run(60.0)
        net.publish("n1", publication(TOPIC, 2, settled=1))
        net.run(0.5)
        assert net.acknowledged("n1", TOPIC) == 2


def test_on_a_ring_of_one_stamped_is_as_replicated_as_it_gets() -> None:
    net = NodeNet()
    net.ring([5])
    net.publish("n0", publication(TOPIC, 1))
    assert net.acknowledged("n0", TOPIC) == 1


def test_a_partition_whose_other_side_has_both_copies_is_told_as_such(net: NodeNet) -> None:
    """n0 is the rendezvous point and n1 its replica: n2 and n3 know nothing of the topic."""
    net.want("n2", TOPIC)
    net.run(1.0)
    net.publish("n2", publication(TOPIC, 1))
    net.run(1.0)
    sides = {"n0": 0, "n1": 0, "n2": 1, "n3": 1}
    net.drops = lambda source, destination, frame: sides[source] != sides[destination]
    net.run(15.0)
    answer = net.nodes["n2"].reigns.by_topic[TOPIC].log.since({(1 << 24): 1})
    assert answer.unknown_loss


@pytest.mark.parametrize(
    "wrong",
    [
        {"successors_max": 0},
        {"lease_s": 0.5},
        {"silence_s": 0.5},
        {"stabilise_period_s": 0.0},
        {"log_events_max": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
        replace(OverlaySettings(), **wrong)  # type: ignore[arg-type]


class TestAdoptedBeforeReady:
    """A node that has joined is given a topic, and its successor's leave to serve is lost."""

    TOPIC = topic_at(4 << 60)

    @pytest.fixture
    def net(self) -> NodeNet:
        net = NodeNet()
        net.ring([0])
        net.publish("n0", publication(self.TOPIC, 1))
        net.run(1.0)
        net.drops = lambda _, to, frame: to == "adopts" and has(frame, "range_granted")
        net.add("adopts", ["n0"], 12 << 60)
        net.run(1.0)
        assert self.TOPIC in net.nodes["adopts"].replication.copies
        assert not net.nodes["adopts"].reigns.ready
        return net

    def test_two_that_come_between_are_given_it(self, net: NodeNet) -> None:
        # Whoever is to serve the topic claims it from the other, who has never heard of it.
        net.add("serves", ["n0"], 4 << 60)
        net.add("between", ["n0"], 8 << 60)
        net.run(1.5)
        net.drops = lambda *_: False
        net.settle()
        assert net.nodes["serves"].reigns.by_topic[self.TOPIC].log.events == 1

    def test_it_leaves_it_to_a_successor_that_has_come_since(self, net: NodeNet) -> None:
        net.add("succeeds", ["n0"], 14 << 60)
        net.run(1.5)
        net.leave("adopts")
        net.settle()
        assert net.nodes["succeeds"].reigns.by_topic[self.TOPIC].log.events == 1
