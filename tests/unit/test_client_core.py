from __future__ import annotations

from dynatops.client.core import (
    RUN_BYTES_MAX,
    RUN_EVENTS_MAX,
    Ack,
    ClientCore,
    Confirmed,
    Interrupted,
    Item,
    Rejected,
)
from dynatops.v1.client_pb2 import (
    ClientFrame,
    Echoed,
    Refused,
    ServerFrame,
    ServerMessage,
    Subscribed,
    Welcome,
)
from dynatops.v1.overlay_pb2 import Acknowledged, Events, Publication, Run

TOPIC = "quake/ca"


def connected(core: ClientCore) -> ClientCore:
    core.connected()
    hear(core, welcome=Welcome(broker_id="b0"))
    return core


def new_core() -> ClientCore:
    return connected(ClientCore("ann", publisher=0x77))


def hear(core: ClientCore, **body: object) -> list[Item]:
    frame = ServerFrame(messages=[ServerMessage(**body)])  # type: ignore[arg-type]
    return list(core.on_frame(frame))


def take(core: ClientCore) -> ClientFrame:
    return core.take_frame(1 << 20) or ClientFrame()


def publications(core: ClientCore) -> list[Publication]:
    return [m.publication for m in take(core).messages if m.HasField("publication")]


def numbers(core: ClientCore) -> list[tuple[int, int]]:
    return [(p.first_number, p.count) for p in publications(core)]


def acknowledge(core: ClientCore, number: int) -> list[Item]:
    ack = Acknowledged(topic=TOPIC, publisher=core.publisher, number=number, term=5, seq=number)
    return hear(core, acknowledged=ack)


