"""INV-11: the cost of placements, evaluated and through swaps, against the plain definition."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.placement.cost import CostedPlacement, Prices
from overlay.placement.geometry import RingGeometry
from tests.support.problems import Spec, plain_costs, random_spec


@st.composite
def specs(draw: st.DrawFn, brokers_min: int = 1) -> Spec:
    rng = Random(draw(st.integers(0, 1 << 32)))
    return random_spec(
        rng,
        draw(st.integers(brokers_min, 24)),
        draw(st.integers(1, 12)),
        rtt=draw(st.booleans()),
        weights=draw(st.booleans()),
    )


@given(specs())
def test_a_placement_costs_what_the_definition_says(spec: Spec) -> None:
    model = spec.model()
    expected, overheads, delays = plain_costs(spec, spec.place)
    cost = model.evaluate(np.array(spec.place))
    assert cost.overhead == pytest.approx(expected.overhead)
    assert cost.delay == pytest.approx(expected.delay)
    assert cost.total == pytest.approx(expected.total)
    placement = CostedPlacement.of(model, np.array(spec.place))
    assert placement.total == cost.total
    overhead, delay = placement.broker_costs()
    assert overhead == pytest.approx(overheads)
    assert delay == pytest.approx([spec.prices.delay_weight * d for d in delays])
    # eq. 9
    assert overhead.sum() + delay.sum() == pytest.approx(cost.total)


@given(specs(brokers_min=2), st.data())
def test_what_a_swap_gains_is_the_difference_of_two_evaluations(
    spec: Spec, data: st.DataObject
) -> None:
    model = spec.model()
    placement = CostedPlacement.of(model, np.array(spec.place))
    brokers = st.integers(0, len(spec.place) - 1)
    for _ in range(6):
        first, second = data.draw(brokers), data.draw(brokers)
        if first == second:
            continue
        before = model.evaluate(placement.place).total
        swapped = placement.place
        swapped[[first, second]] = swapped[[second, first]]
        expected = model.evaluate(swapped).total - before
        delta = placement.swap_delta(first, second)
        assert delta == pytest.approx(placement.swap_delta(second, first), abs=1e-6)
        if model.by_pairs:
            assert delta == pytest.approx(expected, abs=1e-9 * max(1.0, before))
        else:
            assert delta == expected
        assert placement.swap(first, second) == delta
        assert placement.place.tolist() == swapped.tolist()
        _assert_nothing_drifts(placement)


def _assert_nothing_drifts(placement: CostedPlacement) -> None:
    """What is kept up to date equals what is counted anew."""
    fresh = CostedPlacement.of(placement.model, placement.place)
    assert placement.total == pytest.approx(fresh.total, abs=1e-6)
    assert (placement.state.counts == fresh.state.counts).all()
    assert (placement.state.host == fresh.state.host).all()
    for kept, counted in zip(placement.broker_costs(), fresh.broker_costs(), strict=True):
        assert kept == pytest.approx(counted, abs=1e-6)


@given(specs())
def test_the_delay_matrix_adds_up_to_the_delay(spec: Spec) -> None:
    """eq. 15"""
    model = spec.model()
    matrix = model.delay_matrix()
    by_hops = sum(matrix[broker, node] for broker, node in enumerate(spec.place))
    if spec.prices.rtt_ms is None:
        cost = model.evaluate(np.array(spec.place))
        assert by_hops == pytest.approx(cost.delay * spec.prices.delay_weight)


@given(st.sets(st.integers(0, (1 << 64) - 1), min_size=1, max_size=40), st.data())
def test_routes_are_those_of_the_geometry(ids: set[int], data: st.DataObject) -> None:
    """The compiled routes, which follow stretches of the ring, and the plain ones hop by hop."""
    size = len(ids)
    keys = data.draw(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=10))
    everyone = [list(range(len(keys)))] * size
    spec = Spec(sorted(ids), everyone, [1.0] * len(keys), keys, Prices(), list(range(size)))
    geometry = RingGeometry(ids)
    hops = geometry.hops()
    tables = spec.model().tables
    for row, root in enumerate(tables.roots):
        assert tables.parents[row].tolist() == geometry.parents_from(int(root)).tolist()
        assert tables.hops[row].tolist() == hops[root].tolist()


def test_a_broker_alone_costs_nothing() -> None:
    spec = Spec([7], [[0]], [5.0], [3], Prices(), [0])
    assert spec.model().evaluate(np.array([0])).total == 0.0


def test_costs_are_exact_however_odd_the_rates() -> None:
    """Swaps back and forth add up to nothing at all, for rates that no float represents."""
    rng = Random(1)
    spec = random_spec(rng, 20, 10, rtt=False, weights=False)
    odd = Spec(
        spec.node_ids,
        spec.subscriptions,
        [rng.random() / 3 for _ in spec.publications],
        spec.keys,
        Prices(delay_weight=0.1),
        spec.place,
    )
    model = odd.model()
    placement = CostedPlacement.of(model, np.array(odd.place))
    for _ in range(500):
        placement.swap(*rng.sample(range(20), 2))
        assert placement.total == model.evaluate(placement.place).total
    assert placement.total == pytest.approx(plain_costs(odd, placement.place.tolist())[0].total)


def test_as_many_brokers_as_nodes() -> None:
    with pytest.raises(ValueError, match="as many brokers as nodes"):
        Spec([1, 2], [[0]], [1.0], [1], Prices(), [0]).model()


def test_matrices_fit_the_brokers() -> None:
    prices = Prices(rtt_ms=np.ones((3, 3)))
    with pytest.raises(ValueError, match="2 x 2"):
        Spec([1, 2], [[0], []], [1.0], [1], prices, [0, 1]).model()
