"""What is heard of a client before it is known, and how large its frames may be after that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.base.frame_bounds import EVENTS, LINK_FRAME, FrameError, Shape, check_parts
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.doors.frames import CLIENT_FRAME, on_client_bytes, read_client_frame
from dynatops.v1.client_pb2 import (
    ClientFrame,
    ClientMessage,
    Cursor,
    Echo,
    ErrorCode,
    Filter,
    Hello,
    Received,
    SerialRange,
    Subscribe,
)
from dynatops.v1.overlay_pb2 import Attribute, Event, Events, PeerFrame, PeerMessage, TermSeq
from dynatops.v1.peer_pb2 import LinkFrame
from tests.support.brokers import LoneBroker, goodbye
from tests.support.nodes import publication

SETTINGS = CoreSettings()
CLIENT = ConnectionId("ann")


def subscription(parts: int) -> bytes:
    """A frame with a subscription; a message, what it is, filters, and cursors that have seen."""
    cursors = [Cursor(topic="t", seen=[TermSeq(term=1 << 60, seq=9)] * 3)] * ((parts - 3) // 5)
    subscribe = Subscribe(request=1, filters=[Filter()], cursors=cursors)
    return ClientFrame(messages=[ClientMessage(subscribe=subscribe)]).SerializeToString()


def shape_of(kind: Any) -> Shape:
    """Of a message's descriptor: what may be there many times, at whatever depth."""
    shape: Shape = {}
    for field in kind.fields:
        inner = shape_of(field.message_type) if field.message_type is not None else {}
        is_long = field.type in (field.TYPE_MESSAGE, field.TYPE_STRING, field.TYPE_BYTES)
        if inner or (field.is_repeated and is_long):
            shape[field.number] = inner
    return shape


class TestCounting:
    def test_nothing_is_forgotten_that_clients_may_say_many_times(self) -> None:
        assert shape_of(ClientFrame.DESCRIPTOR) == CLIENT_FRAME
        assert shape_of(Events.DESCRIPTOR) == EVENTS

    @pytest.mark.parametrize(
        ("raw", "shape"),
        [
            (b"\x0a\x00" * 1_001, CLIENT_FRAME),
            (b"\x0a\x02\x22\x00" * 501, CLIENT_FRAME),
            (b"\x12\x00" * 1_001, LINK_FRAME),
            (
                ClientFrame(
                    messages=[ClientMessage(received=Received(beyond=[SerialRange()] * 1_000))]
                ).SerializeToString(),
                CLIENT_FRAME,
            ),
            (
                ClientFrame(
                    messages=[ClientMessage(hello=Hello(avoid=[""] * 1_000))]
                ).SerializeToString(),
                CLIENT_FRAME,
            ),
            (subscription(1_013), CLIENT_FRAME),
            (
                Events(events=[Event(attributes=[Attribute()] * 100)] * 10).SerializeToString(),
                EVENTS,
            ),
            (
                LinkFrame(frames=[PeerFrame(messages=[PeerMessage()] * 1_000)]).SerializeToString(),
                LINK_FRAME,
            ),
        ],
        ids=[
            "messages",
            "publications",
            "link frames",
            "ranges",
            "addresses",
            "cursors",
            "attributes",
            "peer messages",
        ],
    )
    def test_what_has_too_many_parts_is_refused(self, raw: bytes, shape: Shape) -> None:
        with pytest.raises(FrameError, match="more than 1,000 parts"):
            check_parts(raw, shape, 1_000)

    def test_what_has_just_enough_is_not(self) -> None:
        check_parts(b"\x0a\x00" * 1_000, CLIENT_FRAME, 1_000)
        check_parts(subscription(900), CLIENT_FRAME, 1_000)

    def test_bytes_that_are_carried_do_not_count(self) -> None:
        large = publication("t", 1)
        large.events = b"\x0a\x00" * 100_000
        raw = ClientFrame(messages=[ClientMessage(publication=large)]).SerializeToString()
        check_parts(raw, CLIENT_FRAME, 1_000)

    @pytest.mark.parametrize(
        "raw", [b"\x0b" * 5_000, b"\x0a\x7f" + b"\x0a\x00" * 5, b"\x80" * 5_000, b"\x0a" * 1]
    )
    def test_what_cannot_be_counted_is_refused(self, raw: bytes) -> None:
        with pytest.raises(FrameError):
            check_parts(raw, CLIENT_FRAME, 0)


