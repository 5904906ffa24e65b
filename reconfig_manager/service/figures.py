"""What a manager knows of the network and of plans, for Prometheus.

A manager that follows knows neither: it exposes the first table only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from dynatops.kit.observing.metrics import Family, Metric, Reading, counter, families, gauge, one_of
from reconfig_manager.leader.office import Office
from reconfig_manager.manager import Manager
from reconfig_manager.model.plan import Phase, PlanState
from reconfig_manager.model.policy import Mode
from reconfig_manager.planning.process import CheckOutcome
from reconfig_manager.rest.broadcast import Broadcast
from reconfig_manager.service.survey import Survey


@dataclass(frozen=True, slots=True)
class Sight:
    """What figures are read from."""

    manager: Manager
    # Of the network, if this manager leads.
    found: Survey | None
    broadcast: Broadcast

    @property
    def office(self) -> Office:
        return self.manager.office

    @property
    def survey(self) -> Survey:
        assert self.found is not None
        return self.found


Figures = list[Metric[Sight]]


def figures_of(sight: Sight) -> list[Family]:
    known = ALL if sight.found is not None else LEADERSHIP
    return families(known, sight)


def _g(name: str, text: str, read: Callable[[Sight], Reading], *labels: str) -> Metric[Sight]:
    return gauge(f"dynatops_{name}", text, read, *labels)


def _states(sight: Sight) -> Reading:
    states = Counter(plan.state for plan in sight.office.plans.values())
    return {state.lower(): float(states[state]) for state in PlanState}


def _phase(sight: Sight) -> Reading:
    executing = sight.manager.executing
    present = executing.phase if executing is not None else None
    return one_of([phase.lower() for phase in Phase], present.lower() if present else "")


def _outcome(sight: Sight) -> Reading:
    last = sight.manager.process.last
    return one_of([str(outcome) for outcome in CheckOutcome], str(last.outcome) if last else "")


LEADERSHIP: Figures = [
    _g("leading", "Whether this manager leads.", lambda s: s.manager.leads),
    _g("watchers", "Open streams of events.", lambda s: len(s.broadcast)),
    counter("dynatops_events_total", "Events told to watchers.", lambda s: s.broadcast.told),
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

NETWORK: Figures = [
    _g("fence", "The leader's fencing number.", lambda s: s.office.fence),
    _g("epoch", "Epoch of the present placement.", lambda s: s.office.placement.epoch),
    _g("brokers", "Registered brokers.", lambda s: len(list(s.office.members))),
    _g(
        "brokers_attached",
        "Brokers with an open stream.",
        lambda s: sum(member.attached for member in s.office.members),
    ),
    _g(
        "brokers_frozen",
        "Brokers that said, when they registered, that a plan holds them.",
        lambda s: sum(bool(member.frozen_by) for member in s.office.members),
    ),
    _g(
        "model_completeness_ratio",
        "Share of brokers heard of lately, 0 to 1.",
        lambda s: s.survey.model.completeness,
    ),
    _g("model_ready", "Whether enough is known to plan.", lambda s: s.survey.model.ready),
    _g("topics", "Topics known.", lambda s: len(s.survey.names)),
    _g(
        "subscriptions",
        "Pairs of a broker and a topic that it subscribes to.",
        lambda s: sum(s.survey.subscribers.values()),
    ),
    _g(
        "published_events_per_second",
        "Filtered (eq. 12).",
        lambda s: sum(s.survey.rates.values()),
    ),
]

PLANS: Figures = [
    _g("plans", "Plans at hand, by state.", _states, "state"),
    _g(
        "executing",
        "Whether a plan is being executed.",
        lambda s: s.manager.executing is not None,
    ),
    _g("plan_phase", "1 for the phase of the plan that is being executed.", _phase, "phase"),
    _g("process_outcome", "1 for how Algorithm 3 last ended.", _outcome, "outcome"),
    _g(
        "catching_up",
        "Brokers being told of a plan that went on without them.",
        lambda s: len(s.manager.catching_up),
    ),
    _g("store_behind", "Things not in the store yet.", lambda s: s.office.journal.behind),
    _g(
        "policy_mode",
        "1 for the policy's mode.",
        lambda s: one_of([mode.value for mode in Mode], s.office.rules.mode.value),
        "mode",
    ),
    _g(
        "policy_t_free_seconds",
        "T_free, as the policy has it.",
        lambda s: s.office.rules.t_free_s,
    ),
    _g(
        "moving_cost_constant",
        "Constants of the moving cost (eq. 11), as calibrated.",
        lambda s: {name: float(getattr(s.office.constants, name)) for name in "abc"},
        "of",
    ),
]

# As they are documented.
SECTIONS: tuple[tuple[str, Figures], ...] = (
    ("Leadership and watchers", LEADERSHIP),
    ("The network; only of the manager that leads", NETWORK),
    ("Plans and policy; only of the manager that leads", PLANS),
)
ALL: Figures = [metric for _, metrics in SECTIONS for metric in metrics]
