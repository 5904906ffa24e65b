"""The workload says what it should: users, modes, and changes that add up."""

from __future__ import annotations

import statistics
from collections import defaultdict

import pytest

from experiments.workloads.churn import (
    ChurnSpec,
    changes,
    publications,
)
from experiments.workloads.modes import MODE_TOPICS, topic_name

SPEC = ChurnSpec(users=60, topics=100, seconds=40.0)


def test_the_same_seed_the_same_changes() -> None:
    assert list(changes(SPEC, 1)) == list(changes(SPEC, 1))
    assert list(changes(SPEC, 1)) != list(changes(SPEC, 2))


def test_what_is_published_is_known_before() -> None:
    """Two runs that differ in speed publish the same."""
    due = list(publications(SPEC, 0, 50.0, seed=1))
    assert due == list(publications(SPEC, 0, 50.0, seed=1))
    assert due != list(publications(SPEC, 1, 50.0, seed=1))
    assert [event.at_s for event in due] == sorted(event.at_s for event in due)
    assert due[0].at_s > 0.0
    assert due[-1].at_s < SPEC.seconds
    assert 0.9 < len(due) / (50.0 * SPEC.seconds) < 1.1
    assert {event.topic for event in due} == set(range(SPEC.topics))


@pytest.mark.parametrize("strays", [0.0, 0.2])
def test_changes_add_up(strays: float) -> None:
    spec = ChurnSpec(users=60, topics=100, seconds=40.0, strays=strays, mode_changes=0.2)
    follows: defaultdict[int, set[int]] = defaultdict(set)
    before_s = 0.0
    for change in changes(spec, 3):
        assert before_s <= change.at_s <= spec.seconds
        before_s = change.at_s
        mine = follows[change.user]
        assert change.arrives == (not mine)
        assert mine.issuperset(change.dropped)
        mine.difference_update(change.dropped)
        assert mine.isdisjoint(change.added)
        mine.update(change.added)
        assert len(mine) == spec.topics_per_user
        modes = {topic // MODE_TOPICS for topic in mine}
        assert max(mine) < spec.topics
        if not strays:
            assert len(modes) == 1
    assert len(follows) == spec.users


def test_how_often_users_change_and_how_often_their_mode() -> None:
    spec = ChurnSpec(users=500, topics=100, seconds=105.0, mode_changes=0.25, strays=0.0)
    made = [change for change in changes(spec, 4) if not change.arrives]
    assert len(made) == pytest.approx(500 * 10, rel=0.1)
    whole = sum(1 for change in made if len(change.added) == spec.topics_per_user)
    assert whole / len(made) == pytest.approx(0.25, rel=0.15)


def test_skewed_modes() -> None:
    spec = ChurnSpec(users=1_000, topics=100, seconds=5.0, skew=1.0, strays=0.0)
    modes = [c.added[0] // MODE_TOPICS for c in changes(spec, 5) if c.arrives]
    counts = [modes.count(mode) for mode in range(10)]
    assert counts[0] > 2.5 * counts[4] > 0
    assert statistics.fmean(counts) == 100


def test_few_topics_and_their_names() -> None:
    spec = ChurnSpec(users=5, topics=6, topics_per_user=5, seconds=60.0, mode_changes=0.5)
    assert all(set(change.added) <= set(range(6)) for change in changes(spec, 6))
    assert topic_name(37) == "mode3/7"


@pytest.mark.parametrize(
    "values",
    [{"users": 0}, {"topics_per_user": 11}, {"topics": 3}, {"replaced": 9}, {"change_every_s": 0}],
)
def test_specs_that_cannot_be(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(values)).split("_")[0]):
        ChurnSpec(**values)
