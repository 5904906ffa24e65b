"""What a client gathers in bundles, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from google.protobuf.message import DecodeError

from dynatops.client.core.publications import Ack, ConfirmedColumns, Publications
from dynatops.v1.client_pb2 import ClientFrame
from dynatops.v1.overlay_pb2 import Acknowledgements, Bundle, Publication
from tests.support.clients import hear, new_core

PUBLISHER = 6
TOPICS = tuple(f"t/{i}" for i in range(4))
BYTES_MAX = 1 << 20


class Says:
    """A client's publications, and what it would say of them."""

    def __init__(self, *, bundles: bool = True) -> None:
        self.publications = Publications()
        self.bundles = bundles
        self.come()

    def come(self) -> None:
        self.publications.greeted(PUBLISHER, bundles=self.bundles)

    def publish(self, *topics: str, ack: Ack = Ack.REPLICATED) -> list[int]:
        publish = self.publications.publish
        return [publish(topic, [b"x"], ack, 1, None) for topic in topics]

    def frame(self) -> ClientFrame:
        frame = ClientFrame()
        assert self.publications.fill(frame, BYTES_MAX)
        return frame

    def said(self) -> list[str | list[str]]:
        """`t/1:4` for an event that goes alone, `t/1:4-9` for a run, a list for a bundle."""
        return [
            _shown(message.publication)
            if message.HasField("publication")
            else [
                f"{t}:{n}"
                for t, n in zip(message.bundle.topics, message.bundle.numbers, strict=True)
            ]
            for message in self.frame().messages
        ]

    def acknowledge(self, topics: Sequence[str], numbers: Sequence[int]) -> None:
        columns = Acknowledgements(
            publisher=PUBLISHER,
            topics=topics,
            numbers=numbers,
            terms=[9] * len(topics),
            seqs=numbers,
        )
        confirmed = list(self.publications.on_columns(columns))
        assert confirmed == [ConfirmedColumns(list(topics), list(numbers))]


def _shown(publication: Publication) -> str:
    last = publication.first_number + publication.count - 1
    more = f"-{last}" if publication.count > 1 else ""
    return f"{publication.topic}:{publication.first_number}{more}"


def test_the_first_on_a_topic_goes_alone() -> None:
    says = Says()
    says.publish(*TOPICS)
    assert says.said() == ["t/0:1", "t/1:1", "t/2:1", "t/3:1"]
    says.publish(*TOPICS)
    assert says.said() == [["t/0:2", "t/1:2", "t/2:2", "t/3:2"]]


def test_one_event_is_no_bundle() -> None:
    says = Says()
    says.publish("t/0")
    says.said()
    says.publish("t/0")
    assert says.said() == ["t/0:2"]


def test_many_of_one_topic_are_a_run() -> None:
    says = Says()
    says.publish("t/0", "t/1")
    says.said()
    says.publish("t/1", *["t/0"] * 20, "t/1")
    bundle, run = says.said()
    assert bundle == ["t/1:2", *(f"t/0:{number}" for number in range(2, 10)), "t/1:3"]
    assert run == "t/0:10-21"


def test_a_full_run_does_not_overtake_its_bundle() -> None:
    says = Says()
    says.publish("t/0")
    says.said()
    says.publish(*["t/0"] * 600)
    bundle, *runs = says.said()
    assert bundle[-1] == "t/0:9"
    assert runs == ["t/0:10-509", "t/0:510-601"]


def test_levels_are_not_mixed() -> None:
    says = Says()
    for ack in (Ack.NONE, Ack.RP):
        says.publish(*TOPICS, ack=ack)
    says.frame()
    for ack in (Ack.RP, Ack.NONE, Ack.REPLICATED):
        says.publish("t/0", "t/1", ack=ack)
    bundles = [message.bundle for message in says.frame().messages]
    assert {Ack(bundle.ack): [*bundle.numbers] for bundle in bundles} == {
        Ack.NONE: [2, 2],
        Ack.RP: [2, 2],
        Ack.REPLICATED: [3, 3],
    }
    assert {Ack(bundle.ack): bundle.publisher for bundle in bundles} == {
        Ack.NONE: PUBLISHER + 1,
        Ack.RP: PUBLISHER,
        Ack.REPLICATED: PUBLISHER,
    }


def test_a_broker_of_before_gets_none() -> None:
    says = Says(bundles=False)
    says.publish(*TOPICS)
    says.said()
    says.publish("t/0", "t/1", "t/0")
    assert says.said() == ["t/0:2-3", "t/1:2"]


