"""Is another assignment worth its transfers?

    benefit    (traffic before - traffic after) x period x events that a request brings
    transfer   sum over topics and new replicas of  events stored x distance from the nearest holder

Both are in events x hops. A new replica lacks the past until that has been sent to it; whoever had
the topic and leaves costs nothing. Of a topic that nobody keeps any more nothing can be sent. Every
answer comes with its reason.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from reconfig_manager.storing.network import ROUNDING, Flags, Floats
from reconfig_manager.storing.problem import StoringProblem
from reconfig_manager.storing.refine import prices_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRates:
    """What makes traffic and transfers comparable."""

    # How long the new assignment is expected to last.
    period_s: float
    # [topic] -> events that a store has of it.
    events_stored: Floats
    # How many events a request brings on average.
    events_per_request: float = 1.0


class ReassignmentReason(enum.StrEnum):
    BENEFIT_ABOVE_TRANSFER = "benefit_above_transfer"
    BENEFIT_BELOW_TRANSFER = "benefit_below_transfer"
    # Topics without a living store are given one whatever it costs.
    TOPICS_WITHOUT_STORE = "topics_without_store"
    NOTHING_CHANGES = "nothing_changes"


@dataclass(frozen=True, slots=True)
class ReassignmentDecision:
    accept: bool
    reason: ReassignmentReason
    benefit: float
    transfer: float

    def __str__(self) -> str:
        gains, price = f"{self.benefit:,.0f}", f"{self.transfer:,.0f}"
        match self.reason:
            case ReassignmentReason.BENEFIT_ABOVE_TRANSFER:
                return f"accept: it saves {gains} events x hops and sends {price} to get there"
            case ReassignmentReason.BENEFIT_BELOW_TRANSFER:
                return f"reject: it saves {gains} events x hops but sends {price} to get there"
            case ReassignmentReason.TOPICS_WITHOUT_STORE:
                return "accept: there are topics that no store keeps"
            case ReassignmentReason.NOTHING_CHANGES:
                return "reject: every topic stays where it is"


def transfer_prices(problem: StoringProblem, keeps: Flags, rates: TransferRates) -> Floats:
    """For `StoringTask.prices`: transfers as traffic, spread over the period."""
    spread = rates.period_s * rates.events_per_request
    return prices_of(problem.network.distances, keeps, rates.events_stored / spread)


def transfer_cost(
    problem: StoringProblem, before: Flags, after: Flags, rates: TransferRates
) -> float:
    prices = prices_of(problem.network.distances, before, rates.events_stored)
    return float(prices[after & ~before].sum())


def decide_reassignment(
    problem: StoringProblem, before: Flags, after: Flags, rates: TransferRates
) -> ReassignmentDecision:
    """`problem` is as things are now: stores that failed have no capacity, and count as having
    nothing."""
    living = before & (problem.capacity > 0)[None, :]
    saved = problem.cost_of(living).traffic - problem.cost_of(after).traffic
    benefit = saved * rates.period_s * rates.events_per_request
    transfer = transfer_cost(problem, living, after, rates)
    orphans = ~living.any(axis=1) & after.any(axis=1)
    if np.array_equal(living, after):
        reason = ReassignmentReason.NOTHING_CHANGES
    elif orphans.any():
        reason = ReassignmentReason.TOPICS_WITHOUT_STORE
    elif benefit > transfer + ROUNDING * abs(transfer):
        reason = ReassignmentReason.BENEFIT_ABOVE_TRANSFER
    else:
        reason = ReassignmentReason.BENEFIT_BELOW_TRANSFER
    accept = reason in {
        ReassignmentReason.BENEFIT_ABOVE_TRANSFER,
        ReassignmentReason.TOPICS_WITHOUT_STORE,
    }
    return ReassignmentDecision(accept, reason, benefit, transfer)
