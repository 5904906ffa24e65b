from __future__ import annotations

import math
from itertools import product
from random import Random
from typing import Any

import pytest

from dynatops.filters import (
    AttributesError,
    Filter,
    FilterError,
    FilterTrie,
    Predicate,
    Value,
    attributes_of,
    attributes_to_wire,
    check_pattern,
    covers,
    pattern_covers,
    pattern_matches,
)
from dynatops.filters.attributes import ATTRIBUTES_MAX, TEXT_BYTES_MAX
from dynatops.filters.grammar import DEPTH_MAX, NAME_BYTES_MAX, TESTS_MAX, WHERE_BYTES_MAX
from dynatops.filters.pattern import LEVELS_MAX
from dynatops.filters.trie import SHARED_LEVELS_MAX
from dynatops.v1 import client_pb2
from dynatops.v1.client_pb2 import ErrorCode
from dynatops.v1.overlay_pb2 import Attribute

# ---- patterns ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        ("a/b", ["a/b"], ["a", "a/b/", "a/b/c", "A/b"]),
        ("+", ["a"], ["a/b", "$a", "/"]),
        ("#", ["a", "a/b", "/", "a//b"], ["$a", "$a/b"]),
        ("a/+", ["a/b", "a/"], ["a", "a/b/c", "b/b"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c"], ["ab", "b/a"]),
        ("+/b", ["a/b", "/b"], ["b", "a/b/c", "$a/b"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/b/c"]),
        ("+/+/#", ["a/b", "a/b/c", "/"], ["a", "$a/b"]),
        ("$a/+", ["$a/b"], ["$a", "a/b"]),
        ("a/$b/+", ["a/$b/c"], ["a/b/c"]),
        ("a/+/$c", ["a/$b/$c"], []),
    ],
)
def test_patterns_match(pattern: str, matched: list[str], not_matched: list[str]) -> None:
    trie: FilterTrie[int] = FilterTrie()
    trie.add(pattern, 1)
    for topic in matched:
        assert pattern_matches(pattern, topic), topic
        assert trie.match(topic) == [1], topic
    for topic in not_matched:
        assert not pattern_matches(pattern, topic), topic
        assert trie.match(topic) == [], topic


@pytest.mark.parametrize(
    ("pattern", "code", "reason"),
    [
        ("", ErrorCode.ERROR_CODE_TOPIC_EMPTY, "is empty"),
        ("é" * 513, ErrorCode.ERROR_CODE_TOPIC_TOO_LONG, "has 1,026 bytes; the limit is 1,024"),
        ("a/#/b", ErrorCode.ERROR_CODE_FILTER_INVALID, "'#' in level 2"),
        ("a/b+", ErrorCode.ERROR_CODE_FILTER_INVALID, "'+' beside other characters in level 2"),
        ("##", ErrorCode.ERROR_CODE_FILTER_INVALID, "'#' beside other characters in level 1"),
        ("$catalogue/#", ErrorCode.ERROR_CODE_FILTER_INVALID, "reserved for the system"),
        ("a\0", ErrorCode.ERROR_CODE_FILTER_INVALID, "NUL"),
        ("\udc00", ErrorCode.ERROR_CODE_FILTER_INVALID, "UTF-8"),
        ("+/" * LEVELS_MAX + "a", ErrorCode.ERROR_CODE_FILTER_INVALID, f"is {LEVELS_MAX}"),
    ],
)
def test_patterns_refused(pattern: str, code: ErrorCode.ValueType, reason: str) -> None:
    with pytest.raises(FilterError, match="filter") as caught:
        check_pattern(pattern)
    assert caught.value.code == code
    assert reason in caught.value.reason
    assert caught.value.text == pattern


def test_a_broker_may_allow_less() -> None:
    check_pattern("abc/+", bytes_max=5)
    with pytest.raises(FilterError):
        check_pattern("abcd/+", bytes_max=5)
    with pytest.raises(FilterError):
        Filter.parse("abcd/+", bytes_max=5)


def test_topics_may_have_more_levels_than_patterns() -> None:
    check_pattern("/" * 500)
    check_pattern("+/" * (LEVELS_MAX - 1) + "#")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("#", "a/+", True),
        ("+/#", "#", True),
        ("+/+/#", "#", False),
        ("a/#", "a", True),
        ("a/#", "a/+/#", True),
        ("a/+/#", "a/#", False),
        ("/+/#", "/#", True),
        ("+/b", "a/+", False),
        ("+/+", "a/+", True),
        ("a/+", "+/+", False),
        ("#", "$a", False),
        ("+/b", "$a/b", False),
        ("$a/#", "$a/b/+", True),
        ("a/+", "a/#", False),
    ],
)
def test_patterns_cover(a: str, b: str, expected: bool) -> None:
    assert pattern_covers(a, b) is expected


