"""What a manager's process counts: its store, its solver, brokers' streams, plans that have run
here, and what analytics left: advice, and word of its runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dynatops.kit.advice.advice_counters import AdviceCounters
from dynatops.kit.advice.advising_jobs import JOB_TABLES
from dynatops.kit.advice.job_records import JobEnd, JobRecord
from dynatops.kit.observing.metrics import Metric, Reading, counter, counters_of, gauge, histogram
from dynatops.kit.observing.process_metrics import process_metrics
from dynatops.version import VERSION
from reconfig_manager.model.plan import PlanState
from reconfig_manager.service.agents import AgentCounters
from reconfig_manager.status import AdviceStatus, JobStatus

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


def _jobs(driver: ManagerDriver) -> tuple[JobStatus, ...]:
    return driver.job_health.jobs if driver.job_health is not None else ()


def _heads(driver: ManagerDriver) -> Mapping[str, AdviceStatus]:
    return {status.job: status.advice for status in _jobs(driver) if status.advice is not None}


def _of_records(
    read: Callable[[JobRecord], float | None],
) -> Callable[[ManagerDriver], Reading]:
    """By job; of those that have ended a run, and of which there is something to tell."""

    def reading(driver: ManagerDriver) -> Reading:
        told: dict[str, float] = {}
        for status in _jobs(driver):
            value = read(status.record) if status.record is not None else None
            if value is not None:
                told[status.job] = float(value)
        return told

    return reading


def _since(at_s: float | None) -> float | None:
    return max(time.time() - at_s, 0.0) if at_s is not None else None


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
        "advice_expires_seconds",
        "Until Redis forgets it; none if it never does.",
        lambda d: {
            job: max(head.expires_s - time.time(), 0.0)
            for job, head in _heads(d).items()
            if math.isfinite(head.expires_s)
        },
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
        "Times that Redis could not be asked for it, nor for what jobs say of their runs.",
        lambda d: d.job_health.failures if d.job_health is not None else 0,
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

JOBS: Metrics = [
    _g(
        "job_failing",
        "Whether the last run of an analytics job failed; none if it never ran, like all below.",
        _of_records(lambda record: record.end is JobEnd.FAILED),
        "advice",
    ),
    _g(
        "job_run_age_seconds",
        "Since a run ended, well or not.",
        _of_records(lambda record: _since(record.ended_s)),
        "advice",
    ),
    _g(
        "job_success_age_seconds",
        "Since a run ended well, also with nothing new; none if none ever did.",
        _of_records(lambda record: _since(record.succeeded_s)),
        "advice",
    ),
    _g(
        "job_seconds",
        "How long the last run took.",
        _of_records(lambda record: record.seconds),
        "advice",
    ),
    _c(
        "job_runs",
        "Runs, by how they ended.",
        lambda d: {
            (status.job, str(end)): float(count)
            for status in _jobs(d)
            if status.record is not None
            for end, count in status.record.runs.items()
        },
        "advice",
        "end",
    ),
    _c(
        "job_files",
        "Files of the lake that were taken in.",
        _of_records(lambda record: record.counts.files),
        "advice",
    ),
    _c(
        "job_rows",
        "Rows of the lake that were taken in.",
        _of_records(lambda record: record.counts.rows),
        "advice",
    ),
    _c(
        "job_rows_late",
        "Rows that came late, and count.",
        _of_records(lambda record: record.counts.late),
        "advice",
    ),
    _c(
        "job_rows_dropped",
        "Rows that came too late to count.",
        _of_records(lambda record: record.counts.dropped),
        "advice",
    ),
    _c(
        "job_rows_quarantined",
        "Rows that could not be used, and lie in quarantine.",
        _of_records(lambda record: record.counts.quarantined),
        "advice",
    ),
    _c(
        "job_files_quarantined",
        "Files that nobody can read, and lie in quarantine.",
        _of_records(lambda record: record.counts.quarantined_files),
        "advice",
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
    ("Runs of analytics jobs", JOBS),
    ("Brokers' streams", AGENTS),
    ("Store", STORE),
    ("Process", PROCESS),
)
METRICS: Metrics = [metric for _, metrics in SECTIONS for metric in metrics]
