"""What a broker says of itself: as a value, counted in steps, and to those that may ask."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from random import Random

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.base.identity import Identity
from broker_agent.core.broker import Broker
from broker_agent.core.options import BrokerOptions
from broker_agent.core.rights.access import Access
from broker_agent.core.routing.rendezvous.rendezvous import on_ring
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.kit.security.token_rights import TokenRules
from dynatops.kit.security.tokens import hash_of
from dynatops.v1.inspection_pb2 import DescribeTreeRequest, ListTopicsRequest
from dynatops.v1.manager_pb2 import RCFG_INIT, Step
from overlay.base.membership import Status
from overlay.base.overlay_settings import OverlaySettings
from tests.support.brokers import LoneBroker
from tests.support.counting import counted
from tests.support.nodes import publication


class TestStatus:
    def test_is_a_value(self) -> None:
        broker = LoneBroker()
        broker.connect("ann", keep_s=60)
        broker.connect("bob")
        broker.subscribe("ann", "a", "b")
        broker.subscribe("bob", "b")
        before = broker.core.status()
        assert (before.sessions, before.absent_sessions, before.unnamed_connections) == (2, 0, 0)
        assert (before.subscriptions, before.subscribed_patterns) == (3, 2)
        assert before.subscription_changes == 2
        broker.disconnect("ann")
        broker.unsubscribe("bob", "b")
        broker.core.open_connection("eve", broker.now_s)  # type: ignore[arg-type]
        after = broker.core.status()
        assert (after.sessions, after.absent_sessions, after.unnamed_connections) == (2, 1, 1)
        assert (after.subscriptions, after.subscribed_patterns) == (2, 2)
        assert (before.sessions, before.absent_sessions, before.subscriptions) == (2, 0, 3)
        with pytest.raises(FrozenInstanceError):
            after.sessions = 0  # type: ignore[misc]

    def test_counters_in_it_go_on(self) -> None:
        broker = LoneBroker()
        status = broker.core.status()
        broker.connect("ann")
        broker.publish("ann", publication("a", 1, count=3))
        broker.run(0.5)
        assert status.counters is broker.core.counters
        assert status.counters.published_events == 3
        assert status.hosted.counters.stamped_events == 3
        assert status.acknowledged_s.count == 1

    def test_joining_member_leaving(self) -> None:
        broker = LoneBroker(joining=True)
        core = broker.core
        assert (core.is_joining, core.is_member, core.is_leaving) == (True, False, False)
        assert core.status().hosted.ring is Status.JOINING
        broker.found_a_ring()
        assert (core.is_joining, core.is_member, core.is_leaving) == (False, True, False)
        assert core.status().hosted.ring is Status.MEMBER
        core.leave(broker.now_s)
        assert (core.is_joining, core.is_member, core.is_leaving) == (False, False, True)
        assert core.status().is_leaving

    def test_a_plan_that_holds_it(self) -> None:
        broker = LoneBroker()
        broker.run(0.2)
        before = broker.core.status()
        assert (before.is_frozen, before.epoch, before.fence) == (False, 0, 0)
        step = Step(kind=RCFG_INIT, plan="p1-1", epoch=3, fence=2, frozen_max_s=2.0)
        broker.keep(broker.core.on_step(step, broker.now_s))
        frozen = broker.core.status()
        assert (frozen.is_frozen, frozen.epoch, frozen.fence) == (True, 0, 2)
        assert broker.core.registration_version > 0
        assert broker.core.registration().frozen_by == "p1-1"

    def test_a_cluster_of_its_own(self) -> None:
        broker = LoneBroker(selection=SelectionSettings())
        broker.run(5.0)
        status = broker.core.status()
        assert (status.neighbours, status.is_advised) == (0, False)
        assert status.selection_counters.summaries_sent > 0

    def test_a_driver_counts_in_the_same_counters(self) -> None:
        counters = BrokerCounters()
        core = Broker(
            Identity("b0", "b0", 1), on_ring(OverlaySettings()), CoreSettings(), Random(1),
            BrokerOptions(counters=counters),
        )  # fmt: skip
        counters.inputs_failed += 1
        assert core.status().counters.inputs_failed == 1
        core.begin_reporting(0.0)
        assert core.load_report(1.0, full=True).counters["inputs_failed"] == 1


class TestCounts:
    def test_are_the_same_however_many_things_a_step_takes(self) -> None:
        broker = LoneBroker()
        for client in ("ann", "bob"):
            broker.connect(client, keep_s=60)
            broker.subscribe(client, *(f"t/{n}" for n in range(5)))
        broker.publish("ann", *(publication(f"t/{n}", 1) for n in range(5)))
        results = [counted(broker.core.count_in_steps(at_once)) for at_once in (1, 3, 1_000)]
        (one, most), (three, fewer), (whole, none) = results
        assert one == three == whole
        assert most > fewer > none == 0
        assert (whole.topics_read, whole.node.member_trees) == (5, 5)
        assert whole.queued_events == 10


class TestQuestions:
    def test_who_may_ask(self) -> None:
        rules = [
            TokenRules(name="see", sha256=hash_of("see"), inspect=True),
            TokenRules(name="blind", sha256=hash_of("blind")),
        ]
        broker = LoneBroker(access=Access(CoreSettings(), rules))
        assert broker.core.admit_inspector("see") is None
        assert broker.core.counters.inspect_refused == 0
        assert broker.core.admit_inspector("blind") is not None
        assert broker.core.admit_inspector("") is not None
        assert broker.core.counters.inspect_refused == 2

    def test_the_broker_its_topics_and_its_trees(self) -> None:
        broker = LoneBroker()
        broker.connect("ann")
        broker.subscribe("ann", "a", "b")
        broker.publish("ann", publication("a", 1), publication("c", 1))
        broker.run(1.0)
        report = broker.core.describe()
        assert (report.broker_id, report.sessions, report.subscribed_topics) == ("b0", 1, 2)
        (node,) = report.nodes
        assert (node.status, node.ready, node.topics) == ("member", True, 3)
        page = broker.core.list_topics(ListTopicsRequest(after="a", limit=1))
        assert ([topic.topic for topic in page.topics], page.more) == (["b"], True)
        for topic, subscribes in (("a", True), ("c", False), ("nothing", False)):
            tree = broker.core.describe_tree(DescribeTreeRequest(topic=topic))
            assert tree.subscribes is subscribes
            assert tree.is_rendezvous_point is (topic != "nothing")

    def test_a_sample_of_what_comes_is_kept_once_somebody_has_asked(self) -> None:
        broker = LoneBroker()
        broker.connect("ann")
        broker.subscribe("ann", "a")
        broker.publish("ann", publication("a", 1))
        assert broker.core.take_run_sample() is None
        broker.publish("ann", publication("a", 2), publication("a", 3))
        broker.run(2.0)
        sample = broker.core.take_run_sample()
        assert sample is not None
        run, ago_s = sample
        assert (run.topic, run.first_seq) == ("a", 2)
        assert ago_s == pytest.approx(2.0, abs=0.1)
        assert broker.core.take_run_sample() is None
