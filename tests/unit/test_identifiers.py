from __future__ import annotations

import hashlib

import pytest

from overlay.identifiers import (
    NodeId,
    distance,
    first_node_id,
    key_of,
    next_term,
    show_node,
    show_term,
    strictly_between,
    within,
)

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
    one, other = NodeId(0x1234567890ABCDEF), NodeId(0x1234567890ABCDEE)
    first = next_term(0, one)
    assert show_term(first).startswith("1.")
    evenly_spaced = {next_term(0, NodeId(i << 58)) for i in range(64)}
    assert len(evenly_spaced) == 64
    assert next_term(first, other) > first
    assert next_term(first, one) != next_term(first, other)


def test_node_ids_are_shown_in_full() -> None:
    assert show_node(0xAB) == "00000000000000ab"
