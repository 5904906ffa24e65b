"""Is a new placement worth the trouble of moving there? (DYNATOPS III-D.)

Benefit is what the placement saves in a period (eq. 10); the price is a bound on the messages that
the protocol sends to get there (eq. 11). Both are in messages for T_free, the least time between
two reconfigurations. Before anything is computed, the reconfigurability test asks whether there is
enough cost to save at all. Every answer comes with its reason.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

# DYNATOPS III-D2.
BETA = 0.1


@dataclass(frozen=True, slots=True)
class MovingCost:
    """eq. 11: a|V| + b log2(V)^2 Γ + c|P| log2(V) Γ, in messages."""

    # Each broker gets RCFG_INIT, RCFG_TREE_RESTORE and RCFG_FINISH, and confirms all three.
    a: float = 6.0
    # A broker that moves gets RCFG_DHT_UPDATE and RCFG_TREE_REPAIR, confirms both, and sends its
    # node's state on; in Chord, a node that changes hands is told to those it is a finger of.
    b: float = 1.0
    # A broker that moves leaves or joins at most every tree, each by a walk to its root.
    c: float = 1.0

    def per_move(self, brokers: int, topics: int) -> float:
        log = math.log2(brokers)
        return self.b * log * log + self.c * topics * log

    def of(self, brokers: int, topics: int, moved: int) -> float:
        """Cst(X, X'); moved is Γ."""
        if moved == 0:
            return 0.0
        return self.a * brokers + self.per_move(brokers, topics) * moved

    def most(self, brokers: int, topics: int) -> float:
        """maxCst: every broker moves."""
        return self.of(brokers, topics, brokers)


class DecisionReason(enum.StrEnum):
    BENEFIT_ABOVE_COST = "benefit_above_cost"
    BENEFIT_BELOW_COST = "benefit_below_cost"
    COST_BELOW_THRESHOLD = "cost_below_threshold"
    NOTHING_MOVES = "nothing_moves"


@dataclass(frozen=True, slots=True)
class Decision:
    accept: bool
    reason: DecisionReason
    benefit: float
    moving_cost: float
    # β maxCst: what the present cost must exceed.
    threshold: float

    def __str__(self) -> str:
        gains, price = f"{self.benefit:,.0f}", f"{self.moving_cost:,.0f}"
        match self.reason:
            case DecisionReason.BENEFIT_ABOVE_COST:
                return f"accept: it saves {gains} and costs {price} to get there"
            case DecisionReason.BENEFIT_BELOW_COST:
                return f"reject: it saves {gains} but costs {price} to get there"
            case DecisionReason.COST_BELOW_THRESHOLD:
                return f"reject: the present cost is below the threshold of {self.threshold:,.0f}"
            case DecisionReason.NOTHING_MOVES:
                return "reject: no better placement, nothing moves"


def is_reconfigurable(
    cost_before: float, moving: MovingCost, brokers: int, topics: int, beta: float = BETA
) -> bool:
    """The reconfigurability test (III-D2): is there enough that could be saved?"""
    return cost_before > beta * moving.most(brokers, topics)


def decide(
    cost_before: float,
    cost_after: float,
    moved: int,
    *,
    moving: MovingCost,
    brokers: int,
    topics: int,
    beta: float = BETA,
) -> Decision:
    benefit = cost_before - cost_after
    price = moving.of(brokers, topics, moved)
    if not is_reconfigurable(cost_before, moving, brokers, topics, beta):
        reason = DecisionReason.COST_BELOW_THRESHOLD
    elif moved == 0:
        reason = DecisionReason.NOTHING_MOVES
    elif benefit > price:
        reason = DecisionReason.BENEFIT_ABOVE_COST
    else:
        reason = DecisionReason.BENEFIT_BELOW_COST
    return Decision(
        reason is DecisionReason.BENEFIT_ABOVE_COST,
        reason,
        benefit,
        price,
        beta * moving.most(brokers, topics),
    )
