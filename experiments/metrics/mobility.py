"""What brokers in a tree send while users come and go, by the rules of their tables.

Publishers advertise what they publish before anything else, and publish once a minute, each at a
time of its own. Users who come subscribe, and those who go give that up; what they miss is not
sent after them here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from random import Random

from dynatops.kit.filters import Filter
from experiments.metrics.run import Metrics
from experiments.systems.subscription_tree import SubscriptionTree
from experiments.workloads.mobility import (
    PUBLICATION_S,
    CityMove,
    CityPublisher,
    RandomScenario,
    tree_links,
)
from overlay.forwarding.tables import TableRules

# Who does something, and when.
_Happening = tuple[float, CityMove | CityPublisher]


def measure_city(scenario: RandomScenario, rules: TableRules) -> Metrics:
    """Per hour."""
    tree = SubscriptionTree(rules, tree_links())
    publishers = scenario.publishers()
    if rules.advertisements:
        for publisher in publishers:
            tree.advertise(publisher.broker, Filter.parse(publisher.topic))
    deliveries = 0
    where: dict[int, str] = {}
    filters = [Filter.parse(pattern) for pattern in scenario.patterns()]
    moves: Iterator[_Happening] = ((move.at_s, move) for move in scenario.moves())
    publications = _publications(scenario, publishers)
    for _, what in heapq.merge(moves, publications, key=lambda happening: happening[0]):
        if isinstance(what, CityPublisher):
            deliveries += tree.publish(what.broker, what.topic).wanting
        elif what.broker is None:
            tree.give_up(where.pop(what.user), filters[what.user])
        else:
            where[what.user] = what.broker
            tree.want(what.broker, filters[what.user])
    sent = tree.sent
    found = {
        "subscriptions": sent.subscriptions,
        "advertisements": sent.advertisements,
        "events": sent.events,
        "told": sent.subscriptions + sent.advertisements,
        "messages": sent.subscriptions + sent.advertisements + sent.events,
        "deliveries": deliveries,
    }
    return {name: count / scenario.hours for name, count in found.items()}


def _publications(
    scenario: RandomScenario, publishers: list[CityPublisher]
) -> Iterator[_Happening]:
    rng = Random(f"publications {scenario.seed}")
    phases = sorted((rng.uniform(0.0, PUBLICATION_S), at) for at in range(len(publishers)))
    minute = 0
    while PUBLICATION_S * minute < 3_600 * scenario.hours:
        for phase_s, at in phases:
            yield PUBLICATION_S * minute + phase_s, publishers[at]
        minute += 1
