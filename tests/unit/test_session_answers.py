"""Answers to a client, beside the deliveries that wait for its application."""

from __future__ import annotations

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import CloseConnection, ConnectionId
from broker_agent.doors.frames import take_output
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Echo,
    Filter,
    MissCause,
    Missed,
    Received,
    ServerFrame,
    Subscribe,
)
from tests.support.brokers import LoneBroker, goodbye
from tests.support.nodes import publication

TOPIC = "quake/ca"
SLOW = MissCause.MISS_CAUSE_SLOW_SUBSCRIBER
# Two small deliveries, and the window is full.
WINDOW = 100


@pytest.fixture
def broker() -> LoneBroker:
    """With a session of ann's, and more waiting in it than its window."""
    return with_backlog()


def with_backlog(**settings: int) -> LoneBroker:
    lone = LoneBroker(CoreSettings(session_window_bytes=WINDOW, **settings))
    lone.run(0.3)
    lone.connect("pub")
    lone.connect("c1", client_id="ann", keep_s=60)
    lone.subscribe("c1", TOPIC)
    lone.hear("c1")
    lone.disconnect("c1")
    publish(lone, *range(1, 21))
    return lone


def publish(broker: LoneBroker, *numbers: int, topic: str = TOPIC) -> None:
    for number in numbers:
        broker.publish("pub", publication(topic, number, publisher=5))
    broker.run(0.2)


class TestBehindAFullWindow:
    def test_who_comes_back_to_more_than_a_window_is_answered(self, broker: LoneBroker) -> None:
        broker.connect("c2", client_id="ann", keep_s=60)
        assert len(broker.runs("c2")) == 20
        publish(broker, 21)
        assert broker.hear("c2") == []
        broker.subscribe("c2", TOPIC, request=7)
        assert broker.kinds("c2") == ["subscribed"]

    def test_a_publisher_is_told_though_it_does_not_read(self, broker: LoneBroker) -> None:
        broker.connect("c2", client_id="ann", keep_s=60)
        broker.hear("c2")
        broker.publish("c2", publication("other", 1, publisher=9))
        broker.run(0.5)
        assert broker.kinds("c2") == ["acknowledged"]

    def test_what_is_new_to_the_session_is_confirmed_with_where_it_begins(
        self, broker: LoneBroker
    ) -> None:
        publish(broker, 1, 2, topic="quake/nv")
        broker.connect("c2", client_id="ann", keep_s=60)
        broker.hear("c2")
        broker.subscribe("c2", "quake/nv", request=7)
        broker.run(0.5)
        (subscribed,) = (m.subscribed for m in broker.hear_all("c2"))
        (position,) = subscribed.positions
        assert (position.topic, [s.seq for s in position.seen]) == ("quake/nv", [2])

    def test_a_place_behind_events_that_wait_is_not_said_before_them(
        self, broker: LoneBroker
    ) -> None:
        """A client takes only what comes after its place: it would drop them."""
        broker.connect("c2", client_id="ann", keep_s=60)
        broker.hear("c2")
        publish(broker, 21)
        broker.subscribe("c2", TOPIC, request=7)
        broker.run(0.5)
        (answer,) = broker.hear_all("c2")
        assert not answer.subscribed.positions

    def test_with_room_it_keeps_its_place(self) -> None:
        lone = LoneBroker()
        lone.run(0.3)
        lone.connect("c1", client_id="ann", keep_s=60)
        lone.subscribe("c1", TOPIC)
        lone.run(0.3)
        said = [m.WhichOneof("body") for m in lone.hear_all("c1")]
        assert said == ["welcome", "run", "subscribed"]

    def test_nobody_is_ended_without_a_word(self, broker: LoneBroker) -> None:
        broker.connect("c2", client_id="ann", keep_s=60)
        broker.hear("c2")
        broker.keep(broker.core.leave(broker.now_s))
        _, message = goodbye(broker.hear("c2"))
        assert "shutting down" in message


class TestUnread:
    """A client that asks, and never reads what it is told."""

    def ask(self, broker: LoneBroker, connection: str, count: int) -> None:
        messages = [ClientMessage(echo=Echo(request=i)) for i in range(count)]
        frame = ClientFrame(messages=messages)
        broker.keep(broker.core.on_client_frame(ConnectionId(connection), frame, broker.now_s))

    def test_it_is_not_read_from_until_it_has_read(self) -> None:
        lone = with_backlog(session_answers_bytes_max=100_000)
        self.ask(lone, "pub", 600)
        assert lone.is_paused("pub")
        assert lone.core.counters.unread_pauses == 1
        assert len(lone.hear("pub")) > 600
        lone.run(0.1)
        assert not lone.is_paused("pub")

    def test_past_the_bound_its_connection_ends_and_a_kept_session_stays(self) -> None:
        lone = with_backlog(session_answers_bytes_max=10_000)
        lone.connect("c2", client_id="ann", keep_s=60)
        self.ask(lone, "c2", 20_000)
        assert CloseConnection(ConnectionId("c2")) in lone.effects
        assert lone.core.counters.connections_unread == 1
        session = lone.core.registry.clients["ann"]
        assert session.answers_bytes <= 11_000
        _, message = goodbye(lone.hear("c2"))
        assert "does not read" in message
        lone.disconnect("c2")
        lone.connect("c3", client_id="ann", keep_s=60)
        assert lone.hear("c3")[0].welcome.resumed


class TestNotices:
    """What a session is told between its events is bounded as they are."""

    def test_those_of_an_absent_client_are_summed_up(self) -> None:
        lone = with_backlog(session_queue_events_max=10)
        session = lone.core.registry.clients["ann"]
        for i in range(1_000):
            session.tell_missed(Missed(topic="t", cause=SLOW, count=i % 2), 1.0)
        assert session.queued_pieces <= 40
        lone.connect("c2", client_id="ann", keep_s=60)
        told: list[Missed] = []
        for _ in range(50):
            messages = lone.hear_all("c2")
            told += [m.missed for m in messages if m.HasField("missed")]
            taken = session.serial
            lone.say("c2", received=Received(serial=taken))
        counts = [m.count for m in told if m.topic == "t"]
        assert sum(counts) == 500
        assert 0 in counts
        assert all(m.cause == SLOW for m in told)

    def test_subscribing_again_and_again_does_not_fill_memory(self) -> None:
        lone = with_backlog(session_queue_events_max=10)
        lone.connect("c2", client_id="ann", keep_s=60)
        session = lone.core.registry.clients["ann"]
        for i in range(1_000):
            lone.say("c2", subscribe=Subscribe(request=i, filters=[Filter(pattern="quake/nv")]))
            lone.unsubscribe("c2", "quake/nv")
            ServerFrame.FromString(take_output(lone.core, ConnectionId("c2"), 1 << 20))
        assert session.queued_pieces <= 40
        assert lone.core.counters.places_untold > 0
