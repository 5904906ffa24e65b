"""The city of the Mobility paper, and the messages that are counted in its tree."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random

import pytest

from dynatops.kit.filters import Filter, pattern_matches
from experiments.metrics.mobility import measure_city
from experiments.systems.subscription_tree import SubscriptionTree
from experiments.workloads.mobility import (
    BROKER_KM,
    PATTERNS,
    TOPICS,
    RandomScenario,
    leaf_brokers,
    tree_links,
)
from overlay.forwarding.tables import TableRules
from overlay.forwarding.topology import TreeMode
from tests.support.tree_net import TreeNet, random_tree

MODES = list(product(TreeMode, (False, True)))


def test_the_tree_is_that_of_the_paper() -> None:
    links = tree_links()
    assert len(links) == 84
    children = [child for _, child in links]
    parents = {parent for parent, _ in links}
    leaves = [child for child in children if child not in parents]
    assert sorted(leaves) == leaf_brokers()
    assert len(leaves) == 64


def test_subscriptions_match_as_in_the_paper() -> None:
    matched = [sum(pattern_matches(pattern, topic) for topic in TOPICS) for pattern in PATTERNS]
    assert matched == [1] * 27 + [3] * 9 + [9] * 3 + [27]


def test_users_come_and_go_at_brokers_that_are_near() -> None:
    leaves = leaf_brokers()
    scenario = RandomScenario(users=50, hours=6.0, seed=1)
    moves = list(scenario.moves())
    assert moves == list(scenario.moves())
    assert [move.at_s for move in moves] == sorted(move.at_s for move in moves)
    for user in range(50):
        own = [move for move in moves if move.user == user]
        assert [move.broker is None for move in own] == [n % 2 == 1 for n in range(len(own))]
        for before, after in pairwise(own[1:]):
            assert 600 <= after.at_s - before.at_s <= 1_800
        for left, gone, back in zip(own[::2], own[1::2], own[2::2], strict=False):
            hours = (back.at_s - gone.at_s) / 3_600
            apart = abs(leaves.index(str(left.broker)) - leaves.index(str(back.broker)))
            assert (apart - 1) * BROKER_KM <= 100 * hours


def test_who_wants_an_event_gets_it_by_whatever_rules() -> None:
    scenario = RandomScenario(users=40, hours=0.3, seed=2)
    found = [
        measure_city(scenario, TableRules(mode, advertisements=ads, covering=covering))
        for (mode, ads), covering in product(MODES, (False, True))
    ]
    assert len({metrics["deliveries"] for metrics in found}) == 1
    for metrics in found:
        assert metrics["messages"] == pytest.approx(metrics["told"] + metrics["events"])


@pytest.mark.parametrize(("mode", "advertisements"), MODES)
def test_events_take_as_many_messages_as_between_real_forwarders(
    mode: TreeMode, advertisements: bool
) -> None:
    rng = Random(3)
    topology = random_tree(rng, 7, mode=mode.value, advertisements=advertisements)
    net = TreeNet(topology, seed=1)
    rules = TableRules(mode, advertisements=advertisements)
    links = [(topology.parent(broker), broker) for broker in topology.addresses]
    tree = SubscriptionTree(rules, [(above, broker) for above, broker in links if above])
    net.start_all()
    net.run(2.0)
    for broker, pattern in [(f"b{n}", rng.choice(PATTERNS)) for n in range(7) for _ in range(2)]:
        net.subscribe(broker, pattern)
        tree.want(broker, Filter.parse(pattern))
    published = [(f"b{n}", topic) for n in range(7) for topic in rng.sample(TOPICS, 2)]
    if advertisements:
        for broker, topic in published:
            tree.advertise(broker, Filter.parse(topic))
    net.run(1.0)
    for broker, topic in published:
        net.publish(net.publisher(broker, [topic]), topic, [1])
        tree.publish(broker, topic)
        net.run(2.0)
    sent = sum(node.counters.tree_events_forwarded for node in net.nodes.values())
    assert sent == tree.sent.events > 0
    for broker, node in net.nodes.items():
        for neighbour in topology.neighbours(broker):
            assert sorted(map(str, node.tables.told(neighbour))) == tree.told(broker, neighbour)
