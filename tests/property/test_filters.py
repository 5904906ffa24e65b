"""Filters against what they mean, spelt out."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynatops.kit.filters import (
    Filter,
    FilterError,
    FilterTrie,
    PatternTree,
    Predicate,
    Value,
    check_pattern,
    covers,
    intersects,
    pattern_covers,
    pattern_intersects,
    pattern_matches,
)
from dynatops.kit.filters.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Not,
    NumberTest,
    Operator,
    Presence,
    TextTest,
    TruthTest,
    all_of,
    any_of,
    is_control,
    negated,
)
from dynatops.kit.topics import check_topic

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


def test_intersecting_is_a_topic_in_common() -> None:
    matched = {p: frozenset(t for t in TOPICS if pattern_matches(p, t)) for p in PATTERNS}
    for a in PATTERNS:
        for b in PATTERNS:
            assert pattern_intersects(a, b) == bool(matched[a] & matched[b]), (a, b)


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


# ---- the trie ------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(PATTERNS), st.sampled_from([1, 2, 3, None])),
        max_size=120,
    )
)
def test_the_trie_finds_what_matches(
    changes: list[tuple[bool, str, int | None]],
) -> None:
    trie: FilterTrie[int | None] = FilterTrie()
    held: set[tuple[str, int | None]] = set()
    for is_added, pattern, value in changes:
        if is_added:
            trie.add(pattern, value)
            held.add((pattern, value))
        elif (pattern, value) in held:
            trie.remove(pattern, value)
            held.remove((pattern, value))
        else:
            with pytest.raises(KeyError):
                trie.remove(pattern, value)
        assert len(trie) == len(held)
    for topic in TOPICS[:: len(TOPICS) // 60]:
        expected = Counter(value for pattern, value in held if pattern_matches(pattern, topic))
        assert Counter(trie.match(topic)) == expected
    for pattern, value in held:
        trie.remove(pattern, value)
    assert not trie._root
    assert not trie._exact


# ---- the tree of patterns ------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(PATTERNS)), max_size=120))
def test_the_tree_finds_what_is_covered_and_what_intersects(
    changes: list[tuple[bool, str]],
) -> None:
    tree: PatternTree[str] = PatternTree()
    held: set[str] = set()
    for is_added, pattern in changes:
        # Nobody may subscribe to those.
        if pattern.startswith("$"):
            continue
        if is_added:
            tree.put(pattern, pattern)
            held.add(pattern)
        elif pattern in held:
            tree.remove(pattern)
            held.remove(pattern)
        else:
            with pytest.raises(KeyError):
                tree.remove(pattern)
    for pattern in PATTERNS:
        if not pattern.startswith("$"):
            assert (tree.get(pattern) == pattern) == (pattern in held)
            covered = [other for other in held if pattern_covers(pattern, other)]
            assert sorted(tree.covered(pattern)) == sorted(covered)
            common = [other for other in held if pattern_intersects(pattern, other)]
            assert sorted(tree.intersecting(pattern)) == sorted(common)
    for pattern in held:
        tree.remove(pattern)
    assert not tree._root.below


# ---- predicates ----------------------------------------------------------------------------------

NUMBERS = (-1, 0, 1, 1.5)
TEXTS = ("", "a", "a\0", "ab", "b", "\ud7ff", "\U0010ffff")
# One value from each stretch of the line between what tests compare with, and each such value.
SAMPLES: tuple[Value | None, ...] = (
    None,
    False,
    True,
    *(-7, -1, -0.5, 0, 0.5, 1, 1.25, 1.5, 9),
    *("", "\0", "a", "a\0", "a\0\0", "aa", "ab", "ab\0", "ac", "b", "b\0"),
    *("\ud7ff", "\ud7ff\0", "\ue000", "\U0010ffff", "\U0010ffff\U0010ffff"),
)
EVENTS: list[dict[str, Value]] = [
    {name: value for name, value in (("x", x), ("y", y)) if value is not None}
    for x, y in product(SAMPLES, repeat=2)
]

names = st.sampled_from(["x", "y"])
operators = st.sampled_from([o for o in Operator if o is not Operator.STARTS_WITH])
tests: st.SearchStrategy[Condition] = st.one_of(
    st.builds(NumberTest, names, operators, st.sampled_from(NUMBERS)),
    st.builds(TextTest, names, st.sampled_from(Operator), st.sampled_from(TEXTS)),
    st.builds(TruthTest, names, st.booleans()),
    st.builds(Presence, names),
)
conjunctions = st.lists(tests, min_size=1, max_size=4).map(all_of)
mixtures = st.recursive(
    tests,
    lambda parts: st.one_of(
        parts.map(negated),
        st.lists(parts, min_size=2, max_size=3).map(all_of),
        st.lists(parts, min_size=2, max_size=3).map(any_of),
    ),
    max_leaves=8,
)


def filter_of(condition: Condition) -> Filter:
    return Filter.parse("t", str(condition))


def _check_covering(a: Condition, b: Condition) -> None:
    """Both directions: every event is like one of those tried."""
    filter_a, filter_b = filter_of(a), filter_of(b)
    included = all(filter_a.matches("t", event) for event in EVENTS if filter_b.matches("t", event))
    assert covers(filter_a, filter_b) == included


@given(conjunctions, conjunctions)
def test_conjunctions_cover_exactly_what_they_include(a: Condition, b: Condition) -> None:
    _check_covering(a, b)


@settings(max_examples=300)
@given(mixtures, mixtures)
def test_so_do_mixtures(a: Condition, b: Condition) -> None:
    _check_covering(a, b)
    _check_covering(any_of([a, b]), b)
    _check_covering(a, all_of([a, b]))


@settings(max_examples=300)
@given(mixtures | conjunctions, mixtures | conjunctions)
def test_filters_intersect_exactly_where_an_event_matches_both(a: Condition, b: Condition) -> None:
    filter_a, filter_b = filter_of(a), filter_of(b)
    common = any(filter_a.matches("t", e) and filter_b.matches("t", e) for e in EVENTS)
    assert intersects(filter_a, filter_b) == intersects(filter_b, filter_a) == common
    possible = any(filter_a.matches("t", event) for event in EVENTS)
    assert intersects(filter_a, Filter.parse("#")) == possible
    assert intersects(Filter.parse("t"), filter_a) == possible
    assert not intersects(filter_a, Filter.parse("another"))


@given(mixtures)
def test_nothing_covers_a_filter_and_its_opposite_but_all(condition: Condition) -> None:
    _check_covering(condition, negated(condition))
    either = filter_of(any_of([condition, negated(condition)]))
    assert covers(either, Filter.parse("t"))
    neither = filter_of(all_of([condition, negated(condition)]))
    assert covers(Filter.parse("another"), neither)


def reference_holds(condition: Condition, event: dict[str, Value]) -> bool:
    """The meaning, word for word."""
    match condition:
        case Not(part):
            return not reference_holds(part, event)
        case AllOf(parts):
            return all(reference_holds(part, event) for part in parts)
        case AnyOf(parts):
            return any(reference_holds(part, event) for part in parts)
        case Presence(name):
            return name in event
    value = event.get(condition.name)
    if isinstance(condition, TruthTest):
        return isinstance(value, bool) and value == condition.value
    if isinstance(value, bool) or isinstance(value, str) != isinstance(condition.value, str):
        return False
    if value is None:
        return False
    if condition.operator is Operator.STARTS_WITH:
        return str(value).startswith(str(condition.value))
    order = (value > condition.value) - (value < condition.value)  # type: ignore[operator]
    return (
        order
        in {
            Operator.LESS: (-1,),
            Operator.AT_MOST: (-1, 0),
            Operator.GREATER: (1,),
            Operator.AT_LEAST: (0, 1),
            Operator.EQUAL: (0,),
            Operator.UNEQUAL: (-1, 1),
        }[condition.operator]
    )


@given(mixtures)
def test_predicates_hold_where_they_mean_to(condition: Condition) -> None:
    predicate = Predicate(condition)
    for event in EVENTS:
        assert predicate.holds(event) == reference_holds(condition, event)


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
any_name = any_text.filter(lambda name: name and "`" not in name and not any(map(is_control, name)))
any_number = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(
    allow_nan=False, allow_infinity=False
).filter(lambda number: not number.is_integer() or abs(number) >= 1e19)
any_test: st.SearchStrategy[Condition] = st.one_of(
    st.builds(NumberTest, any_name, operators, any_number),
    st.builds(TextTest, any_name, st.sampled_from(Operator), any_text),
    st.builds(TruthTest, any_name, st.booleans()),
    st.builds(Presence, any_name),
)


@given(mixtures | any_test | st.lists(any_test, min_size=2, max_size=4).map(any_of))
def test_what_is_written_is_read_as_the_same(condition: Condition) -> None:
    predicate = Predicate(condition)
    again = Predicate.parse(str(predicate))
    assert again == predicate
    assert hash(again) == hash(predicate)
    assert str(again) == str(predicate)


WORDS = ["a", "`b c`", "has", "not", "and", "or", "(", ")", "<", "!=", "startswith", "-1.5e3", "=="]
garbage = st.one_of(
    st.text(max_size=30),
    st.text('a<>=!()"\\`u0+-. ', max_size=30),
    st.lists(st.sampled_from([*WORDS, '"x\\n"', "true", "7", "=", '"', "9" * 30]), max_size=30).map(
        " ".join
    ),
)


@settings(max_examples=500)
@given(garbage)
def test_garbage_is_refused_in_one_way(text: str) -> None:
    try:
        predicate = Predicate.parse(text)
    except FilterError as error:
        refusal = error
    else:
        assert Predicate.parse(str(predicate)) == predicate
        predicate.holds({"a": 1})
        return
    assert refusal.text == text
    assert refusal.position is None or 0 <= refusal.position <= len(text)
