"""What a manager knows of the network and of plans, for Prometheus.

A manager that follows knows neither: it exposes the first table only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from dynatops.kit.observing.metrics import Family, Metric, Reading, counter, families, gauge, one_of
from reconfig_manager.model.notices import CheckOutcome
from reconfig_manager.model.plan import Phase, PlanState
from reconfig_manager.model.policy import Mode
from reconfig_manager.rest.broadcast import Broadcast
from reconfig_manager.status import LeaderStatus, ManagerStatus, TopicsStatus


@dataclass(frozen=True, slots=True)
class ManagerReadings:
    """What metrics are read from."""

    status: ManagerStatus
    # Of the network, if this manager leads.
    topics: TopicsStatus | None
    broadcast: Broadcast

    @property
    def leader(self) -> LeaderStatus:
        assert self.status.leader is not None
        return self.status.leader

    @property
    def known(self) -> TopicsStatus:
        assert self.topics is not None
        return self.topics


Metrics = list[Metric[ManagerReadings]]


def families_of(readings: ManagerReadings) -> list[Family]:
    known = ALL if readings.topics is not None else LEADERSHIP
    return families(known, readings)


def _g(
    name: str, text: str, read: Callable[[ManagerReadings], Reading], *labels: str
) -> Metric[ManagerReadings]:
    return gauge(f"dynatops_{name}", text, read, *labels)


def _states(readings: ManagerReadings) -> Reading:
    states = Counter(plan.state for plan in readings.leader.plans)
    return {state.lower(): float(states[state]) for state in PlanState}


def _phase(readings: ManagerReadings) -> Reading:
    executing = readings.leader.executing
    present = executing.phase if executing is not None else None
    return one_of([phase.lower() for phase in Phase], present.lower() if present else "")


def _outcome(readings: ManagerReadings) -> Reading:
    last = readings.leader.last_check
    return one_of([str(outcome) for outcome in CheckOutcome], str(last.outcome) if last else "")


LEADERSHIP: Metrics = [
    _g("leading", "Whether this manager leads.", lambda s: s.status.leader is not None),
    _g("watchers", "Open streams of events.", lambda s: len(s.broadcast)),
    counter("dynatops_events_total", "Events told to watchers.", lambda s: s.broadcast.published),
    counter(
        "dynatops_watcher_overflows_total",
        "Streams of events ended because they were too slow.",
        lambda s: s.broadcast.overflows,
    ),
    counter(
        "dynatops_watchers_refused_total",
        "Streams of events refused because there were too many.",
        lambda s: s.broadcast.turned_away,
    ),
]

NETWORK: Metrics = [
    _g("fence", "The leader's fencing number.", lambda s: s.leader.fence),
    _g("epoch", "Epoch of the present placement.", lambda s: s.leader.placement.epoch),
    _g("brokers", "Registered brokers.", lambda s: len(s.leader.brokers)),
    _g(
        "brokers_attached",
        "Brokers with an open stream.",
        lambda s: sum(broker.attached for broker in s.leader.brokers),
    ),
    _g(
        "brokers_frozen",
        "Brokers that said, when they registered, that a plan holds them.",
        lambda s: sum(bool(broker.frozen_by) for broker in s.leader.brokers),
    ),
    _g(
        "model_completeness_ratio",
        "Share of brokers heard of lately, 0 to 1.",
        lambda s: s.known.completeness,
    ),
    _g(
        "model_ready",
        "Whether enough is known to plan.",
        lambda s: not s.known.model_problem,
    ),
    _g("topics", "Topics known.", lambda s: len(s.known.names)),
    _g(
        "subscriptions",
        "Pairs of a broker and a topic that it subscribes to.",
        lambda s: sum(s.known.subscribers.values()),
    ),
    _g(
        "published_events_per_second",
        "Filtered (eq. 12).",
        lambda s: sum(s.known.rates.values()),
    ),
]

PLANS: Metrics = [
    _g("plans", "Plans at hand, by state.", _states, "state"),
    _g(
        "executing",
        "Whether a plan is being executed.",
        lambda s: s.leader.executing is not None,
    ),
    _g("plan_phase", "1 for the phase of the plan that is being executed.", _phase, "phase"),
    _g("process_outcome", "1 for how Algorithm 3 last ended.", _outcome, "outcome"),
    _g(
        "catching_up",
        "Brokers being told of a plan that went on without them.",
        lambda s: len(s.leader.catching_up),
    ),
    _g("store_behind", "Things not in the store yet.", lambda s: s.leader.store_behind),
    _g(
        "policy_mode",
        "1 for the policy's mode.",
        lambda s: one_of([mode.value for mode in Mode], s.leader.rules.mode.value),
        "mode",
    ),
    _g(
        "policy_t_free_seconds",
        "T_free, as the policy has it.",
        lambda s: s.leader.rules.t_free_s,
    ),
    _g(
        "moving_cost_constant",
        "Constants of the moving cost (eq. 11), as calibrated.",
        lambda s: {name: float(getattr(s.leader.constants, name)) for name in "abc"},
        "of",
    ),
]

# As they are documented.
SECTIONS: tuple[tuple[str, Metrics], ...] = (
    ("Leadership and watchers", LEADERSHIP),
    ("The network; only of the manager that leads", NETWORK),
    ("Plans and policy; only of the manager that leads", PLANS),
)
ALL: Metrics = [metric for _, metrics in SECTIONS for metric in metrics]
