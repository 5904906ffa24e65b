"""Runs a job: takes in what is new, settles it, writes results, advises.

    OUTPUT/JOB/TABLE/version=N/    results; OUTPUT/JOB/latest.json names the newest version
    OUTPUT/state/JOB/              commits, parts, states, and what was taken in: the job's own
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
from analytics.commits import Commit, Counts, OvertakenError, TableProgress
from analytics.errors import AnalyticsError
from analytics.executors import check_executors
from analytics.intake import TableIntake
from analytics.job import Clock, Fold, Frames, Intake, Job, JobOutcome, UsedResult
from analytics.publishing import Published, publish
from analytics.run_context import JobContext, Progress, RunContext, Step
from analytics.schemas import lake_schema
from analytics.session import divide_for
from analytics.storage.opening import open_lake_and_output
from analytics.storage.storage import SparkError, read_text, write_text
from analytics.storage.store_access import StorePatience
from dynatops.lake.fields import SUFFIX

# A machine that is lost takes along what Spark had only there; from the last commit on it is the
# same work again.
_ATTEMPTS = 3
_LOST = ("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "Checkpoint block", "checkpoint block")
# Of a version's name the number of its commit; the rest nobody else has.
_VERSION = "version="
# Plans are the same however many files there are.
_EXPLAINED_FILES = 100


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
        patience = StorePatience(settings.run.store_timeout_s, settings.run.store_tries)
        lake, output = open_lake_and_output(spark, place.lake, place.output, patience)
        self._run = RunContext(
            spark=spark,
            lake=lake,
            output=output,
            settings=settings.run,
            now_s=now_s,
            progress=progress,
            step=step,
        )
        self._spark = spark
        self._lake = lake
        self._output = output
        self._redis = place.redis
        self._redis_password_file = place.redis_password_file

    def check(self) -> None:
        """Before any job: that machines of a cluster have what they need."""
        check_executors(self._spark, self._lake, self._output)

    def run(self, job: Job) -> Summary:
        started_s = time.monotonic()
        if not self._lake.exists(self._lake.root):
            raise AnalyticsError(
                f"there is no lake at {self._lake.root}: is that where brokers write to (--lake), "
                "and have they written anything yet (every lake.file_age_max_s)?"
            )
        context = JobContext(self._run, job.name)
        rows_out: Mapping[str, int] = {}
        try:
            commit = self._take_in(job, context)
            counts = commit.counts
            is_new = counts.files > 0
            if is_new:
                commit, rows_out = self._finish_whatever_is_lost(job, commit, context)
        except (*SparkError, OSError) as error:
            # What is missing then is what the other run had no more use for.
            if context.log.is_overtaken():
                raise OvertakenError from error
            raise
        published = self._advise(job, commit, context)
        self._sweep(job, commit, context)
        return Summary(
            job=job.name,
            new=is_new or published is not None,
            version=commit.version,
            counts=counts,
            rows_out=rows_out,
            seconds=time.monotonic() - started_s,
            published=published,
        )

    def results(self, job: Job, version: str) -> Frames:
        """The results of a version, as they were written."""
        context = JobContext(self._run, job.name)
        return {
            name: self._output.saved([_result(context, name, version)]) for name in job.kind.results
        }

    # ---- the steps ------------------------------------------------------------------------------

    def _take_in(self, job: Job, context: JobContext) -> Commit:
        commit = context.log.latest()
        for fold in job.folds:
            commit = TableIntake(context, fold).run(commit)
        return commit

    def _finish_whatever_is_lost(
        self, job: Job, commit: Commit, context: JobContext
    ) -> tuple[Commit, Mapping[str, int]]:
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._finish(job, commit, context)
            except SparkError as error:
                if not any(text in str(error) for text in _LOST):
                    raise
                self._spark.catalog.clearCache()
        return self._finish(job, commit, context)

    def _finish(
        self, job: Job, commit: Commit, context: JobContext
    ) -> tuple[Commit, Mapping[str, int]]:
        """Parts and state become a new state and results, and the clock moves on.

        The commit, and how many rows results have.
        """
        divide_for(self._spark, self._bytes_in(commit))
        clocks = {fold.table.name: clock_of(fold, commit) for fold in job.folds}
        parts = {
            fold.table.name: self._read(commit.progress(fold.table.name).parts, fold.schema)
            for fold in job.folds
        }
        former = {
            name: self._read((f"{commit.state}/{name}",) if commit.state else (), schema)
            for name, schema in job.state.items()
        }
        folder = f"{context.folder}/states/{commit.number + 1:012}-{uuid4().hex[:12]}"
        for name, frame in job.settle(Intake(parts, former, clocks)).items():
            self._output.save(frame, f"{folder}/{name}")
        self._run.step("state")
        number = commit.number + 1
        version = f"{number}-{uuid4().hex[:8]}"
        state = {
            name: self._read((f"{folder}/{name}",), schema) for name, schema in job.state.items()
        }
        outcome = JobOutcome(state, self._others(job))
        rows_out: dict[str, int] = {}
        for name, frame in job.results(outcome).items():
            written = Observation()
            counted = frame.observe(written, fn.count(fn.lit(1)).alias("rows"))
            self._output.save(counted, _result(context, name, version))
            rows_out[name] = written.get["rows"]
        self._spark.catalog.clearCache()
        self._run.step("results")
        tables = {name: _settled(commit.progress(name), clock) for name, clock in clocks.items()}
        finished = context.log.append(
            replace(
                commit,
                tables=tables,
                counts=Counts(),
                state=folder,
                version=number,
                results=(version, *commit.results[: self._run.settings.versions_kept - 1]),
                quarantined="",
            )
        )
        self._run.step("finish")
        return finished, rows_out

    def _advise(self, job: Job, commit: Commit, context: JobContext) -> Published | None:
        """Point at the newest results; advise, if that was not done."""
        if not commit.version:
            return None
        version = commit.results[0]
        latest = f"{context.results_folder}/latest.json"
        known = json.loads(read_text(self._output, latest)) if self._output.exists(latest) else {}
        if known.get("version") != version:
            if context.log.latest().version != commit.version:
                # Another run was quicker, and has newer ones.
                return None
            known = {"version": version, "advised": ""}
            write_text(self._output, latest, json.dumps(known))
            self._run.step("latest")
        if not self._redis or known.get("advised"):
            return None
        clocks = {fold.table.name: clock_of(fold, commit) for fold in job.folds}
        advice = job.advice(self.results(job, version), clocks)
        published = publish(
            advice,
            self._redis,
            self._run.settings,
            commit.version,
            password_file=self._redis_password_file,
        )
        self._run.step("advice")
        write_text(self._output, latest, json.dumps({**known, "advised": published.version}))
        return published

    def _sweep(self, job: Job, commit: Commit, context: JobContext) -> None:
        """Remove what no commit names: old states and parts, and what crashes have left.

        What has the number of a commit that is still to come is another run's, perhaps.
        """
        for kind in ("parts", "states", "taken"):
            folder = f"{context.folder}/{kind}"
            for name in self._output.names(folder):
                path = f"{folder}/{name}"
                if int(name.partition("-")[0]) <= commit.number and path not in commit.folders:
                    self._output.delete(path)
        for table in job.kind.results:
            folder = f"{context.results_folder}/{table}"
            for name in self._output.names(folder):
                version = name.removeprefix(_VERSION)
                number = int(version.partition("-")[0])
                if number <= commit.version and version not in commit.results:
                    self._output.delete(f"{folder}/{name}")

        def quarantined_by(number: int) -> str | None:
            found = context.log.find(number)
            return found.quarantined if found else None

        context.quarantine.sweep(commit.number, quarantined_by)
        context.log.sweep()

    # ---- where things are -----------------------------------------------------------------------

    def _read(self, folders: tuple[str, ...], schema: StructType) -> DataFrame:
        return self._output.saved(folders, schema) if folders else self._nothing(schema)

    def _nothing(self, schema: StructType) -> DataFrame:
        """No rows, which Spark knows: what is made of them it leaves out of its plans."""
        columns = (fn.lit(None).cast(f.dataType).alias(f.name) for f in schema)
        return self._spark.sql("select 1 where false").select(*columns)

    def _bytes_in(self, commit: Commit) -> int:
        """Of parts and state."""
        folders = [part for progress in commit.tables.values() for part in progress.parts]
        folders += [commit.state] if commit.state else []
        return sum(file.size for f in folders for file in self._output.found(f, SUFFIX))

    def _others(self, job: Job) -> Mapping[str, DataFrame | None]:
        return {name: self._newest(used) for name, used in job.kind.uses.items()}

    def _newest(self, used: UsedResult) -> DataFrame | None:
        context = JobContext(self._run, used.job)
        latest = f"{context.results_folder}/latest.json"
        if not self._output.exists(latest):
            return None
        version = json.loads(read_text(self._output, latest))["version"]
        return self._read((_result(context, used.table, version),), used.schema)

    def explained(self, job: Job) -> str:
        """The plans: how rows are taken in, and how they become state. Nothing is run."""
        parts: dict[str, DataFrame] = {}
        plans: list[str] = []
        for fold in job.folds:
            found = self._lake.found(f"{self._lake.root}/{fold.table.name}", SUFFIX)
            paths = [file.path for file in found[:_EXPLAINED_FILES]]
            rows = self._lake.rows_of(paths, lake_schema(fold.table))
            plans += [f"== {job.name}: rows of {fold.table.name} become a part =="]
            plans += [_plan(fold.part(rows))]
            parts[fold.table.name] = self._spark.createDataFrame([], fold.schema)
        now_us = round(self._run.now_s() * 1e6)
        clocks = {fold.table.name: Clock(None, now_us, now_us) for fold in job.folds}
        empty = {n: self._spark.createDataFrame([], schema) for n, schema in job.state.items()}
        for name, frame in job.settle(Intake(parts, empty, clocks)).items():
            plans += [f"== {job.name}: parts become the state {name!r} ==", _plan(frame)]
        self._spark.catalog.clearCache()
        return "\n".join(plans)


def _result(context: JobContext, table: str, version: str) -> str:
    return f"{context.results_folder}/{table}/{_VERSION}{version}"


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
