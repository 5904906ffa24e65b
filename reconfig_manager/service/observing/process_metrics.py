"""What a manager's process counts: its store, its solver, brokers' streams, plans that have run
here, and the advice that analytics left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dynatops.kit.advice.advice_counters import AdviceCounters
from dynatops.kit.advice.advising_jobs import JOB_TABLES
from dynatops.kit.observing.metrics import Metric, Reading, counter, counters_of, gauge, histogram
from dynatops.kit.observing.process_metrics import process_metrics
from dynatops.version import VERSION
from reconfig_manager.model.plan import PlanState
from reconfig_manager.service.agents import AgentCounters
from reconfig_manager.service.observing.advice_ages import Head

if TYPE_CHECKING:
    from reconfig_manager.service.driving import ManagerDriver

Metrics = list[Metric["ManagerDriver"]]


def _g(
    name: str, text: str, read: Callable[[ManagerDriver], Reading], *labels: str
) -> Metric[ManagerDriver]:
    return gauge(f"dynatops_{name}", text, read, *labels)


def _c(
    name: str, text: str, read: Callable[[ManagerDriver], Reading], *labels: str
) -> Metric[ManagerDriver]:
    return counter(f"dynatops_{name}_total", text, read, *labels)


def _if_known(value: float | None) -> Reading:
    """No sample, where there is nothing to tell."""
    return value if value is not None else dict[str, float]()


def _heads(driver: ManagerDriver) -> Mapping[str, Head]:
    return driver.ages.heads if driver.ages is not None else {}


def _counters(driver: ManagerDriver) -> AdviceCounters:
    return driver.rates.counters if driver.rates is not None else AdviceCounters()


EXECUTION: Metrics = [
    _c(
        "plans_ended",
        "Plans that came to their end under this manager, by state.",
        lambda d: {
            state.lower(): float(d.plan_metrics.ended[state]) for state in PlanState if state.over
        },
        "state",
    ),
    histogram(
        "dynatops_plan_phase_seconds",
        "How long plans were in each phase.",
        lambda d: {phase.lower(): kept for phase, kept in d.plan_metrics.phase_s.items()},
        "phase",
    ),
    histogram(
        "dynatops_pause_seconds",
        "How long a broker held its clients back for a plan.",
        lambda d: d.plan_metrics.pause_s,
    ),
    _c(
        "brokers_moved",
        "Brokers that committed plans moved.",
        lambda d: d.plan_metrics.brokers_moved,
    ),
    _c(
        "plan_messages",
        "Messages that plans took, the manager's and the brokers'.",
        lambda d: d.plan_metrics.messages,
    ),
    _g(
        "plan_benefit_ratio",
        "Of the plan measured last: benefit, measured by predicted.",
        lambda d: _if_known(d.plan_metrics.benefit_ratio),
    ),
    _g(
        "plan_messages_ratio",
        "Of the plan measured last: messages, counted by predicted; eq. 11 allows 1.",
        lambda d: _if_known(d.plan_metrics.messages_ratio),
    ),
    _g("solver_ready", "The solver is warm.", lambda d: d.solver.ready.is_set()),
    _g("solver_waiting", "Problems that wait for the solver.", lambda d: d.solver.waiting),
    histogram("dynatops_solver_seconds", "How long solvers took.", lambda d: d.solver.seconds),
    _c("solver_failures", "Of the solver's process.", lambda d: d.solver.failures),
]

STORE: Metrics = [
    _g("store_up", "Whether the store answers.", lambda d: not d.leadership.problem),
    _g("managers", "Managers that live.", lambda d: len(d.leadership.managers)),
    _c("store_failures", "Questions to the store without an answer.", lambda d: d.store.failures),
    _c("store_writes_failed", "Writes of plans that failed.", lambda d: d.writes_failed),
    _c("audit_lost", "Audit entries lost.", lambda d: d.audit_lost),
]

AGENTS: Metrics = [*counters_of(AgentCounters, "dynatops_", lambda d: d.agents.counters)]

ADVICE: Metrics = [
    _g(
        "advice_present",
        "Whether there is advice of an analytics job in Redis.",
        lambda d: {job: float(job in _heads(d)) for job in JOB_TABLES},
        "advice",
    ),
    _g(
        "advice_age_seconds",
        "Since it was computed; none if there is none.",
        lambda d: {job: max(time.time() - head.computed_s, 0.0) for job, head in _heads(d).items()},
        "advice",
    ),
    _g(
        "advice_entries",
        "Entries of its tables.",
        lambda d: {
            (job, table): float(count)
            for job, head in _heads(d).items()
            for table, count in head.entries.items()
        },
        "advice",
        "table",
    ),
    _c(
        "advice_failures",
        "Times that Redis could not be asked for it.",
        lambda d: d.ages.failures if d.ages is not None else 0,
    ),
    _c(
        "rates_versions",
        "Versions of advised rates taken in.",
        lambda d: _counters(d).advice_versions,
    ),
    _c(
        "rates_failures",
        "Times that advised rates could not be read.",
        lambda d: _counters(d).advice_refused + _counters(d).advice_failures,
    ),
]

PROCESS: Metrics = [
    _g(
        "manager_info",
        "1, with the manager's id and version.",
        lambda d: {(d.manager.me, VERSION): 1.0},
        "manager",
        "version",
    ),
    *process_metrics("dynatops_manager_"),
    histogram(
        "dynatops_manager_loop_lag_seconds",
        "How much later than wished the event loop's tick came, 10 times a second.",
        lambda d: d.lag_s,
    ),
]

# As they are documented.
SECTIONS: tuple[tuple[str, Metrics], ...] = (
    ("Execution and solver", EXECUTION),
    ("Advice of analytics jobs", ADVICE),
    ("Brokers' streams", AGENTS),
    ("Store", STORE),
    ("Process", PROCESS),
)
METRICS: Metrics = [metric for _, metrics in SECTIONS for metric in metrics]
