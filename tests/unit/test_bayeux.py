"""Bayeux on Tapestry against cases that were worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.systems.bayeux import Bayeux
from experiments.systems.route_trees import RouteTrees
from experiments.systems.system import Sites, Topics, Upkeep, pairs
from experiments.systems.tapestry import ids_of_text, next_hops, surrogate_root

NONE = pairs([])
# The example in tapestry.py.
IDS = ids_of_text("4227", "42A2", "6F43", "42A9", "4E61", "27AB")


def preference_of_the_example() -> np.ndarray:
    preference = np.ones((6, 6))
    preference[5, 4] = preference[4, 0] = preference[0, 1] = 0.0
    return preference


def trees_of_the_example(root: int) -> RouteTrees:
    hops = next_hops(IDS, preference_of_the_example())
    return RouteTrees(hops, np.array([root], dtype=np.int32), Sites.equal(6))


def test_the_route_that_was_worked_out_takes_one_digit_after_the_other() -> None:
    assert trees_of_the_example(0).route(5, 3) == [5, 4, 0, 1, 3]


@pytest.mark.parametrize(("key", "root"), [("4C00", 4), ("7000", 5), ("42B1", 0), ("42A9", 3)])
def test_surrogate_roots_that_were_worked_out(key: str, root: int) -> None:
    assert surrogate_root(IDS, ids_of_text(key)[0]) == root


def test_copies_part_where_ids_part_in_the_next_digit() -> None:
    """From root 5: members 0, 1 and 3 share their first hop, to 4; 2 has one of its own."""
    trees = trees_of_the_example(5)
    joined = pairs([(3, 0), (1, 0), (0, 0), (2, 0)])
    assert list(trees.changes(joined, NONE)) == [(3, 0, 4), (1, 0, 0), (0, 0, 0), (2, 0, 1)]
    delivery = trees.publish(3, 0)
    # 42A9 to 27AB is one hop: no other broker begins with 2.
    assert (delivery.way, delivery.spread) == (1, 5)
    assert delivery.brokers.tolist() == [0, 1, 2, 3]
    assert delivery.delays.tolist() == [3.0, 4.0, 2.0, 5.0]
    # The branch to 3 is needed no longer; that to 1 ends where 1 is.
    assert list(trees.changes(NONE, pairs([(3, 0), (2, 0)]))) == [(3, 0, 1), (2, 0, 1)]
    assert trees.publish(3, 0).spread == 3


def test_each_change_is_told_to_the_root_and_back_though_the_branch_is_there() -> None:
    bayeux = Bayeux(Sites.equal(40), Topics(("a",)), seed=3)
    costs = [bayeux.change(pairs([(broker, 0)]), NONE).messages for broker in range(40)]
    assert costs.count(0) == 1, "the root alone tells nobody"
    assert bayeux.change(NONE, pairs([(7, 0)])) == Upkeep(costs[7])
    assert bayeux.change(pairs([(7, 0)]), NONE) == Upkeep(costs[7])
    assert bayeux.publish(0, 0).spread == 39, "every broker but the root is told once"


def test_neighbours_by_proximity_shorten_the_ways() -> None:
    places = np.random.default_rng(0).random((60, 2))
    rtt = np.hypot(*(places[:, None] - places[None, :]).transpose(2, 0, 1)) + 0.01
    np.fill_diagonal(rtt, 0.0)
    sites, topics = Sites(places, rtt), Topics(tuple("abcdef"))
    everybody = pairs((broker, topic) for broker in range(60) for topic in range(6))

    def delay(*, proximity: bool) -> float:
        bayeux = Bayeux(sites, topics, seed=1, proximity=proximity)
        bayeux.change(everybody, NONE)
        return float(np.mean([bayeux.publish(b, t).delays for b in range(60) for t in range(6)]))

    assert delay(proximity=True) < delay(proximity=False)


def test_who_is_a_member_can_not_join_and_who_is_none_can_not_leave() -> None:
    bayeux = Bayeux(Sites.equal(4), Topics(("a",)))
    bayeux.change(pairs([(2, 0)]), NONE)
    with pytest.raises(ValueError, match="subscribes already"):
        bayeux.change(pairs([(2, 0)]), NONE)
    with pytest.raises(ValueError, match="does not subscribe"):
        bayeux.change(NONE, pairs([(1, 0)]))


def test_a_table_that_goes_round_in_circles_is_refused() -> None:
    circle = np.array([[0, 1, 1], [2, 1, 0], [0, 1, 2]], dtype=np.int32)
    with pytest.raises(ValueError, match="never arrives"):
        RouteTrees(circle, np.array([0], dtype=np.int32), Sites.equal(3))
