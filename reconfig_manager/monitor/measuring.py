"""What a plan really gained and spent, from what brokers count, beside what was predicted.

The cost of an event is the relays it passed and, weighted with w_d, the delay to its subscribers:
`relayed_events + w_d * tree_delivered_hops`, for each of `stamped_events`. Where the plan was made
with round trips, the delay is `tree_delivered_way_us` in its unit, the mean that it was made with:
what is measured and what was predicted are on one scale. Counters only grow; one
that is lower than before was started again. Each broker's counts are divided by its own time
between two reports, so it does not matter that brokers report at different times.

Before and after are compared for the publications that were predicted: what is measured is the
placement, not whether people published as much as expected.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dynatops.v1.manager_pb2 import StepKind
from reconfig_manager.model.core_settings import MeasuringSettings
from reconfig_manager.model.plan import CostRate, Measurement, Plan
from reconfig_manager.placement.decision import MovingCost
from reconfig_manager.ports import Constants

COUNTERS = (
    "stamped_events",
    "relayed_events",
    "tree_delivered_hops",
    "tree_delivered_way_us",
)
# Samples of a broker: as many reports, or fewer that are further apart.
SAMPLES_MAX = 48
PREDICTION_OFF = "prediction_off"
MESSAGES_ABOVE_BOUND = "messages_above_bound"
NOT_MEASURED = "not_measured"
# A constant stays within these multiples of its default.
CALIBRATION_LOW, CALIBRATION_HIGH = 0.01, 10.0
# eq. 11 is a bound: constants keep this much above what was counted.
BOUND_MARGIN = 1.25

Counts = tuple[float, ...]


@dataclass(slots=True)
class _Counted:
    """Of one broker: its counters, as if they had never been started again."""

    last: Counts
    total: Counts
    samples: deque[tuple[float, Counts]] = field(default_factory=deque)


class Meter:
    """Keeps what brokers counted over about the last `keep_s`."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._brokers: dict[str, _Counted] = {}

    def report(self, broker_id: str, counters: Mapping[str, int], now_s: float) -> None:
        counts = tuple(float(counters.get(name, 0)) for name in COUNTERS)
        known = self._brokers.get(broker_id)
        if known is None:
            known = self._brokers[broker_id] = _Counted(counts, (0.0,) * len(COUNTERS))
        restarted = any(now < before for now, before in zip(counts, known.last, strict=True))
        last = (0.0,) * len(COUNTERS) if restarted else known.last
        known.total = tuple(
            total + now - before
            for total, now, before in zip(known.total, counts, last, strict=True)
        )
        known.last = counts
        samples = known.samples
        spacing_s = self._keep_s / SAMPLES_MAX
        # The newest always; those before it at their distance.
        if len(samples) >= 2 and samples[-1][0] - samples[-2][0] < spacing_s:
            samples.pop()
        samples.append((now_s, known.total))
        while len(samples) > 2 and samples[1][0] <= now_s - self._keep_s:
            samples.popleft()

    def forget_broker(self, broker_id: str) -> None:
        self._brokers.pop(broker_id, None)

    def between(
        self,
        since_s: float,
        until_s: float,
        delay_weight: float,
        rtt_mean_ms: float | None = None,
    ) -> CostRate | None:
        """What an event cost then; None if nobody reported twice, or nothing was published. Delays
        are in hops, or in units of `rtt_mean_ms`."""
        rates = [0.0] * len(COUNTERS)
        events = seconds = 0.0
        for broker_id in sorted(self._brokers):
            within = [
                sample
                for sample in self._brokers[broker_id].samples
                if since_s <= sample[0] <= until_s
            ]
            if len(within) < 2 or within[-1][0] <= within[0][0]:
                continue
            (first_s, first), (last_s, last) = within[0], within[-1]
            for i, (start, end) in enumerate(zip(first, last, strict=True)):
                rates[i] += (end - start) / (last_s - first_s)
            events += last[0] - first[0]
            seconds = max(seconds, last_s - first_s)
        stamped, relayed, hops, way_us = rates
        if stamped <= 0:
            return None
        way_ms = way_us / 1_000.0
        delay = hops if rtt_mean_ms is None else way_ms / rtt_mean_ms
        return CostRate(
            events=events,
            seconds=seconds,
            relays_per_event=relayed / stamped,
            hops_per_event=hops / stamped,
            way_ms_per_event=way_ms / stamped,
            cost_per_event=(relayed + delay_weight * delay) / stamped,
        )