class TestFrames:
    def test_one_that_is_too_long_for_a_stranger_is_not_for_a_client(self) -> None:
        echoes = [ClientMessage(echo=Echo(request=1 << 60))] * 6_000
        raw = ClientFrame(messages=echoes).SerializeToString()
        assert len(read_client_frame(raw, SETTINGS, is_named=True).messages) == 6_000
        with pytest.raises(FrameError, match="the first frame has 84,000 bytes; the limit is 65,5"):
            read_client_frame(raw, SETTINGS, is_named=False)

    def test_its_messages_are_bounded(self) -> None:
        raw = b"\x0a\x00" * 16_385
        with pytest.raises(FrameError, match="16,385 messages; the limit is 16,384"):
            read_client_frame(raw, SETTINGS, is_named=True)

    def test_a_stranger_that_says_nothing_is_ended(self) -> None:
        broker = LoneBroker()
        broker.keep(broker.core.open_connection(CLIENT, 0.0))
        broker.keep(on_client_bytes(broker.core, CLIENT, b"", 0.0))
        assert goodbye(broker.hear("ann"))[1] == "the first message must be Hello"

    @pytest.mark.parametrize("is_named", [True, False])
    def test_who_sends_too_much_is_told_and_ended(self, is_named: bool) -> None:
        broker = LoneBroker(CoreSettings(frame_parts_max=100))
        if is_named:
            broker.connect("ann")
        else:
            broker.keep(broker.core.open_connection(CLIENT, 0.0))
        broker.keep(on_client_bytes(broker.core, CLIENT, b"\x0a\x00" * 101, 0.0))
        code, message = goodbye(broker.hear("ann"))
        assert code == ErrorCode.ERROR_CODE_PROTOCOL
        assert message == "a frame has more than 100 parts"
        assert broker.is_closing("ann")
        assert broker.core.counters.frames_refused == 1

    def test_events_of_a_publication_are_counted_before_they_are_read(self) -> None:
        broker = LoneBroker(CoreSettings(frame_parts_max=100))
        broker.connect("ann")
        broker.hear("ann")
        many = publication("t", 1)
        many.count, many.events = 101, b"\x0a\x00" * 101
        broker.publish("ann", many)
        (refusal,) = broker.hear("ann")
        assert refusal.refused.message == "a frame has more than 100 parts"


class TestStrangers:
    """Connections that say nothing, from hosts that have many of them."""

    def broker(self) -> LoneBroker:
        return LoneBroker(CoreSettings(unnamed_max=4, unnamed_per_address_max=2))

    def come(self, broker: LoneBroker, name: str, host: str) -> bool:
        """Whether there is room for it."""
        broker.keep(broker.core.open_connection(ConnectionId(name), broker.now_s, host))
        return broker.core.reception.is_unnamed(ConnectionId(name))

    def test_one_host_leaves_room_for_others(self) -> None:
        broker = self.broker()
        assert [self.come(broker, f"m{i}", "mallory") for i in range(3)] == [True, True, False]
        assert self.come(broker, "ann", "elsewhere")
        message = goodbye(broker.hear("m2"))[1]
        assert message == "2 connections from mallory have not said hello yet"
        assert broker.core.counters.connections_refused_by_host == 1

    def test_who_has_been_silent_makes_room_for_who_may_not_be(self) -> None:
        broker = self.broker()
        for name in ("m0", "m1"):
            assert self.come(broker, name, "mallory")
        broker.run(0.5)
        assert self.come(broker, "ann", "mallory")
        assert broker.is_closing("m0")
        assert not broker.is_closing("m1")

    def test_room_is_made_by_the_host_that_has_most(self) -> None:
        broker = LoneBroker(CoreSettings(unnamed_max=3))
        assert self.come(broker, "bob", "elsewhere")
        for name in ("m0", "m1"):
            assert self.come(broker, name, "mallory")
        broker.run(0.5)
        assert self.come(broker, "ann", "third")
        assert [name for name in ("bob", "m0", "m1") if broker.is_closing(name)] == ["m0"]

    def test_whoever_has_said_hello_does_not_count(self) -> None:
        broker = self.broker()
        for name in ("a", "b", "c"):
            assert self.come(broker, name, "many")
            broker.say(name, hello=Hello(protocol=1, client_id=name))
        assert broker.core.reception.unnamed == 0


class TestBytesOfAll:
    """What all publishers together have under way."""

    def test_who_has_much_waits_first_and_all_wait_in_the_end(self) -> None:
        settings = replace(SETTINGS, publish_total_bytes_max=10_000, publish_window_bytes=8_000)
        broker = LoneBroker(settings, joining=True)
        for name in ("ann", "bob", "cat", "dan"):
            broker.connect(name)

        def publish(name: str, number: int, nbytes: int) -> None:
            large = publication(name, number)
            large.events = Events(events=[Event(payload=bytes(nbytes))]).SerializeToString()
            broker.publish(name, large)

        publish("ann", 1, 5_500)
        assert broker.is_paused("ann")
        publish("bob", 1, 500)
        assert not broker.is_paused("bob")
        publish("cat", 1, 3_500)
        publish("dan", 1, 100)
        assert broker.is_paused("cat")
        assert broker.is_paused("dan")
        broker.found_a_ring()
        broker.run(3.0)
        assert not any(broker.is_paused(name) for name in ("ann", "bob", "cat", "dan"))
        assert ring_of(broker.core).publishing.unsettled_bytes == 0
