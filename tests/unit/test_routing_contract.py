"""What every routing must do for the broker that it is a part of, whichever it is.

Two or three brokers are wired together in memory, and driven as their clients drive them. After
each input there is nothing left over anywhere (`WiredBrokers._perform`).
"""

from __future__ import annotations

import pytest

from broker_agent.core.base.effects import NodeReady, ReplyToManager, Stopped
from dynatops.v1.client_pb2 import ErrorCode
from dynatops.v1.manager_pb2 import RCFG_INIT, RCFG_ROLL_BACK, Step
from dynatops.v1.overlay_pb2 import AckLevel
from tests.support.routings import ROUTINGS, MakeRouting
from tests.support.wired_brokers import WiredBrokers

NONE, RP = AckLevel.ACK_LEVEL_NONE, AckLevel.ACK_LEVEL_RP
REPLICATED = AckLevel.ACK_LEVEL_REPLICATED
NAMES = ("b0", "b1", "b2")


@pytest.fixture(params=list(ROUTINGS.values()), ids=list(ROUTINGS))
def routing(request: pytest.FixtureRequest) -> MakeRouting:
    made: MakeRouting = request.param
    return made


@pytest.fixture
def net(routing: MakeRouting) -> WiredBrokers:
    return WiredBrokers(routing, NAMES)


def numbered(first: int, count: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, first + count)]


class TestSubscribing:
    def test_what_is_published_after_the_confirmation_arrives_once_in_order(
        self, net: WiredBrokers
    ) -> None:
        readers = [net.connect(f"at-{name}", name) for name in NAMES]
        for name in NAMES:
            net.subscribe(f"at-{name}", "quake/ca")
        net.connect("pub", "b1")
        for number in range(1, 21):
            net.publish("pub", "quake/ca", str(number).encode())
        net.run(2.0)
        for reader in readers:
            assert reader.payloads() == numbered(1, 20)

    def test_it_goes_to_the_sessions_whose_filters_match_and_to_no_other(
        self, net: WiredBrokers
    ) -> None:
        by_name = net.connect("name", "b0")
        net.subscribe("name", "quake/ca")
        by_pattern = net.connect("pattern", "b1")
        net.subscribe("pattern", "quake/+")
        by_condition = net.connect("condition", "b2")
        net.subscribe("condition", ("quake/ca", "size > 4"))
        elsewhere = net.connect("elsewhere", "b2")
        net.subscribe("elsewhere", "news/ca")
        net.connect("pub", "b0")
        for number in range(1, 9):
            net.publish("pub", "quake/ca", str(number).encode(), size=number)
        net.publish("pub", "quake/nv", b"elsewhere")
        net.run(5.0)
        assert by_name.payloads() == numbered(1, 8)
        assert by_pattern.payloads("quake/ca") == numbered(1, 8)
        assert by_pattern.payloads("quake/nv") == [b"elsewhere"]
        assert by_condition.payloads() == numbered(5, 4)
        assert elsewhere.events == []

    def test_of_several_conditions_each_session_gets_what_meets_its_own(
        self, net: WiredBrokers
    ) -> None:
        """The broker of both may have been brought just what meets one of them."""
        small, large = net.connect("small", "b2"), net.connect("large", "b2")
        net.subscribe("small", ("quake/ca", "size < 3"))
        net.subscribe("large", ("quake/ca", "size > 6"))
        net.connect("pub", "b0")
        for number in range(1, 9):
            net.publish("pub", "quake/ca", str(number).encode(), size=number)
        net.publish_sizes("pub", "quake/ca", range(1, 9))
        net.run(5.0)
        assert small.payloads() == [b"1", b"2", b"1", b"2"]
        assert large.payloads() == [b"7", b"8", b"7", b"8"]

    def test_a_session_with_two_filters_that_match_gets_an_event_once(
        self, net: WiredBrokers
    ) -> None:
        reader = net.connect("ann", "b2")
        net.subscribe("ann", "quake/ca", "quake/#", ("quake/ca", "size > 4"))
        net.connect("pub", "b0")
        net.publish("pub", "quake/ca", *numbered(1, 6), size=7)
        net.run(5.0)
        assert reader.payloads() == numbered(1, 6)

    def test_every_request_is_confirmed_the_repeated_one_too(self, net: WiredBrokers) -> None:
        reader = net.connect("ann", "b1")
        for _ in range(3):
            net.subscribe("ann", "quake/ca")
        assert reader.kinds().count("subscribed") == 3
        net.connect("pub", "b2")
        net.publish("pub", "quake/ca", b"1")
        net.run(1.0)
        assert reader.payloads() == [b"1"]

    def test_nothing_comes_after_unsubscribing(self, net: WiredBrokers) -> None:
        leaver, stayer = net.connect("leaver", "b1"), net.connect("stayer", "b1")
        net.subscribe("leaver", "quake/ca", "news/#")
        net.subscribe("stayer", "quake/ca")
        net.connect("pub", "b0")
        net.publish("pub", "quake/ca", b"1")
        net.run(1.0)
        net.unsubscribe("leaver", "quake/ca", "news/#")
        net.publish("pub", "quake/ca", b"2")
        net.publish("pub", "news/ca", b"3")
        net.run(5.0)
        assert leaver.payloads() == [b"1"]
        assert leaver.kinds().count("unsubscribed") == 1
        assert stayer.payloads() == [b"1", b"2"]

    def test_nobody_wants_anything_once_sessions_have_ended(self, net: WiredBrokers) -> None:
        net.connect("ann", "b1")
        net.subscribe("ann", "quake/ca", "news/#")
        net.disconnect("ann")
        net.run(2.0)
        core = net.cores["b1"]
        assert core.routing.measures.wanted() == set()
        assert core.status().subscriptions == 0


