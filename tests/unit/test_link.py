"""Links of a tree, one thing at a time; conversations are in `tests/property/test_link.py`."""

from __future__ import annotations

from itertools import count

from dynatops.v1.overlay_pb2 import NodeRef
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.links.link import Link


def link_of(name: str) -> Link:
    me = NodeRef(broker_id=name)
    return Link(me, ForwardingSettings(), ForwardingCounters(), count(1), 1, 7, 0.0)


def exchange(one: Link, other: Link, now_s: float) -> list[int]:
    """What either end has to say, once; the versions that `other` is told of."""
    heard: list[int] = []
    for here, there in ((one, other), (other, one)):
        for frame in here.frames(now_s):
            message = frame.messages[0]
            if message.HasField("link_greeting"):
                there.hear_greeting(message.link_greeting, now_s)
                continue
            for batch in there.hear_batch(message.link_batch, now_s):
                heard += [m.table_confirmed.version for m in batch.messages]
    return heard


def test_what_is_said_before_the_link_is_up_holds_nothing_up() -> None:
    one, other = link_of("b0"), link_of("b1")
    one.message().table_confirmed.version = 1
    heard: list[int] = []
    for round_number in range(4):
        one.tick(round_number)
        other.tick(round_number)
        heard += exchange(one, other, round_number)
    assert one.is_up
    assert other.is_up
    one.message().table_confirmed.version = 2
    assert heard + exchange(one, other, 4.0) == [2]
