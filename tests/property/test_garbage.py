"""Whatever is sent to a broker, it goes on: for those who sent it, and for everyone else."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from broker_agent.core.base.effects import ConnectionId
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.core.selection.selection_settings import SelectionSettings
from broker_agent.doors.frames import on_client_bytes
from dynatops.v1.client_pb2 import ClientFrame, Filter, MissCause, Subscribe
from dynatops.v1.overlay_pb2 import (
    Fetched,
    NodeRef,
    Outcome,
    PeerFrame,
    PeerMessage,
    Ping,
    Publication,
    Publish,
    Replicate,
    Run,
    Runs,
    SessionMoved,
)
from overlay import soundness
from overlay.base.catalogue import shard_topics
from overlay.base.identifiers import NUMBER_MAX
from overlay.soundness import is_sound
from tests.support.brokers import LoneBroker
from tests.support.garbage import mutated, random_message
from tests.support.nodes import publication

FRAMES = 500
TOPICS = ("quake/ca", "quake/nv", "news")


def _serves(broker: LoneBroker) -> None:
    """Somebody well behaved subscribes, publishes and hears it."""
    broker.connect("honest")
    broker.subscribe("honest", "sane")
    broker.run(1.0)
    broker.publish("honest", publication("sane", 1, publisher=77))
    broker.run(1.0)
    assert [run.count for run in broker.runs("honest")] == [1]
    broker.disconnect("honest")


@pytest.mark.parametrize("seed", range(20))
def test_frames_from_clients(seed: int) -> None:
    """10,000 in all: half made up field by field, half with bytes changed as well."""
    rng = Random(seed)
    broker = LoneBroker()
    broker.run(0.3)
    broker.connect("x")
    answered = closed = 0
    for i in range(FRAMES):
        raw = random_message(rng, ClientFrame).SerializeToString()
        if i % 2:
            raw = mutated(rng, raw)
        broker.keep(on_client_bytes(broker.core, ConnectionId("x"), raw, broker.now_s))
        broker.run(0.05)
        answered += len(broker.hear("x"))
        if broker.is_closing("x"):
            broker.disconnect("x")
            broker.effects.clear()
            broker.connect("x")
            closed += 1
    assert answered > FRAMES / 4
    assert closed > FRAMES / 10
    _serves(broker)


@pytest.mark.parametrize("seed", range(20))
def test_frames_from_other_brokers(seed: int) -> None:
    rng = Random(seed)
    broker = LoneBroker()
    broker.run(0.3)
    for i in range(FRAMES // 5):
        frame = random_message(rng, PeerFrame)
        if rng.random() < 0.7:
            frame.to = ring_of(broker.core).node.me.node_id
        if i % 2:
            try:
                frame = PeerFrame.FromString(mutated(rng, frame.SerializeToString()))
            except DecodeError:
                continue
        broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
        broker.run(0.05)
    # What was sent may have named brokers that do not exist: they are found out and forgotten.
    broker.run(60.0)


def beyond_in_one_place(kind: Any, depth: int = 0) -> Iterator[Any]:
    """Messages of a kind, in each of which one number cannot be."""
    for field in kind.DESCRIPTOR.fields:
        if field.message_type is not None and depth < 4:
            for part in beyond_in_one_place(field.message_type._concrete_class, depth + 1):
                message = kind()
                place = getattr(message, field.name)
                if field.is_repeated:
                    place.add().CopyFrom(part)
                else:
                    place.CopyFrom(part)
                yield message
        elif field.name in soundness._COUNTING:
            many = [NUMBER_MAX + 1] if field.is_repeated else NUMBER_MAX + 1
            yield kind(**{field.name: many})


def test_no_message_has_a_place_for_numbers_that_cannot_be() -> None:
    bodies: Any = PeerMessage.DESCRIPTOR.oneofs_by_name["body"].fields
    with_numbers = {
        field.name
        for field in bodies
        for message in beyond_in_one_place(field.message_type._concrete_class)
        if not is_sound(message)
    }
    without = {f.name for f in bodies} - with_numbers
    assert {"runs", "replicate", "join_tree", "fetched", "publish_ack"} <= with_numbers
    assert {"ping", "pong", "lookup", "notify"} <= without
    for field in bodies:
        for message in beyond_in_one_place(field.message_type._concrete_class):
            assert not is_sound(message), f"{field.name}: {message}"


def test_numbers_that_cannot_be() -> None:
    beyond = NUMBER_MAX + 1
    assert is_sound(Runs(runs=[Run(term=NUMBER_MAX, first_seq=1)]))
    assert not is_sound(Runs(runs=[Run(term=1), Run(term=beyond)]))
    assert not is_sound(Runs(runs=[Run(first_seq=beyond)]))
    # The last event of a run has a number, too, and the first is 1.
    assert is_sound(Runs(runs=[Run(first_seq=NUMBER_MAX - 2, count=2, first_number=1)]))
    assert not is_sound(Runs(runs=[Run(first_seq=NUMBER_MAX - 1, count=2, first_number=1)]))
    assert not is_sound(Runs(runs=[Run(first_seq=1, count=2, first_number=NUMBER_MAX - 1)]))
    assert not is_sound(Replicate(runs=[Run(first_seq=0, count=1, first_number=1)]))
    assert not is_sound(Replicate(runs=[Run(first_seq=1, count=1, first_number=0)]))
    # What is counted on the way must fit the wire.
    assert not is_sound(Runs(runs=[Run(first_seq=1, hops=(1 << 32) - 1)]))
    assert is_sound(Publish(publications=[publication("t", 1, publisher=beyond)]))
    assert not is_sound(Publish(publications=[publication("t", beyond)]))
    # What passes often is looked at by name: every number in it, as in any other message.
    numbers = [f.name for f in Publication.DESCRIPTOR.fields if f.type == f.TYPE_UINT64]
    assert len(numbers) == 4
    for name in numbers:
        fine, wrong = Publication(), Publication()
        setattr(fine, name, NUMBER_MAX)
        setattr(wrong, name, beyond)
        assert is_sound(Publish(publications=[fine]))
        assert not is_sound(Publish(publications=[fine, wrong]))
        assert not is_sound(wrong)


GARBAGE = (b"\xff", b"\x0a\x7f", b"\x0a\x02\x0a\x7f", b"\x08\x01", b"\x0a\x00\x0a\x00\x0a\x00")


def _listening() -> LoneBroker:
    """Somebody there for everything, in every way there is."""
    broker = LoneBroker(selection=SelectionSettings(enabled=True))
    broker.run(0.3)
    broker.connect("exact")
    broker.subscribe("exact", *TOPICS)
    broker.connect("wild")
    broker.subscribe("wild", "#", "+/+", "quake/+")
    broker.connect("choosy", keep_s=60)
    wanted = [Filter(pattern=t, where="price < 5") for t in (*TOPICS, "#")]
    broker.say("choosy", subscribe=Subscribe(request=1, filters=wanted))
    broker.run(3.0)
    assert ring_of(broker.core).subscriptions.following.is_complete
    return broker


def _sent(rng: Random, broker: LoneBroker, number: int) -> PeerMessage:
    """What a broker may say of events, with events that are none."""
    topic = rng.choice((*TOPICS, *shard_topics(), broker.core.cluster.topic))
    events = rng.choice(GARBAGE)
    count = rng.choice((1, 1, 1, 3, 1_000))
    if rng.random() < 0.6:
        return PeerMessage(
            publish=Publish(
                publications=[
                    Publication(
                        topic=topic, publisher=number, first_number=1, count=count, events=events
                    )
                ]
            )
        )
    reader = ring_of(broker.core).subscriptions.readers.get(topic)
    term, seq = reader.live.reader.position if reader is not None else (1, 0)
    run = Run(
        topic=topic, term=max(term, 1), first_seq=seq + 1, count=count, publisher=number,
        first_number=1, prev_term=term, prev_seq=seq, events=events,
    )  # fmt: skip
    if rng.random() < 0.5:
        return PeerMessage(runs=Runs(runs=[run]))
    return PeerMessage(fetched=Fetched(topic=topic, runs=[run]))


@pytest.mark.parametrize("seed", range(10))
def test_events_that_are_none(seed: int) -> None:
    rng = Random(seed)
    broker = _listening()
    sender = NodeRef(node_id=1, broker_id="b1", address="b1", incarnation=1)
    for number in range(1, FRAMES // 5):
        frame = PeerFrame(sender=sender, messages=[_sent(rng, broker, number)])
        broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
        broker.run(0.05)
        for client in ("exact", "wild", "choosy"):
            broker.hear(client)
    assert broker.core.counters.runs_unreadable > 0
    broker.run(60.0)
    _serves(broker)


def test_who_may_have_wanted_what_nobody_can_read_is_told() -> None:
    broker = _listening()
    sender = NodeRef(node_id=1, broker_id="b1", address="b1", incarnation=1)
    broken = Publication(topic="quake/ca", publisher=5, first_number=1, count=3, events=b"\x0a\x7f")
    broker.hear("choosy")
    message = PeerMessage(publish=Publish(publications=[broken]))
    broker.keep(
        broker.core.on_peer_frame(PeerFrame(sender=sender, messages=[message]), broker.now_s)
    )
    broker.run(0.5)
    told = [m.missed for m in broker.hear("choosy") if m.HasField("missed")]
    assert [(m.topic, m.count, m.cause) for m in told] == [
        ("quake/ca", 3, MissCause.MISS_CAUSE_UNREADABLE)
    ]


def test_each_message_of_a_frame_goes_to_whom_it_concerns() -> None:
    """A frame whose first message was the broker's lost the others."""
    broker = LoneBroker()
    broker.run(0.3)
    broker.connect("ann")
    broker.subscribe("ann", "sane")
    broker.run(1.0)
    sender = NodeRef(node_id=1, broker_id="b1", address="b1", incarnation=1)
    published = Publish(publications=[publication("sane", 1, publisher=77)])
    moved = SessionMoved(client_id="nobody")
    for first in (PeerMessage(session_moved=moved), PeerMessage(outcome=Outcome(plan="p"))):
        frame = PeerFrame(sender=sender, messages=[first, PeerMessage(publish=published)])
        broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
        broker.run(0.5)
        published.publications[0].first_number += 1
        published.publications[0].events = publication("sane", 2).events
    assert [run.count for run in broker.runs("ann")] == [1, 1]


def test_the_brokers_message_is_heard_in_any_place() -> None:
    broker = LoneBroker()
    broker.run(0.3)
    broker.connect("ann", keep_s=60)
    session = broker.core.registry.clients["ann"]
    broker.disconnect("ann")
    sender = NodeRef(node_id=1, broker_id="b1", address="b1", incarnation=1)
    moved = SessionMoved(client_id="ann", session_id=session.session_id)
    frame = PeerFrame(
        sender=sender, messages=[PeerMessage(ping=Ping(nonce=1)), PeerMessage(session_moved=moved)]
    )
    broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
    assert "ann" not in broker.core.registry.clients
