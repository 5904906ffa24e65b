"""What could not be used, and why: kept for people, never read by a job.

    OUTPUT/quarantine/JOB/files/ID.json     a file: where it was, and what is wrong with it
    OUTPUT/quarantine/JOB/files/ID.parquet  the file itself, as it was
    OUTPUT/quarantine/JOB/rows/BATCH/       rows, with `reason` and the `file` that they were in

A file stays in the lake as well: the lake belongs to brokers, and every job looks for itself. What
one batch puts here it puts here again, in the same place, if it is repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from analytics.files import Files
from analytics.transforms.validity import REASON
from dynatops.kit.strict_json import write_json

# What Spark says of a file that cannot be read, as opposed to a machine that cannot go on.
_FILE_CONDITIONS = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "PATH_NOT_FOUND")
_REASON_CHARACTERS_MAX = 500

SparkError = (Py4JJavaError, PySparkException)


@dataclass(frozen=True, slots=True)
class BadFile:
    path: str
    reason: str


class Quarantine:
    def __init__(self, spark: SparkSession, files: Files, folder: str) -> None:
        self._spark = spark
        self._files = files
        self._folder = folder

    def take_file(self, bad: BadFile) -> None:
        name = hashlib.sha256(bad.path.encode()).hexdigest()[:32]
        path = f"{self._folder}/files/{name}"
        if self._files.exists(bad.path):
            self._files.copy(bad.path, f"{path}.parquet")
        record = {"file": bad.path, "reason": bad.reason}
        self._files.write(f"{path}.json", write_json(record))

    def take_rows(self, judged: DataFrame, batch: str) -> None:
        """Those that have a reason."""
        bad = judged.filter(fn.col(REASON).isNotNull())
        rows = bad.withColumn("file", fn.col("_metadata.file_path")).withColumnRenamed(
            REASON, "reason"
        )
        rows.write.mode("overwrite").parquet(f"{self._folder}/rows/{batch}")


def bad_files(spark: SparkSession, schema: StructType, paths: Sequence[str]) -> list[BadFile]:
    """Those that cannot be read to the end, found by halving.

    A failure that is not a file's own is raised.
    """
    error = _failure(spark, schema, paths)
    if error is None:
        return []
    if len(paths) > 1:
        half = len(paths) // 2
        return bad_files(spark, schema, paths[:half]) + bad_files(spark, schema, paths[half:])
    # Once more: what fails by chance does not fail twice.
    error = _failure(spark, schema, paths)
    return [BadFile(paths[0], _reason(error))] if error is not None else []


def _failure(spark: SparkSession, schema: StructType, paths: Sequence[str]) -> Exception | None:
    """Read all that there is, and see."""
    if not paths:
        return None
    try:
        rows = read(spark, schema, paths)
        rows.write.format("noop").mode("overwrite").save()
    except SparkError as error:
        if not any(f"[{condition}" in str(error) for condition in _FILE_CONDITIONS):
            raise
        return error
    return None


def read(spark: SparkSession, schema: StructType, paths: Sequence[str]) -> DataFrame:
    # Names are names here, not patterns.
    return spark.read.schema(schema).option("__globPaths__", "false").parquet(*paths)


def _reason(error: Exception) -> str:
    if isinstance(error, AnalysisException):
        return str(error).partition("\n")[0][:_REASON_CHARACTERS_MAX]
    lines = str(error).splitlines()
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    said = causes[-1] if causes else next((line for line in lines if "[FAILED" in line), lines[0])
    return said.strip()[:_REASON_CHARACTERS_MAX]
