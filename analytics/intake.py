"""Takes in what is new in a table of the lake: every file once, whatever happens.

Structured streaming says which files are new, and remembers in its checkpoint: a stream of names,
not of rows, so that rows are read by an ordinary plan, and a file that cannot be read is known by
its name. Each batch of files becomes one part and one commit. A crash before the commit, and the
batch comes again, with the same files; a crash after it, and the batch comes again and is passed
over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn

from analytics.analytics_settings import RunSettings
from analytics.commits import Commit, CommitLog, Counts, TableProgress
from analytics.errors import AnalyticsError
from analytics.files import Files
from analytics.job import Fold
from analytics.quarantine import Quarantine, SparkError, bad_files, read
from analytics.schemas import lake_schema
from analytics.session import divide_for
from analytics.transforms.validity import REASON, judged, time_us
from dynatops.lake.fields import SUFFIX

# Only names are asked for: content is not read.
_FILE_SCHEMA = "path string, modificationTime timestamp, length bigint, content binary"
# Files are looked at for so long after they were written; then they are no longer remembered.
_FILE_AGE_MAX = "30d"

# Called with the table, and what was taken in so far.
Progress = Callable[[str, Counts], None]
# Called with a name at every step that a crash may follow: tests cut jobs off there.
Step = Callable[[str], None]


class TableIntake:
    """Of one table, for one job."""

    def __init__(
        self,
        spark: SparkSession,
        files: Files,
        fold: Fold,
        log: CommitLog,
        *,
        lake: str,
        folder: str,
        quarantine: Quarantine,
        settings: RunSettings,
        now_us: int,
        progress: Progress,
        step: Step,
    ) -> None:
        """`folder` is the job's own: parts and checkpoints are there."""
        self._spark = spark
        self._files = files
        self._fold = fold
        self._log = log
        self._source = f"{lake}/{fold.table.name}"
        self._folder = folder
        self._checkpoint = f"{folder}/checkpoints/{fold.table.name}"
        self._quarantine = quarantine
        self._settings = settings
        self._latest_us = now_us + round(settings.future_s * 1e6)
        self._progress = progress
        self._step = step
        self._commit = Commit()
        self._failure: BaseException | None = None

    def run(self, commit: Commit) -> Commit:
        """Take in everything that is there; the last commit."""
        self._commit = commit
        if not self._files.exists(self._source):
            return commit
        query = (
            self._names()
            .writeStream.foreachBatch(self._guarded)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException:
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            query.stop()
        return self._commit

    def _names(self) -> DataFrame:
        return (
            self._spark.readStream.format("binaryFile")
            .schema(_FILE_SCHEMA)
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", f"*{SUFFIX}")
            .option("maxFilesPerTrigger", self._settings.files_per_batch)
            .option("maxFileAge", _FILE_AGE_MAX)
            .load(self._source)
            .select("path")
        )

    def _guarded(self, names: DataFrame, batch: int) -> None:
        """What fails here comes back through the stream as text only.

        Of all but Exception nothing comes back at all: the stream would wait for ever.
        """
        try:
            self._take(names, batch)
        except BaseException as failure:
            self._failure = failure
            raise RuntimeError("a batch has failed") from failure

    def _take(self, names: DataFrame, batch: int) -> None:
        table = self._fold.table
        before = self._commit.progress(table.name)
        stream = json.loads(self._files.read(f"{self._checkpoint}/metadata"))["id"]
        if before.stream not in ("", stream):
            raise AnalyticsError(
                f"{self._checkpoint} does not belong to the state beside it: remove {self._folder} "
                "to begin anew"
            )
        if batch <= before.batch:
            return
        paths = sorted(row.path for row in names.collect())
        part = f"{self._folder}/parts/{table.name}-{batch:09}-{uuid4().hex[:12]}"
        counts, seen_us = self._taken(paths, before, part, batch)
        parts = (*before.parts, part) if counts.rows else before.parts
        progress = replace(before, stream=stream, batch=batch, parts=parts, seen_us=seen_us)
        moved = self._commit.with_table(table.name, progress)
        self._step("part")
        self._commit = self._log.append(replace(moved, counts=self._commit.counts + counts))
        self._step("batch")
        self._progress(table.name, self._commit.counts)

    def _taken(
        self, paths: Sequence[str], before: TableProgress, part: str, batch: int
    ) -> tuple[Counts, int | None]:
        """Write what these files add. A file that cannot be read is left out."""
        good, bad = list(paths), 0
        try:
            seen = self._write(good, before, part)
        except SparkError:
            found = bad_files(self._spark, lake_schema(self._fold.table), paths)
            if not found:
                raise
            for file in found:
                self._quarantine.take_file(file)
            left_out = {file.path for file in found}
            good, bad = [path for path in paths if path not in left_out], len(found)
            seen = self._write(good, before, part)
        if seen.get("bad", 0):
            name = f"{self._fold.table.name}-{batch:09}"
            self._quarantine.take_rows(self._judged(good), name)
        counts = Counts(
            files=len(paths),
            rows=seen.get("rows", 0),
            quarantined_files=bad,
            quarantined=seen.get("bad", 0),
            late=seen.get("late", 0),
            dropped=seen.get("dropped", 0),
        )
        newest = [us for us in (before.seen_us, seen.get("seen_us")) if us is not None]
        return counts, max(newest, default=None)

    def _judged(self, paths: Sequence[str]) -> DataFrame:
        table = self._fold.table
        return judged(read(self._spark, lake_schema(table), paths), table, self._latest_us)

    def _write(self, paths: Sequence[str], before: TableProgress, part: str) -> dict[str, Any]:
        """One pass over the files: what they add, and how many rows of which kind there were."""
        if not paths:
            return {}
        divide_for(self._spark, self._files.bytes_in(paths))
        observation = Observation()
        rows = observed(self._judged(paths), self._fold, before, observation)
        self._fold.part(rows).write.mode("overwrite").parquet(part)
        return dict(observation.get)


def observed(
    rows: DataFrame, fold: Fold, before: TableProgress, observation: Observation
) -> DataFrame:
    """Good rows that are not too late; `observation` gets the counts of all kinds."""
    when, good = time_us(fold.table), fn.col(REASON).isNull()
    is_dropped = good & (when < fn.lit(before.closed_us)) if before.closed_us else fn.lit(False)
    is_late = good & (when < fn.lit(before.settled_us)) if before.settled_us else fn.lit(False)
    counted = rows.observe(
        observation,
        fn.count(fn.lit(1)).alias("rows"),
        fn.count_if(~good).alias("bad"),
        fn.count_if(is_dropped).alias("dropped"),
        fn.count_if(is_late & ~is_dropped).alias("late"),
        fn.max(fn.when(good, when)).alias("seen_us"),
    )
    return counted.filter(good & ~is_dropped).drop(REASON)
