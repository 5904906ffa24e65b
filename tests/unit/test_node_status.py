"""What a node says of itself: as a value, counted in steps, and in answers to operators."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from overlay.base.membership import Status
from tests.support.counting import counted
from tests.support.nodes import NodeNet, publication

TOPIC = "quake/ca"  # at 0.878 of the circle: n0's on a ring of 4
OTHER = "quake/ny"


@pytest.fixture
def net() -> NodeNet:
    net = NodeNet()
    net.ring(i << 62 for i in range(4))
    return net


def busy(net: NodeNet) -> str:
    """Two topics that n1 and n2 subscribe to; the rendezvous point of one."""
    for name in ("n1", "n2"):
        net.want(name, TOPIC)
        net.want(name, OTHER)
    net.publish("n3", publication(TOPIC, 1, count=3), publication(OTHER, 1))
    net.run(2.0)
    return net.rendezvous_point(TOPIC)


class TestStatus:
    def test_of_a_member(self, net: NodeNet) -> None:
        nodes = [net.nodes[f"n{i}"] for i in range(4)]
        status = nodes[1].status()
        assert (status.me, status.ring, status.is_ready) == (nodes[1].me, Status.MEMBER, True)
        assert status.predecessor == nodes[0].me
        assert status.range_low == nodes[0].me.node_id
        assert status.range_share == 0.25
        assert status.successor == nodes[2].me
        assert [peer.broker_id for peer in status.successors] == ["n2", "n3", "n0"]
        assert {peer.broker_id for peer in status.fingers} == {"n2", "n3"}
        assert not status.is_sealed
        assert status.condemned == ()

    def test_is_a_value(self, net: NodeNet) -> None:
        node = net.nodes["n1"]
        before = node.status()
        net.crash("n2")
        net.run(8.0)
        node.seal()
        after = node.status()
        assert [peer.broker_id for peer in before.successors] == ["n2", "n3", "n0"]
        assert [peer.broker_id for peer in after.successors] == ["n3", "n0"]
        assert [peer.broker_id for peer in after.condemned] == ["n2"]
        assert (before.is_sealed, after.is_sealed) == (False, True)
        with pytest.raises(FrozenInstanceError):
            after.is_ready = False  # type: ignore[misc]

    def test_of_one_that_is_alone_and_of_one_that_is_nowhere_yet(self) -> None:
        net = NodeNet()
        alone = net.add("n0").status()
        assert (alone.successor, alone.predecessor, alone.range_share) == (None, None, 1.0)
        joining = net.add("n1", ["nobody"]).status()
        assert (joining.ring, joining.is_ready) == (Status.JOINING, False)
        assert joining.range_share == 0.0

    def test_of_what_is_kept_and_under_way(self, net: NodeNet) -> None:
        root = net.nodes[busy(net)]
        status = root.status()
        assert status.retained_bytes > 0
        assert status.tree_children > 0
        assert (status.unsent_topics, status.unconfirmed_topics) == (0, 0)
        assert status.unsettled_interests == 0
        assert status.counters is root.counters


class TestCounts:
    def test_add_up_over_the_ring(self, net: NodeNet) -> None:
        root = busy(net)
        counts = {name: counted(node.count_in_steps(1_000))[0] for name, node in net.nodes.items()}
        assert sum(each.topics for each in counts.values()) == 2
        assert sum(each.copies for each in counts.values()) >= 2
        assert {name: each.member_trees for name, each in counts.items()} == {
            "n0": 0, "n1": 2, "n2": 2, "n3": 0,
        }  # fmt: skip
        assert counts[root].topics >= 1
        assert counts[root].trees >= counts[root].topics
        assert sum(each.branches for each in counts.values()) > 0
        waiting = [each.waiting_acknowledgements for each in counts.values()]
        assert waiting == [0, 0, 0, 0]

    def test_are_the_same_however_many_things_a_step_takes(self, net: NodeNet) -> None:
        node = net.nodes[busy(net)]
        whole, none = counted(node.count_in_steps(1_000))
        piecewise, many = counted(node.count_in_steps(1))
        assert whole == piecewise
        assert none == 0
        assert many >= whole.topics + whole.trees + whole.copies

    def test_what_goes_between_two_steps_does_no_harm(self, net: NodeNet) -> None:
        busy(net)
        node = net.nodes["n1"]
        steps = node.count_in_steps(1)
        next(steps)
        net.unwant("n1", TOPIC)
        net.unwant("n1", OTHER)
        net.run(2.0)
        counted(steps)
        assert counted(node.count_in_steps(1))[0].member_trees == 0


class TestReports:
    def test_of_a_node(self, net: NodeNet) -> None:
        root = net.nodes[busy(net)]
        report, status = root.describe(), root.status()
        assert (report.node, report.status, report.ready) == (root.me.ref, "member", True)
        assert report.predecessor == status.predecessor.ref  # type: ignore[union-attr]
        assert [ref.node_id for ref in report.successors] == [p.node_id for p in status.successors]
        assert [ref.node_id for ref in report.fingers] == [p.node_id for p in status.fingers]
        counts, _ = counted(root.count_in_steps(1_000))
        assert (report.topics, report.replicas) == (counts.topics, counts.copies)

    def test_topics_are_listed_in_pages(self) -> None:
        net = NodeNet()
        node = net.add("n0")
        net.publish("n0", *(publication(f"t/{n}", 1, count=n + 1) for n in range(5)))
        net.run(1.0)
        assert any(topic.startswith("$") for topic in node.reigns.by_topic)
        first = node.list_topics("", 3)
        assert [topic.topic for topic in first.topics] == ["t/0", "t/1", "t/2"]
        assert [topic.published for topic in first.topics] == [1, 2, 3]
        assert first.more
        rest = node.list_topics("t/2", 3)
        assert ([topic.topic for topic in rest.topics], rest.more) == (["t/3", "t/4"], False)
        assert len(node.list_topics("", 0).topics) == 5

    def test_a_tree_leads_from_its_rendezvous_point_to_its_members(self, net: NodeNet) -> None:
        root = busy(net)
        at_root = net.nodes[root].describe_tree(TOPIC)
        assert at_root.is_rendezvous_point
        assert at_root.node == at_root.towards_rendezvous_point == net.nodes[root].me.ref
        assert at_root.position.seq == 3
        reached, waiting = set(), [root]
        while waiting:
            name = waiting.pop()
            reached.add(name)
            waiting += [child.broker_id for child in net.nodes[name].describe_tree(TOPIC).children]
        assert reached >= {"n1", "n2"}
        nothing = net.nodes["n1"].describe_tree("nothing")
        assert not nothing.HasField("position")
        assert not nothing.is_rendezvous_point
        assert list(nothing.children) == []
