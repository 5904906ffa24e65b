"""What is computed of whole steps at once, against plain twins that go change by change: the
`Selection` that brokers run, and what visits change of users' interests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_agent.core.selection.selection_settings import SelectionSettings
from experiments.systems.selection_kernels import random_below
from experiments.systems.selections import (
    HOUR_S,
    PUBLISHED,
    SHIPPED,
    SimilaritySelection,
    chance_clusters,
    place_clusters,
)
from experiments.systems.shipped_selection import ShippedSelection
from experiments.workloads.grid import Grid
from experiments.workloads.location import LocationWorkload
from experiments.workloads.made_up_visits import made_up_visits
from experiments.workloads.patterns import Pattern
from experiments.workloads.poisson import PoissonWorkload
from experiments.workloads.workload import UserChange, Workload

GRID = Grid(4, 10)
seeds = st.integers(1, 1_000_000)
RULES = (
    PUBLISHED,
    SHIPPED,
    replace(PUBLISHED, load_weight=0.0),
    replace(PUBLISHED, update_period_s=HOUR_S, load_floor=3),
    replace(SHIPPED, early_share=0.3, margin=0.05),
)


def location(seed: int, users: int = 150, friends: int = 4) -> LocationWorkload:
    visits = made_up_visits(GRID, users, seed, days=12)
    return LocationWorkload.of(GRID, visits, seed, settled_h=48.0).with_friends(friends)


def poisson(seed: int, mode_changes: float = 0.0) -> PoissonWorkload:
    return PoissonWorkload(
        Pattern.MULTIMODAL,
        *(0.3, seed),
        users=120,
        brokers=11,
        topic_count=60,
        hours=12,
        mode_changes=mode_changes,
    )


def check_agreement(
    workload: Workload, size: int, rules: SelectionSettings, seed: int, *, itself: bool
) -> int:
    """Over the whole run: every change of every broker, in order; how many there were."""
    if workload.topics.places is None:
        clusters = chance_clusters(len(workload.sites), size, seed)
    else:
        clusters = place_clusters(workload.sites.places, size)
    computed = SimilaritySelection(workload, clusters, rules, seed, counts_itself=itself)
    shipped = ShippedSelection(workload, clusters, rules, seed, counts_itself=itself)
    compared = 0
    for step in workload.steps():
        computed.advance(step.at_h)
        shipped.advance(step.at_h)
        found = list(computed.apply(step.changes).rows())
        assert found == list(shipped.apply(step.changes).rows())
        assert computed.broker_of.tolist() == shipped.broker_of.tolist()
        compared += len(found)
    assert (computed.messages, computed.handovers) == (shipped.messages, shipped.handovers)
    loads = [broker.local.subscriptions for broker in shipped.brokers]
    assert computed.loads().tolist() == loads
    users, topics = computed.interests()
    follows = [(user, topic) for user, theirs in enumerate(shipped.follows) for topic in theirs]
    assert sorted(zip(users.tolist(), topics.tolist(), strict=True)) == sorted(follows)
    return compared


@pytest.mark.parametrize("rules", RULES, ids=range(len(RULES)))
@settings(max_examples=8, deadline=None)
@given(seeds, st.sampled_from([1, 2, 7, 40]), st.booleans())
def test_where_there_are_places(
    rules: SelectionSettings, seed: int, size: int, itself: bool
) -> None:
    assert check_agreement(location(seed), size, rules, seed, itself=itself) > 50


@pytest.mark.parametrize("rules", RULES, ids=range(len(RULES)))
@settings(max_examples=8, deadline=None)
@given(seeds, st.sampled_from([1, 3, 11]), st.sampled_from([0.0, 0.3]), st.booleans())
def test_where_there_are_none(
    rules: SelectionSettings, seed: int, size: int, mode_changes: float, itself: bool
) -> None:
    assert check_agreement(poisson(seed, mode_changes), size, rules, seed, itself=itself) > 50


@given(st.integers(), st.lists(st.integers(1, 2**31), min_size=1, max_size=50))
def test_chance_is_that_of_the_standard_library(seed: int, ends: list[int]) -> None:
    rng = Random(seed)
    state = np.array(rng.getstate()[1], dtype=np.uint32)
    for end in ends * 30:
        assert random_below(state, end) == rng.randrange(end)


# ---- interests -----------------------------------------------------------------------------------


def changes_by_hand(workload: LocationWorkload) -> Iterator[UserChange]:
    """Visit by visit: who follows which cells, written out before and after."""
    cells: dict[int, int] = {}
    friends = workload.friends.tolist()

    def follows(user: int) -> list[int]:
        """In the order in which they come: its friends' cells, and its own."""
        sources = [*friends[user], user] if user in cells else []
        return list(dict.fromkeys(cells[source] for source in sources if source in cells))

    visits = workload.visits
    for user, cell in zip(visits.user.tolist(), visits.cell.tolist(), strict=True):
        fans = [fan for fan, theirs in enumerate(friends) if user in theirs]
        before = {each: follows(each) for each in [user, *fans]}
        cells[user] = cell
        for each, known in before.items():
            now = follows(each)
            dropped = tuple(topic for topic in known if topic not in now)
            added = tuple(topic for topic in now if topic not in known)
            if each in cells and (each == user or dropped or added):
                yield UserChange(each, cells[each], dropped, added)


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(0, 5))
def test_visits_change_what_their_users_and_those_who_follow_them_follow(
    seed: int, friends: int
) -> None:
    workload = location(seed, users=25, friends=friends)
    found = [change for step in workload.steps() for change in step.changes.rows()]
    assert found == list(changes_by_hand(workload))
    assert Counter(change.user for change in found).keys() == set(range(25))
