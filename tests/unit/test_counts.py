"""What counts count: each thing once, under one name, and nothing of the system's own topics."""

from __future__ import annotations

from collections import Counter

from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.runtime.observing.broker_metrics import METRICS
from broker_agent.runtime.observing.census import Census
from broker_agent.runtime.observing.counter_sets import COUNTER_SETS
from dynatops.v1.client_pb2 import Subscribe
from dynatops.v1.overlay_pb2 import NodeRef, PeerFrame
from tests.support.brokers import LoneBroker
from tests.support.nodes import publication
from tests.support.steps import StepNet


class TestNames:
    def test_no_two_counters_of_a_broker_have_one_name(self) -> None:
        """Shown together, one of them would hide the other."""
        names: Counter[str] = Counter()
        for counted in COUNTER_SETS:
            names.update(counted.kind().as_dict().keys())
        assert {name for name, times in names.items() if times > 1} == set()

    def test_all_are_metrics(self) -> None:
        exposed = {metric.name for metric in METRICS}
        for counted in COUNTER_SETS:
            assert {metric.name for metric in counted.metrics()} <= exposed, counted.title

    def test_frames_for_a_node_that_is_not_here_are_reported(self) -> None:
        broker = LoneBroker()
        broker.core.reporting.begin(broker.now_s)
        stranger = NodeRef(node_id=7, broker_id="b7", address="b7:1", incarnation=1)
        broker.keep(broker.core.on_peer_frame(PeerFrame(sender=stranger, to=12345), broker.now_s))
        report = broker.core.reporting.report(broker.now_s, full=True)
        assert report.counters["frames_not_here"] == 1


class TestSystemTopics:
    def busy(self) -> LoneBroker:
        """With a topic of its cluster, and, for a wildcard, those of the catalogue."""
        broker = LoneBroker(logged_rows_max=100, selection=SelectionSettings())
        broker.core.reporting.begin(broker.now_s)
        broker.run(0.5)
        broker.connect("ann")
        broker.subscribe("ann", "fire/#", "flood")
        broker.run(5.0)
        broker.publish("ann", publication("fire/1", 1))
        broker.run(5.0)
        assert any(topic.startswith("$") for topic in ring_of(broker.core).node.reigns.by_topic)
        return broker

    def test_are_not_reported_to_the_manager(self) -> None:
        broker = self.busy()
        report = broker.core.reporting.report(broker.now_s, full=True)
        assert sorted(report.subscribed) == ["fire/1", "flood"]
        assert [count.topic for count in report.publications] == ["fire/1"]
        assert report.counters["stamped_events"] == 1
        assert report.counters["system_events"] > 2

    def test_are_not_in_the_lake(self) -> None:
        broker = self.busy()
        assert list(broker.core.take_logbook_page(broker.now_s).publications) == ["fire/1"]

    def test_are_not_in_the_census(self) -> None:
        broker = self.busy()
        census = Census(broker.core)
        for step in range(100):
            census.step(float(step))
        node = census.last.node
        assert (node.topics, node.trees, node.member_trees, census.last.topics_read) == (2, 2, 2, 2)

    def test_cost_no_relays_and_no_hops(self) -> None:
        """What brokers tell their cluster travels along a tree, of a topic that all want."""
        net = StepNet(5)
        net.client("ann", "b1").subscribe([("fire/#", "")])
        net.run(10.0)
        counters = [ring_of(broker.core).node.counters for broker in net.world.living()]
        assert sum(c.system_events for c in counters) > 0
        for name in ("stamped_events", "tree_events", "relayed_events", "tree_delivered_hops"):
            assert sum(getattr(c, name) for c in counters) == 0, name


class TestRequests:
    def test_are_the_same_for_the_manager_and_in_the_lake(self) -> None:
        """Sessions that ask for a topic's past, at the broker where they do."""
        broker = LoneBroker(logged_rows_max=100)
        broker.core.reporting.begin(broker.now_s)
        for name in ("bob", "eve"):
            broker.connect(name)
            wanted = Subscribe(request=1, resume=True)
            wanted.filters.add(pattern="fire")
            broker.say(name, subscribe=wanted)
        # This one wants what is new, and has the beginning of it read to it: no request.
        broker.connect("ann")
        broker.subscribe("ann", "fire", "new/#")
        broker.run(1.0)
        report = broker.core.reporting.report(broker.now_s, full=True)
        reported = {count.topic: count.events for count in report.requests}
        assert reported == broker.core.take_logbook_page(broker.now_s).requests == {"fire": 2}

    def test_are_those_of_the_broker_that_has_the_session(self) -> None:
        net = StepNet(3)
        for broker in net.world.living():
            broker.core.reporting.begin(net.scheduler.now_s)
        reader, writer = net.client("reader", "b1"), net.client("writer", "b0")
        reader.subscribe([("quake/ca", "")])
        net.run(1.0)
        writer.publish("quake/ca")
        net.run(1.0)
        reader.send_to("b2")
        net.run(2.0)
        asked = {
            broker.broker_id: [
                (count.topic, count.events)
                for count in broker.core.reporting.report(net.scheduler.now_s, full=True).requests
            ]
            for broker in net.world.living()
        }
        assert asked == {"b0": [], "b1": [], "b2": [("quake/ca", 1)]}
