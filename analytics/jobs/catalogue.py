"""All jobs, by name, in the order in which `all` runs them: selection uses the clusters."""

from __future__ import annotations

from collections.abc import Mapping

from analytics.analytics_settings import AnalyticsSettings
from analytics.job import Job
from analytics.jobs.clusters import clusters_job
from analytics.jobs.demand import demand_job
from analytics.jobs.mobility import mobility_job
from analytics.jobs.rates import rates_job
from analytics.jobs.selection import selection_job


def jobs(settings: AnalyticsSettings) -> Mapping[str, Job]:
    every = (
        rates_job(settings.rates),
        clusters_job(settings.clusters),
        selection_job(settings.selection),
        mobility_job(settings.mobility),
        demand_job(settings.demand),
    )
    return {job.name: job for job in every}
