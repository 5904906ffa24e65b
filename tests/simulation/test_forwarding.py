"""Brokers in a tree under faults: what is acknowledged arrives once, in order, or is told lost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from dynatops.kit.filters import Filter
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.tree.topology import Topology
from tests.support.tree_net import TreeNet, random_tree
from tests.support.wandering import Wanderer

TOPICS = [f"{a}/{b}" for a in "xyz" for b in "12"]
PATTERNS = ["x/1", "x/+", "x/#", "#", "+/2", "y/#", "z/1"]
WHERES = ["", "", "v > 3", "v > 5", "v < 4"]


def traffic(net: TreeNet, rng: Random, seconds: float) -> None:
    """Publishers publish, subscribers come and go."""
    end_s = net.now_s + seconds
    while net.now_s < end_s:
        for publisher in net.publishers.values():
            if publisher.broker in net.nodes and rng.random() < 0.4:
                topic = rng.choice(publisher.topics)
                if rng.random() < 0.3:
                    net.publish_bundle(publisher, rng.sample(publisher.topics, 2))
                else:
                    values = [rng.randrange(8) for _ in range(rng.randint(1, 4))]
                    net.publish(publisher, topic, values)
        if rng.random() < 0.15:
            broker = rng.choice(sorted(net.nodes))
            net.subscribe(broker, rng.choice(PATTERNS), rng.choice(WHERES))
        live = [s for s in net.subscribers if s.ended_s is None]
        if live and rng.random() < 0.08:
            net.unsubscribe(rng.choice(live))
        net.run(0.2)


# Logs, windows and parts that are too small for anything.
SMALL = ForwardingSettings(
    tree_log_entries_max=8,
    link_window_bytes=60,
    batch_bytes=40,
    fetch_part_bytes=50,
    early_batches_max=4,
)


def begin(seed: int, rng: Random, *, small: bool = False, **options: Any) -> TreeNet:
    net = TreeNet(
        random_tree(rng, rng.randint(2, 6), **options),
        seed,
        loss=rng.choice([0.0, 0.05, 0.2]),
        duplication=rng.choice([0.0, 0.1]),
        reordering=rng.choice([0.0, 0.2]),
        settings=SMALL if small else None,
    )
    net.start_all()
    net.run(2.0)
    for broker in net.topology.addresses:
        net.publisher(broker, TOPICS)
        if rng.random() < 0.7:
            net.subscribe(broker, rng.choice(PATTERNS), rng.choice(WHERES))
    return net


def calm(net: TreeNet, seconds: float = 15.0) -> None:
    net.loss = net.duplication = net.reordering = 0.0
    net.cut.clear()
    # What is too small takes its time.
    net.run(4 * seconds if net.settings is SMALL else seconds)


@pytest.mark.parametrize("seed", range(10))
def test_without_faults(seed: int) -> None:
    rng = Random(seed)
    net = begin(seed, rng, covering=seed % 2 == 0)
    traffic(net, rng, 8.0)
    calm(net)
    net.check(losses_told=False)


def cut_links(seed: int, **options: Any) -> TreeNet:
    rng = Random(seed)
    net = begin(seed, rng, **options)
    for _ in range(3):
        link = rng.choice(net.topology.links)
        net.cut.add(frozenset((link.one, link.other)))
        traffic(net, rng, rng.choice([1.0, 6.0]))
        net.cut.clear()
        traffic(net, rng, 2.0)
    calm(net)
    return net


# The last one found that a filter was told, and not in place, when its link broke.
@pytest.mark.parametrize("seed", [*range(10), 3031])
def test_links_are_cut(seed: int) -> None:
    cut_links(seed, covering=seed % 2 == 0).check(losses_told=False)


def has_settled_copies(net: TreeNet, broker: str) -> bool:
    """Whether its keeper has all, and its neighbours know that."""
    node = net.nodes[broker]
    vouching = [
        name in net.nodes and broker in net.nodes[name]._keeping._vouched
        for name in net.topology.neighbours(broker)
    ]
    return node.is_ready and not node._sending.waits and all(vouching)


def settle_copies(net: TreeNet) -> None:
    """Keepers have what they need before the next crash."""
    for _ in range(100):
        if all(has_settled_copies(net, broker) for broker in net.nodes):
            break
        net.run(0.5)
    net.run(1.0)


def crashes(seed: int, **options: Any) -> TreeNet:
    """One broker at a time."""
    rng = Random(seed)
    net = begin(seed, rng, **options)
    traffic(net, rng, 2.0)
    for _ in range(3):
        settle_copies(net)
        broker = rng.choice(sorted(net.nodes))
        net.crash(broker)
        traffic(net, rng, rng.choice([0.2, 1.0, 6.0]))
        net.start(broker)
        traffic(net, rng, rng.choice([0.2, 3.0]))
        net.run(5.0)
    calm(net, 25.0)
    return net


@pytest.mark.parametrize("seed", range(10))
def test_brokers_crash_one_at_a_time(seed: int) -> None:
    crashes(seed, covering=seed % 2 == 0).check(losses_told=False)


def crashes_and_cuts(seed: int, **options: Any) -> TreeNet:
    """Any of it at any time: what is lost is told."""
    rng = Random(seed)
    net = begin(seed, rng, **options)
    for _ in range(6):
        what = rng.choice(["cut", "heal", "crash", "start", "nothing"])
        dead = sorted(set(net.topology.addresses) - set(net.nodes))
        if what == "cut":
            link = rng.choice(net.topology.links)
            net.cut.add(frozenset((link.one, link.other)))
        elif what == "heal":
            net.cut.clear()
        elif what == "crash" and len(net.nodes) > 1:
            net.crash(rng.choice(sorted(net.nodes)))
        elif what == "start" and dead:
            net.start(rng.choice(dead))
        traffic(net, rng, rng.choice([0.4, 2.0, 7.0]))
    for broker in sorted(set(net.topology.addresses) - set(net.nodes)):
        net.start(broker)
    calm(net, 30.0)
    return net


@pytest.mark.parametrize("seed", range(10))
def test_crashes_and_cuts(seed: int) -> None:
    crashes_and_cuts(seed, covering=seed % 2 == 0).check(losses_told=True)


def changed_topologies(seed: int, **options: Any) -> TreeNet:
    rng = Random(seed)
    net = begin(seed, rng, **options)
    for version in range(2, 5):
        traffic(net, rng, 2.0)
        before = net.topology
        names = sorted(before.addresses)
        if version == 3:
            names.append("new")
        rng.shuffle(names)
        links = [[names[rng.randrange(i)], names[i]] for i in range(1, len(names))]
        mapping = {
            **before.to_mapping(),
            "version": version,
            "brokers": {name: f"h:{name}" for name in names},
            "links": links,
        }
        net.apply(Topology.from_mapping(mapping), rng.choice(sorted(net.nodes)))
        if version == 3:
            net.start("new")
            net.publisher("new", TOPICS)
        traffic(net, rng, rng.choice([0.4, 3.0]))
        net.run(8.0)
    calm(net)
    return net


# The last one found that a neighbour wants more while it is still sent what it missed.
@pytest.mark.parametrize("seed", [*range(10), 2158])
def test_topologies_change(seed: int) -> None:
    changed_topologies(seed, covering=seed % 2 == 0).check(losses_told=False)


def crashes_behind_cuts(seed: int, **options: Any) -> TreeNet:
    """An origin dies while only its keeper, and who is beyond it, has what it published."""
    rng = Random(seed)
    net = begin(seed, rng, **options)
    traffic(net, rng, 2.0)
    for _ in range(3):
        net.run(5.0)
        settle_copies(net)
        origin = rng.choice(sorted(net.nodes))
        kept = frozenset((origin, net.nodes[origin].keeper or ""))
        links = [frozenset((link.one, link.other)) for link in net.topology.links]
        for link in links:
            if link != kept and rng.random() < 0.6:
                net.cut.add(link)
        traffic(net, rng, rng.choice([1.0, 3.0]))
        net.crash(origin)
        net.run(rng.choice([0.2, 1.0]))
        net.start(origin)
        net.run(1.0)
        net.cut.clear()
        traffic(net, rng, 2.0)
        net.run(8.0)
    calm(net, 25.0)
    return net


@pytest.mark.parametrize("seed", range(10))
def test_origins_crash_behind_cut_links(seed: int) -> None:
    crashes_behind_cuts(seed, covering=seed % 2 == 0).check(losses_told=False)


MODES = [
    {"mode": "hierarchical"},
    {"advertisements": True},
    {"mode": "hierarchical", "advertisements": True},
]
SCENARIOS = [cut_links, crashes, crashes_behind_cuts, changed_topologies]


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("seed", [3, 4])
def test_in_the_other_modes(
    scenario: Callable[..., TreeNet], seed: int, options: dict[str, Any]
) -> None:
    scenario(seed, covering=seed % 2 == 0, **options).check(losses_told=False)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("seed", [5, 6])
def test_with_small_bounds(scenario: Callable[..., TreeNet], seed: int) -> None:
    scenario(seed, covering=seed % 2 == 0, small=True).check(losses_told=False)


# ---- the past, while its origin is gone ----------------------------------------------------------


def wanderers(net: TreeNet, rng: Random, count: int) -> None:
    for _ in range(count):
        wanderer = Wanderer(Filter.parse(rng.choice(PATTERNS), rng.choice(WHERES)))
        net.wanderers.append(wanderer)
        net.wander(wanderer, rng.choice(sorted(net.nodes)))


def wandering(net: TreeNet, rng: Random, seconds: float) -> None:
    """Traffic; and clients go on elsewhere, some after a while in which they were nowhere."""
    end_s = net.now_s + seconds
    while net.now_s < end_s:
        traffic(net, rng, rng.choice([0.2, 0.6]))
        for wanderer in net.wanderers:
            if wanderer.broker is None or rng.random() < 0.2:
                net.wander(wanderer, rng.choice(sorted(net.nodes)))


def leaves_gone(seed: int, **options: Any) -> TreeNet:
    """The keeper of a leaf is on everybody's way: nobody is told of a loss, however long it is
    gone, and whoever else is restarted meanwhile but the keeper."""
    rng = Random(seed)
    net = begin(seed, rng, **options)
    wanderers(net, rng, 3)
    wandering(net, rng, 3.0)
    ends = [name for link in net.topology.links for name in (link.one, link.other)]
    for _ in range(2):
        settle_copies(net)
        leaf = rng.choice(sorted(name for name in net.topology.addresses if ends.count(name) == 1))
        if rng.random() < 0.5:
            # It has published what only its keeper knows.
            others = [w for w in net.wanderers if w.broker != leaf]
            for wanderer in others:
                wanderer.leave()
            traffic(net, rng, 1.0)
            settle_copies(net)
        net.crash(leaf)
        wandering(net, rng, rng.choice([1.0, 9.0]))
        net.start(leaf)
        wandering(net, rng, 3.0)
        net.run(5.0)
    for wanderer in net.wanderers:
        if wanderer.broker is None:
            net.wander(wanderer, rng.choice(sorted(net.nodes)))
    calm(net, 25.0)
    return net


@pytest.mark.parametrize("seed", range(10))
def test_the_past_of_a_leaf_that_is_gone_is_had_from_its_keeper(seed: int) -> None:
    net = leaves_gone(seed, covering=seed % 2 == 0)
    net.check(losses_told=False)
    assert [w.told_s for w in net.wanderers if w.told_s] == []


def wandering_among_faults(seed: int, **options: Any) -> TreeNet:
    """Clients go on elsewhere while any broker is gone, and any link: what is lost is told."""
    rng = Random(seed)
    net = begin(seed, rng, **options)
    wanderers(net, rng, 3)
    wandering(net, rng, 3.0)
    for _ in range(6):
        what = rng.choice(["cut", "heal", "crash", "start", "nothing"])
        dead = sorted(set(net.topology.addresses) - set(net.nodes))
        if what == "cut":
            link = rng.choice(net.topology.links)
            net.cut.add(frozenset((link.one, link.other)))
        elif what == "heal":
            net.cut.clear()
        elif what == "crash" and len(net.nodes) > 1:
            net.crash(rng.choice(sorted(net.nodes)))
        elif what == "start" and dead:
            net.start(rng.choice(dead))
        wandering(net, rng, rng.choice([0.4, 2.0, 9.0]))
    for broker in sorted(set(net.topology.addresses) - set(net.nodes)):
        net.start(broker)
    for wanderer in net.wanderers:
        if wanderer.broker is None:
            net.wander(wanderer, rng.choice(sorted(net.nodes)))
    calm(net, 30.0)
    return net


@pytest.mark.parametrize("seed", range(10))
def test_clients_go_on_elsewhere_among_faults(seed: int) -> None:
    wandering_among_faults(seed, covering=seed % 2 == 0).check(losses_told=True)
