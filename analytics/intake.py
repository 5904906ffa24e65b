"""Takes in what is new in a table of the lake: every file once, whatever happens.

A listing says what there is, the ledger what was taken in before (`ledger`): the rest is new, and
taken in by batches, oldest first. Each batch of files becomes one part and one commit, which names
the part and the ledger with the batch's files in it: both count, or neither does. After a crash the
next run lists again, and whatever no commit has taken in is new. The same on folders and on stores
of objects, with Hadoop and without: nothing is asked of a store but to list, read and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as fn

from analytics.commits import Commit, Counts, TableProgress
from analytics.executors import alive
from analytics.job import Fold, RowSums
from analytics.ledger import SEGMENTS_MAX, FileLedger
from analytics.quarantine import FILE_COLUMN
from analytics.run_context import JobContext
from analytics.schemas import lake_schema
from analytics.session import divide_for
from analytics.storage.storage import FoundFile, SparkError
from analytics.transforms.validity import REASON, judged, time_us
from dynatops.lake.fields import SUFFIX

_COUNTS = ("rows", "bad", "dropped", "late")
_SEEN = "seen_us"


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a batch came to."""

    counts: Counts
    seen_us: int | None
    # Folder of rows in quarantine, if there are any.
    quarantined: str


class TableIntake:
    """Of one table, for one job."""

    def __init__(self, job: JobContext, fold: Fold) -> None:
        run = job.run
        self._spark = run.spark
        self._lake = run.lake
        self._output = run.output
        self._settings = run.settings
        self._progress = run.progress
        self._step = run.step
        self._log = job.log
        self._quarantine = job.quarantine
        # The job's own: parts and ledgers are there.
        self._folder = job.folder
        self._fold = fold
        self._source = f"{run.lake.root}/{fold.table.name}"
        self._schema = lake_schema(fold.table)
        self._latest_us = round((run.now_s() + run.settings.future_s) * 1e6)

    def run(self, commit: Commit) -> Commit:
        """Take in everything that is there; the last commit."""
        progress = commit.progress(self._fold.table.name)
        ledger = FileLedger.read(self._output, progress.taken)
        found = self._lake.found(self._source, SUFFIX)
        files = iter(ledger.new_files(found, progress.newest_us))
        while batch := list(islice(files, self._settings.files_per_batch)):
            ledger = ledger.with_files(batch)
            commit = self._take(commit, batch, ledger)
        return commit

    def _take(self, commit: Commit, batch: Sequence[FoundFile], ledger: FileLedger) -> Commit:
        table = self._fold.table.name
        before = commit.progress(table)
        name = f"{commit.number + 1:012}-{table}-{uuid4().hex[:12]}"
        part = f"{self._folder}/parts/{name}"
        divide_for(self._spark, sum(file.size for file in batch))
        taken = self._taken([file.path for file in batch], before, part, commit.number + 1)
        newest_us = max(batch[-1].modified_us, before.newest_us or 0)
        progress = replace(
            before,
            taken=self._remembered(batch, ledger, newest_us, before, name),
            newest_us=newest_us,
            parts=(*before.parts, part) if taken.counts.rows else before.parts,
            seen_us=taken.seen_us,
        )
        self._step("part")
        moved = commit.with_table(table, progress)
        counts = commit.counts + taken.counts
        commit = self._log.append(replace(moved, counts=counts, quarantined=taken.quarantined))
        self._step("batch")
        self._progress(table, commit.counts)
        return commit

    def _remembered(
        self,
        batch: Sequence[FoundFile],
        ledger: FileLedger,
        newest_us: int,
        before: TableProgress,
        name: str,
    ) -> tuple[str, ...]:
        """Files of the ledger with this batch: one more, or all put together."""
        path = f"{self._folder}/taken/{name}{SUFFIX}"
        if len(before.taken) < SEGMENTS_MAX:
            self._output.put(path, [FileLedger().with_files(batch).content()])
            return (*before.taken, path)
        self._output.put(path, [ledger.without_forgotten(newest_us).content()])
        return (path,)

    def _taken(self, paths: Sequence[str], before: TableProgress, part: str, number: int) -> _Taken:
        """Write what these files add. A file that cannot be read is left out."""
        good, bad = list(paths), 0
        try:
            seen = self._write(good, before, part)
        except SparkError:
            found = self._lake.bad_files(paths, self._schema)
            if not found:
                raise
            for file in found:
                self._quarantine.take_file(file)
            left_out = {file.path for file in found}
            good, bad = [path for path in paths if path not in left_out], len(found)
            # Beside what the first attempt has left: nothing is written over.
            seen = self._write(good, before, part)
        quarantined = ""
        if seen.get("bad", 0):
            rows = self._lake.with_paths(good, self._schema, FILE_COLUMN)
            table = self._fold.table
            quarantined = self._quarantine.take_rows(
                judged(rows, table, self._latest_us), table.name, number
            )
        counts = Counts(
            files=len(paths),
            rows=seen.get("rows", 0),
            quarantined_files=bad,
            quarantined=seen.get("bad", 0),
            late=seen.get("late", 0),
            dropped=seen.get("dropped", 0),
        )
        newest = [us for us in (before.seen_us, seen.get("seen_us")) if us is not None]
        return _Taken(counts, max(newest, default=None), quarantined)

    def _write(self, paths: Sequence[str], before: TableProgress, part: str) -> dict[str, Any]:
        """One pass over the files: what they add, and how many rows of which kind there were."""
        if not paths:
            return {}
        observation = Observation()
        rows = judged(self._lake.rows_of(paths, self._schema), self._fold.table, self._latest_us)
        executors = alive(self._spark)
        self._output.save(_folded(rows, self._fold, before, observation), part)
        if executors <= alive(self._spark):
            return dict(observation.get)
        # What one had was read again, and observed again: rows are what they are, counts are not.
        return rows.agg(*_counts(self._fold, before)).collect()[0].asDict()


