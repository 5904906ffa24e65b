"""Runs a job: takes in what is new, settles it, writes results, advises.

    OUTPUT/JOB/TABLE/version=N/    results; OUTPUT/JOB/latest.json names the newest version
    OUTPUT/state/JOB/              commits, parts, states and checkpoints: the job's own
    OUTPUT/quarantine/JOB/         what could not be used, and why

Each step can be cut off and repeated: what counts is what the last commit names (`commits`).
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from uuid import uuid4

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from analytics.analytics_settings import AnalyticsSettings
from analytics.commits import Commit, CommitLog, Counts, TableProgress
from analytics.errors import AnalyticsError
from analytics.files import Files, spark_url
from analytics.intake import Progress, Step, TableIntake
from analytics.job import Clock, Fold, Frames, Intake, Job, JobOutcome, UsedResult
from analytics.publishing import Published, publish
from analytics.quarantine import Quarantine
from analytics.schemas import lake_schema
from analytics.session import divide_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run reads and writes."""

    lake: str
    output: str
    redis: str = ""
    redis_password_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run of a job did. Counts are of everything since the job was finished last."""

    job: str
    # Whether there was anything to do.
    new: bool
    version: int
    counts: Counts
    rows_out: Mapping[str, int]
    seconds: float
    published: Published | None = None


class Runner:
    def __init__(
        self,
        spark: SparkSession,
        place: Place,
        settings: AnalyticsSettings,
        *,
        progress: Progress = lambda table, counts: None,
        step: Step = lambda name: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._spark = spark
        self._files = Files(spark)
        self._lake = spark_url(place.lake)
        self._output = spark_url(place.output)
        self._redis = place.redis
        self._redis_password_file = place.redis_password_file
        self._settings = settings
        self._progress = progress
        self._step = step
        self._now_s = now_s

    def run(self, job: Job) -> Summary:
        started_s = time.monotonic()
        if not self._files.exists(self._lake):
            raise AnalyticsError(
                f"there is no lake at {self._lake}: is that where brokers write to (--lake), and "
                "have they written anything yet (every lake.file_age_max_s)?"
            )
        log = CommitLog(self._files, f"{self._folder(job)}/commits")
        commit = self._take_in(job, log.latest(), log)
        counts = commit.counts
        rows_out: Mapping[str, int] = {}
        is_new = counts.files > 0
        if is_new:
            commit, rows_out = self._finish(job, commit, log)
        published = self._advise(job, commit)
        self._sweep(job, commit, log)
        return Summary(
            job=job.name,
            new=is_new or published is not None,
            version=commit.version,
            counts=counts,
            rows_out=rows_out,
            seconds=time.monotonic() - started_s,
            published=published,
        )

    def results(self, job: Job, version: int) -> Frames:
        """The results of a version, as they were written."""
        tables = self._files.names(f"{self._output}/{job.name}")
        paths = {name: self._result(job, name, version) for name in tables}
        return {
            name: self._spark.read.parquet(path)
            for name, path in paths.items()
            if self._files.exists(path)
        }

    # ---- the steps ------------------------------------------------------------------------------

    def _take_in(self, job: Job, commit: Commit, log: CommitLog) -> Commit:
        for fold in job.folds:
            intake = TableIntake(
                self._spark,
                self._files,
                fold,
                log,
                lake=self._lake,
                folder=self._folder(job),
                quarantine=Quarantine(self._spark, self._files, self._quarantine(job)),
                settings=self._settings.run,
                now_us=round(self._now_s() * 1e6),
                progress=self._progress,
                step=self._step,
            )
            commit = intake.run(commit)
        return commit

    def _finish(self, job: Job, commit: Commit, log: CommitLog) -> tuple[Commit, Mapping[str, int]]:
        """Parts and state become a new state and results, and the clock moves on."""
        divide_for(self._spark, self._files.bytes_in(commit.folders))
        clocks = {fold.table.name: clock_of(fold, commit) for fold in job.folds}
        parts = {
            fold.table.name: self._read(commit.progress(fold.table.name).parts, fold.schema)
            for fold in job.folds
        }
        former = {
            name: self._read((f"{commit.state}/{name}",) if commit.state else (), schema)
            for name, schema in job.state.items()
        }
        folder = f"{self._folder(job)}/states/{commit.number + 1:012}-{uuid4().hex[:12]}"
        for name, frame in job.settle(Intake(parts, former, clocks)).items():
            frame.write.mode("overwrite").parquet(f"{folder}/{name}")
        self._step("state")
        version = commit.number + 1
        state = {
            name: self._read((f"{folder}/{name}",), schema) for name, schema in job.state.items()
        }
        outcome = JobOutcome(state, self._others(job))
        rows_out: dict[str, int] = {}
        for name, frame in job.results(outcome).items():
            written = Observation()
            counted = frame.observe(written, fn.count(fn.lit(1)).alias("rows"))
            # Of an earlier attempt that did not come to its commit there may be one already.
            counted.write.mode("overwrite").parquet(self._result(job, name, version))
            rows_out[name] = written.get["rows"]
        self._spark.catalog.clearCache()
        self._step("results")
        tables = {name: _settled(commit.progress(name), clock) for name, clock in clocks.items()}
        finished = replace(commit, tables=tables, counts=Counts(), state=folder, version=version)
        finished = log.append(finished)
        self._step("finish")
        return finished, rows_out

    def _advise(self, job: Job, commit: Commit) -> Published | None:
        """Point at the newest results; advise, if that was not done."""
        if not commit.version:
            return None
        latest = f"{self._output}/{job.name}/latest.json"
        known = json.loads(self._files.read(latest)) if self._files.exists(latest) else {}
        if known.get("version") != commit.version:
            known = {"version": commit.version, "advised": ""}
            self._files.write(latest, json.dumps(known))
            self._step("latest")
        if not self._redis or known.get("advised"):
            return None
        clocks = {fold.table.name: clock_of(fold, commit) for fold in job.folds}
        advice = job.advice(self.results(job, commit.version), clocks)
        published = publish(
            advice,
            self._redis,
            self._settings.run,
            commit.version,
            password_file=self._redis_password_file,
        )
        self._step("advice")
        self._files.write(latest, json.dumps({**known, "advised": published.version}))
        return published

    def _sweep(self, job: Job, commit: Commit, log: CommitLog) -> None:
        """Remove what no commit names: old states and parts, and what crashes have left."""
        for kind in ("parts", "states"):
            folder = f"{self._folder(job)}/{kind}"
            for name in self._files.names(folder):
                if f"{folder}/{name}" not in commit.folders:
                    self._files.delete(f"{folder}/{name}")
        kept = self._settings.run.versions_kept
        for table in self._files.names(f"{self._output}/{job.name}"):
            versions = self._files.names(f"{self._output}/{job.name}/{table}")
            older = [
                v for v in versions if v.startswith("version=") and _number(v) < commit.version
            ]
            for name in sorted(older, key=_number)[: max(0, len(older) - kept + 1)]:
                self._files.delete(f"{self._output}/{job.name}/{table}/{name}")
        log.sweep()

    # ---- where things are -----------------------------------------------------------------------

    def _folder(self, job: Job) -> str:
        return f"{self._output}/state/{job.name}"

    def _quarantine(self, job: Job) -> str:
        return f"{self._output}/quarantine/{job.name}"

    def _result(self, job: Job, table: str, version: int) -> str:
        return f"{self._output}/{job.name}/{table}/version={version}"

    def _read(self, paths: tuple[str, ...], schema: StructType) -> DataFrame:
        if not paths:
            return self._nothing(schema)
        return self._spark.read.schema(schema).parquet(*paths)

    def _nothing(self, schema: StructType) -> DataFrame:
        """No rows, which Spark knows: what is made of them it leaves out of its plans."""
        columns = (fn.lit(None).cast(f.dataType).alias(f.name) for f in schema)
        return self._spark.sql("select 1 where false").select(*columns)

    def _others(self, job: Job) -> Mapping[str, DataFrame | None]:
        return {name: self._newest(used) for name, used in job.kind.uses.items()}

    def _newest(self, used: UsedResult) -> DataFrame | None:
        folder = f"{self._output}/{used.job}"
        if not self._files.exists(f"{folder}/latest.json"):
            return None
        version = json.loads(self._files.read(f"{folder}/latest.json"))["version"]
        return self._read((f"{folder}/{used.table}/version={version}",), used.schema)

    def explained(self, job: Job) -> str:
        """The plans: how rows are taken in, and how they become state. Nothing is run."""
        parts: dict[str, DataFrame] = {}
        plans: list[str] = []
        for fold in job.folds:
            source = f"{self._lake}/{fold.table.name}"
            schema = lake_schema(fold.table)
            rows = self._read((source,) if self._files.exists(source) else (), schema)
            plans += [f"== {job.name}: rows of {fold.table.name} become a part =="]
            plans += [_plan(fold.part(rows.select(*schema.names)))]
            parts[fold.table.name] = self._spark.createDataFrame([], fold.schema)
        now_us = round(self._now_s() * 1e6)
        clocks = {fold.table.name: Clock(None, now_us, now_us) for fold in job.folds}
        empty = {n: self._spark.createDataFrame([], schema) for n, schema in job.state.items()}
        for name, frame in job.settle(Intake(parts, empty, clocks)).items():
            plans += [f"== {job.name}: parts become the state {name!r} ==", _plan(frame)]
        self._spark.catalog.clearCache()
        return "\n".join(plans)


def _plan(frame: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain("formatted")
    return printed.getvalue()


def clock_of(fold: Fold, commit: Commit) -> Clock:
    """Rows before the newest one, less what may come late, are complete. It never goes back."""
    progress = commit.progress(fold.table.name)
    if progress.seen_us is None:
        return Clock(progress.closed_us, progress.closed_us, None)
    due_us = progress.seen_us - round(fold.late_s * 1e6)
    closed_us = due_us // fold.align_us * fold.align_us
    if progress.closed_us is not None:
        closed_us = max(closed_us, progress.closed_us)
    return Clock(progress.closed_us, closed_us, progress.seen_us)


def _settled(progress: TableProgress, clock: Clock) -> TableProgress:
    return replace(progress, parts=(), settled_us=progress.seen_us, closed_us=clock.closed_us)


def _number(version: str) -> int:
    return int(version.removeprefix("version="))