# ---- beside the prediction -----------------------------------------------------------------------


def measure(
    plan: Plan,
    before: CostRate | None,
    after: CostRate | None,
    settings: MeasuringSettings,
    now_s: float,
) -> Plan:
    """The plan with its measurement and flags."""
    prediction, execution = plan.prediction, plan.execution
    if prediction is None or execution is None:
        raise ValueError(f"plan {plan.id} was not executed")
    flags = [flag for flag in plan.flags if flag not in (PREDICTION_OFF, NOT_MEASURED)]
    if execution.messages_total > prediction.moving_cost:
        flags.append(MESSAGES_ABOVE_BOUND)
    enough = settings.events_min
    if before is None or after is None or min(before.events, after.events) < enough:
        return plan.changed(now_s, flags=(*flags, NOT_MEASURED))
    predicted = prediction.benefit
    measured = (before.cost_per_event - after.cost_per_event) * prediction.events
    ratio = measured / predicted if predicted else math.inf
    if not abs(ratio - 1.0) <= settings.prediction_tolerance:
        flags.append(PREDICTION_OFF)
    measurement = Measurement(
        before=before,
        after=after,
        predicted_benefit=predicted,
        measured_benefit=measured,
        benefit_ratio=ratio if math.isfinite(ratio) else 0.0,
        predicted_messages=prediction.moving_cost,
        measured_messages=execution.messages_total,
        messages_ratio=execution.messages_total / prediction.moving_cost,
        at_s=now_s,
    )
    return plan.changed(now_s, flags=tuple(flags), measurement=measurement)


# ---- constants of eq. 11 -------------------------------------------------------------------------


def calibrated(constants: Constants, plan: Plan, settings: MeasuringSettings) -> Constants:
    """Each term's constant from what the plan's messages were, above which it keeps a margin.

    Up at once, down slowly: eq. 11 is a bound.
    """
    execution = plan.execution
    brokers, topics = plan.model.brokers, plan.model.topics
    if execution is None or not execution.moved or brokers < 2 or execution.stragglers:
        return constants
    log, moved = math.log2(brokers), len(execution.moved)
    init, update, restore, repair, finish = (
        execution.messages.get(StepKind.Name(kind))
        for kind in (
            StepKind.RCFG_INIT,
            StepKind.RCFG_DHT_UPDATE,
            StepKind.RCFG_TREE_RESTORE,
            StepKind.RCFG_TREE_REPAIR,
            StepKind.RCFG_FINISH,
        )
    )
    everyone = sum(step.total for step in (init, restore, finish) if step)
    movers = (update.total if update else 0) + (repair.manager if repair else 0)
    trees = repair.brokers if repair else 0
    # The first plan says more than the default does.
    weight = 1.0 / min(constants.plans + 1, settings.constants_from_plans)
    default = MovingCost()
    return Constants(
        a=_leaning(constants.a, everyone / brokers, weight, default.a, least=default.a),
        b=_leaning(constants.b, movers / (log * log * moved), weight, default.b),
        c=_leaning(constants.c, trees / (max(topics, 1) * log * moved), weight, default.c),
        plans=constants.plans + 1,
    )


def _leaning(
    value: float, counted: float, weight: float, default: float, least: float | None = None
) -> float:
    wanted = counted if least is not None and counted <= least else counted * BOUND_MARGIN
    leaned = max(wanted, value + weight * (wanted - value))
    low = default * CALIBRATION_LOW if least is None else least
    return min(max(leaned, low), default * CALIBRATION_HIGH)
