"""Identifiers and the arithmetic of the ring.

Node ids and topic keys are unsigned 64-bit integers on a circle; "clockwise" is upwards, modulo
2^64. Intervals are clockwise from their first bound. Where both bounds are equal an interval is the
whole circle, without the bound if it is open there: on a ring of one, everything lies between me
and me.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)
Key = NewType("Key", int)
Term = NewType("Term", int)

RING_BITS = 64
# Terms and numbers of events stay below this: what is added to them still fits the wire.
NUMBER_MAX = (1 << 63) - 1
# Nobody opens a term because of one that somebody claims to have seen beyond this: there would be
# no room for those that follow.
TERM_CLAIM_MAX = NUMBER_MAX >> 1
RING_MASK = (1 << RING_BITS) - 1

TERM_TAG_BITS = 24
_TERM_TAG_MASK = (1 << TERM_TAG_BITS) - 1
_GOLDEN_RATIO = 0x9E3779B97F4A7C15


class TermOwner(NamedTuple):
    """Who opens terms: one life of one host of a node."""

    # Differs between any two that may open a term of one topic.
    mark: int
    # No term of this owner is of an older generation; that of a later life is higher.
    generation: int = 0


def key_of(name: str) -> Key:
    """The key of a topic: the first 8 bytes, big-endian, of the SHA-1 of the UTF-8 name."""
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


def next_term(known: int, owner: TermOwner) -> Term:
    """A term that is newer than `known` and that nobody else ever opens.

    The high bits count generations: one after that of `known`, and no less than the owner's, so
    that a topic whose whole history was lost does not begin with the terms of that history. The low
    bits are a hash of the owner: two rendezvous points of one topic on two sides of a partition, or
    two lives of one whose clock was set back, do not stamp different events alike.
    """
    generation = max((known >> TERM_TAG_BITS) + 1, owner.generation)
    return Term(generation << TERM_TAG_BITS | _tag(owner.mark))


def _tag(mark: int) -> int:
    return ((mark * _GOLDEN_RATIO) & RING_MASK) >> (RING_BITS - TERM_TAG_BITS)


def show_term(term: int) -> str:
    """`7.a3f21c`: generation 7, opened by an owner whose tag is a3f21c."""
    return f"{term >> TERM_TAG_BITS}.{term & _TERM_TAG_MASK:06x}"


def show_node(node_id: int) -> str:
    return f"{node_id:016x}"
