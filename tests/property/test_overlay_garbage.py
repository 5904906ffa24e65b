"""Whatever other nodes say about topics that live here, a node goes on: nothing of it raises.

`test_garbage` sends what no broker would, to one that is alone. Here it is what brokers do send, of
topics and terms that there are, from nodes that are known, with a field or two that cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from google.protobuf.message import Message

from dynatops.v1.overlay_pb2 import Event, Events, PeerFrame, PeerMessage
from overlay.base.identifiers import NUMBER_MAX
from overlay.handover import parts_of, put_together, restore
from overlay.node import Node
from tests.support.garbage import random_message
from tests.support.nodes import NodeNet, events, publication

FRAMES = 150
TOPIC = "quake/ca"  # n0's on a ring of 4; n1 stands by
PART = "$topics/1c"  # n3's; n0 stands by
TOPICS = (TOPIC, PART, "quake/nv", "a")
BODIES = [field.name for field in PeerMessage.DESCRIPTOR.oneofs[0].fields]
# What there is no end to: who says it is believed, and that is what it is for.
HARMLESS = tuple(
    body for body in BODIES if body not in ("leave", "not_here", "hosted", "session_moved")
)


def plausible(rng: Random, message: Message, terms: list[int], nodes: list[Node]) -> None:
    """Fields that must fit something for it to be looked at do so, mostly."""
    descriptor: Any = message.DESCRIPTOR
    for field in descriptor.fields:
        value = getattr(message, field.name)
        if field.message_type is not None:
            parts = value if field.is_repeated else [value] * message.HasField(field.name)
            for part in parts:
                if field.message_type.name == "NodeRef":
                    part.CopyFrom(rng.choice(nodes).me.ref)
                else:
                    plausible(rng, part, terms, nodes)
        elif rng.random() < 0.1:
            continue
        elif field.name in ("topic", "forgotten") or (
            field.name == "announced" and field.is_repeated
        ):
            if field.is_repeated:
                value[:] = [rng.choice(TOPICS)]
            else:
                setattr(message, field.name, rng.choice(TOPICS))
        elif field.name in ("term", "prev_term", "known_term"):
            setattr(message, field.name, rng.choice(terms))
        elif field.name in (
            "count",
            "seq",
            "first_seq",
            "prev_seq",
            "first_number",
            "missing",
            "high",
        ):
            setattr(message, field.name, rng.randint(0, 6))
        elif field.name == "publisher":
            setattr(message, field.name, rng.choice((7, 8)))
        elif field.name == "events":
            setattr(message, field.name, some_events(rng))


def some_events(rng: Random) -> bytes:
    whole = events(*(b"%d" % i for i in range(rng.randint(0, 5))))
    no_name = Events(events=[Event(payload=b"\xff\xfe")]).SerializeToString()
    return rng.choice((whole, no_name, whole[:-1], b"\xff\xff\xff", rng.randbytes(20)))


def random_terms(rng: Random, net: NodeNet) -> list[int]:
    logs = [reign.log for node in net.nodes.values() for reign in node.reigns.by_topic.values()]
    used = sorted({log.term for log in logs})
    return [*used, *used, used[-1] + 1, used[-1] + (1 << 24), 0, NUMBER_MAX, NUMBER_MAX + 1]


@pytest.mark.parametrize("seed", range(40))
def test_a_node_outlives_what_its_neighbours_say(seed: int) -> None:
    rng = Random(seed)
    net = NodeNet(seed)
    net.ring(i << 62 for i in range(4))
    nodes = list(net.nodes.values())
    for topic in (TOPIC, "quake/nv"):
        net.want("n2", topic)
        net.want("n0", topic)
        net.publish("n1", publication(topic, 1, count=3))
    net.want("n0", PART)
    net.run(1.0)
    for _ in range(FRAMES):
        source, target = rng.sample(nodes, 2)
        frame = PeerFrame(sender=source.me.ref, to=target.me.node_id)
        message = random_message(rng, PeerMessage)
        while message.WhichOneof("body") not in HARMLESS:
            message = random_message(rng, PeerMessage)
        plausible(rng, message, random_terms(rng, net), nodes)
        frame.messages.append(message)
        for name, node in net.nodes.items():
            if node is target:
                net.perform(name, node.handle(frame, net.now_s))
        net.run(0.03)
    net.run(30.0)
    goes_on(net)


@pytest.mark.parametrize("seed", range(20))
def test_a_node_outlives_the_state_that_it_is_given(seed: int) -> None:
    """Its former host may have been out of its mind."""
    rng = Random(seed)
    net = NodeNet(seed)
    net.ring(i << 62 for i in range(4))
    nodes = list(net.nodes.values())
    for topic in (TOPIC, "quake/nv"):
        net.want("n2", topic)
        net.publish("n1", publication(topic, 1, count=3))
    net.run(1.0)
    former = net.nodes["n0"]
    former.seal()
    state = put_together(parts_of(former))
    for part in rng.sample(list(messages_in(state)), 5):
        part.MergeFrom(random_message(rng, type(part)))
        plausible(rng, part, random_terms(rng, net), nodes)
    me = replace(former.me, epoch=1, incarnation=9)
    hosts = [peer.me.ref for peer in nodes[1:]]
    node = restore(state, me, hosts, net.settings, Random(1), former.counters, net.now_s)
    net.replace("n0", node)
    net.run(30.0)
    goes_on(net)


def messages_in(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                yield part
                yield from messages_in(part)


def goes_on(net: NodeNet) -> None:
    """The ring is what it was, and a topic that nobody spoiled works."""
    net.settle()
    assert len(net.nodes) == 4
    net.want("n2", "sane")
    net.run(1.0)
    net.publish("n3", publication("sane", 1, publisher=99))
    net.run(3.0)
    assert net.delivered("n2", "sane")[0] == 1
