"""Whatever a neighbour says, a forwarder goes on."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dynatops.v1.overlay_pb2 import LinkMessage, Run
from overlay.forwarding.tree.topology import Topology
from tests.support.tree_net import TreeNet

BODIES = [field.name for field in LinkMessage.DESCRIPTOR.oneofs_by_name["body"].fields]
NAMES = ["", "b0", "b1", "b2", "x/#", "x", "v >", "#/x"]
NUMBERS = [0, 1, 2, 3, (1 << 63) - 1, (1 << 64) - 1]


def fill(rng: Random, message: object, depth: int = 0) -> None:
    """With numbers, names and parts that may be anything."""
    for field in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]
        if rng.random() < 0.3:
            continue
        if field.message_type is not None:
            if depth > 4:
                continue
            parts = getattr(message, field.name)
            fill(rng, parts.add() if field.is_repeated else parts, depth + 1)
            continue
        value: object = rng.choice(NUMBERS)
        if field.type == field.TYPE_STRING:
            value = rng.choice(NAMES)
        elif field.type == field.TYPE_BYTES:
            value = rng.randbytes(rng.randrange(4))
        elif field.type == field.TYPE_BOOL:
            value = rng.random() < 0.5
        elif field.type in (field.TYPE_UINT32, field.TYPE_ENUM):
            value = rng.randrange(4)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


class UnreadNet(TreeNet):
    """Subscribers do not look at what they are given."""

    def _deliver_run(self, broker: str, run: Run) -> None:
        return


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), ads=st.booleans())
def test_garbage(seed: int, ads: bool) -> None:
    rng = Random(seed)
    mapping = {
        "brokers": {"b0": "h:0", "b1": "h:1", "b2": "h:2"},
        "links": [["b0", "b1"], ["b1", "b2"]],
        "advertisements": ads,
    }
    net = UnreadNet(Topology.from_mapping(mapping), seed)
    net.start_all()
    net.run(2.0)
    net.subscribe("b1", "x/#")
    hostile = net.nodes["b0"]
    for _ in range(40):
        message = LinkMessage()
        body = rng.choice(BODIES)
        getattr(message, body).SetInParent()
        fill(rng, getattr(message, body))
        hostile._context.neighbours["b1"].link.message().CopyFrom(message)
        net.run(0.2)
    net.run(2.0)
    assert net.nodes["b1"].counters.link_frames > 40
