"""Tapestry's routes, and trees of routes, against references too simple to be wrong."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.systems.route_trees import RouteTrees
from experiments.systems.system import Sites, pairs
from experiments.systems.tapestry import ids_of_text, next_hops, surrogate_root

hexadecimal = st.text("0123456789abcdef", min_size=4, max_size=4)
# Few digits, so that beginnings are alike; many, so that they are not.
alike = st.text("09f", min_size=4, max_size=4)
some_ids = st.lists(st.one_of(hexadecimal, alike), min_size=1, max_size=16, unique=True)


def shared(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def root_by_trying(ids: list[str], key: str) -> str:
    """Digit by digit: the wanted one, or the next higher that somebody has."""
    found = ""
    for wanted in key:
        tried = [f"{(int(wanted, 16) + more) % 16:x}" for more in range(16)]
        found += next(d for d in tried if any(i.startswith(found + d) for i in ids))
    return found


@settings(max_examples=100)
@given(some_ids, hexadecimal, st.integers(0, 2**32))
def test_routes_take_one_digit_more_with_each_hop_and_end_at_one_root(
    ids: list[str], key: str, seed: int
) -> None:
    digits = ids_of_text(*ids)
    hops = next_hops(digits, np.random.default_rng(seed).random((len(ids), len(ids))))
    root = surrogate_root(digits, ids_of_text(key)[0])
    assert ids[root] == root_by_trying(ids, key)
    for here, name in enumerate(ids):
        for target, wanted in enumerate(ids):
            onward = ids[hops[here, target]]
            if here == target:
                assert onward == name
            else:
                assert shared(onward, wanted) > shared(name, wanted)
    # One entry for each level and digit: targets that part later take the same.
    for row in range(len(ids)):
        for a in range(len(ids)):
            for b in range(len(ids)):
                if shared(ids[a], ids[b]) > shared(ids[row], ids[a]) and row not in (a, b):
                    assert hops[row, a] == hops[row, b]


@settings(max_examples=100)
@given(some_ids, st.data())
def test_trees_are_unions_of_routes_whatever_came_before(
    ids: list[str], data: st.DataObject
) -> None:
    size = len(ids)
    rtt = np.random.default_rng(0).random((size, size)) + 0.1
    np.fill_diagonal(rtt, 0.0)
    hops = next_hops(ids_of_text(*ids), rtt)
    broker = st.integers(0, size - 1)
    root, publisher = data.draw(broker), data.draw(broker)
    trees = RouteTrees(hops, np.array([root], dtype=np.int32), Sites(np.zeros((size, 2)), rtt))
    members: set[int] = set()
    links: set[tuple[int, int]] = set()
    for changed in data.draw(st.lists(broker, max_size=20)):
        joining = changed not in members
        members ^= {changed}
        routes = [trees.route(root, member) for member in members]
        now = {link for route in routes for link in nx.utils.pairwise(route)}
        change, nothing = pairs([(changed, 0)]), pairs([])
        counted = trees.changes(change, nothing) if joining else trees.changes(nothing, change)
        assert list(counted) == [(changed, 0, len(now ^ links))]
        links = now
    assert not links or nx.is_arborescence(nx.DiGraph(links))
    delivery = trees.publish(publisher, 0)
    assert delivery.spread == len(links)
    assert delivery.way == len(trees.route(publisher, root)) - 1
    assert delivery.brokers.tolist() == sorted(members)
    for member, delay in zip(delivery.brokers.tolist(), delivery.delays, strict=True):
        path = [*trees.route(publisher, root), *trees.route(root, member)[1:]]
        assert np.isclose(delay, sum(rtt[a, b] for a, b in nx.utils.pairwise(path)))
