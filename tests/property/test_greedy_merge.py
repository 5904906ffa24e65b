"""Greedy Merge against a twin that counts everything anew for each link, and overlays that are
mended against networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.systems.greedy_merge import greedy_merge
from experiments.systems.greedy_merge_kernels import Links
from experiments.systems.system import Sites, Topics, pairs
from experiments.systems.topic_connected import Division, TopicConnected

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 9)


def some_pairs(random: np.random.Generator, brokers: int, share: float) -> Links:
    upper = np.triu(random.random((brokers, brokers)) < share, 1)
    found: Links = upper | upper.T
    return found


def pieces(table: Links, links: Links, topic: int) -> list[set[int]]:
    graph = nx.from_numpy_array(links)
    return list(nx.connected_components(graph.subgraph(np.flatnonzero(table[topic]).tolist())))


def gain(table: Links, links: Links, a: int, b: int) -> int:
    return sum(
        any(a in piece and b not in piece for piece in pieces(table, links, topic))
        for topic in range(len(table))
        if table[topic, a] and table[topic, b]
    )


def twin(table: Links, links: Links, allowed: Links, preferred: Links) -> Links:
    links = links.copy()
    candidates = [(int(a), int(b)) for a, b in np.argwhere(np.triu(allowed, 1))]
    while candidates:
        best = max(candidates, key=lambda p: (gain(table, links, *p), preferred[p], (-p[0], -p[1])))
        if not gain(table, links, *best):
            break
        links[best] = links[best[::-1]] = True
    return links


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, seeds)
def test_the_links_are_those_of_the_twin(brokers: int, topics: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    table = random.random((topics, brokers)) < random.random()
    links, preferred = some_pairs(random, brokers, 0.2), some_pairs(random, brokers, 0.5)
    allowed = some_pairs(random, brokers, random.choice([0.5, 1.0]))
    found = greedy_merge(table, links=links, allowed=allowed, preferred=preferred)
    assert (found == twin(table, links, allowed, preferred)).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 14), sizes, seeds, st.booleans())
def test_every_topic_is_connected_after_every_change(
    brokers: int, topics: int, seed: int, representatives: bool
) -> None:
    random = np.random.default_rng(seed)
    rtt = random.random((brokers, brokers)) + 0.1
    rtt += rtt.T
    np.fill_diagonal(rtt, 0.0)
    network = TopicConnected(
        Sites(np.zeros((brokers, 2)), rtt),
        Topics(tuple(map(str, range(topics)))),
        seed,
        division=Division(
            int(random.integers(1, 5)), float(random.choice([0.3, 0.6, 1.0])), representatives
        ),
    )
    table: Links = np.zeros((topics, brokers), dtype=np.bool_)
    for _ in range(6):
        flips = random.random((topics, brokers)) < 0.2
        before = network.links
        upkeep = network.change(
            pairs((int(b), int(t)) for t, b in np.argwhere(flips & ~table)),
            pairs((int(b), int(t)) for t, b in np.argwhere(flips & table)),
        )
        fell_apart = any(len(pieces(table ^ flips, before, t)) > 1 for t in range(topics))
        table ^= flips
        assert all(len(pieces(table, network.links, t)) < 2 for t in range(topics))
        assert upkeep.links_changed == int((before ^ network.links).sum()) // 2
        assert fell_apart or not upkeep.links_changed
        assert upkeep.messages == int((network.links.sum(axis=0) * flips.sum(axis=0)).sum())

    topic, publisher = int(random.integers(topics)), int(random.integers(brokers))
    members = np.flatnonzero(table[topic]).tolist()
    delivery = network.publish(publisher, topic)
    assert delivery.brokers.tolist() == members
    if members:
        first = publisher if publisher in members else min(members, key=lambda b: rtt[publisher, b])
        graph = nx.from_numpy_array(np.where(network.links, rtt, 0.0)).subgraph(members)
        when = nx.single_source_dijkstra_path_length(graph, first)
        away = rtt[publisher, first]
        assert np.allclose(delivery.delays, [away + when[member] for member in members])
        assert (delivery.way, delivery.spread) == (first != publisher, len(members) - 1)
