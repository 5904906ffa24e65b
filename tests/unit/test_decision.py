"""Whether a new placement is worth the trouble."""

from __future__ import annotations

import pytest

from reconfig_manager.placement.decision import (
    Decision,
    DecisionReason,
    MovingCost,
    decide,
    is_reconfigurable,
)

MOVING = MovingCost(a=4.0, b=1.0, c=1.0)


def decided(before: float, after: float, moved: int, beta: float = 0.1) -> Decision:
    return decide(before, after, moved, moving=MOVING, brokers=8, topics=10, beta=beta)


def test_what_moving_costs() -> None:
    """a|V| + b log2(V)^2 Γ + c|P| log2(V) Γ"""
    assert MOVING.of(brokers=8, topics=10, moved=3) == 4 * 8 + 3 * 3 * 3 + 10 * 3 * 3
    assert MOVING.of(brokers=8, topics=10, moved=0) == 0.0
    assert MOVING.most(brokers=8, topics=10) == MOVING.of(brokers=8, topics=10, moved=8)
    assert MOVING.of(brokers=1, topics=10, moved=0) == 0.0


def test_accepted_where_the_benefit_exceeds_the_price() -> None:
    decision = decided(1000.0, 800.0, 2)
    assert decision == Decision(True, DecisionReason.BENEFIT_ABOVE_COST, 200.0, 110.0, 34.4)
    assert "saves 200" in str(decision)


def test_rejected_where_it_does_not() -> None:
    assert decided(1000.0, 890.0, 2).reason is DecisionReason.BENEFIT_BELOW_COST
    assert not decided(1000.0, 890.0, 2).accept


def test_rejected_where_there_is_little_to_save() -> None:
    decision = decided(34.0, 0.0, 2)
    assert decision.reason is DecisionReason.COST_BELOW_THRESHOLD
    assert "threshold of 34" in str(decision)


def test_rejected_where_nothing_moves() -> None:
    assert decided(1000.0, 1000.0, 0).reason is DecisionReason.NOTHING_MOVES


@pytest.mark.parametrize(("beta", "yes"), [(0.0, True), (0.1, True), (1.0, False)])
def test_reconfigurability(beta: float, yes: bool) -> None:
    assert is_reconfigurable(100.0, MOVING, 8, 10, beta) is yes


@pytest.mark.parametrize("reason", DecisionReason)
def test_every_reason_is_a_sentence(reason: DecisionReason) -> None:
    text = str(Decision(False, reason, 1.0, 2.0, 3.0))
    assert text.startswith(("accept: ", "reject: "))