class TestPublishing:
    @pytest.mark.parametrize("level", [RP, REPLICATED])
    def test_it_is_acknowledged_if_that_was_asked_for(
        self, net: WiredBrokers, level: AckLevel.ValueType
    ) -> None:
        pub = net.connect("pub", "b2")
        for number in range(1, 6):
            net.publish("pub", "quake/ca", str(number).encode(), ack=level)
        net.run(5.0)
        assert pub.acknowledged("quake/ca") == 5
        publishing = net.cores["b2"].routing.publishing
        assert (publishing.open_streams, publishing.unsettled_bytes) == (0, 0)

    def test_nothing_is_said_if_it_was_not(self, net: WiredBrokers) -> None:
        reader = net.connect("ann", "b0")
        net.subscribe("ann", "quake/ca")
        pub = net.connect("pub", "b2")
        net.publish("pub", "quake/ca", *numbered(1, 5), ack=NONE)
        net.run(5.0)
        assert pub.kinds() == ["welcome"]
        assert reader.payloads() == numbered(1, 5)
        assert net.cores["b2"].routing.publishing.unsettled_bytes == 0

    def test_what_is_refused_goes_nowhere_and_holds_nothing_up(self, net: WiredBrokers) -> None:
        reader = net.connect("ann", "b0")
        net.subscribe("ann", "quake/ca")
        pub = net.connect("pub", "b1")
        net.publish("pub", "quake/ca", b"1")
        net.publish("pub", "quake/ca", bytes((1 << 20) + 1))
        net.publish("pub", "quake/ca", b"3")
        net.run(5.0)
        (refused,) = [message.refused for message in pub.said if message.HasField("refused")]
        assert refused.code == ErrorCode.ERROR_CODE_PAYLOAD_TOO_LARGE
        assert (refused.first_number, refused.last_number) == (2, 2)
        assert pub.acknowledged("quake/ca") == 3
        assert reader.payloads() == [b"1", b"3"]

    def test_events_of_many_topics_together_are_those_of_each(self, net: WiredBrokers) -> None:
        topics = [f"topic/{number}" for number in range(8)]
        singly, together = net.connect("ann", "b0"), net.connect("bob", "b2", bundles=True)
        net.subscribe("ann", *topics)
        net.subscribe("bob", *topics)
        pub = net.connect("pub", "b1", bundles=True)
        for number in range(1, 11):
            net.publish_together("pub", topics, str(number).encode())
            net.run(0.2)
        net.run(5.0)
        for topic in topics:
            assert singly.payloads(topic) == numbered(1, 10)
            assert together.payloads(topic) == numbered(1, 10)
            assert pub.acknowledged(topic) == 10
        assert net.cores["b1"].routing.publishing.unsettled_bytes == 0

    def test_a_repeat_is_acknowledged_and_delivered_to_nobody(self, net: WiredBrokers) -> None:
        reader = net.connect("ann", "b0")
        net.subscribe("ann", "quake/ca")
        pub = net.connect("pub", "b1")
        net.publish("pub", "quake/ca", b"1")
        net.run(2.0)
        pub.numbers.clear()
        net.publish("pub", "quake/ca", b"1")
        net.run(2.0)
        assert reader.payloads() == [b"1"]
        assert pub.kinds().count("acknowledged") == 2

    def test_what_a_lake_is_told_was_published_is_counted_once(self, routing: MakeRouting) -> None:
        net = WiredBrokers(routing, NAMES, logged_rows_max=100)
        net.connect("pub", "b1")
        net.publish("pub", "quake/ca", *numbered(1, 7))
        net.run(2.0)
        pages = [core.take_logbook_page(net.now_s) for core in net.cores.values()]
        counted = [page.publications["quake/ca"] for page in pages if page.publications]
        assert [(tally.events, tally.nbytes > 0) for tally in counted] == [(7, True)]


