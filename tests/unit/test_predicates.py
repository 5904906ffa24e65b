"""Conditions on the attributes of events, and what attributes may be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dynatops.kit.filters import (
    AttributesError,
    FilterError,
    Predicate,
    Value,
    attributes_of,
    attributes_to_wire,
)
from dynatops.kit.filters.attributes import ATTRIBUTES_MAX, TEXT_BYTES_MAX
from dynatops.kit.filters.grammar import DEPTH_MAX, NAME_BYTES_MAX, TESTS_MAX, WHERE_BYTES_MAX
from dynatops.v1.client_pb2 import ErrorCode
from dynatops.v1.overlay_pb2 import Attribute

# ---- predicates ----------------------------------------------------------------------------------

EVENT: dict[str, Value] = {
    "price": 1_499,
    "weight": 2.5,
    "brand": "IBM",
    "new": True,
    "old": False,
    "a.b-c_d": 1,
    "größe": 7,
    "user id": "x",
    "and": 1,
    "text": 'tab\tquote"slash\\',
    "large": (1 << 53) + 1,
}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("price < 1500", True),
        ("price<=1499 and price>=1499.0", True),
        ("price != 1499", False),
        ("price == 1499.0", True),
        ("price > -1.5e3", True),
        ("weight == 2.5", True),
        ("weight < 2", False),
        ("large == 9007199254740993", True),
        ("large == 9007199254740992", False),
        ('brand == "IBM"', True),
        ('brand startswith "IB" and not brand startswith "IBM "', True),
        ('brand >= "I" and brand < "J"', True),
        ('brand != "Dell"', True),
        ("new == true", True),
        ("new != false", True),
        ("old == true", False),
        ("new == 1", False),
        ("not new == 1", True),
        ("has old and not has colour", True),
        # Absent, or of another type: false, and so true when negated.
        ("colour == 1", False),
        ("colour != 1", False),
        ("not colour == 1", True),
        ("not colour != 1", True),
        ('price < "1500"', False),
        ('price != "1500"', False),
        ("brand != 5", False),
        ('new startswith "t"', False),
        ("brand == true", False),
        # `and` before `or`, `not` before both.
        ("has colour and has colour or has brand", True),
        ("has brand or has brand and has colour", True),
        ("not has brand and has brand", False),
        ("not (has brand and has colour)", True),
        ("not not has brand", True),
        ("((has brand))", True),
        ("a.b-c_d == 1", True),
        ("größe == 7", True),
        ('`user id` == "x" and `and` == 1', True),
        ('text == "tab\\tquote\\"slash\\\\"', True),
        ('text == "tab\\u0009quote\\u0022slash\\u005c"', True),
        ("  price<1500\n\tand  has brand ", True),
    ],
)
def test_predicates_hold(where: str, expected: bool) -> None:
    predicate = Predicate.parse(where)
    assert predicate.holds(EVENT) is expected
    assert Predicate.parse(str(predicate)) == predicate


@pytest.mark.parametrize(
    ("where", "written"),
    [
        ("(a<1 and(b<2 and c<3))", "a < 1 and b < 2 and c < 3"),
        ("not not(a!=true or(b<1.0 or c<2))", "a == false or b < 1 or c < 2"),
        ("not(a==1 or b==2)and c==3", "not (a == 1 or b == 2) and c == 3"),
        ("(a==1 or b==2)and c==-0.0", "(a == 1 or b == 2) and c == 0"),
        ("`plain` == 1 and `has` == 2 and `a b` == 3", "plain == 1 and `has` == 2 and `a b` == 3"),
        ('a == "\\u00e9\\n\\u0001"', 'a == "é\\n\\u0001"'),
    ],
)
def test_predicates_are_written_in_one_way(where: str, written: str) -> None:
    assert str(Predicate.parse(where)) == written


@pytest.mark.parametrize(
    ("where", "position", "expected"),
    [
        (" ", 1, "ends where a test, 'not' or '(' is expected"),
        ("price", 5, "ends where '<', '<=', '>', '>=', '==', '!=' or 'startswith' is expected"),
        ("price = 5", 6, "has '=' where '==' is meant"),
        ("price <", 7, "a number, a text in double quotes, true or false"),
        ("price < brand", 8, "has 'brand' where a number, a text"),
        ("price < 5 5", 10, "has '5' where 'and', 'or' or the end is expected"),
        ("5 < price", 0, "has '5' where a test"),
        ("(has a", 6, "'and', 'or' or ')'"),
        ("has a)", 5, "'and', 'or' or the end"),
        ("has 5", 4, "the name of an attribute"),
        ("has and", 4, "the name of an attribute"),
        ("a startswith 5", 13, "a text in double quotes"),
        ("a < true", 4, "only '==' and '!='"),
        ("a < nan", 4, "a number"),
        ("a < 1e999", 4, "too large"),
        ("a < 9223372036854775808", 4, "beyond 64 bits"),
        ("a < 5x", 4, "a number that is none"),
        ("a < .5", 4, "'.'"),
        ('a == "x', 5, "does not end"),
        ('a == "x\n"', 5, "control character"),
        ('a == "é\\q"', 7, "\\q"),
        ('a == "\\u12"', 6, "\\u"),
        ('a == "\\ud83d"', 6, "half a character"),
        ("`` == 1", 0, "backquotes"),
        ("a & b", 2, "'&'"),
        ("a AND b", 2, "has 'AND' where '<'"),
        ("n" * (NAME_BYTES_MAX + 1) + " < 1", 0, "name of more than 64 bytes"),
        ("(" * (DEPTH_MAX + 1) + "has a", DEPTH_MAX, "16 parentheses"),
        (" or ".join(["has a"] * (TESTS_MAX + 1)), TESTS_MAX * 9, "32 tests"),
    ],
)
def test_errors_say_where_and_what(where: str, position: int, expected: str) -> None:
    with pytest.raises(FilterError) as caught:
        Predicate.parse(where)
    assert caught.value.position == position
    assert expected in caught.value.reason
    assert f"at character {position + 1}" in str(caught.value)
    assert caught.value.code == ErrorCode.ERROR_CODE_FILTER_INVALID


def test_predicates_have_a_size() -> None:
    padding = " " * (WHERE_BYTES_MAX - len("has a"))
    assert str(Predicate.parse("has a" + padding)) == "has a"
    with pytest.raises(FilterError, match="1,025 bytes"):
        Predicate.parse("has a " + padding)
    # Escapes make it longer than it came.
    text = 'a=="' + "\\u0001" * 168 + '"'
    Predicate.parse(text)
    with pytest.raises(FilterError, match="the limit is 1,024"):
        Predicate.parse(" or ".join(["a<1e18"] * 30 + ['b == "' + "x" * 600 + '"']))


def test_depth_does_not_add_up() -> None:
    deep = "(" * DEPTH_MAX + "has a" + ")" * DEPTH_MAX
    assert str(Predicate.parse(f"not {deep} or {deep}")) == "not has a or has a"
    assert Predicate.parse("not " * 200 + "has a") == Predicate.parse("has a")


# ---- attributes, and the wire --------------------------------------------------------------------


def test_attributes_go_and_come_back() -> None:
    sent: dict[str, Value] = {**EVENT, "least": -(1 << 63), "most": (1 << 63) - 1}
    received = attributes_of(attributes_to_wire(sent))
    assert received == sent
    assert [type(value) for value in received.values()] == [type(v) for v in sent.values()]
    assert attributes_to_wire({}) == []


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({str(i): i for i in range(ATTRIBUTES_MAX + 1)}, "there are 65; the limit is 64"),
        ({"": 1}, "not empty"),
        ({5: 1}, "a name is a text"),
        ({"é" * 33: 1}, "name of more than 64 bytes"),
        ({"a`b": 1}, "backquote"),
        ({"a\n": 1}, "control character"),
        ({"a": 1 << 63}, "beyond 64 bits"),
        ({"a": math.nan}, "is nan"),
        ({"a": -math.inf}, "is -inf"),
        ({"a": "x" * (TEXT_BYTES_MAX + 1)}, "1,025 bytes"),
        ({"a": "\ud800"}, "UTF-8"),
        ({"\ud800": 1}, "UTF-8"),
        ({"a": None}, "NoneType"),
        ({"a": b"x"}, "bytes"),
    ],
)
def test_attributes_refused(attributes: dict[Any, Any], reason: str) -> None:
    with pytest.raises(AttributesError) as caught:
        attributes_to_wire(attributes)
    assert reason in caught.value.reason
    assert caught.value.reason in str(caught.value)


def test_attributes_that_are_not_sound_are_left_out() -> None:
    message = [
        Attribute(name="none"),
        Attribute(name="nan", number=math.nan),
        Attribute(name="x", whole=1),
        Attribute(name="x", whole=2),
        *(Attribute(name=f"n{i}", truth=True) for i in range(100)),
    ]
    attributes = attributes_of(message)
    assert attributes["x"] == 1
    assert len(attributes) == ATTRIBUTES_MAX
    assert not {"none", "nan"} & set(attributes)