def _folded(
    rows: DataFrame, fold: Fold, before: TableProgress, observation: Observation
) -> DataFrame:
    """The part of these rows; when it is computed, `observation` has counts of them."""
    if isinstance(fold.part, RowSums):
        return _summed(rows, fold, fold.part, before, observation)
    counted = rows.observe(observation, *_counts(fold, before))
    return fold.part(_used(counted, fold, before))


def _summed(
    rows: DataFrame, fold: Fold, part: RowSums, before: TableProgress, observation: Observation
) -> DataFrame:
    """Rows that do not count have no keys: they are counted together, and left out."""
    is_good, is_dropped, _ = _kinds(fold, before)
    columns = dict(part.columns())
    columns |= {key: fn.when(is_good & ~is_dropped, columns[key]) for key in part.keys}
    counts = _counts(fold, before)
    sums = rows.withColumns(columns).groupBy(*part.keys).agg(*part.sums(), *counts)
    of_all = [fn.coalesce(fn.sum(name), fn.lit(0)).alias(name) for name in _COUNTS]
    counted = sums.observe(observation, *of_all, fn.max(_SEEN).alias(_SEEN))
    return counted.filter(fn.col(part.keys[0]).isNotNull()).drop(*_COUNTS, _SEEN)


def _used(rows: DataFrame, fold: Fold, before: TableProgress) -> DataFrame:
    """Good rows that are not too late."""
    is_good, is_dropped, _ = _kinds(fold, before)
    return rows.filter(is_good & ~is_dropped).drop(REASON)


def _counts(fold: Fold, before: TableProgress) -> tuple[Column, ...]:
    """How many rows of which kind there are, and the time of the newest."""
    is_good, is_dropped, is_late = _kinds(fold, before)
    return (
        fn.count(fn.lit(1)).alias("rows"),
        fn.count_if(~is_good).alias("bad"),
        fn.count_if(is_dropped).alias("dropped"),
        fn.count_if(is_late & ~is_dropped).alias("late"),
        fn.max(fn.when(is_good, time_us(fold.table))).alias(_SEEN),
    )


def _kinds(fold: Fold, before: TableProgress) -> tuple[Column, Column, Column]:
    """Of a row: whether it is good, comes too late, comes late."""
    when, good = time_us(fold.table), fn.col(REASON).isNull()
    is_dropped = good & (when < fn.lit(before.closed_us)) if before.closed_us else fn.lit(False)
    is_late = good & (when < fn.lit(before.settled_us)) if before.settled_us else fn.lit(False)
    return good, is_dropped, is_late