class TestSessions:
    def test_one_that_goes_elsewhere_goes_on_without_loss_or_repeat(
        self, net: WiredBrokers
    ) -> None:
        reader = net.connect("ann", "b0")
        net.subscribe("ann", "quake/ca", "news/#")
        net.connect("pub", "b1")
        net.publish("pub", "quake/ca", *numbered(1, 5))
        net.publish("pub", "news/ca", *numbered(1, 5))
        net.run(5.0)
        net.disconnect("ann")
        net.publish("pub", "quake/ca", *numbered(6, 5))
        net.publish("pub", "news/ca", *numbered(6, 5))
        net.publish("pub", "news/nv", *numbered(1, 5))
        net.run(5.0)
        net.connect("ann", "b2")
        net.subscribe("ann", "quake/ca", "news/#", resume=True)
        net.publish("pub", "quake/ca", *numbered(11, 5))
        net.publish("pub", "news/ca", *numbered(11, 5))
        net.run(5.0)
        assert reader.payloads("quake/ca") == numbered(1, 15)
        assert reader.payloads("news/ca") == numbered(1, 15)
        assert reader.payloads("news/nv") == numbered(1, 5)
        assert "missed" not in reader.kinds()
        catching_up = net.cores["b2"].routing.subscriptions.catching_up
        assert not list(catching_up(net.cores["b2"].registry.clients["ann"]))

    def test_what_it_missed_goes_to_nobody_else_if_it_leaves_before_that_has_come(
        self, net: WiredBrokers
    ) -> None:
        other = net.connect("bob", "b2")
        net.subscribe("bob", "quake/ca")
        net.connect("pub", "b1")
        net.publish("pub", "quake/ca", *numbered(1, 5))
        net.run(1.0)
        net.publish_together("pub", ["quake/ca"], b"6")
        net.run(1.0)
        assert other.payloads() == numbered(1, 6)
        net.connect("ann", "b2")
        net.leave_while_resuming("ann", "quake/ca")
        net.run(2.0)
        assert other.payloads() == numbered(1, 6)

    def test_the_broker_that_it_comes_from_gives_its_session_up(self, net: WiredBrokers) -> None:
        net.connect("ann", "b0", keep_s=600)
        net.subscribe("ann", "quake/ca")
        net.disconnect("ann")
        assert "ann" in net.cores["b0"].registry.clients
        net.connect("ann", "b1", keep_s=600)
        net.run(1.0)
        assert "ann" not in net.cores["b0"].registry.clients

    def test_one_from_disk_goes_on_without_loss_or_repeat(self, net: WiredBrokers) -> None:
        reader = net.connect("ann", "b0", keep_s=600)
        net.subscribe("ann", "quake/ca", "news/#")
        net.connect("pub", "b1")
        net.publish("pub", "quake/ca", *numbered(1, 5))
        net.run(5.0)
        net.disconnect("ann")
        net.publish("pub", "quake/ca", *numbered(6, 5))
        net.run(2.0)
        net.crash("b0")
        net.run(10.0)
        net.publish("pub", "quake/ca", *numbered(11, 5))
        net.publish("pub", "news/ca", *numbered(1, 5))
        net.run(10.0)
        net.restart("b0")
        assert not net.cores["b0"].routing.subscriptions.is_restoring
        # Its client has said of no delivery that it has it.
        reader.events.clear()
        net.connect("ann", "b0", keep_s=600)
        net.run(5.0)
        assert reader.payloads("quake/ca") == numbered(1, 15)
        assert reader.payloads("news/ca") == numbered(1, 5)


