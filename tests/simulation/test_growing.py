"""Quiet networks of two sizes: what a broker sends grows like routes, not like their number."""

from __future__ import annotations

import math

import pytest

from simulator.growing import Growth, grow

FEW, MANY = 8, 32


@pytest.fixture(scope="module")
def growths() -> tuple[Growth, Growth]:
    return grow(FEW), grow(MANY)


def test_the_same_network_has_the_same_trace(growths: tuple[Growth, Growth]) -> None:
    assert grow(FEW).trace == growths[0].trace


def test_every_phase_ends(growths: tuple[Growth, Growth]) -> None:
    for growth in growths:
        assert [phase.name for phase in growth.phases] == ["joining", "rest", "trees", "plan"]
        assert all(phase.frames for phase in growth.phases)


@pytest.mark.parametrize("kind", ["ping", "lookup"])
def test_a_broker_at_rest_asks_as_many_as_it_has_routes(
    growths: tuple[Growth, Growth], kind: str
) -> None:
    for growth in growths:
        rest = growth.phases[1]
        each_s = rest.messages[kind] / growth.brokers / rest.seconds
        assert each_s <= math.log2(growth.brokers) + 1


def test_newcomers_do_not_wait_for_each_other_in_a_chain(growths: tuple[Growth, Growth]) -> None:
    claims = [growth.phases[0].messages["claim_range"] / growth.brokers for growth in growths]
    assert claims[1] <= 2 * claims[0]