class TestPublishing:
    def test_events_of_a_topic_share_a_publication(self) -> None:
        core = new_core()
        for payload in (b"a", b"b"):
            core.publish(TOPIC, payload, Ack.REPLICATED, 1)
        core.publish("other", b"c", Ack.REPLICATED, 1)
        first, second = publications(core)
        assert (first.topic, first.first_number, first.count) == (TOPIC, 1, 2)
        assert [e.payload for e in Events.FromString(first.events).events] == [b"a", b"b"]
        assert second.topic == "other"
        assert core.take_frame(100) is None

    def test_publications_are_bounded_in_events_and_bytes(self) -> None:
        core = new_core()
        for _ in range(RUN_EVENTS_MAX + 1):
            core.publish(TOPIC, b"x", Ack.REPLICATED, 1)
        assert numbers(core) == [(1, RUN_EVENTS_MAX), (RUN_EVENTS_MAX + 1, 1)]
        for _ in range(3):
            core.publish("other", bytes(RUN_BYTES_MAX // 2), Ack.REPLICATED, 1)
        assert numbers(core) == [(1, 2), (3, 1)]

    def test_nothing_goes_out_before_welcome(self) -> None:
        core = ClientCore("ann", publisher=0x77)
        core.publish(TOPIC, b"a", Ack.REPLICATED, 1)
        assert core.take_frame(100) is None
        connected(core)
        assert numbers(core) == [(1, 1)]

    def test_acknowledgements_settle(self) -> None:
        core = new_core()
        for _ in range(3):
            core.publish(TOPIC, b"a", Ack.REPLICATED, 1)
            take(core)
        assert core.unsettled_bytes > 0
        assert acknowledge(core, 2) == [Confirmed(TOPIC, 2)]
        core.publish(TOPIC, b"b", Ack.REPLICATED, 1)
        (publication,) = publications(core)
        assert (publication.settled, publication.known_term, publication.known_seq) == (2, 5, 2)
        acknowledge(core, 4)
        assert core.unsettled_bytes == 0

    def test_an_old_position_is_not_held_against_a_topic(self) -> None:
        core = new_core()
        core.publish(TOPIC, b"a", Ack.REPLICATED, 0)
        take(core)
        acknowledge(core, 1)
        core.publish(TOPIC, b"b", Ack.REPLICATED, 3_600_000_000)
        assert publications(core)[0].known_term == 0

    def test_a_refusal_settles_what_it_refuses(self) -> None:
        core = new_core()
        core.publish(TOPIC, b"a", Ack.REPLICATED, 1)
        take(core)
        refused = Refused(
            topic=TOPIC, publisher=core.publisher, first_number=1, last_number=1, message="no"
        )
        assert hear(core, refused=refused) == [Rejected(TOPIC, 1, 1, 0, "no")]
        assert core.unsettled_bytes == 0
        core.publish(TOPIC, b"b", Ack.REPLICATED, 1)
        assert publications(core)[0].settled == 1


class TestReconnecting:
    def test_unacknowledged_events_are_sent_again_in_order(self) -> None:
        core = new_core()
        for _ in range(3):
            core.publish(TOPIC, b"a", Ack.REPLICATED, 1)
            take(core)
        acknowledge(core, 1)
        core.disconnected()
        core.publish(TOPIC, b"b", Ack.REPLICATED, 1)
        connected(core)
        assert numbers(core) == [(2, 1), (3, 1), (4, 1)]
        core.disconnected()
        connected(core)
        assert numbers(core) == [(2, 1), (3, 1), (4, 1)]

    def test_events_that_need_no_acknowledgement_are_not(self) -> None:
        core = new_core()
        core.publish(TOPIC, b"sent", Ack.NONE, 1)
        take(core)
        core.disconnected()
        for _ in range(RUN_EVENTS_MAX + 1):
            core.publish(TOPIC, b"waiting", Ack.NONE, 1)
        connected(core)
        first, second = publications(core)
        assert (first.first_number, first.settled) == (2, 1)
        assert second.first_number == 2 + RUN_EVENTS_MAX

    def test_what_was_gathered_but_not_sent_survives(self) -> None:
        core = new_core()
        for _ in range(RUN_EVENTS_MAX + 1):
            core.publish(TOPIC, b"waiting", Ack.NONE, 1)
        core.disconnected()
        connected(core)
        assert numbers(core) == [(1, RUN_EVENTS_MAX), (RUN_EVENTS_MAX + 1, 1)]

    def test_the_two_kinds_are_numbered_apart(self) -> None:
        core = new_core()
        core.publish(TOPIC, b"a", Ack.NONE, 1)
        core.publish(TOPIC, b"b", Ack.REPLICATED, 1)
        one, other = publications(core)
        assert one.publisher != other.publisher
        assert one.first_number == other.first_number == 1

    def test_subscriptions_are_renewed_and_the_gap_is_told_once_they_are(self) -> None:
        core = new_core()
        core.subscribe([TOPIC])
        take(core)
        hear(core, subscribed=Subscribed(request=1))
        core.disconnected()
        core.connected()
        assert len(hear(core, welcome=Welcome())) == 1
        (message,) = take(core).messages
        assert [f.pattern for f in message.subscribe.filters] == [TOPIC]
        items = hear(core, subscribed=Subscribed(request=message.subscribe.request))
        assert Interrupted([TOPIC]) in items

    def test_a_request_in_the_air_is_said_again_without_a_gap(self) -> None:
        core = new_core()
        number = core.subscribe([TOPIC])
        take(core)
        core.disconnected()
        connected(core)
        (message,) = take(core).messages
        assert message.subscribe.request == number
        items = hear(core, subscribed=Subscribed(request=number))
        assert not any(isinstance(item, Interrupted) for item in items)


class TestEchoes:
    def echoes(self, frame: ClientFrame) -> list[int]:
        return [m.echo.request for m in frame.messages if m.HasField("echo")]

    def test_an_echo_follows_everything_published_before(self) -> None:
        core = new_core()
        for _ in range(3 * RUN_EVENTS_MAX):
            core.publish(TOPIC, bytes(200), Ack.NONE, 1)
        number = core.echo()
        assert self.echoes(core.take_frame(1_000) or ClientFrame()) == []
        frame = take(core)
        assert frame.messages[-1].echo.request == number
        assert hear(core, echoed=Echoed(request=number)) == [number]
        assert not core.has_output

    def test_an_echo_is_asked_of_the_next_broker(self) -> None:
        core = new_core()
        number = core.echo()
        assert self.echoes(take(core)) == [number]
        assert self.echoes(take(core)) == []
        core.disconnected()
        other = core.echo()
        connected(core)
        assert self.echoes(take(core)) == [number, other]


class TestHearing:
    def run(self, seq: int, term: int = 5) -> Run:
        return Run(topic=TOPIC, term=term, first_seq=seq, count=1)

    def test_a_stamp_seen_before_is_not_handed_on_again(self) -> None:
        core = new_core()
        core.subscribe([TOPIC])
        assert len(hear(core, run=self.run(1))) == 1
        assert hear(core, run=self.run(1)) == []
        assert len(hear(core, run=self.run(2))) == 1
        assert len(hear(core, run=self.run(1, term=6))) == 1

    def test_topics_given_up_are_not_heard(self) -> None:
        core = new_core()
        core.subscribe([TOPIC])
        core.unsubscribe([TOPIC])
        assert hear(core, run=self.run(1)) == []