def test_what_is_not_acknowledged_is_sent_again_alone() -> None:
    says = Says()
    says.publish("t/0", "t/1")
    says.said()
    says.acknowledge(["t/0", "t/1"], [1, 1])
    says.publish("t/0", "t/1", "t/0")
    says.said()
    says.acknowledge(["t/0"], [2])
    # And what has not been sent.
    says.publish("t/1")
    says.publications.disconnected()
    says.come()
    frame = says.frame()
    again = [message.publication for message in frame.messages]
    assert [_shown(publication) for publication in again] == ["t/0:3", "t/1:2", "t/1:3"]
    assert [publication.settled for publication in again] == [2, 1, 1]
    assert {publication.known_term for publication in again} == {9}
    says.acknowledge(["t/0", "t/1"], [3, 3])
    assert says.publications.unsettled_bytes == 0
    says.publish("t/0", "t/1")
    # The first of each on this connection.
    assert says.said() == ["t/0:4", "t/1:4"]


def test_what_nobody_acknowledges_is_sent_once() -> None:
    says = Says()
    says.publish("t/0", "t/1", ack=Ack.NONE)
    says.said()
    says.publish("t/0", "t/1", ack=Ack.NONE)
    says.said()
    says.publish("t/0", "t/1", "t/0", ack=Ack.NONE)
    says.publications.disconnected()
    says.come()
    frame = says.frame()
    again = [message.publication for message in frame.messages]
    assert [_shown(publication) for publication in again] == ["t/0:3", "t/1:3", "t/0:4"]
    # The new broker does not wait for what the former one may have lost.
    assert [publication.settled for publication in again] == [2, 2, 2]


def test_another_number_at_the_next_broker() -> None:
    says = Says()
    says.publish(*TOPICS)
    says.said()
    says.publish("t/0", "t/1")
    says.publish("t/2", "t/3", ack=Ack.NONE)
    says.publications.disconnected()
    says.publications.greeted(40, bundles=True)
    publishers = {
        (message.publication.topic, Ack(message.publication.ack)): message.publication.publisher
        for message in says.frame().messages
    }
    replicated = {(topic, Ack.REPLICATED): 40 for topic in TOPICS}
    assert publishers == {**replicated, ("t/2", Ack.NONE): 41, ("t/3", Ack.NONE): 41}


def test_what_is_far_behind_fits_the_wire() -> None:
    """Numbers that nobody acknowledges are settled only by another connection."""
    says = Says()
    says.publish("t/0", "t/1", ack=Ack.NONE)
    says.said()
    far = 1 << 33
    for stream in says.publications._unacknowledged.values():
        stream.next_number = far
    says.publish("t/0", "t/1", ack=Ack.NONE)
    (message,) = says.frame().messages
    assert [*message.bundle.numbers] == [far, far]
    assert [*message.bundle.pending] == [(1 << 32) - 1] * 2


@pytest.mark.parametrize(
    "bundle",
    [
        Bundle(),
        Bundle(topics=["t"], numbers=[1], published_us=[1], sizes=[1], payloads=b"x", pending=[0]),
        Bundle(topics=["t"], numbers=[1], published_us=[1], sizes=[1], terms=[1], seqs=[2]),
        Bundle(topics=["t", "u"], numbers=[1], published_us=[1], sizes=[0], terms=[1], seqs=[2]),
        Bundle(topics=["t"], numbers=[1], published_us=[1], sizes=[0], terms=[1], seqs=[2, 3]),
    ],
    ids=["empty", "not stamped", "no payload", "a topic too many", "a stamp too many"],
)
def test_a_broken_broker_ends_the_connection(bundle: Bundle) -> None:
    """That is what a driver makes of it."""
    with pytest.raises(DecodeError):
        hear(new_core(), bundle=bundle)


def test_columns_of_a_broken_broker() -> None:
    with pytest.raises(DecodeError):
        hear(new_core(), acknowledgements=Acknowledgements(topics=["t"], numbers=[1, 2]))


class TestWorthAFrame:
    def test_the_first_waits_for_nothing(self) -> None:
        says = Says()
        says.publish("t/0")
        assert says.publications.is_worth_a_frame

    def test_a_small_part_of_what_is_awaited_waits_for_more(self) -> None:
        says = Says()
        says.publish(*(f"t/{i}" for i in range(60)))
        says.frame()
        says.publish(*(f"t/{i}" for i in range(17)))
        assert not says.publications.is_worth_a_frame
        says.publish(*(f"t/{i}" for i in range(17, 22)))
        assert says.publications.is_worth_a_frame

    def test_nobody_waits_because_of_what_is_not_acknowledged(self) -> None:
        says = Says()
        says.publish(*(f"t/{i}" for i in range(60)))
        says.frame()
        says.publish("t/1", ack=Ack.NONE)
        assert says.publications.is_worth_a_frame

    def test_much_goes_at_once(self) -> None:
        says = Says()
        publish = says.publications.publish
        for i in range(20):
            publish(f"t/{i}", [bytes(64 << 10)], Ack.REPLICATED, 1, None)
        while not says.publications.fill(ClientFrame(), BYTES_MAX):
            pass
        publish("t/0", [bytes(64 << 10)], Ack.REPLICATED, 1, None)
        assert says.publications.is_worth_a_frame
