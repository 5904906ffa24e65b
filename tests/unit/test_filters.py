"""A pattern and a condition together; which filter covers which."""

from __future__ import annotations

import pytest

from dynatops.kit.filters import (
    Filter,
    FilterError,
    Predicate,
    covers,
    intersects,
    settled_covers,
)
from dynatops.v1 import client_pb2

# ---- covering ------------------------------------------------------------------------------------

# The subscriptions of Table 1 (Mobility).
IBM_1600 = 'product == "computer" and brand == "IBM" and price < 1600'
IBM_1500 = 'product == "computer" and brand == "IBM" and price < 1500'
ANY_1600 = 'product == "computer" and price < 1600'
DELL_1500 = 'product == "computer" and brand == "Dell" and price < 1500'


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (IBM_1600, IBM_1500, True),
        (IBM_1500, IBM_1600, False),
        (ANY_1600, IBM_1600, True),
        (IBM_1600, ANY_1600, False),
        (IBM_1600, DELL_1500, False),
        (DELL_1500, IBM_1600, False),
    ],
)
def test_covering_in_the_paper(a: str, b: str, expected: bool) -> None:
    assert covers(Filter.parse("shop", a), Filter.parse("shop", b)) is expected
    assert covers(Filter.parse("shop/#", a), Filter.parse("shop", b)) is expected
    assert not covers(Filter.parse("shop", a), Filter.parse("shop/#", b))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("", "x < 1", True),
        ("x < 1", "", False),
        ("has x or not has x", "", True),
        ("has x", "x < 1", True),
        ("has x", 'x != "a"', True),
        ("has x", "not x < 1", False),
        ("x < 2", "x == 1 or x == 1.5", True),
        ("x < 2 or x >= 2", "x != 7", True),
        ("x < 2 or x >= 2", "has x", False),
        ("x <= 1 or x >= 2", "x < 1.5", False),
        # Numbers are reals: there is one between 1 and 2.
        ("x != 1.5", "x <= 1 or x >= 2", True),
        ("x <= 1 or x >= 2", "x != 1.5", False),
        ("x == 1", "x >= 1 and x <= 1", True),
        ("x > 9007199254740992", "x >= 9007199254740993", True),
        ("x != 5", 'x == "a"', False),
        ("x != 5", "x == true", False),
        ("x == true or x == false", "x != true", True),
        ("not x < 5", "x >= 5", True),
        ("x >= 5", "not x < 5", False),
        ("x >= 5", "not x < 5 and x > -1", True),
        ('x startswith "ab"', 'x startswith "abc"', True),
        ('x startswith "abc"', 'x startswith "ab"', False),
        ('x startswith ""', 'x < "b"', True),
        ('x startswith "ab"', 'x >= "ab" and x < "ac"', True),
        ('x >= "ab"', 'x startswith "ab"', True),
        ('x == "ab" or x >= "ab\\u0000"', 'x startswith "ab"', True),
        ('x startswith "ab" and x != "ab"', 'x > "ab" and x startswith "ab"', True),
        ('x != "zz"', 'x startswith "ab"', True),
        # Nothing lies between the characters before and after the halves of characters.
        ('x startswith "\ud7ff"', 'x >= "\ud7ff" and x < "\ue000"', True),
        ('x startswith "\U0010ffff"', 'x >= "\U0010ffff"', True),
        # One disjunct alone does not do, both together do.
        ("x < 5 and y < 5 or x >= 5 and y < 5", "has x and y < 5 and x < 9", True),
        ("x < 5 and y < 5 or x >= 5 and y < 5", "has x and y < 5", False),
        # What matches nothing is covered by anything.
        ("has y", "x < 1 and x > 1", True),
        ("has y", 'x == 1 and x == "1"', True),
        ("has y", 'x < ""', True),
        ("has y", 'x > "a" and x < "a\\u0000"', True),
        ("has y", "has x and not has x", True),
    ],
)
def test_covering(a: str, b: str, expected: bool) -> None:
    assert covers(Filter.parse("t", a), Filter.parse("t", b)) is expected


