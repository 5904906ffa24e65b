"""Filters against what they mean, spelt out."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynatops.filters import FilterError, check_pattern, pattern_covers, pattern_matches
from dynatops.topics import check_topic

LEVELS = ("", "a", "b", "$")
# Long enough that a pattern of three levels can be told from a longer one.
TOPICS = [
    topic
    for depth in (1, 2, 3, 4, 5)
    for topic in map("/".join, product(LEVELS, repeat=depth))
    if topic
]


PATTERNS = [
    "/".join(levels)
    for depth in (1, 2, 3)
    for levels in product(("", "a", "$", "+", "#"), repeat=depth)
    if "#" not in levels[:-1] and levels != ("",)
]


def regex_matches(pattern: str, topic: str) -> bool:
    """The rules once more, as a regular expression."""
    if topic.startswith("$") and pattern[0] in "+#":
        return False
    if pattern == "#":
        return True
    text = re.escape(pattern).replace(re.escape("+"), "[^/]*")
    if pattern.endswith("/#"):
        text = text.removesuffix("/" + re.escape("#")) + "(/.*)?"
    return re.fullmatch(text, topic) is not None


def test_matching_is_what_the_regular_expression_says() -> None:
    short = [topic for topic in TOPICS if topic.count("/") < 4]
    for pattern in PATTERNS:
        for topic in short:
            assert pattern_matches(pattern, topic) == regex_matches(pattern, topic)


def test_covering_is_inclusion_of_topics() -> None:
    matched = {p: frozenset(t for t in TOPICS if pattern_matches(p, t)) for p in PATTERNS}
    for a in PATTERNS:
        for b in PATTERNS:
            assert pattern_covers(a, b) == (matched[a] >= matched[b]), (a, b)


@given(st.text(max_size=8) | st.text("a/+#$\0", max_size=8))
def test_every_topic_is_a_pattern(text: str) -> None:
    try:
        check_topic(text)
    except ValueError:
        return
    check_pattern(text)
    assert pattern_matches(text, text)


@pytest.mark.parametrize("text", ["", "a\0", "$a", "a/#/b", "a+", "#b", "\ud800", "x" * 1_025])
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(FilterError) as caught:
        check_pattern(text)
    assert caught.value.text == text
    assert caught.value.reason in str(caught.value)
