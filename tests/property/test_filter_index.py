"""The index of filters against asking every filter."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynatops.kit.filters import Filter, FilterIndex, Value, covers
from dynatops.kit.filters.condition_index import UNDIVIDED_MAX
from dynatops.kit.filters.conditions import Condition
from dynatops.kit.filters.examples import examples_of
from dynatops.kit.filters.necessary import necessary_values
from dynatops.kit.filters.value_sets import place_of
from tests.property.test_filters import EVENTS, PATTERNS, TOPICS, conjunctions, mixtures

Change = tuple[bool, Filter, int]

patterns = st.sampled_from(["t", "t", "t", "#", "t/#", "+", "a/+", "+/b", "a/b"])
conditions = st.one_of(st.just(""), (mixtures | conjunctions).map(str))
filters = st.builds(Filter.parse, patterns, conditions)
changes = st.lists(st.tuples(st.integers(0, 3).map(bool), filters, st.integers(1, 4)), max_size=60)


def check_index(index: FilterIndex[int], held: set[tuple[Filter, int]]) -> None:
    assert set(index) == {wanted for wanted, _ in held}
    assert len(index) == len({wanted for wanted, _ in held})
    for topic in ("t", "a/b", "t/x", "$t"):
        for event in EVENTS[::11]:
            expected = {wanted for wanted, _ in held if wanted.matches(topic, event)}
            # As it is found first, and as it is remembered.
            for _ in range(2):
                assert index.match(topic, event) == {h for f, h in held if f in expected}
            assert sorted(map(str, index.matching(topic, event))) == sorted(map(str, expected))


@settings(max_examples=60)
@given(changes)
def test_the_index_finds_whose_filters_match(changes: list[Change]) -> None:
    index: FilterIndex[int] = FilterIndex()
    held: set[tuple[Filter, int]] = set()
    for is_added, wanted, holder in changes:
        if is_added:
            assert index.add(wanted, holder) == ((wanted, holder) not in held)
            held.add((wanted, holder))
        elif (wanted, holder) in held:
            index.remove(wanted, holder)
            held.remove((wanted, holder))
        else:
            with pytest.raises(KeyError):
                index.remove(wanted, holder)
    check_index(index, held)
    for wanted, holder in sorted(held, key=str)[::2]:
        index.remove(wanted, holder)
        held.remove((wanted, holder))
    check_index(index, held)


@settings(max_examples=12)
@given(st.lists(st.tuples(mixtures | conjunctions, st.integers(1, 3)), min_size=60, max_size=120))
def test_branches_are_divided_and_vanish(many: list[tuple[Condition, int]]) -> None:
    assert len(many) > UNDIVIDED_MAX
    index: FilterIndex[int] = FilterIndex()
    held = {(Filter.parse("t", str(condition)), holder) for condition, holder in many}
    ordered = sorted(held, key=str)
    for wanted, holder in ordered:
        index.add(wanted, holder)
    root = index._patterns["t"].conditions._root
    check_index(index, held)
    for wanted, holder in ordered:
        index.remove(wanted, holder)
        held.remove((wanted, holder))
        if len(held) == len(many) // 2:
            check_index(index, held)
    assert not index._patterns
    assert not root.columns
    assert not root.entries
    assert root.size == 0


def random_where(rng: Random) -> str:
    """Tests as people write them, on values that meet each other often, and far-off ones."""
    number = rng.choice([rng.randint(-4, 4), rng.random(), rng.choice([-1, 1]) * 2.0**70])
    if rng.random() < 0.1:
        number = rng.choice([1e308, -1e308, (1 << 53) + rng.randint(-2, 2), 5e-324])
    word = "".join(rng.choice("ab") for _ in range(rng.randint(0, 5)))
    tests = [
        f'brand == "{word}"',
        f"price {rng.choice(['<', '<=', '>', '>=', '!='])} {number!r}",
        f"price >= {number!r} and price < {number + rng.choice([0.5, 2, 2.0**60])!r}",
        f"price == {number!r}",
        f'brand startswith "{word}"',
        f'brand >= "{word}" and not brand > "{word}z"',
        f"price == {number!r} or price == 1",
        "new == true",
        "not has price",
        f"count > {number!r}",
        f"count == {rng.randint(0, 9)}",
    ]
    chosen = rng.sample(tests, rng.randint(1, 3))
    return f"({') and ('.join(chosen)})"


def random_event(rng: Random) -> dict[str, Value]:
    numbers = [rng.randint(-4, 4), rng.random(), 2.0**70, 1e308, -1e308, (1 << 53) + 1, 0.5, 5e-324]
    event: dict[str, Value] = {}
    if rng.random() < 0.8:
        event["price"] = rng.choice(numbers)
    if rng.random() < 0.8:
        event["count"] = rng.randint(0, 9)
    if rng.random() < 0.5:
        event["brand"] = "".join(rng.choice("abz") for _ in range(rng.randint(0, 5)))
    if rng.random() < 0.5:
        event["new"] = rng.choice([True, False, 1])
    return event


@pytest.mark.parametrize("seed", range(3))
def test_many_filters_on_one_topic(seed: int) -> None:
    rng = Random(seed)
    index: FilterIndex[int] = FilterIndex()
    held: dict[Filter, int] = {}
    for number in range(600):
        wanted = Filter.parse("t", random_where(rng))
        if wanted not in held:
            held[wanted] = number
            index.add(wanted, number)
        if rng.random() < 0.3:
            gone = rng.choice(list(held))
            index.remove(gone, held.pop(gone))
    for _ in range(300):
        event = random_event(rng)
        assert index.match("t", event) == {n for f, n in held.items() if f.matches("t", event)}


def test_a_holder_of_many_is_asked_until_one_matches() -> None:
    index: FilterIndex[str] = FilterIndex()
    for number in range(100):
        index.add(Filter.parse("t", f"x > {number}"), "a")
        index.add(Filter.parse("t", f"x > {number + 50}"), "b")
    assert index.match("t", {"x": 49.5}) == {"a"}
    assert index.match("t", {"x": 50.5}) == {"a", "b"}
    assert index.match("t", {"y": 50.5}) == set()
    assert index.match("t", {}) == set()


def test_what_is_remembered_follows_what_is_held() -> None:
    index: FilterIndex[str] = FilterIndex()
    assert index.match("t", {}) == set()
    index.add(Filter.parse("#"), "a")
    assert index.match("t", {}) is index.match("t", {})
    assert index.match("t", {}) == index.match("t", {"x": 1}) == {"a"}
    index.add(Filter.parse("#"), "b")
    index.add(Filter.parse("t", "not has x"), "c")
    assert index.match("t", {}) == index.match("t", {"y": 1}) == {"a", "b", "c"}
    assert index.match("t", {"x": 1}) == {"a", "b"}
    index.remove(Filter.parse("t", "not has x"), "c")
    index.remove(Filter.parse("#"), "a")
    assert index.match("t", {}) == index.match("t", {"x": 1}) == {"b"}


# ---- what it goes by -----------------------------------------------------------------------------


@given(mixtures | conjunctions)
def test_necessary_values_are_necessary(condition: Condition) -> None:
    wanted = Filter.parse("t", str(condition))
    for event in EVENTS:
        if wanted.matches("t", event):
            for name, values in necessary_values(condition).items():
                place = place_of(event[name]) if name in event else (0,)
                assert sum(edge <= place for edge in values) % 2 == 1


@given(mixtures | conjunctions, mixtures | conjunctions)
def test_examples_are_matched_by_a_filter_and_by_what_covers_it(a: Condition, b: Condition) -> None:
    narrow, wide = Filter.parse("t/+", str(a)), Filter.parse("t/#", str(b))
    examples = examples_of(narrow)
    possible = any(narrow.matches("t/t", event) for event in EVENTS)
    assert (examples is not None) == possible
    if examples is not None:
        for event in (examples.near, examples.opposite):
            assert narrow.matches(examples.topic, event)
            assert wide.matches(examples.topic, event) or not covers(wide, narrow)


def test_examples_match_their_patterns_and_what_covers_these() -> None:
    for pattern in PATTERNS:
        if pattern.startswith("$"):
            continue
        examples = examples_of(Filter.parse(pattern))
        assert examples is not None
        assert Filter.parse(pattern).matches(examples.topic, {})
    assert len(TOPICS) > len(PATTERNS)
