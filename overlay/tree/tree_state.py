"""What a node remembers of topic trees: edges to parents and children, and its part of each."""

from __future__ import annotations

from collections.abc import Collection, KeysView
from dataclasses import dataclass, field

from dynatops.v1.overlay_pb2 import Position, Run
from overlay.base.identifiers import RING_MASK, Key, NodeId
from overlay.base.peers import Peer

BUCKETS = 16
BUCKET_SHIFT = 60


def _mix(key: int, member: int) -> int:
    """A 64-bit hash of a (topic, member) pair; pairs are combined by exclusive or."""
    value = (key * 0x9E3779B97F4A7C15 + member) & RING_MASK
    value = ((value ^ (value >> 31)) * 0xBF58476D1CE4E5B9) & RING_MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & RING_MASK
    return value ^ (value >> 31)


class Edge:
    """The (topic, member) pairs that one node entrusted to another, as either end sees it."""

    __slots__ = ("_members", "digests", "heard_s", "pairs")

    def __init__(self) -> None:
        # Most topics have one member behind an edge: a set for it alone would take the most memory
        # of all that a node remembers of a topic.
        self._members: dict[str, NodeId | set[NodeId]] = {}
        self.digests = [0] * BUCKETS
        self.pairs = 0
        self.heard_s = 0.0

    @property
    def topics(self) -> KeysView[str]:
        return self._members.keys()

    def members(self, topic: str) -> Collection[NodeId]:
        found = self._members.get(topic)
        if found is None:
            return ()
        return found if isinstance(found, set) else (found,)

    def add(self, topic: str, key: Key, member: NodeId) -> bool:
        present = self._members.get(topic)
        if present is None:
            self._members[topic] = member
        elif isinstance(present, set):
            if member in present:
                return False
            present.add(member)
        elif present == member:
            return False
        else:
            self._members[topic] = {present, member}
        self._toggle(key, member, 1)
        return True

    def remove(self, topic: str, key: Key, member: NodeId) -> bool:
        present = self._members.get(topic)
        if present is None or member not in self.members(topic):
            return False
        if isinstance(present, set) and len(present) > 1:
            present.remove(member)
        else:
            del self._members[topic]
        self._toggle(key, member, -1)
        return True

    def _toggle(self, key: Key, member: NodeId, count: int) -> None:
        self.digests[key >> BUCKET_SHIFT] ^= _mix(key, member)
        self.pairs += count

    @property
    def digest(self) -> int:
        total = 0
        for index, part in enumerate(self.digests):
            total ^= ((part << index) | (part >> (64 - index))) & RING_MASK
        return total


@dataclass(slots=True)
class TopicTree:
    """One topic's tree as it passes through this node."""

    topic: str
    key: Key
    # The newest (term, seq, beat) that came by, and where its term began.
    position: tuple[int, int, int] = (0, 0, 0)
    origin: tuple[int, int] = (0, 0)
    # member -> how many parents (normally one) entrusted it to this node.
    entrusted: dict[NodeId, int] = field(default_factory=dict)
    # member -> the child that it is entrusted to; None while the ring does not know the member.
    delegates: dict[NodeId, Peer | None] = field(default_factory=dict)
    # The children, in a fixed order; None when it must be worked out again.
    children: tuple[Peer, ...] | None = ()
    is_root: bool = False
    # Of the system's own: its events are in no figure of what applications do.
    is_system: bool = False

    def position_message(self) -> Position:
        return Position(
            term=self.position[0],
            seq=self.position[1],
            prev_term=self.origin[0],
            prev_seq=self.origin[1],
        )

    def note_position(self, position: Position) -> None:
        """Where somebody says that the topic stands."""
        if (position.term, position.seq, 0) > self.position:
            self.position = (position.term, position.seq, 0)
            self.origin = (position.prev_term, position.prev_seq)

    def advance(self, run: Run) -> None:
        """A run comes by that is newer than all before."""
        if self.position[0] != run.term or run.prev_term:
            self.origin = (run.prev_term, run.prev_seq)
        self.position = (run.term, run.first_seq + run.count - 1, run.beat)
