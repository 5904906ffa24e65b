"""The tree of brokers: what is read, what is refused, and what a graph is reduced to."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from overlay.forwarding.tree.topology import Topology, TopologyError, TreeMode

CHAIN = {
    "version": 3,
    "brokers": {"a": "h:1", "b": {"address": "h:2"}, "c": "h:3"},
    "links": [["a", "b"], {"between": ["b", "c"], "weight": 2}],
}


def test_a_chain() -> None:
    chain = Topology.from_mapping(CHAIN)
    assert (chain.version, chain.mode, chain.root) == (3, TreeMode.PEER, "a")
    assert chain.neighbours("b") == ("a", "c")
    assert chain.neighbours("x") == ()
    assert chain.next_hop("a", "c") == "b"
    assert chain.next_hop("c", "a") == "b"
    assert chain.next_hop("b", "c") == "c"
    assert chain.next_hop("a", "a") is None
    assert chain.next_hop("a", "x") is None
    assert (chain.parent("c"), chain.parent("a")) == ("b", None)
    assert chain.left_out == ()


def test_it_is_the_same_after_being_written() -> None:
    chain = Topology.from_mapping(CHAIN)
    again = Topology.from_text(chain.to_text())
    assert again == chain
    assert again.digest == chain.digest
    other = Topology.from_mapping({**CHAIN, "covering": False})
    assert other.digest != chain.digest


def test_a_graph_is_reduced_breadth_first_and_says_so() -> None:
    ring = Topology.from_mapping(
        {
            "brokers": {name: f"h:{name}" for name in "abcd"},
            "links": [["a", "b"], ["b", "c"], ["c", "d"], ["d", "a"]],
        }
    )
    assert list(map(str, ring.left_out)) == ["c-d"]
    assert ring.neighbours("a") == ("b", "d")


def test_light_ways_are_kept() -> None:
    triangle = Topology.from_mapping(
        {
            "brokers": {name: f"h:{name}" for name in "abc"},
            "links": [{"between": ["a", "b"], "weight": 5}, ["a", "c"], ["c", "b"]],
        }
    )
    assert list(map(str, triangle.left_out)) == ["a-b"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rout": "a"}, "unknown keys rout"),
        ({"version": 0}, "version is 0"),
        ({"version": "x"}, "version is 'x'"),
        ({"mode": "star"}, "mode is 'star'"),
        ({"mode": "hierarchical"}, "root is missing"),
        ({"root": "x"}, "no broker 'x'"),
        ({"brokers": {}}, "brokers:"),
        ({"brokers": {"a": "h:1", "b": "h:1", "c": "h:3"}}, "one address"),
        ({"brokers": {"a": "h:1", "b": {}, "c": "h:3"}}, "'b' has no address"),
        ({"links": [["a", "b"], ["b", "x"]]}, "link 2: there is no broker 'x'"),
        ({"links": [["a", "b"]]}, "no links lead from 'a' to c"),
        ({"links": [["a", "b"], ["b", "a"], ["b", "c"]]}, "link 2: a-b is there twice"),
        ({"links": [["a", "a"], ["a", "b"], ["b", "c"]]}, "'a' is linked to itself"),
        ({"links": [["a"]]}, "link 1: two broker ids"),
        ({"links": [{"between": ["a", "b"], "weight": 0}]}, "weight is 0"),
        ({"links": [["a", "b"], ["b", "c"], ["a", "c"]], "cycles": "refuse"}, "make cycles"),
        ({"covering": 1}, "covering is 1"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(TopologyError) as raised:
        Topology.from_mapping({**CHAIN, **change})
    assert any(problem in each for each in raised.value.problems), raised.value.problems


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(TopologyError) as raised:
        Topology.from_mapping({"mode": "x", "brokers": {"a": ""}, "links": [["a", "b"]]})
    assert len(raised.value.problems) >= 3


def test_text_that_is_none() -> None:
    for text in ("", "[]", "{"):
        with pytest.raises(TopologyError):
            Topology.from_text(text)


def test_next_hops_lead_there_in_any_tree() -> None:
    rng = Random(5)
    for _ in range(50):
        names = [f"b{i}" for i in range(rng.randint(1, 12))]
        links = [[names[rng.randrange(i)], names[i]] for i in range(1, len(names))]
        links += [rng.sample(names, 2) for _ in range(3) if len(names) > 1]
        unique = {tuple(sorted(link)): link for link in links}
        tree = Topology.from_mapping(
            {"brokers": {n: f"h:{n}" for n in names}, "links": list(unique.values())}
        )
        assert len(tree.links) == len(names) - 1
        for start in names:
            for end in names:
                at, steps = start, 0
                while at != end:
                    hop = tree.next_hop(at, end)
                    assert hop in tree.neighbours(at)
                    at, steps = hop or "", steps + 1
                    assert steps < len(names)
