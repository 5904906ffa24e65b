"""Which topics a pattern matches, and a trie of patterns that finds them at once."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from dynatops.kit.filters import (
    Filter,
    FilterError,
    FilterTrie,
    check_pattern,
    pattern_covers,
    pattern_matches,
)
from dynatops.kit.filters.pattern import LEVELS_MAX
from dynatops.kit.filters.trie import SHARED_LEVELS_MAX
from dynatops.v1.client_pb2 import ErrorCode

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
