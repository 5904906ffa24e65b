"""How far a store has a topic on its disk: all events that are stamped after one position, up to
another.

                since            prev | term begins     reached
    term 1  ----(----------------]    |
    term 2                            (------------------]----> not there, or not synced

An event lies somewhere between two positions: behind one that its publisher's broker knew of
before, and no farther than one that it was told of with the acknowledgement. A mark proves that the
event is stored if it covers all that lies between them.

On a ring terms grow along a topic's history. In a tree a term is a stream, whose numbers begin at
1.
"""

from __future__ import annotations

from typing import NamedTuple

from dynatops.v1.overlay_pb2 import StoreMark

# A term, and a number in it.
Position = tuple[int, int]


class Mark(NamedTuple):
    since: Position
    # Where the history stood before the term of `reached`.
    prev: Position
    reached: Position

    def proves(self, after: Position, stamp: Position) -> bool:
        """Whether all that lies behind the one and no farther than the other is stored."""
        if self.since > after:
            return False
        term, seq = stamp
        if term == self.reached[0]:
            return seq <= self.reached[1]
        return term == self.prev[0] and seq <= self.prev[1]

    def with_longer(self, other: Mark) -> Mark:
        """Of two by one life of a store, which may have overtaken each other."""
        if self.reached == other.reached:
            return min(self, other)
        return max(self, other, key=lambda mark: mark.reached)


def mark_of(message: StoreMark) -> Mark:
    return Mark(
        (message.since_term, message.since_seq),
        (message.prev_term, message.prev_seq),
        (message.term, message.seq),
    )


def mark_message(topic: str, mark: Mark) -> StoreMark:
    return StoreMark(
        topic=topic,
        since_term=mark.since[0],
        since_seq=mark.since[1],
        prev_term=mark.prev[0],
        prev_seq=mark.prev[1],
        term=mark.reached[0],
        seq=mark.reached[1],
    )