# ---- the trie ------------------------------------------------------------------------------------


def test_a_value_comes_once_for_each_pattern_that_matches() -> None:
    trie: FilterTrie[str] = FilterTrie()
    for pattern, value in [
        ("a/b", "x"),
        ("a/+", "x"),
        ("a/+", "y"),
        ("a/+", "y"),
        ("a/#", "z"),
        ("a/+/#", "w"),
    ]:
        trie.add(pattern, value)
    assert len(trie) == 5
    assert sorted(trie.match("a/b")) == ["w", "x", "x", "y", "z"]
    trie.remove("a/+", "x")
    trie.remove("a/#", "z")
    assert sorted(trie.match("a/b")) == ["w", "x", "y"]
    for pattern, value in [("a/+", "x"), ("a/#", "y"), ("a/+/+", "w"), ("c/#", "w"), ("a/b", "y")]:
        with pytest.raises(KeyError):
            trie.remove(pattern, value)
    assert len(trie) == 3


def test_a_node_that_nothing_needs_any_more_goes() -> None:
    trie: FilterTrie[int] = FilterTrie()
    patterns = ["a/+", "a/+/c", "a/+/c/#", "a/+/d", "+/b", "#", "a/+/c/d/e/f/#"]
    for pattern in patterns:
        trie.add(pattern, 1)
    for pattern in patterns:
        assert trie._root
        trie.remove(pattern, 1)
    assert not trie._root
    assert len(trie) == 0


def test_a_node_with_one_end_is_no_node_any_more() -> None:
    trie: FilterTrie[int] = FilterTrie()
    trie.add("a/+", 1)
    trie.add("a/+/c", 2)
    trie.remove("a/+/c", 2)
    assert trie._root == {"a": {"+": 1}}


def test_texts_of_levels_are_not_kept_without_end() -> None:
    trie: FilterTrie[int] = FilterTrie()
    for number in range(SHARED_LEVELS_MAX + 10):
        trie.add(f"{number}/+", number)
        trie.remove(f"{number}/+", number)
    trie.add("1/+", 1)
    assert trie.match("1/x") == [1]
    assert len(trie._shared) < SHARED_LEVELS_MAX


def test_values_of_a_pattern_keep_their_order() -> None:
    trie: FilterTrie[int] = FilterTrie()
    for value in (3, 1, 2):
        trie.add("a/+", value)
    assert trie.match("a/b") == [3, 1, 2]


@pytest.mark.parametrize("topic", ["", "+", "#", "##", "a/##", "a/#", "$", "$/##/x", "a/+/x", "/"])
def test_what_is_no_topic_does_no_harm(topic: str) -> None:
    trie: FilterTrie[int] = FilterTrie()
    for pattern in ("a/+", "a/+/c", "a/#", "#", "+/+/c/#"):
        trie.add(pattern, 1)
    assert set(trie.match(topic)) <= {1}


def test_many_choices_of_plus_do_not_multiply() -> None:
    """Of 2^31 ways through such a topic only those are followed that some pattern takes."""
    trie: FilterTrie[int] = FilterTrie()
    rng = Random(1)
    for number in range(300):
        levels = rng.choices("a+", k=LEVELS_MAX - 1)
        trie.add("/".join([*levels, "z"]), number)
    assert trie.match("/".join("a" * LEVELS_MAX)) == []
    assert sorted(trie.match("/".join("a" * (LEVELS_MAX - 1) + "z"))) == list(range(300))
    assert trie.match("/".join("a" * 500)) == []


def test_all_choices_of_plus_are_found() -> None:
    trie: FilterTrie[str] = FilterTrie()
    patterns = ["/".join(levels) for levels in product("a+", repeat=8)]
    for pattern in patterns:
        trie.add(pattern, pattern)
    assert sorted(trie.match("/".join("a" * 8))) == sorted(patterns)
    assert len(trie.match("/".join("ab" * 4))) == 16


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
