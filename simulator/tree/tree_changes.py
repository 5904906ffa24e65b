"""Newer versions of a topology, each a small change of the one before.

A change that cannot be made of a tree is None: there is no leaf that may go, or nowhere to move to.
The root stays where it is, and no broker gets more neighbours than `DEGREE_MAX`, unless those of
one that is gone have nowhere else to go.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from overlay.forwarding.tree.topology import Topology

DEGREE_MAX = 3
# Fewer brokers are left as they are.
BROKERS_MIN = 3

Pair = tuple[str, str]


def random_tree(rng: Random, brokers: int, **options: object) -> Topology:
    """Of brokers that are called b0, b1 and so on, each of which has its name as its address."""
    names = [f"b{i}" for i in range(brokers)]
    degrees = dict.fromkeys(names, 0)
    links: list[Pair] = []
    for i, name in enumerate(names[1:], start=1):
        other = rng.choice([each for each in names[:i] if degrees[each] < DEGREE_MAX])
        links.append((other, name))
        degrees[other] += 1
        degrees[name] += 1
    return _topology(names, links, {"version": 1, "root": "b0", **options})


def with_leaf(before: Topology, name: str, rng: Random) -> Topology | None:
    other = rng.choice(_with_room(before, before.addresses))
    return _newer(before, [*before.addresses, name], [*_pairs(before), (other, name)])


def with_broker_between(before: Topology, name: str, rng: Random) -> Topology | None:
    one, other = rng.choice(_pairs(before))
    links = [pair for pair in _pairs(before) if pair != (one, other)]
    return _newer(before, [*before.addresses, name], [*links, (one, name), (name, other)])


def without(before: Topology, broker: str) -> Topology | None:
    """All its other neighbours are linked to the one towards the root."""
    parent = before.parent(broker)
    if parent is None or len(before.addresses) <= BROKERS_MIN:
        return None
    links = [pair for pair in _pairs(before) if broker not in pair]
    links += [(parent, child) for child in before.neighbours(broker) if child != parent]
    return _newer(before, [name for name in before.addresses if name != broker], links)


def with_broker_moved(before: Topology, rng: Random) -> Topology | None:
    """One of them, and all behind it, is linked elsewhere."""
    for broker in rng.sample(sorted(before.addresses), len(before.addresses)):
        parent = before.parent(broker)
        elsewhere = [name for name in before.addresses if broker not in before.path_to_root(name)]
        places = [name for name in _with_room(before, elsewhere) if name != parent]
        if parent is not None and places:
            links = [pair for pair in _pairs(before) if {*pair} != {parent, broker}]
            return _newer(before, before.addresses, [*links, (rng.choice(places), broker)])
    return None


def leaves_of(topology: Topology) -> list[str]:
    """All but the root."""
    return [
        name
        for name in topology.addresses
        if len(topology.neighbours(name)) == 1 and name != topology.root
    ]


def _with_room(topology: Topology, among: Iterable[str]) -> list[str]:
    return [name for name in among if len(topology.neighbours(name)) < DEGREE_MAX]


def _pairs(topology: Topology) -> list[Pair]:
    return [(link.one, link.other) for link in topology.links]


def _newer(before: Topology, brokers: Iterable[str], links: Iterable[Pair]) -> Topology:
    options = before.to_mapping()
    return _topology(brokers, links, {**options, "version": before.version + 1})


def _topology(
    brokers: Iterable[str], links: Iterable[Pair], options: dict[str, object]
) -> Topology:
    tree = {"brokers": {name: name for name in brokers}, "links": [list(pair) for pair in links]}
    return Topology.from_mapping({**options, **tree})
