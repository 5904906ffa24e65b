"""What subscribers are told and sent, and what becomes of those that are too slow."""

from __future__ import annotations

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.v1.client_pb2 import ErrorCode, Hello, MissCause, SlowPolicy
from tests.support.brokers import LoneBroker, goodbye
from tests.support.nodes import events, publication

TOPIC = "quake/ca"


@pytest.fixture
def broker() -> LoneBroker:
    return LoneBroker()


class TestSlowSubscribers:
    def flood(self, policy: SlowPolicy.ValueType) -> LoneBroker:
        broker = LoneBroker(CoreSettings(session_queue_events_max=10))
        broker.connect("ann")
        broker.connect("bob", policy)
        broker.connect("eve")
        for client in ("bob", "eve"):
            broker.subscribe(client, TOPIC, "other")
        broker.hear("bob"), broker.hear("eve")
        for i in range(25):
            broker.publish("ann", publication(TOPIC, i + 1))
            broker.hear("eve")
        return broker

    def test_newest_are_dropped_and_counted_at_their_place(self) -> None:
        broker = self.flood(SlowPolicy.SLOW_POLICY_DROP_NEWEST)
        for _ in range(2):
            assert broker.core.take_output(ConnectionId("bob"), 1)
        broker.publish("ann", publication(TOPIC, 26), publication("other", 1))
        messages = broker.hear("bob")
        shown = [
            ("missed", m.missed.count) if m.HasField("missed") else (m.run.topic, m.run.first_seq)
            for m in messages
        ]
        assert shown == [(TOPIC, i) for i in range(3, 11)] + [
            ("missed", 15), (TOPIC, 26), ("other", 1),
        ]  # fmt: skip
        (missed,) = [m.missed for m in messages if m.HasField("missed")]
        assert missed.cause == MissCause.MISS_CAUSE_SLOW_SUBSCRIBER
        assert broker.core.counters.dropped_events == 15

    def test_a_subscriber_learns_of_drops_even_if_nothing_follows(self) -> None:
        broker = self.flood(SlowPolicy.SLOW_POLICY_DROP_NEWEST)
        assert broker.hear("bob")[-1].missed.count == 15

    def test_what_is_being_closed_is_not_gone_on_with(self) -> None:
        settings = CoreSettings(session_queue_events_max=1)
        broker = LoneBroker(settings)
        broker.connect("ann", SlowPolicy.SLOW_POLICY_DISCONNECT, keep_s=60)
        broker.subscribe("ann", TOPIC)
        broker.hear("ann")
        broker.connect("bob")
        broker.publish("bob", publication(TOPIC, 1), publication(TOPIC, 2))
        closing = broker.core.registry.clients["ann"]
        assert closing.closing
        # It comes back before its connection has ended.
        broker.keep(broker.core.open_connection(ConnectionId("ann again"), broker.now_s))
        broker.say("ann again", hello=Hello(protocol=1, client_id="ann", expiry_s=60))
        assert not broker.hear("ann again")[0].welcome.resumed
        assert broker.core.registry.clients["ann"] is not closing
        assert TOPIC not in ring_of(broker.core).subscriptions

    def test_or_it_is_disconnected(self) -> None:
        broker = self.flood(SlowPolicy.SLOW_POLICY_DISCONNECT)
        messages = broker.hear("bob")
        assert goodbye(messages)[0] == ErrorCode.ERROR_CODE_SLOW_SUBSCRIBER
        assert broker.is_closing("bob")
        assert broker.core.counters.sessions_closed_slow == 1

    def test_others_are_not_affected(self) -> None:
        broker = self.flood(SlowPolicy.SLOW_POLICY_DROP_NEWEST)
        assert broker.core.counters.delivered_events == 25 + 10

    def test_bytes_count_too_but_one_event_always_fits(self) -> None:
        broker = LoneBroker(CoreSettings(session_queue_bytes_max=100))
        broker.connect("ann")
        broker.subscribe("ann", TOPIC)
        broker.hear("ann")
        for number in (1, 2):
            large = publication(TOPIC, number)
            large.events = events(b"x" * 500)
            broker.publish("ann", large)
        messages = broker.hear("ann")
        assert [m.run.first_number for m in messages if m.HasField("run")] == [1]
        assert [m.missed.count for m in messages if m.HasField("missed")] == [1]


class TestSubscriptions:
    def test_one_reader_serves_many_and_ends_with_the_last(self, broker: LoneBroker) -> None:
        for client in ("ann", "bob"):
            broker.connect(client)
            broker.subscribe(client, TOPIC)
        assert ring_of(broker.core).node.interests.wanted == [TOPIC]
        broker.unsubscribe("ann", TOPIC)
        assert ring_of(broker.core).node.interests.wanted == [TOPIC]
        broker.disconnect("bob")
        assert ring_of(broker.core).node.interests.wanted == []
        assert len(ring_of(broker.core).subscriptions) == 0

    def test_nothing_comes_after_unsubscribing(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.subscribe("ann", TOPIC)
        broker.unsubscribe("ann", TOPIC)
        broker.hear("ann")
        broker.publish("ann", publication(TOPIC, 1))
        assert "run" not in broker.kinds("ann")

    def test_subscribing_twice_is_subscribing_once(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.subscribe("ann", TOPIC, TOPIC)
        broker.subscribe("ann", TOPIC, request=2)
        assert broker.kinds("ann") == ["welcome", "subscribed", "subscribed"]
        broker.publish("ann", publication(TOPIC, 1))
        assert broker.kinds("ann").count("run") == 1

    def test_a_request_is_confirmed_once_everything_is_in_place(self) -> None:
        broker = LoneBroker(joining=True)
        broker.connect("ann")
        broker.subscribe("ann", TOPIC, "other")
        assert broker.kinds("ann") == ["welcome"]
        broker.found_a_ring()
        broker.run(2.0)
        assert broker.kinds("ann") == ["subscribed"]

    def test_giving_up_what_a_request_waits_for_completes_it(self) -> None:
        broker = LoneBroker(joining=True)
        broker.connect("ann")
        broker.subscribe("ann", TOPIC)
        broker.unsubscribe("ann", TOPIC)
        assert broker.kinds("ann") == ["welcome", "subscribed", "unsubscribed"]
        assert not ring_of(broker.core).subscriptions._waiting
