"""The Spark session that jobs run in: UTC, adaptive plans, as many tasks as there is work for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from analytics.errors import AnalyticsError
from analytics.storage.hadoop import s3a_settings

# Adaptive plans divide a shuffle into many parts at first, one for so many bytes of what is read
# (a row takes 5 to 20), and merge small ones. Too few, and each task has a hundred million
# keys in memory; too many, and tasks that have nothing to do cost most of the time.
_BYTES_PER_PARTITION = 1_000_000
_PARTITIONS_MAX = 1_000
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
# Names that repeat take next to nothing in the lake's files: this is some million rows.
_TASK_BYTES = "16m"
# To open a file costs as much as to read so much of it.
_OPEN_BYTES = "1m"
# Files of a batch are looked up by so many tasks at most; Spark's own way is a task for each.
_LOOKING_TASKS = "16"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
# The JVM's second compiler is for what is called a hundred times as often as it usually waits for:
# loops over rows, after a second or so of them. Else half of a short run is spent on compiling what
# is planned once.
_ROWS_COMPILER = (
    "-XX:Tier4InvocationThreshold=500000 -XX:Tier4MinInvocationThreshold=60000 "
    "-XX:Tier4CompileThreshold=1500000 -XX:Tier4BackEdgeThreshold=4000000"
)
# Plans are made once each, and rows of a small lake are read before that second is over: the first
# compiler alone, whose code then need not be counted for the second, either.
_FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
# A lake is small that is read in some seconds: a million or two of rows.
SMALL_BYTES = 16_000_000
_PYTHON = "spark.pyspark.python"
_PYTHON_VARIABLE = "PYSPARK_PYTHON"


def is_local(master: str | None) -> bool:
    return master is not None and master.startswith("local")


def compilers(master: str | None, *, is_small: bool) -> tuple[str, str]:
    """Options of the JVM for driver and executors. A driver of a cluster sees no rows: it plans."""
    of_rows = _FIRST_COMPILER if is_small else _ROWS_COMPILER
    return of_rows if is_local(master) else _FIRST_COMPILER, of_rows


def start(
    master: str | None,
    *,
    driver_memory: str = "",
    conf: Mapping[str, str] | None = None,
    is_small: bool = False,
) -> SparkSession:
    """A session; `master` None leaves that to `spark-submit`. What it was given before stays.

    `conf` are settings of Spark's, before which ours give way. `is_small` says that there is little
    to read, once.
    """
    wanted = dict(conf or {})
    _choose_python(master, wanted)
    builder = SparkSession.builder.appName("dynatops analytics")
    if master:
        builder = builder.master(master)
    if driver_memory:
        builder = builder.config("spark.driver.memory", driver_memory)
    if is_local(master):
        # One machine: nobody else needs to reach it.
        builder = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
    # What goes wrong comes as an exception; the log would repeat it for every task.
    builder = builder.config("spark.log.level", "FATAL")
    log_options = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    of_driver, of_executors = compilers(master, is_small=is_small)
    for name, options in (
        (_DRIVER_OPTIONS, f"{log_options} {of_driver}"),
        (_EXECUTOR_OPTIONS, of_executors),
    ):
        wanted[name] = f"{options} {wanted.get(name, '')}".strip()
    builder = (
        builder.config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.adaptive.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.files.maxPartitionBytes", _TASK_BYTES)
        .config("spark.sql.files.openCostInBytes", _OPEN_BYTES)
        .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", _LOOKING_TASKS)
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    )
    for name, value in {**s3a_settings(), **wanted}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() == "JAVA_GATEWAY_EXITED":
            raise AnalyticsError(
                "Spark needs Java 17 or newer, and it could not be started: install it, or set "
                "JAVA_HOME"
            ) from None
        raise
    except Py4JJavaError as error:
        cause = str(error.java_exception).partition("\n")[0]
        raise AnalyticsError(
            f"there is no Spark to be had at {master or 'the master of spark-submit'}: check that "
            f"it runs and that it can reach this host ({cause})"
        ) from None


def await_end(seconds: float) -> None:
    """Have Spark's own process end, and wait for that: as it ends it gives back what a cluster was
    asked for, also where a session was only being made. Nothing of Spark is to be used after."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if process is None or process.stdin is None:
        return
    # It goes when nobody can tell it anything any more.
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _choose_python(master: str | None, conf: Mapping[str, str]) -> None:
    """Which Python runs what Spark has in Python: on this machine this one.

    The setting's name is that of `spark-submit`; where that is not what starts Spark, nobody else
    looks at it.
    """
    if python := conf.get(_PYTHON):
        os.environ[_PYTHON_VARIABLE] = python
    elif is_local(master):
        os.environ.setdefault(_PYTHON_VARIABLE, sys.executable)


def divide_for(spark: SparkSession, read_bytes: int) -> None:
    """What is planned from here on is divided as suits so much that is read, on every master.

    Not if whoever started Spark has said into how many parts.
    """
    if _SHUFFLE_PARTITIONS in dict(spark.sparkContext.getConf().getAll()):
        return
    partitions = min(_PARTITIONS_MAX, 1 + read_bytes // _BYTES_PER_PARTITION)
    spark.conf.set(_SHUFFLE_PARTITIONS, str(partitions))
