"""GeoPS on cases that were worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.metrics.run import joins_and_leaves
from experiments.systems.catalogue import SYSTEMS, Options
from experiments.systems.geops import GeoPS, cell_at, cell_centres, handovers, heads
from experiments.systems.system import Sites, Topics, Upkeep, pairs
from experiments.workloads.grid import Grid
from experiments.workloads.location import LocationWorkload
from experiments.workloads.visits import Visits

NONE = pairs([])


def grid_of_16(*, siblings: bool = True) -> GeoPS:
    """4 x 4 cells, and a topic for each. Heads: 0, 2, 8, 10 of four cells each, 5 of the whole.

     0  1 |  2  3
     4  5 |  6  7
    ------+------
     8  9 | 10 11
    12 13 | 14 15
    """
    centres = cell_centres(4, 4, side=4)
    sites = Sites(centres, Sites.equal(16).rtt_ms)
    topics = Topics(tuple(map(str, range(16))), centres)
    return GeoPS(sites, topics, siblings=siblings)


def test_the_hierarchy_of_sixteen_cells() -> None:
    assert heads(4).tolist() == [5, 0, 5, 2, 0, -1, 2, 2, 5, 8, 5, 10, 8, 8, 10, 10]


@pytest.mark.parametrize(
    ("start", "topic", "across", "over_heads"),
    [
        (7, 7, 0, 0),
        (7, 3, 1, 2),  # 7-3; 7-2-3
        (1, 7, 3, 4),  # 1-0-2-7; 1-0-5-2-7
        (5, 7, 2, 2),  # 5-2-7, both: the head of the whole covers everything
        (7, 5, 2, 2),
    ],
)
def test_ways_go_over_siblings_or_over_the_common_head(
    start: int, topic: int, across: int, over_heads: int
) -> None:
    assert grid_of_16().publish(start, topic).way == across
    assert grid_of_16(siblings=False).publish(start, topic).way == over_heads


def test_a_subscription_goes_on_only_as_far_as_the_tree_does_not_reach() -> None:
    geops = grid_of_16()
    # Topic 15 begins at cell 15. From cell 1: 1-0-10-15.
    assert geops.change(pairs([(1, 15)]), NONE) == Upkeep(3)
    # From cell 4 to head 0 only, which is in the tree; cell 0 itself is there.
    assert geops.change(pairs([(4, 15), (0, 15)]), NONE) == Upkeep(1)
    # The event goes from 3 over 2 and 10 to cell 15; then 10, 0, and its two cells.
    delivery = geops.publish(3, 15)
    assert (delivery.way, delivery.spread) == (3, 4)
    assert delivery.brokers.tolist() == [0, 1, 4]
    assert delivery.delays.tolist() == [5.0, 6.0, 6.0]


def test_a_handover_moves_a_users_subscriptions_from_cell_to_cell() -> None:
    """A user follows a friend in cell 15, and walks from (0.4, 1.6) in cell 1 to (1.2, 1.8) in cell
    5, then within it. Cell 1 takes back 1-0, 0-10, 10-15, a message each, and so its own cell's
    topic, which cost nothing. Cell 5 then subscribes over 10: 5-10-15."""
    geops = grid_of_16()
    cells = cell_at(np.array([[0.4, 1.6], [1.2, 1.8], [1.9, 1.1]]), 4, 4, side=4)
    assert cells.tolist() == [1, 5, 5]
    assert handovers(cells) == 1
    assert geops.change(pairs([(1, 15), (1, 1)]), NONE) == Upkeep(3)
    assert geops.change(pairs([(5, 15), (5, 5)]), pairs([(1, 15), (1, 1)])) == Upkeep(3 + 2)
    assert geops.publish(5, 5).messages == 0


def test_a_handover_of_a_user_whose_friend_follows_it() -> None:
    """The same walk as a run counts it: user 0 stays in cell 15, user 1 comes to cell 1 and goes on
    to cell 5, and each follows the other. Broker 15 first hears of cell 1 (15-10-0-1), then of 5
    (15-10-5) in place of it."""
    user, cell = np.array([[0, 1, 1], [15, 1, 5]], dtype=np.int32)
    visits = Visits.of(user, cell, np.array([0.5, 1.5, 2.5]), 2)
    kind, grid = SYSTEMS["geops"], Grid(4, 4)
    assert kind.adapt is not None
    workload = kind.adapt(LocationWorkload.of(grid, visits, 1, settled_h=0.0).with_friends(1))
    selection = kind.selection(workload, Options(), 1)
    geops = kind.network(workload, Options(), 1)
    messages = []
    for step in workload.steps():
        changes = selection.apply(step.changes)
        messages.append(geops.change(*joins_and_leaves(changes)).messages)
    assert messages == [0, 3 + 3, (3 + 2) + (3 + 2)]
    assert selection.handovers == 1
    assert selection.broker_of.tolist() == [15, 5]


def test_places_on_a_rectangle_and_beyond_its_edges() -> None:
    centres = cell_centres(20, 60)
    assert len(centres) == 1024
    assert (cell_at(centres, 20, 60) == np.arange(1024)).all()
    assert cell_at(np.array([[-1.0, -1.0], [20.0, 60.0]]), 20, 60).tolist() == [0, 1023]
    # Cells of the 1,200 topics, by the nearest centre.
    degrees = np.argwhere(np.ones((20, 60))).astype(np.float64) + 0.5
    topics = Topics(tuple(map(str, range(1200))), degrees)
    geops = GeoPS(Sites(centres, Sites.equal(1024).rtt_ms), topics)
    cells = cell_at(degrees, 20, 60)
    assert all(geops.publish(int(cell), topic).way == 0 for topic, cell in enumerate(cells))


def test_grids_and_topics_that_it_is_not_for() -> None:
    with pytest.raises(ValueError, match="power of two: 36 brokers"):
        GeoPS(Sites.equal(36), Topics(("a",), np.zeros((1, 2))))
    with pytest.raises(ValueError, match="topics that have places"):
        GeoPS(Sites.equal(16), Topics(("a",)))


def test_nobody_has_more_neighbours_than_a_head_of_heads() -> None:
    # A head above, three siblings, and four below; of the head of the whole, four below.
    assert grid_of_16().greatest_degree == 7
    assert grid_of_16(siblings=False).greatest_degree == 4
