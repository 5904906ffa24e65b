"""Events that come in bundles, against the same events one by one: the same is stamped, delivered
and acknowledged, whatever is repeated, missing, or more than one of a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from broker_agent.core.base.effects import ConnectionId
from dynatops.kit.bundles import Bundle
from dynatops.v1.client_pb2 import ClientFrame, ClientMessage
from dynatops.v1.overlay_pb2 import AckLevel, Events
from tests.support.brokers import LoneBroker

TOPICS = tuple(f"t/{i}" for i in range(4))
READERS = ("reader", "old reader", "kept reader")
LEVELS = (AckLevel.ACK_LEVEL_NONE, AckLevel.ACK_LEVEL_RP, AckLevel.ACK_LEVEL_REPLICATED)


class Said(NamedTuple):
    """One event, as its publisher says it."""

    topic: int
    # Numbers that it leaves out before this one, or repeats.
    skips: int
    # Of the numbers before it, how many it does not give up.
    pending: int
    payload: bytes


SAID = st.builds(
    Said,
    st.integers(0, len(TOPICS) - 1),
    st.sampled_from((0, 0, 0, 0, 1, -1, -2)),
    st.sampled_from((0, 0, 0, 1)),
    st.binary(max_size=3),
)
FRAMES = st.lists(
    st.tuples(st.sampled_from(LEVELS), st.lists(SAID, min_size=1, max_size=8)), max_size=8
)


class Publisher:
    """Says the same to a broker, in bundles or one by one."""

    def __init__(self, *, bundles: bool) -> None:
        self.bundles = bundles
        self.broker = LoneBroker()
        self.broker.connect("reader", bundles=True)
        self.broker.connect("old reader")
        self.broker.connect("kept reader", bundles=True, keep_s=600)
        for reader in READERS:
            self.broker.subscribe(reader, "t/+")
        self.broker.connect("publisher", bundles=bundles)
        self.number = self.broker.core.registry.connections[ConnectionId("publisher")].publisher
        self.next = [1] * len(TOPICS)
        self.broker.run(0.5)

    def say(self, level: AckLevel.ValueType, events: Sequence[Said]) -> None:
        numbers: list[int] = []
        for event in events:
            number = max(1, self.next[event.topic] + event.skips)
            self.next[event.topic] = max(self.next[event.topic], number + 1)
            numbers.append(number)
        bundle = Bundle(
            self.number | (level == AckLevel.ACK_LEVEL_NONE),
            [TOPICS[event.topic] for event in events],
            numbers,
            [7] * len(events),
            [event.payload for event in events],
        )
        bundle.ack = level
        bundle.pending = [
            min(event.pending, number - 1) for event, number in zip(events, numbers, strict=True)
        ]
        messages = (
            [ClientMessage(bundle=bundle.to_wire())]
            if self.bundles
            else [ClientMessage(publication=bundle.publication_at(i)) for i in range(len(bundle))]
        )
        frame = ClientFrame(messages=messages)
        broker = self.broker
        broker.keep(broker.core.on_client_frame(ConnectionId("publisher"), frame, broker.now_s))
        broker.run(0.1)

    def heard(self, reader: str) -> dict[str, list[tuple[int, int, int, int, bytes]]]:
        """By topic: publisher, number, term, number in it, and payload of each event, in order."""
        heard: dict[str, list[tuple[int, int, int, int, bytes]]] = {}
        for message in self.broker.hear(reader):
            if message.HasField("bundle"):
                bundle = Bundle.from_wire(message.bundle)
                runs = [bundle.run_at(place) for place in range(len(bundle))]
            else:
                runs = [message.run]
            for run in runs:
                for offset, event in enumerate(Events.FromString(run.events).events):
                    stamp = (run.term, run.first_seq + offset)
                    entry = (run.publisher, run.first_number + offset, *stamp, event.payload)
                    heard.setdefault(run.topic, []).append(entry)
        return heard

    def acknowledged(self) -> dict[str, int]:
        """The highest number on each topic that the publisher was told of."""
        told: dict[str, int] = {}
        for message in self.broker.hear("publisher"):
            columns = message.acknowledgements
            numbers = [
                *zip(columns.topics, columns.numbers, strict=True),
                (message.acknowledged.topic, message.acknowledged.number),
            ]
            for topic, number in numbers:
                told[topic] = max(number, told.get(topic, 0))
        return told


@given(FRAMES)
def test_bundles_say_the_same(
    frames: list[tuple[AckLevel.ValueType, list[Said]]],
) -> None:
    together, singly = Publisher(bundles=True), Publisher(bundles=False)
    for level, events in frames:
        together.say(level, events)
        singly.say(level, events)
    for publisher in (together, singly):
        # What came too early has been said again.
        publisher.broker.run(3.0)
    heard = [p.heard(reader) for p in (together, singly) for reader in READERS]
    assert heard == heard[:1] * len(heard)
    assert together.acknowledged() == singly.acknowledged()
