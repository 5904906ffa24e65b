"""Greedy Merge and what mends its overlays, on cases that were worked out on paper."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from experiments.systems.greedy_merge import ALONE, divide_and_conquer, greedy_merge
from experiments.systems.greedy_merge_kernels import Links
from experiments.systems.system import Sites, Topics, Upkeep, pairs
from experiments.systems.topic_connected import Division, TopicConnected

NONE = pairs([])
PLAIN = Division(parts=1, bulk_share=1.0)
EACH_ALONE = Division(parts=4, bulk_share=1.0)


def table_of(*topics_of_brokers: str) -> Links:
    topics = sorted(set("".join(topics_of_brokers)))
    return np.array([[topic in theirs for theirs in topics_of_brokers] for topic in topics])


def links_of(links: Links) -> set[tuple[int, int]]:
    assert (links == links.T).all()
    return {(int(a), int(b)) for a, b in zip(*np.nonzero(np.triu(links)), strict=True)}


def connected(table: Links, links: Links) -> bool:
    graph = nx.from_numpy_array(links)
    return all(
        nx.is_connected(graph.subgraph(np.flatnonzero(members).tolist()))
        for members in table
        if members.any()
    )


# Six brokers. Pairs by the topics they share:
#   3: 0-1 (abc)
#   2: 1-2 (ad), 2-3 (de), 3-4 (ef)
#   1: 0-2 (a), 0-5 (c), 1-3 (d), 1-5 (c), 2-4 (e), 3-5 (f), 4-5 (f)
SIX = ("abc", "abcd", "ade", "def", "ef", "cf")


def test_greedy_merge_takes_the_links_that_were_worked_out() -> None:
    """0-1 joins three topics. After it 1-2, 2-3 and 3-4 still join two each, whichever comes first,
    and leave nothing to 0-2, 1-3 and 2-4. Topics c and f miss broker 5: its first link to one of
    0 and 1, and that to one of 3 and 4, join one topic each."""
    table = table_of(*SIX)
    links = greedy_merge(table)
    assert links_of(links) == {(0, 1), (1, 2), (2, 3), (3, 4), (0, 5), (3, 5)}
    assert connected(table, links)


def test_of_links_that_join_as_much_the_one_that_stood_is_preferred() -> None:
    preferred = np.zeros((6, 6), dtype=np.bool_)
    preferred[[1, 5, 4, 5], [5, 1, 5, 4]] = True
    links = greedy_merge(table_of(*SIX), preferred=preferred)
    assert links_of(links) == {(0, 1), (1, 2), (2, 3), (3, 4), (1, 5), (4, 5)}


def test_one_subscriber_to_everything_makes_a_star() -> None:
    network = TopicConnected(Sites.equal(8), Topics(tuple("abcdefg")), division=PLAIN)
    network.change(pairs([(0, t) for t in range(7)] + [(t + 1, t) for t in range(7)]), NONE)
    assert links_of(network.links) == {(0, other) for other in range(1, 8)}
    assert network.greatest_degree == 7


def test_parts_are_merged_first_and_bulk_brokers_belong_to_none() -> None:
    """Parts {0, 1} and {2, 3}, broker 4 bulk. Undivided, 4 (abcd) would be linked to all; here 0-1
    and 2-3 come first, and 4 has to join the two pieces of ab and cd only."""
    table = table_of("ab", "ab", "cd", "cd", "abcd")
    parts = np.array([0, 0, 1, 1, ALONE], dtype=np.int32)
    everybody = np.ones(5, dtype=np.bool_)
    nothing = np.zeros((5, 5), dtype=np.bool_)
    links = divide_and_conquer(table, parts, everybody, nothing, representatives=False)
    assert links_of(links) == {(0, 1), (2, 3), (0, 4), (2, 4)}


def test_representatives_alone_have_links_to_other_parts() -> None:
    """In part {0, 1, 2} broker 1 subscribes to all of its topics and represents it; 3 is a part
    by itself. Without representatives 0-3 would come first."""
    table = table_of("a", "ab", "b", "a")
    parts = np.array([0, 0, 0, 1], dtype=np.int32)
    everybody = np.ones(4, dtype=np.bool_)
    nothing = np.zeros((4, 4), dtype=np.bool_)
    plain = divide_and_conquer(table, parts, everybody, nothing, representatives=False)
    represented = divide_and_conquer(table, parts, everybody, nothing, representatives=True)
    assert links_of(plain) == {(0, 1), (1, 2), (0, 3)}
    assert links_of(represented) == {(0, 1), (1, 2), (1, 3)}


def line_of_three() -> TopicConnected:
    """Topic a on 0, 1, 2; b on 0 and 1; c on 1 and 2: links 0-1 and 1-2."""
    network = TopicConnected(Sites.equal(4), Topics(("a", "b", "c")), division=EACH_ALONE)
    network.change(pairs([(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (1, 2), (2, 2)]), NONE)
    assert links_of(network.links) == {(0, 1), (1, 2)}
    return network


def test_nothing_is_mended_while_each_topic_is_connected() -> None:
    network = line_of_three()
    # Broker 0 at the end of the line leaves: it tells its one neighbour.
    assert network.change(NONE, pairs([(0, 0)])) == Upkeep(1, 0)
    assert network.change(pairs([(0, 2)]), NONE) == Upkeep(1, 0), "c: 0-1-2"
    assert links_of(network.links) == {(0, 1), (1, 2)}


def test_links_of_brokers_that_changed_are_found_anew_when_a_topic_falls_apart() -> None:
    network = line_of_three()
    # Topic a loses its middle: both links of broker 1 are looked for anew, and found; 0-2 is new.
    # Broker 1 tells its neighbours after that.
    assert network.change(NONE, pairs([(1, 0)])) == Upkeep(2, 1)
    assert links_of(network.links) == {(0, 1), (0, 2), (1, 2)}
    # Broker 1 leaves b and c, too. Nobody of their subscribers is cut off: its links stay.
    assert network.change(NONE, pairs([(1, 1), (1, 2)])) == Upkeep(4, 0)
    # When 3 joins topic a, the links of brokers 1 and 3 are due: two go, one comes.
    assert network.change(pairs([(3, 0)]), NONE) == Upkeep(1, 3)
    assert links_of(network.links) == {(0, 2), (0, 3)}


def test_an_event_reaches_each_subscriber_once_and_as_soon_as_links_allow() -> None:
    network = line_of_three()
    delivery = network.publish(0, 0)
    assert (delivery.way, delivery.spread) == (0, 2)
    assert delivery.brokers.tolist() == [0, 1, 2]
    assert delivery.delays.tolist() == [0.0, 1.0, 2.0]
    # Broker 3 is no subscriber: it sends to one, and that is one message more.
    delivery = network.publish(3, 1)
    assert (delivery.way, delivery.spread) == (1, 1)
    assert delivery.delays.tolist() == [1.0, 2.0]
    network.change(NONE, pairs([(2, 2), (1, 2)]))
    assert network.publish(0, 2).messages == 0


def test_flooding_counts_every_copy() -> None:
    """A ring of four, topics ab bc cd da and e for all: from any broker two copies set out, each
    goes one further, and the two that cross at the far side are counted both."""
    network = TopicConnected(Sites.equal(4), Topics(tuple("abcde")), division=PLAIN, flooding=True)
    around = [(b, b) for b in range(4)] + [((b + 1) % 4, b) for b in range(4)]
    network.change(pairs(around + [(b, 4) for b in range(4)]), NONE)
    assert links_of(network.links) == {(0, 1), (1, 2), (2, 3), (0, 3)}
    assert network.publish(0, 4).spread == 2 * 4 - 3


def test_changes_that_can_not_be_are_refused() -> None:
    network = line_of_three()
    with pytest.raises(ValueError, match="broker 0 subscribes already to topic 0"):
        network.change(pairs([(0, 0)]), NONE)
    with pytest.raises(ValueError, match="broker 3 does not subscribe to topic 0"):
        network.change(NONE, pairs([(3, 0)]))
