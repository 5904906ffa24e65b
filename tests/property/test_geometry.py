"""Routes and trees of the static geometry against a reference that is too simple to be wrong."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.base.identifiers import NodeId, distance, within
from overlay.base.peers import Peer
from overlay.chord.routing import RoutingTable
from overlay.placement.geometry import RingGeometry

SIZE = 1 << 64
node_ids = st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=40)
small_rings = st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=3)


def successor(ids: list[int], key: int) -> int:
    return min(ids, key=lambda node_id: distance(key, node_id))


def next_hop(ids: list[int], here: int, point: int) -> int:
    """The finger farthest clockwise in (here, point]: by trying all 64."""
    fingers = [successor(ids, (here + (1 << k)) % SIZE) for k in range(64)]
    eligible = [f for f in fingers if f != here and within(f, here, point)]
    return max(eligible, key=lambda f: distance(here, f))


def route(ids: list[int], start: int, end: int) -> list[int]:
    path = [start]
    while path[-1] != end:
        path.append(next_hop(ids, path[-1], end))
    return path


@settings(max_examples=1_000)
@given(node_ids)
def test_fingers(ids: set[int]) -> None:
    geometry = RingGeometry(ids)
    ordered = sorted(ids)
    fingers = geometry.fingers()
    for i, node_id in enumerate(ordered):
        for k in (0, 1, 31, 62, 63):
            assert ordered[fingers[i, k]] == successor(ordered, (node_id + (1 << k)) % SIZE)


@settings(max_examples=2_000)
@given(st.one_of(node_ids, small_rings), st.data())
def test_routes(ids: set[int], data: st.DataObject) -> None:
    geometry = RingGeometry(ids)
    ordered = sorted(ids)
    start, end = (data.draw(st.integers(0, len(ordered) - 1)) for _ in range(2))
    expected = route(ordered, ordered[start], ordered[end])
    assert [ordered[i] for i in geometry.route(start, end)] == expected
    assert geometry.next_hops_from(start)[end] == (
        -1 if start == end else ordered.index(expected[1])
    )


@settings(max_examples=300)
@given(node_ids)
def test_hops_and_parents(ids: set[int]) -> None:
    geometry = RingGeometry(ids)
    ordered = sorted(ids)
    hops, next_hops = geometry.hops(), geometry.next_hops()
    for root in range(0, len(ordered), 7):
        parents = geometry.parents_from(root)
        assert (parents == geometry.parents_from(root, next_hops)).all()
        for node in range(len(ordered)):
            path = route(ordered, ordered[root], ordered[node])
            assert hops[root, node] == len(path) - 1
            assert parents[node] == (-1 if node == root else ordered.index(path[-2]))


@settings(max_examples=2_000)
@given(st.one_of(node_ids, small_rings), st.data())
def test_a_tree_is_the_union_of_the_routes_from_its_root(
    ids: set[int], data: st.DataObject
) -> None:
    geometry = RingGeometry(ids)
    ordered = sorted(ids)
    everyone = st.integers(0, len(ordered) - 1)
    root = data.draw(everyone)
    members = sorted(data.draw(st.sets(everyone)))
    shape = geometry.tree(root, members)
    union: set[tuple[int, int]] = set()
    for member in members:
        path = [
            ordered.index(node_id) for node_id in route(ordered, ordered[root], ordered[member])
        ]
        union |= set(pairwise(path))
    assert {(parent, child) for child, parent in shape.parents.items()} == union
    if union:
        assert nx.is_arborescence(nx.DiGraph(list(union)))
    assert shape.relays == {child for _, child in union} - set(members)
    assert root not in shape.relays


@settings(max_examples=500)
@given(node_ids, st.integers(0, SIZE - 1), st.data())
def test_a_routing_table_routes_like_the_geometry(
    ids: set[int], key: int, data: st.DataObject
) -> None:
    geometry = RingGeometry(ids)
    ordered = sorted(ids)
    here = data.draw(st.integers(0, len(ordered) - 1))
    table = RoutingTable(NodeId(ordered[here]))
    fingers = {ordered[k] for k in geometry.fingers()[here]}
    table.replace(Peer(NodeId(node_id), "", "") for node_id in fingers)
    for target in range(len(ordered)):
        hop = table.towards(ordered[target])
        expected = geometry.next_hops_from(here)[target]
        assert (-1 if hop is None else ordered.index(hop.node_id)) == expected
    assert ordered[geometry.successor_of(key)] == successor(ordered, key)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_rings(size: int) -> None:
    geometry = RingGeometry(range(10, 10 + size))
    hops = geometry.hops()
    assert (hops.diagonal() == 0).all()
    assert hops.max() == (0, 1, 2)[size - 1]


def test_the_eight_evenly_spaced_nodes_of_figure_2() -> None:
    """DYNATOPS Fig. 2: on 8 evenly spaced nodes, clockwise distance 7 is exactly 3 hops."""
    geometry = RingGeometry(i << 61 for i in range(8))
    hops = geometry.hops()
    for node in range(8):
        assert hops[node, (node + 7) % 8] == 3
        # A hop for each bit of the distance.
        assert [hops[node, (node + d) % 8] for d in range(8)] == [0, 1, 1, 2, 1, 2, 2, 3]
    assert geometry.route(0, 7) == [0, 4, 6, 7]


def test_a_large_ring_is_quick_and_shallow() -> None:
    rng = np.random.default_rng(1)
    geometry = RingGeometry(int(i) for i in rng.integers(0, SIZE - 1, 2_000, dtype=np.uint64))
    parents = geometry.parents_from(17)
    depth = np.zeros(len(geometry), dtype=int)
    for node in range(len(geometry)):
        step = node
        while step != 17:
            step = int(parents[step])
            depth[node] += 1
    assert depth.max() <= 2 * np.log2(len(geometry))


@pytest.mark.parametrize("ids", [[], [1, 1], [-1], [SIZE]])
def test_what_is_no_ring(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="node"):
        RingGeometry(ids)
