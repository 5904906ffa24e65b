"""Storing planners: limits are kept, `refine` is never worse, and steps add up."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconfig_manager.storing import STORE_ALGORITHMS
from reconfig_manager.storing.greedy import PickUse, pick_counts
from reconfig_manager.storing.plain_greedy import plain_pick_counts
from reconfig_manager.storing.planners import STORE_PLANNERS, prefer_stores
from reconfig_manager.storing.problem import StoringProblem, StoringTask, broken_limits
from reconfig_manager.storing.refine import prices_of
from reconfig_manager.storing.store_search import StoreSearch
from tests.support.storing import any_network, plain_traffic, random_storing

seeds = st.integers(0, 2**32 - 1)


def some_problem(seed: int) -> StoringProblem:
    rng = Random(seed)
    return random_storing(rng, any_network(rng.randint(1, 9), rng), rng.randint(1, 6))


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_counts_are_those_worked_out_in_plain_words(seed: int) -> None:
    problem = some_problem(seed)
    for use in PickUse:
        if use is PickUse.NEAREST or problem.network.parents is not None:
            quick, plain = pick_counts(problem, use), plain_pick_counts(problem, use)
            assert quick.tolist() == plain.tolist()


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_limits_are_never_exceeded(seed: int) -> None:
    problem = some_problem(seed)
    for name in (*STORE_ALGORITHMS, "rnd", "rnd-all"):
        found = STORE_PLANNERS[name](problem, StoringTask(seed=seed))
        assert broken_limits(problem, found.stores, found.keeps) == []
        assert found.missing == int((problem.replicas - found.keeps.sum(axis=1)).sum())


@settings(max_examples=60, deadline=None)
@given(seeds, st.booleans())
def test_refine_is_never_worse_than_what_is_published(seed: int, planned: bool) -> None:
    problem = some_problem(seed)
    stores = None if planned else prefer_stores(problem, StoringTask()).stores
    task = StoringTask(seed=seed, keep_stores=stores)
    seq, wrr, refined = (STORE_PLANNERS[name](problem, task) for name in ("seq", "wrr", "refine"))
    # A replica that finds room comes before traffic, whatever has to make way for it.
    best = min((found.missing, found.cost.traffic) for found in (seq, wrr))
    assert (refined.missing, refined.cost.traffic - 1e-9) <= best
    if stores is not None:
        assert refined.stores.tolist() == sorted(stores.tolist())


@settings(max_examples=60, deadline=None)
@given(seeds, st.booleans())
def test_what_steps_add_up_to_is_what_evaluating_says(seed: int, priced: bool) -> None:
    problem = some_problem(seed)
    rng = Random(seed)
    start = STORE_PLANNERS["rnd-all"](problem, StoringTask(seed=seed))
    held = STORE_PLANNERS["rnd-all"](problem, StoringTask(seed=seed + 1)).keeps
    price = np.array([float(rng.randint(0, 9)) for _ in range(problem.topics)])
    prices = prices_of(problem.network.distances, held, price) if priced else None
    search = StoreSearch(problem, start.stores, start.keeps, prices)
    search.complete(shifting=True)
    for _ in range(10):
        step = search.best_step(shifting=rng.random() < 0.5)
        if step is None:
            break
        before = search.traffic
        search.take(step)
        assert step.change < 0
        assert search.traffic == pytest.approx(before + step.change)
        paid = 0.0 if prices is None else float(prices[search.keeps].sum())
        assert search.traffic == pytest.approx(problem.cost_of(search.keeps).traffic + paid)
        assert broken_limits(problem, search.stores, search.keeps) == []
    # And back.
    search.restore(start.stores, start.keeps)
    paid = 0.0 if prices is None else float(prices[start.keeps].sum())
    assert search.traffic == pytest.approx(problem.cost_of(start.keeps).traffic + paid)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_traffic_is_equation_3(seed: int) -> None:
    problem = some_problem(seed)
    found = STORE_PLANNERS["rnd-all"](problem, StoringTask(seed=seed))
    if found.keeps.any(axis=1).all():
        plain = plain_traffic(problem.network, problem.requests, found.keeps)
        assert found.cost.traffic == pytest.approx(plain)
