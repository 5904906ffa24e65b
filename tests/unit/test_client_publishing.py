"""A client's core: what it publishes, and again after a loss of the connection."""

from __future__ import annotations

import pytest

from dynatops.client.arguments import PublishingLimits, chunks_of, event_chunks
from dynatops.client.core.client_core import ClientCore, Item
from dynatops.client.core.publications import (
    RUN_BYTES_MAX,
    RUN_EVENTS_MAX,
    Ack,
    Confirmed,
    Rejected,
)
from dynatops.client.errors import ArgumentTypeError
from dynatops.kit.topics import TopicError
from dynatops.v1.client_pb2 import ClientFrame, Echoed, Refused
from dynatops.v1.overlay_pb2 import Acknowledged, Attribute, Events, Publication
from tests.support.clients import TOPIC, connected, hear, new_core, take

LIMITS = PublishingLimits(1_024, 1 << 20)


def publications(core: ClientCore) -> list[Publication]:
    return [m.publication for m in take(core).messages if m.HasField("publication")]


def numbers(core: ClientCore) -> list[tuple[int, int]]:
    return [(p.first_number, p.count) for p in publications(core)]


def acknowledge(core: ClientCore, number: int) -> list[Item]:
    ack = Acknowledged(
        topic=TOPIC, publisher=core.publications.publisher, number=number, term=5, seq=number
    )
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

    def test_many_at_once_are_what_they_would_be_one_by_one(self) -> None:
        attributes = [Attribute(name="magnitude", number=5.1)]
        large = bytes(RUN_BYTES_MAX // 2)
        for payloads in ([b"x"] * (2 * RUN_EVENTS_MAX + 1), [large, b"y", large, b"z"], [b""]):
            singly, at_once = new_core(), new_core()
            for core in (singly, at_once):
                core.publish(TOPIC, b"before", Ack.REPLICATED, 1, attributes)
            for payload in payloads:
                last = singly.publish(TOPIC, payload, Ack.REPLICATED, 1, attributes)
            many = at_once.publications.publish(TOPIC, payloads, Ack.REPLICATED, 1, attributes)
            assert many == last
            assert at_once.publications.open_bytes == singly.publications.open_bytes
            assert publications(at_once) == publications(singly)

    def test_a_list_is_taken_in_as_many_at_once_as_a_publication_holds(self) -> None:
        large = bytes(RUN_BYTES_MAX // 2)
        payloads = [*[b"x"] * (RUN_EVENTS_MAX + 1), large, bytearray(large), b"y"]
        chunks = list(chunks_of(payloads))
        assert [len(chunk) for chunk in chunks] == [RUN_EVENTS_MAX, 3, 1]
        assert [payload for chunk in chunks for payload in chunk] == payloads
        assert list(chunks_of([])) == []

    def test_what_makes_payloads_is_asked_for_one_at_a_time(self) -> None:
        """What came before one that is none has been published by then."""
        chunks = chunks_of(payload for payload in (b"a", "b"))
        assert next(chunks) == (b"a",)
        with pytest.raises(ArgumentTypeError):
            next(chunks)

    def test_events_of_many_topics_are_taken_in_so_that_none_is_too_much(self) -> None:
        large = bytes(RUN_BYTES_MAX // 2 + 1)
        small = [(f"t/{i}", b"%d" % i) for i in range(RUN_EVENTS_MAX + 1)]
        for events, sizes in (
            (small, [RUN_EVENTS_MAX, 1]),
            ([("t", large)] * 3, [1, 1, 1]),
            ([["t", bytearray(b"x")], ("u", b"y")], [2]),
            ([], []),
        ):
            chunks = list(event_chunks(events, LIMITS))
            assert [len(topics) for topics, _ in chunks] == sizes
            assert [e for chunk in chunks for e in zip(*chunk, strict=True)] == [
                *map(tuple, events)
            ]
            made = list(event_chunks(iter(events), LIMITS))
            # It may have taken its time.
            assert len(made) >= len(sizes) - 1
            assert [e for chunk in made for e in zip(*chunk, strict=True)] == [*map(tuple, events)]

    def test_of_events_that_are_made_those_before_a_wrong_one_come_first(self) -> None:
        events = [("t", b"a"), ("t", b"b"), ("t/+", b"c"), ("t", b"d")]
        with pytest.raises(TopicError):
            next(event_chunks(events, LIMITS))
        chunks = event_chunks(iter(events), LIMITS)
        had: list[bytes] = []
        with pytest.raises(TopicError):
            had.extend(payload for _, payloads in chunks for payload in payloads)
        assert had == [b"a", b"b"]

    def test_topics_that_are_right_are_forgotten_in_the_end(self) -> None:
        limits = PublishingLimits(100, 100)
        for number in range(70_000):
            limits.check_topic(f"t/{number}")
        assert 0 < len(limits.right_topics) <= 65_536
        with pytest.raises(TopicError):
            limits.check_topic("t" * 101)

    def test_what_has_gone_out_takes_no_room(self) -> None:
        """Full publications too: what is counted for ever stops the publisher in the end."""
        core = new_core()
        for _ in range(2 * RUN_EVENTS_MAX + 1):
            core.publish(TOPIC, b"x", Ack.NONE, 1)
        assert core.publications.open_bytes == 33 * (2 * RUN_EVENTS_MAX + 1)
        assert len(numbers(core)) == 3
        assert core.publications.open_bytes == 0

    def test_nothing_goes_out_before_welcome(self) -> None:
        core = ClientCore("ann", b"s" * 16)
        core.publish(TOPIC, b"a", Ack.REPLICATED, 1)
        assert core.take_frame(100) is None
        connected(core)
        assert numbers(core) == [(1, 1)]

    def test_acknowledgements_settle(self) -> None:
        core = new_core()
        for _ in range(3):
            core.publish(TOPIC, b"a", Ack.REPLICATED, 1)
            take(core)
        assert core.publications.unsettled_bytes > 0
        assert acknowledge(core, 2) == [Confirmed(TOPIC, 2)]
        core.publish(TOPIC, b"b", Ack.REPLICATED, 1)
        (publication,) = publications(core)
        assert (publication.settled, publication.known_term, publication.known_seq) == (2, 5, 2)
        acknowledge(core, 4)
        assert core.publications.unsettled_bytes == 0

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
            topic=TOPIC,
            publisher=core.publications.publisher,
            first_number=1,
            last_number=1,
            message="no",
        )
        assert hear(core, refused=refused) == [Rejected(TOPIC, 1, 1, 0, "no")]
        assert core.publications.unsettled_bytes == 0
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

    def test_a_broker_that_names_another_publisher_is_told_all_under_that(self) -> None:
        core = new_core()
        for ack in (Ack.REPLICATED, Ack.NONE):
            core.publish(TOPIC, b"sent", ack, 1)
        take(core)
        core.disconnected()
        for ack in (Ack.REPLICATED, Ack.NONE):
            core.publish(TOPIC, b"waiting", ack, 1)
        connected(core, publisher=8)
        said = sorted((p.publisher, p.first_number, p.settled) for p in publications(core))
        assert said == [(8, 1, 0), (8, 2, 0), (9, 2, 1)]

    def test_events_of_several_levels_wait_for_the_first_broker(self) -> None:
        """They go in publications of their own, all but the last of which are closed by then."""
        core = ClientCore("ann", b"s" * 16)
        for ack in (Ack.RP, Ack.REPLICATED, Ack.NONE):
            core.publish(TOPIC, b"early", ack, 1)
        connected(core, publisher=8)
        said = sorted((p.publisher, p.first_number, int(p.ack)) for p in publications(core))
        assert said == [(8, 1, int(Ack.RP)), (8, 2, int(Ack.REPLICATED)), (9, 1, int(Ack.NONE))]

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
