"""What the steps of a run share: where it reads and writes, by which settings, and who is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from analytics.analytics_settings import RunSettings
from analytics.commits import CommitLog, Counts
from analytics.quarantine import Quarantine
from analytics.storage.storage import Storage

# Called with the table, and what was taken in so far.
Progress = Callable[[str, Counts], None]
# Called with a name at every step that a crash may follow: tests cut jobs off there.
Step = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Of a run, whatever its jobs."""

    spark: SparkSession
    lake: Storage
    output: Storage
    settings: RunSettings
    now_s: Callable[[], float]
    progress: Progress
    step: Step


class JobContext:
    """Of one job in a run: what is the job's own below the output."""

    def __init__(self, run: RunContext, job: str) -> None:
        self.run = run
        root = run.output.root
        self.folder = f"{root}/state/{job}"
        self.results_folder = f"{root}/{job}"
        self.log = CommitLog(run.output, f"{self.folder}/commits")
        self.quarantine = Quarantine(run.lake, run.output, f"{root}/quarantine/{job}")
