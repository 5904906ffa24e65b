"""Jobs of analytics, as they have left word of themselves: at every manager."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from dynatops.kit.advice.job_records import JobEnd
from reconfig_manager.rest.problems import problems
from reconfig_manager.rest.requests import Manager, Viewing
from reconfig_manager.rest.views import RestView
from reconfig_manager.status import AdviceStatus, JobStatus

router = APIRouter(tags=["network"], dependencies=[Viewing])


class JobCountsView(RestView):
    """Of all runs, each row and file once."""

    files: int = Field(description="Files of the lake that were taken in.")
    rows: int
    late: int = Field(description="Rows that came late, and count.")
    dropped: int = Field(description="Rows that came too late to count.")
    quarantined: int = Field(description="Rows that could not be used.")
    quarantined_files: int


class AdviceView(RestView):
    computed_s: float
    entries: dict[str, int] = Field(description="By table.")


class JobView(RestView):
    job: str
    last_run: JobEnd | None = Field(
        description="How it ended; null if the job never ran, or has not for a month."
    )
    ended_s: float | None
    seconds: float | None = Field(description="How long it took.")
    reason: str = Field(description="Why it failed; empty if it did not.")
    succeeded_s: float | None = Field(
        description="When a run last ended well, also with nothing new; null if none ever did."
    )
    runs: dict[JobEnd, int] = Field(description="By how they ended.")
    counts: JobCountsView
    advice: AdviceView | None = Field(description="Null if there is none, or it has run out.")


class AnalyticsView(RestView):
    watched: bool = Field(
        description="Whether this manager has a Redis to look into (`advice.redis_url`)."
    )
    jobs: list[JobView]


@router.get("/analytics", responses=problems())
async def get_analytics(manager: Manager) -> AnalyticsView:
    """How the jobs of analytics are: their last runs, what they counted, and their advice."""
    jobs = manager.jobs()
    return AnalyticsView(watched=jobs is not None, jobs=[_job_view(job) for job in jobs or ()])


def _job_view(status: JobStatus) -> JobView:
    record = status.record
    counts = record.counts if record is not None else None
    return JobView(
        job=status.job,
        last_run=record.end if record else None,
        ended_s=record.ended_s if record else None,
        seconds=record.seconds if record else None,
        reason=record.reason if record else "",
        succeeded_s=record.succeeded_s if record else None,
        runs=dict(record.runs) if record else dict.fromkeys(JobEnd, 0),
        counts=JobCountsView(
            files=counts.files if counts else 0,
            rows=counts.rows if counts else 0,
            late=counts.late if counts else 0,
            dropped=counts.dropped if counts else 0,
            quarantined=counts.quarantined if counts else 0,
            quarantined_files=counts.quarantined_files if counts else 0,
        ),
        advice=_advice_view(status.advice),
    )


def _advice_view(advice: AdviceStatus | None) -> AdviceView | None:
    if advice is None:
        return None
    return AdviceView(computed_s=advice.computed_s, entries=dict(advice.entries))
