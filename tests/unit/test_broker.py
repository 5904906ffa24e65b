"""What a broker says to its clients, above all when they are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_agent.core.effects import ConnectionId, SendFrame, Stopped
from broker_agent.core.settings import CoreSettings
from dynatops.v1.client_pb2 import (
    ClientFrame,
    Echo,
    ErrorCode,
    Filter,
    Hello,
    MissCause,
    ServerMessage,
    SlowPolicy,
    Subscribe,
)
from dynatops.v1.overlay_pb2 import AckLevel, NotHere, PeerFrame, Ping, Publication
from overlay.peers import Peer
from tests.support.brokers import LoneBroker
from tests.support.nodes import events, publication

TOPIC = "quake/ca"


@pytest.fixture
def broker() -> LoneBroker:
    return LoneBroker()


def goodbye(messages: list[ServerMessage]) -> tuple[int, str]:
    (last,) = [message.goodbye for message in messages if message.HasField("goodbye")]
    return last.code, last.message


class TestGreeting:
    def test_welcome_says_where_and_what(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        (message,) = broker.hear("ann")
        assert message.welcome.broker_id == "b0"
        assert message.welcome.payload_bytes_max == 1 << 20
        assert message.welcome.topic_bytes_max == 1_024

    def test_another_protocol_is_refused_by_name(self, broker: LoneBroker) -> None:
        broker.connect("ann", protocol=99)
        code, message = goodbye(broker.hear("ann"))
        assert code == ErrorCode.ERROR_CODE_PROTOCOL
        assert message == "this broker speaks protocol 1, the client 99"
        assert broker.is_closing("ann")

    def test_hello_comes_first(self, broker: LoneBroker) -> None:
        broker.keep(broker.core.open_connection(ConnectionId("ann"), broker.now_s))
        broker.say("ann", echo=Echo(request=1))
        assert goodbye(broker.hear("ann"))[1] == "the first message must be Hello"

    def test_hello_comes_once(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.say("ann", hello=Hello(protocol=1))
        assert goodbye(broker.hear("ann"))[1] == "unexpected message hello"

    def test_garbage_is_answered(self, broker: LoneBroker) -> None:
        broker.keep(broker.core.open_connection(ConnectionId("ann"), broker.now_s))
        broker.keep(broker.core.garbage(ConnectionId("ann"), 0.0))
        code, message = goodbye(broker.hear("ann"))
        assert code == ErrorCode.ERROR_CODE_PROTOCOL
        assert "UTF-8" in message

    def test_sessions_are_bounded(self) -> None:
        broker = LoneBroker(CoreSettings(sessions_max=1))
        broker.connect("ann")
        broker.connect("bob")
        assert goodbye(broker.hear("bob"))[0] == ErrorCode.ERROR_CODE_TOO_MANY_SESSIONS
        assert broker.core.counters.sessions_refused == 1

    def test_an_unknown_session_is_ignored(self, broker: LoneBroker) -> None:
        frame = ClientFrame()
        assert broker.core.on_client_frame(ConnectionId("nobody"), frame, 0.0) == []
        assert broker.core.take_output(ConnectionId("nobody"), 100) == b""


class TestTopics:
    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            ("", ErrorCode.ERROR_CODE_TOPIC_EMPTY),
            ("x" * 1_025, ErrorCode.ERROR_CODE_TOPIC_TOO_LONG),
            ("ü" * 513, ErrorCode.ERROR_CODE_TOPIC_TOO_LONG),
            ("news/+", ErrorCode.ERROR_CODE_TOPIC_INVALID),
            ("news/#", ErrorCode.ERROR_CODE_TOPIC_INVALID),
            ("$system", ErrorCode.ERROR_CODE_TOPIC_INVALID),
            ("a\0b", ErrorCode.ERROR_CODE_TOPIC_INVALID),
        ],
    )
    def test_bad_ones_are_refused_to_publishers(
        self, broker: LoneBroker, topic: str, code: int
    ) -> None:
        broker.connect("ann")
        broker.hear("ann")
        broker.publish("ann", publication(topic, 1))
        (refusal,) = broker.hear("ann")
        assert refusal.refused.code == code
        assert broker.core.counters.client_errors == 1

    @pytest.mark.parametrize(
        ("pattern", "where", "code"),
        [
            ("", "", ErrorCode.ERROR_CODE_TOPIC_EMPTY),
            ("x" * 1_025, "", ErrorCode.ERROR_CODE_TOPIC_TOO_LONG),
            ("news/a+", "", ErrorCode.ERROR_CODE_FILTER_INVALID),
            ("#/news", "", ErrorCode.ERROR_CODE_FILTER_INVALID),
            ("$system", "", ErrorCode.ERROR_CODE_FILTER_INVALID),
            ("a\0b", "", ErrorCode.ERROR_CODE_FILTER_INVALID),
            ("news", "price <", ErrorCode.ERROR_CODE_FILTER_INVALID),
        ],
    )
    def test_bad_filters_are_refused_to_subscribers(
        self, broker: LoneBroker, pattern: str, where: str, code: int
    ) -> None:
        broker.connect("ann")
        broker.hear("ann")
        filters = [Filter(pattern=pattern, where=where), Filter(pattern=TOPIC)]
        broker.say("ann", subscribe=Subscribe(request=1, filters=filters))
        (answer,) = broker.hear("ann")
        assert [p.code for p in answer.subscribed.problems] == [code]
        assert list(broker.core.registry.clients["ann"].filters) == [TOPIC]
        assert broker.core.counters.client_errors == 1

    def test_the_longest_is_accepted(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.subscribe("ann", "x" * 1_024)
        assert not broker.hear("ann")[-1].subscribed.problems

    def test_a_session_has_so_many(self) -> None:
        broker = LoneBroker(CoreSettings(filters_per_session_max=2))
        broker.connect("ann")
        broker.hear("ann")
        broker.subscribe("ann", "a", "b", "c")
        (answer,) = broker.hear("ann")
        (problem,) = answer.subscribed.problems
        assert (problem.topic, problem.code) == ("c", ErrorCode.ERROR_CODE_TOO_MANY_TOPICS)


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
        broker.publish("ann", publication(TOPIC, 1, ack=AckLevel.ACK_LEVEL_NONE))
        assert broker.hear("ann") == []
        assert broker.core.publishing.open_streams == 0

    def test_a_retry_is_delivered_once_and_acknowledged_again(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.subscribe("ann", TOPIC)
        broker.hear("ann")
        for _ in range(3):
            broker.publish("ann", publication(TOPIC, 1))
        kinds = broker.kinds("ann")
        assert kinds.count("run") == 1
        assert kinds.count("acknowledged") == 3

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
        assert TOPIC not in broker.core.subscriptions

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
        assert broker.core.node.interests.wanted == [TOPIC]
        broker.unsubscribe("ann", TOPIC)
        assert broker.core.node.interests.wanted == [TOPIC]
        broker.disconnect("bob")
        assert broker.core.node.interests.wanted == []
        assert len(broker.core.subscriptions) == 0

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
        assert not broker.core.subscriptions._waiting


class TestPeers:
    def test_a_frame_for_a_node_that_is_not_here_is_answered(self, broker: LoneBroker) -> None:
        stranger = Peer.from_ref(Peer(broker.core.node.me.node_id, "b9", "b9").ref)
        frame = PeerFrame(sender=stranger.ref, to=12345)
        frame.messages.add(ping=Ping(nonce=1))
        (effect,) = broker.core.on_peer_frame(frame, 0.0)
        assert isinstance(effect, SendFrame)
        assert effect.address == "b9"
        assert effect.frame.messages[0].not_here.node_id == 12345
        assert broker.core.counters.frames_not_here == 1

    def test_two_brokers_do_not_answer_each_other_for_ever(self, broker: LoneBroker) -> None:
        frame = PeerFrame(sender=Peer.at("b9").ref, to=12345)
        frame.messages.add(not_here=NotHere(node_id=7))
        assert broker.core.on_peer_frame(frame, 0.0) == []


class TestTime:
    @pytest.mark.parametrize("jump_s", [3_600.0, -3_600.0])
    def test_a_clock_that_jumps_makes_nobody_look_dead(self, jump_s: float) -> None:
        broker = LoneBroker(CoreSettings(publish_deadline_s=5.0), joining=True)
        broker.connect("ann")
        broker.hear("ann")
        broker.publish("ann", publication(TOPIC, 1))
        broker.now_s += jump_s
        broker.run(1.0)
        assert broker.hear("ann") == []
        assert broker.core.counters.clock_jumps == 1
        broker.run(5.0)
        assert broker.kinds("ann") == ["refused"]


class TestStopping:
    def test_clients_are_told_and_get_what_is_theirs(self, broker: LoneBroker) -> None:
        broker.connect("ann")
        broker.subscribe("ann", TOPIC)
        broker.publish("ann", publication(TOPIC, 1))
        effects = broker.core.leave(0.0)
        broker.keep(effects)
        assert Stopped() in effects
        messages = broker.hear("ann")
        assert any(message.HasField("run") for message in messages)
        assert goodbye(messages)[0] == ErrorCode.ERROR_CODE_SHUTTING_DOWN
        broker.publish("ann", publication(TOPIC, 2))
        assert broker.hear("ann") == []


@pytest.mark.parametrize("level", ["NONE", "RP", "REPLICATED"])
def test_every_level_frees_the_publishers_window(broker: LoneBroker, level: str) -> None:
    broker.connect("ann")
    ack = AckLevel.Value(f"ACK_LEVEL_{level}")
    broker.publish("ann", publication(TOPIC, 1, ack=ack))
    assert broker.core.registry.clients["ann"].unsettled_bytes == 0


def test_core_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        CoreSettings().payload_bytes_max = 5  # type: ignore[misc]
    assert replace(CoreSettings(), payload_bytes_max=5).payload_bytes_max == 5
