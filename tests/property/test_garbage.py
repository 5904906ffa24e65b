"""Whatever is sent to a broker, it goes on: for those who sent it, and for everyone else."""

from __future__ import annotations

from random import Random

import pytest
from google.protobuf.message import DecodeError

from broker_agent.core.effects import ConnectionId
from dynatops.v1.client_pb2 import ClientFrame
from dynatops.v1.overlay_pb2 import PeerFrame, Publish, Run, Runs
from overlay.identifiers import NUMBER_MAX
from overlay.soundness import is_sound
from tests.support.brokers import LoneBroker
from tests.support.garbage import mutated, random_message
from tests.support.nodes import publication

FRAMES = 500


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
        broker.keep(broker.core.on_client_bytes(ConnectionId("x"), raw, broker.now_s))
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
            frame.to = broker.core.node.me.node_id
        if i % 2:
            try:
                frame = PeerFrame.FromString(mutated(rng, frame.SerializeToString()))
            except DecodeError:
                continue
        broker.keep(broker.core.on_peer_frame(frame, broker.now_s))
        broker.run(0.05)
    # What was sent may have named brokers that do not exist: they are found out and forgotten.
    broker.run(60.0)


def test_numbers_that_cannot_be() -> None:
    beyond = NUMBER_MAX + 1
    assert is_sound(Runs(runs=[Run(term=NUMBER_MAX, first_seq=1)]))
    assert not is_sound(Runs(runs=[Run(term=1), Run(term=beyond)]))
    assert not is_sound(Runs(runs=[Run(first_seq=beyond)]))
    assert is_sound(Publish(publications=[publication("t", 1, publisher=beyond)]))
    assert not is_sound(Publish(publications=[publication("t", beyond)]))