def test_what_matches_nothing_is_covered_on_any_topic() -> None:
    assert covers(Filter.parse("a"), Filter.parse("b", "x < 1 and x > 1"))
    assert not covers(Filter.parse("a"), Filter.parse("b", "x < 1"))


def test_a_wider_filter_is_recognised_among_many_alternatives() -> None:
    alternatives = [f"x{i % 8} < {i} and x{(i + 3) % 8} > {i}" for i in range(16)]
    wide, narrow = " or ".join(reversed(alternatives)), " or ".join(alternatives[:8])
    assert covers(Filter.parse("t", wide), Filter.parse("t", narrow))
    assert not covers(Filter.parse("t", narrow), Filter.parse("t", wide))


def test_past_the_limit_nothing_is_dropped_and_nothing_withheld(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dynatops.kit.filters.covering.STEPS_MAX", 3)
    wide, narrow = Filter.parse("t", "x < 9 or y < 9"), Filter.parse("t", "x < 3 and y < 3")
    apart = Filter.parse("t", "x > 3 and y > 3 and x < 3")
    assert settled_covers(wide, narrow) is None
    assert not covers(wide, narrow)
    assert intersects(narrow, apart)
    # What the patterns alone say has no limit.
    assert covers(Filter.parse("#"), narrow)
    assert not intersects(Filter.parse("another"), narrow)


# ---- intersecting --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # The advertisement of section 2 (Mobility), and the subscriptions of its Table 1.
        ('brand == "IBM" and price > 500', IBM_1600, True),
        ('brand == "IBM" and price > 500', ANY_1600, True),
        ('brand == "IBM" and price > 500', DELL_1500, False),
        ('brand == "IBM" and price > 1500', IBM_1500, False),
        ("", IBM_1500, True),
        ("x < 1", "x > 1", False),
        ("x <= 1", "x >= 1", True),
        ("x < 1", "y < 1", True),
        ("x < 1", 'x < "a"', False),
        ("not has x", "x != 1", False),
        ("not x < 1", "not has x", True),
        ('x startswith "ab"', 'x < "ab"', False),
        ('x startswith "ab"', 'x startswith "a" and x < "abc"', True),
        ("x == 1 or x == 2", "x > 1 and x < 2 or x > 2", False),
        ("has x", "x < 1 and x > 1", False),
    ],
)
def test_intersecting(a: str, b: str, expected: bool) -> None:
    assert intersects(Filter.parse("t", a), Filter.parse("t/#", b)) is expected
    assert intersects(Filter.parse("+", b), Filter.parse("t", a)) is expected
    assert not intersects(Filter.parse("s", a), Filter.parse("t/#", b))


# ---- filters, and the wire -----------------------------------------------------------------------


def test_a_filter() -> None:
    wanted = Filter.parse("shop/+", "(price<1500)")
    assert (wanted.pattern, wanted.where, wanted.is_wildcard) == ("shop/+", "price < 1500", True)
    assert str(wanted) == "shop/+ where price < 1500"
    assert wanted.matches("shop/pc", {"price": 1})
    assert not wanted.matches("shop/pc", {})
    assert not wanted.matches("shop", {"price": 1})
    assert {wanted: 1}[Filter.parse("shop/+", "price < 1500.0")] == 1
    assert wanted != Filter.parse("shop/+")
    assert Filter.from_wire(wanted.to_wire()) == wanted
    assert Filter.parse("shop").matches("shop", {})
    with pytest.raises(FilterError):
        Filter.from_wire(client_pb2.Filter(pattern="shop", where="price"))


def test_one_and_true_are_not_the_same_filter() -> None:
    filters = {Filter.parse("t", f"x == {value}") for value in ("1", "true", '"1"')}
    assert len(filters) == 3
    assert Predicate.parse("x == 1") != Predicate.parse("x == true")
