"""What a broker says to its clients, above all when they are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId, SendFrame, Stopped
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.doors.frames import on_client_bytes
from dynatops.v1.client_pb2 import ClientFrame, Echo, ErrorCode, Filter, Hello, Subscribe
from dynatops.v1.overlay_pb2 import NotHere, PeerFrame, Ping
from overlay.base.peers import Peer
from tests.support.brokers import LoneBroker, goodbye
from tests.support.nodes import publication

TOPIC = "quake/ca"


@pytest.fixture
def broker() -> LoneBroker:
    return LoneBroker()


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
        broker.keep(on_client_bytes(broker.core, ConnectionId("ann"), b"\xff", 0.0))
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
        assert not broker.core.take_output(ConnectionId("nobody"), 100)


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


class TestPeers:
    def test_a_frame_for_a_node_that_is_not_here_is_answered(self, broker: LoneBroker) -> None:
        stranger = Peer.from_ref(Peer(ring_of(broker.core).node.me.node_id, "b9", "b9").ref)
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


def test_core_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        CoreSettings().payload_bytes_max = 5  # type: ignore[misc]
    assert replace(CoreSettings(), payload_bytes_max=5).payload_bytes_max == 5
