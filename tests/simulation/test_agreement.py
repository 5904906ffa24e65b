"""The computed network and the real cores count the same, message for message."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.metrics.run import batches, joins_and_leaves
from experiments.systems.catalogue import SYSTEMS, Options
from experiments.systems.chord_trees import ChordTrees, Reconfiguring, Way
from experiments.systems.simulated import SimulatedNetwork
from experiments.systems.system import Pairs, Sites, Topics, pairs
from experiments.workloads.patterns import Pattern
from experiments.workloads.poisson import PoissonWorkload

NONE: Pairs = pairs([])


def small_workload(brokers: int, topics: int, users: int, hours: int, seed: int) -> PoissonWorkload:
    return PoissonWorkload(
        Pattern.MULTIMODAL,
        rate=0.05,
        seed=seed,
        users=users,
        brokers=brokers,
        topic_count=topics,
        hours=hours,
    )


def check_agreement(workload: PoissonWorkload, system: str, seed: int) -> int:
    """The whole run through both; how many messages were compared."""
    kind, options = SYSTEMS[system], Options(cluster_size=5)
    selection = kind.selection(workload, options, seed)
    real = SimulatedNetwork(workload.sites, workload.topics, seed)
    computed = ChordTrees(workload.sites, workload.topics, seed)
    direct = ChordTrees(workload.sites, workload.topics, seed, way=Way.DIRECT)
    messages = 0
    rng = np.random.default_rng([seed, 30])
    published: set[tuple[int, int]] = set()
    for step in workload.steps():
        selection.advance(step.at_h)
        for batch in batches(selection.apply(step.changes)):
            joins, leaves = joins_and_leaves(batch)
            upkeep = real.change(joins, leaves)
            assert upkeep == computed.change(joins, leaves) == direct.change(joins, leaves)
            messages += upkeep.messages
        for one in workload.publications(5, rng):
            broker = int(selection.broker_of[one.user])
            known = (broker, one.topic) in published
            published.add((broker, one.topic))
            found = real.publish(broker, one.topic)
            expected = (direct if known else computed).publish(broker, one.topic)
            assert (found.way, found.spread) == (expected.way, expected.spread)
            assert found.brokers.tolist() == expected.brokers.tolist()
            messages += found.messages
    return messages


def test_a_ring_of_ten_with_users_who_are_selected() -> None:
    assert check_agreement(small_workload(10, 40, 60, 4, seed=3), "dynatops-bs", 3) > 500


@pytest.mark.slow
@pytest.mark.parametrize("system", ["dynatops-bs", "chord-static"])
@pytest.mark.timeout(600)
def test_fifty_brokers_and_two_thousand_users(system: str) -> None:
    workload = small_workload(50, 200, 2_000, 6, seed=1)
    assert check_agreement(workload, system, 1) > 5_000


def test_a_broker_at_the_root_pays_nothing_and_a_leave_costs_as_much_as_a_join() -> None:
    network = ChordTrees(Sites.equal(12), Topics(("a", "b")), seed=1)
    place = network.place
    at_root = int(np.flatnonzero(place == network.roots[0])[0])
    assert network.change(pairs([(at_root, 0)]), NONE).messages == 0
    elsewhere = (at_root + 1) % 12
    joined = network.change(pairs([(elsewhere, 0)]), NONE)
    assert joined.messages >= 2
    assert network.change(NONE, pairs([(elsewhere, 0)])) == joined


def test_joining_twice_is_a_mistake() -> None:
    network = ChordTrees(Sites.equal(4), Topics(("a",)), seed=1)
    network.change(pairs([(1, 0)]), NONE)
    with pytest.raises(ValueError, match="joined"):
        network.change(pairs([(1, 0)]), NONE)
    with pytest.raises(ValueError, match="joined"):
        network.change(NONE, pairs([(2, 0)]))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_trees_cost_what_the_cost_model_says(seed: int) -> None:
    """Relays and hops of eq. 4 and 5, before and after a reconfiguration."""
    rng = np.random.default_rng(seed)
    topics = Topics(tuple(f"t{i}" for i in range(30)))
    reconfiguring = Reconfiguring(solver="dynatops-greedy")
    network = ChordTrees(Sites.equal(24), topics, seed, reconfiguring)
    network.change(np.argwhere(rng.random((24, 30)) < 0.2).astype(np.int32), NONE)
    publications = rng.integers(1, 100, 30).astype(np.float64) * 1e4
    for _ in range(2):
        problem = network.problem(publications)
        cost = problem.model.evaluate(problem.place)
        relays = delay = 0.0
        for topic in range(30):
            root = int(network.roots[topic])
            found = network.publish(int(np.flatnonzero(network.place == root)[0]), topic)
            assert found.way == 0
            others = np.count_nonzero(network.place[found.brokers] != root)
            relays += publications[topic] * (found.spread - others)
            delay += publications[topic] * found.delays.sum()
        assert (relays, delay) == pytest.approx((cost.overhead, cost.delay))
        before = network.place
        messages = network.rearrange(publications, 1.0)
        moved = int(np.count_nonzero(network.place != before))
        assert messages == round(problem.moving.of(24, 30, moved))
