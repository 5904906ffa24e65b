"""Identifiers and the arithmetic of the ring.

Node ids and topic keys are unsigned 64-bit integers on a circle; "clockwise" is upwards, modulo
2^64. Intervals are clockwise from their first bound. Where both bounds are equal an interval is the
whole circle, without the bound if it is open there: on a ring of one, everything lies between me
and me.
"""

from __future__ import annotations

import hashlib
from typing import NewType

NodeId = NewType("NodeId", int)
Key = NewType("Key", int)
Term = NewType("Term", int)
PublisherId = NewType("PublisherId", int)

RING_BITS = 64
# Terms and numbers of events stay below this: what is added to them still fits the wire.
NUMBER_MAX = (1 << 63) - 1
RING_MASK = (1 << RING_BITS) - 1

TERM_TAG_BITS = 24
_TERM_TAG_MASK = (1 << TERM_TAG_BITS) - 1
_GOLDEN_RATIO = 0x9E3779B97F4A7C15


def key_of(name: str) -> Key:
    """The first 8 bytes, big-endian, of the SHA-1 of the UTF-8 name (DESIGN: key of a topic)."""
    return Key(
        int.from_bytes(hashlib.sha1(name.encode(), usedforsecurity=False).digest()[:8], "big")
    )


def first_node_id(broker_id: str) -> NodeId:
    """Where consistent hashing puts a broker that has no other position yet."""
    return NodeId(key_of(broker_id))


def distance(start: int, end: int) -> int:
    """How far `end` lies clockwise of `start`: 0 where they are equal."""
    return (end - start) & RING_MASK


def strictly_between(point: int, low: int, high: int) -> bool:
    """Whether `point` lies in (low, high)."""
    return 0 < distance(low, point) < (distance(low, high) or RING_MASK + 1)


def within(point: int, low: int, high: int) -> bool:
    """Whether `point` lies in (low, high]."""
    return distance(high, point) == 0 or strictly_between(point, low, high)


def next_term(known: int, owner: NodeId) -> Term:
    """A term that is newer than `known` and that no other node opens at the same time.

    The low bits are a hash of the owner, so that two rendezvous points of one topic on two sides of
    a network partition do not stamp different events alike.
    """
    return Term((((known >> TERM_TAG_BITS) + 1) << TERM_TAG_BITS) | _tag(owner))


def _tag(owner: NodeId) -> int:
    return ((owner * _GOLDEN_RATIO) & RING_MASK) >> (RING_BITS - TERM_TAG_BITS)


def show_term(term: int) -> str:
    """`7.a3f21c`: the seventh reign, by a node whose tag is a3f21c."""
    return f"{term >> TERM_TAG_BITS}.{term & _TERM_TAG_MASK:06x}"


def show_node(node_id: int) -> str:
    return f"{node_id:016x}"
