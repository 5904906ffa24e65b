"""What publishers are told of their events, and when they are made to wait."""

from __future__ import annotations

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId, Wake
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from dynatops.v1.client_pb2 import Echo, ErrorCode
from dynatops.v1.overlay_pb2 import AckLevel, Publication
from tests.support.brokers import LoneBroker
from tests.support.nodes import events, publication

TOPIC = "quake/ca"


@pytest.fixture
def broker() -> LoneBroker:
    return LoneBroker()


class TestPublishing:
    def test_subscribers_hear_and_the_publisher_is_told(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.connect("bob")
        broker.subscribe("bob", TOPIC)
        broker.hear("ann"), broker.hear("bob")
        broker.publish("ann", publication(TOPIC, 1, count=3))
        assert [(run.first_seq, run.count) for run in broker.runs("bob")] == [(1, 3)]
        (message,) = broker.hear("ann")
        assert message.acknowledged.number == 3

    def test_without_wish_there_is_no_acknowledgement(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.hear("ann")
        before = len(broker.effects)
        broker.publish("ann", publication(TOPIC, 1, ack=AckLevel.ACK_LEVEL_NONE))
        assert broker.hear("ann") == []
        assert ring_of(broker.core).publishing.open_streams == 0
        # Nor is it looked for, for every frame.
        assert Wake(ConnectionId("ann")) not in broker.effects[before:]

    def test_a_retry_is_delivered_once_and_acknowledged_again(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.subscribe("ann", TOPIC)
        broker.hear("ann")
        for _ in range(3):
            broker.publish("ann", publication(TOPIC, 1))
        kinds = broker.kinds("ann")
        assert kinds.count("run") == 1
        assert kinds.count("acknowledged") == 3

    def test_what_is_open_is_that_of_the_session_that_the_client_has_now(self) -> None:
        """One that has ended owes nothing, and its next one no less than nothing."""
        broker = LoneBroker(joining=True)
        sessions = []
        for number in (1, 2):
            broker.connect("ann", publisher_secret=b"s" * 32)
            sessions.append(broker.core.registry.clients["ann"])
            broker.publish("ann", publication(TOPIC, number, count=3))
            if number == 1:
                broker.disconnect("ann")
        former, present = sessions
        assert former is not present
        assert former.unsettled_bytes == 0
        assert present.unsettled_bytes == ring_of(broker.core).publishing.unsettled_bytes > 0
        broker.found_a_ring()
        broker.run(1.0)
        assert "acknowledged" in broker.kinds("ann")
        assert present.unsettled_bytes == 0

    def test_too_large_a_payload_is_refused_and_its_number_passed_over(self) -> None:
        broker = LoneBroker(CoreSettings(payload_bytes_max=10))
        broker.connect("ann")
        broker.subscribe("ann", TOPIC)
        broker.hear("ann")
        large = publication(TOPIC, 1)
        large.events = events(b"x" * 11)
        broker.publish("ann", large, publication(TOPIC, 2))
        messages = broker.hear("ann")
        refused = next(m.refused for m in messages if m.HasField("refused"))
        assert refused.code == ErrorCode.ERROR_CODE_PAYLOAD_TOO_LARGE
        assert refused.message == "a payload has 11 bytes; the limit is 10"
        assert [m.run.first_number for m in messages if m.HasField("run")] == [2]

    @pytest.mark.parametrize(
        "wrong",
        [
            Publication(topic=TOPIC, first_number=1, count=2, events=events(b"one")),
            Publication(topic=TOPIC, first_number=0, count=1, events=events(b"one")),
            Publication(topic=TOPIC, first_number=1, count=1, events=b"\xff\xff"),
            Publication(topic=TOPIC, first_number=1, count=0, events=b""),
        ],
    )
    def test_what_does_not_add_up_is_refused(self, broker: LoneBroker, wrong: Publication) -> None:
        broker.connect("ann")
        broker.hear("ann")
        broker.publish("ann", wrong)
        assert broker.hear("ann")[0].refused.code == ErrorCode.ERROR_CODE_PROTOCOL

    def test_echo_comes_after_what_was_said_before(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.subscribe("ann", TOPIC)
        broker.publish("ann", publication(TOPIC, 1))
        broker.say("ann", echo=Echo(request=42))
        assert broker.kinds("ann")[-1] == "echoed"


class TestUndeliverable:
    """A ring whose rendezvous point never answers: this broker cannot even join."""

    def broker(self) -> LoneBroker:
        settings = CoreSettings(publish_deadline_s=3.0, publish_window_bytes=100)
        return LoneBroker(settings, joining=True)

    def test_publications_are_tried_again_then_refused(self) -> None:
        broker = self.broker()
        broker.connect("ann")
        broker.hear("ann")
        broker.publish("ann", publication(TOPIC, 1))
        broker.run(2.0)
        assert broker.hear("ann") == []
        assert broker.core.counters.publish_retries >= 2
        broker.run(2.0)
        (message,) = broker.hear("ann")
        assert message.refused.code == ErrorCode.ERROR_CODE_UNDELIVERABLE
        assert "within 3 s" in message.refused.message

    def test_those_after_a_refused_one_are_not_held_up_by_it(self) -> None:
        broker = self.broker()
        broker.connect("ann")
        broker.publish("ann", publication(TOPIC, 1))
        broker.run(4.0)
        broker.hear("ann")
        broker.found_a_ring()
        broker.publish("ann", publication(TOPIC, 2))
        assert broker.kinds("ann") == ["acknowledged"]

    def test_a_publisher_with_too_much_open_is_made_to_wait(self) -> None:
        broker = self.broker()
        broker.connect("ann")
        large = publication(TOPIC, 1)
        large.events = events(b"x" * 200)
        broker.publish("ann", large)
        assert broker.is_paused("ann")
        assert broker.core.counters.publish_pauses == 1
        broker.found_a_ring()
        broker.run(1.5)
        assert not broker.is_paused("ann")


@pytest.mark.parametrize("level", ["NONE", "RP", "REPLICATED"])
def test_every_level_frees_the_publishers_window(broker: LoneBroker, level: str) -> None:
    broker.connect("ann")
    ack = AckLevel.Value(f"ACK_LEVEL_{level}")
    broker.publish("ann", publication(TOPIC, 1, ack=ack))
    assert broker.core.registry.clients["ann"].unsettled_bytes == 0
