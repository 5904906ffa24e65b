"""All jobs, in the order in which `all` runs them: what uses another's results comes after it.

A line here registers a module of `analytics.jobs`, which declares its job as `JOB`. Names are known
without Spark, so that `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from analytics.analytics_settings import AnalyticsSettings, RunSettings

if TYPE_CHECKING:
    from analytics.job import Job, JobKind

JOBS = (
    "rates",
    "clusters",
    "selection",
    "mobility",
    "demand",
)


def kinds() -> Mapping[str, JobKind[Any]]:
    """What the jobs declare, by name."""
    return {name: import_module(f"analytics.jobs.{name}").JOB for name in JOBS}


def default_settings() -> AnalyticsSettings:
    groups = {name: kind.settings() for name, kind in kinds().items()}
    return AnalyticsSettings(run=RunSettings(), jobs=groups)


def jobs(settings: AnalyticsSettings) -> Mapping[str, Job]:
    return {name: kind.make(settings.jobs[name]) for name, kind in kinds().items()}
