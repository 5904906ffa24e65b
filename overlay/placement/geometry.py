"""The static geometry of a ring: what all nodes together would do if every table were right.

Everything follows from the sorted node ids. Nodes are numbered by their position in that order;
arrays are indexed by these numbers. Solvers place brokers on them and never run the protocol; a
property test shows that the live protocol converges to exactly this.

Since finger k of u is the first node at or after u + 2^k, the finger farthest in (u, v] is the one
with k = floor(log2(distance(u, v))). So the next hop is a table look-up, the hop count of a route
at most 64, and all routes from one source form a tree: on the way to v, every node x is passed by a
node u with floor(log2(distance(u, x))) = floor(log2(distance(u, v))), so the route to x is the
beginning of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overlay.base.identifiers import RING_BITS, NodeId

NodeIndex = NDArray[np.int32]
_NONE = -1


def _log2(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """floor(log2(value)) of positive 64-bit integers, exactly."""
    exponent = np.zeros(values.shape, dtype=np.int64)
    rest = values.copy()
    for shift in (32, 16, 8, 4, 2, 1):
        large = rest >= np.uint64(1 << shift)
        exponent[large] += shift
        rest[large] >>= np.uint64(shift)
    return exponent


@dataclass(frozen=True, slots=True)
class TopicTreeShape:
    """One topic's tree: the union of the routes from its rendezvous point to its members."""

    root: int
    # Every node of the tree but the root -> its parent.
    parents: dict[int, int]
    members: frozenset[int]

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset(self.parents) | {self.root}

    @property
    def relays(self) -> frozenset[int]:
        """Nodes that pass events on without subscribing; the root is none."""
        return frozenset(self.parents) - self.members

    def children(self, node: int) -> list[int]:
        return sorted(child for child, parent in self.parents.items() if parent == node)


class RingGeometry:
    def __init__(self, node_ids: Iterable[int]) -> None:
        ids = sorted(node_ids)
        if not ids:
            raise ValueError("a ring has at least one node")
        if len(set(ids)) != len(ids):
            raise ValueError("node ids must be distinct")
        if ids[0] < 0 or ids[-1] >= 1 << RING_BITS:
            raise ValueError(f"node ids must be of {RING_BITS} bits")
        self.node_ids: NDArray[np.uint64] = np.array(ids, dtype=np.uint64)
        self._index = {NodeId(node_id): i for i, node_id in enumerate(ids)}

    def __len__(self) -> int:
        return len(self.node_ids)

    def index_of(self, node_id: int) -> int:
        return self._index[NodeId(node_id)]

    def successor_of(self, key: int) -> int:
        """The node responsible for a key: the first at or after it."""
        position = int(np.searchsorted(self.node_ids, np.uint64(key), side="left"))
        return position % len(self)

    def successors_of(self, keys: NDArray[np.uint64]) -> NodeIndex:
        positions = np.searchsorted(self.node_ids, keys, side="left")
        return (positions % len(self)).astype(np.int32)

    def fingers(self) -> NodeIndex:
        """[node, k] -> the first node at or after node + 2^k."""
        steps = np.uint64(1) << np.arange(RING_BITS, dtype=np.uint64)
        with np.errstate(over="ignore"):
            targets = self.node_ids[:, None] + steps[None, :]
        return self.successors_of(targets.ravel()).reshape(len(self), RING_BITS)

    def distances_from(self, node: int) -> NDArray[np.uint64]:
        """Clockwise distance from this node to every node."""
        with np.errstate(over="ignore"):
            distances: NDArray[np.uint64] = self.node_ids - self.node_ids[node]
        return distances

    def next_hops_from(self, node: int, fingers: NodeIndex | None = None) -> NodeIndex:
        """[target] -> the next node on the route there; -1 for the node itself."""
        table = self.fingers() if fingers is None else fingers
        distances = self.distances_from(node)
        hops = np.full(len(self), _NONE, dtype=np.int32)
        others = distances > 0
        hops[others] = table[node, _log2(distances[others])]
        return hops

    def next_hops(self) -> NodeIndex:
        """[node, target] -> the next node on the route; -1 on the diagonal."""
        fingers = self.fingers()
        return np.stack([self.next_hops_from(node, fingers) for node in range(len(self))])

    def parents_from(self, root: int, next_hops: NodeIndex | None = None) -> NodeIndex:
        """[node] -> the node before it on the route from the root; -1 for the root.

        Walked from the root outwards: all targets of one next hop share the route so far.
        """
        fingers = self.fingers() if next_hops is None else None
        parents = np.full(len(self), _NONE, dtype=np.int32)
        pending = [(root, np.array([i for i in range(len(self)) if i != root], dtype=np.int32))]
        while pending:
            node, targets = pending.pop()
            if next_hops is None:
                hops = self.next_hops_from(node, fingers)[targets]
            else:
                hops = next_hops[node, targets]
            for child in np.unique(hops):
                parents[child] = node
                beyond = targets[(hops == child) & (targets != child)]
                if beyond.size:
                    pending.append((int(child), beyond))
        return parents

    def hops(self) -> NDArray[np.int16]:
        """[node, target] -> the number of hops of the route; 0 on the diagonal."""
        next_hops = self.next_hops()
        size = len(self)
        counts = np.zeros((size, size), dtype=np.int16)
        position = np.repeat(np.arange(size, dtype=np.int32)[:, None], size, axis=1)
        targets = np.arange(size, dtype=np.int32)[None, :]
        moving = position != targets
        while moving.any():
            counts += moving
            rows, columns = np.nonzero(moving)
            position[rows, columns] = next_hops[position[rows, columns], columns]
            moving = position != targets
        return counts

    def route(self, source: int, target: int) -> list[int]:
        """The nodes from source to target, both included."""
        path = [source]
        fingers = self.fingers()
        while path[-1] != target:
            path.append(int(self.next_hops_from(path[-1], fingers)[target]))
        return path

    def tree(self, root: int, members: Sequence[int]) -> TopicTreeShape:
        """The topic tree from this root to these members."""
        above = self.parents_from(root)
        parents: dict[int, int] = {}
        for member in members:
            node = member
            while node != root and node not in parents:
                parents[node] = int(above[node])
                node = int(above[node])
        return TopicTreeShape(root, parents, frozenset(members))
