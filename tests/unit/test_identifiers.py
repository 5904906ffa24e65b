from __future__ import annotations

import hashlib

import pytest

from overlay.base.identifiers import (
    TERM_TAG_BITS,
    NodeId,
    TermOwner,
    distance,
    first_node_id,
    key_of,
    next_term,
    show_node,
    show_term,
    strictly_between,
    within,
)
from overlay.base.peers import Peer

TOP = (1 << 64) - 1


def test_key_is_the_first_8_bytes_of_sha1() -> None:
    for name in ("quake/ca", "Übung"):
        digest = hashlib.sha1(name.encode(), usedforsecurity=False).digest()
        assert key_of(name) == int.from_bytes(digest[:8], "big")
    assert int(first_node_id("b0")) == int(key_of("b0"))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 0, 0), (0, 7, 7), (7, 0, TOP - 6), (TOP, 0, 1), (5, 5, 0)],
)
def test_distance_is_clockwise(start: int, end: int, expected: int) -> None:
    assert distance(start, end) == expected


@pytest.mark.parametrize(
    ("point", "low", "high", "open_", "closed"),
    [
        (5, 1, 9, True, True),
        (9, 1, 9, False, True),
        (1, 1, 9, False, False),
        (0, 1, 9, False, False),
        (TOP, 9, 1, True, True),
        (0, 9, 1, True, True),
        (1, 9, 1, False, True),
        (5, 9, 1, False, False),
        # Equal bounds are the whole circle, without the bound where it is open.
        (5, 1, 1, True, True),
        (1, 1, 1, False, True),
    ],
)
def test_intervals(point: int, low: int, high: int, open_: bool, closed: bool) -> None:
    assert strictly_between(point, low, high) is open_
    assert within(point, low, high) is closed


def test_terms_grow_and_differ_between_owners() -> None:
    one, other = TermOwner(0x1234567890ABCDEF), TermOwner(0x1234567890ABCDEE)
    first = next_term(0, one)
    assert show_term(first).startswith("1.")
    evenly_spaced = {next_term(0, TermOwner(i << 58)) for i in range(64)}
    assert len(evenly_spaced) == 64
    assert next_term(first, other) > first
    assert next_term(first, one) != next_term(first, other)


def test_terms_of_a_later_life_are_newer_than_all_of_an_earlier_one() -> None:
    at_ms = 1_790_000_000_000
    former, later = (host(at_ms).term_owner, host(at_ms + 5_000).term_owner)
    last = 0
    for _ in range(4):
        last = next_term(last, former)
    assert next_term(0, later) > last
    assert next_term(last, later) > last
    # They fit the wire, for some thousands of years.
    assert next_term(last, host(200_000_000_000_000).term_owner) < 1 << 63


def test_no_term_is_used_twice_even_if_a_clock_is_set_back() -> None:
    at_ms = 1_790_000_000_000
    lives = [host(at_ms - back_ms).term_owner for back_ms in range(1_000)]
    tags = {next_term(0, life) % (1 << TERM_TAG_BITS) for life in lives}
    assert len(tags) == 1_000
    epochs = {next_term(0, host(at_ms, epoch).term_owner) for epoch in range(100)}
    assert len(epochs) == 100


def host(incarnation: int, epoch: int = 0) -> Peer:
    node = NodeId(0x1234567890ABCDEF)
    return Peer(node, "b0", "b0:7400", epoch=epoch, incarnation=incarnation)


def test_node_ids_are_shown_in_full() -> None:
    assert show_node(0xAB) == "00000000000000ab"