class TestBrokers:
    def test_they_know_where_the_others_are(self, net: WiredBrokers) -> None:
        for name, core in net.cores.items():
            brokers = core.routing.brokers
            others = {other for other in NAMES if other != name}
            assert set(brokers.alternatives(10)) == others
            assert len(brokers.alternatives(1)) == 1
            for other in others:
                assert brokers.has_broker_at(other)
                assert brokers.address_of(other) == other
                assert brokers.namesakes(other) == [other]
            assert not brokers.has_broker_at("nowhere")
            assert brokers.address_of("nobody") == ""

    def test_they_take_part_once_they_have_said_so(self, net: WiredBrokers) -> None:
        ready = [name for name, effect in net.effects if isinstance(effect, NodeReady)]
        assert sorted(ready) == list(NAMES)
        for core in net.cores.values():
            assert (core.is_member, core.is_joining, core.status().unready) == (True, False, "")

    def test_one_that_leaves_says_when_it_may_end(self, net: WiredBrokers) -> None:
        net.connect("ann", "b1")
        net.subscribe("ann", "quake/ca")
        net.leave("b1")
        net.run(5.0)
        stopped = [name for name, effect in net.effects if isinstance(effect, Stopped)]
        assert stopped == ["b1"]
        assert net.cores["b1"].status().unready

    def test_topics_of_the_systems_own_reach_all_of_them(self, routing: MakeRouting) -> None:
        net = WiredBrokers(routing, NAMES, selection=True)
        net.run(10.0)
        assert [core.status().neighbours for core in net.cores.values()] == [2, 2, 2]

    def test_a_step_of_a_manager_is_answered_and_clients_are_served_afterwards(
        self, net: WiredBrokers
    ) -> None:
        reader = net.connect("ann", "b0")
        net.subscribe("ann", "quake/ca")
        net.connect("pub", "b0")
        for kind in (RCFG_INIT, RCFG_ROLL_BACK):
            net.step("b0", Step(fence=1, plan="p", epoch=1, kind=kind, frozen_max_s=5.0))
            net.publish("pub", "quake/ca", b"1")
            net.run(1.0)
        answered = [e.reply.kind for _, e in net.effects if isinstance(e, ReplyToManager)]
        assert answered == [RCFG_INIT, RCFG_ROLL_BACK]
        assert not net.cores["b0"].status().is_frozen
        assert reader.payloads() == [b"1", b"1"]
