"""The Spark session that jobs run in: UTC, adaptive plans, as many shuffle partitions as suit."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from analytics.errors import AnalyticsError

# Parts of a shuffle for each core: enough for adaptive plans to merge, few enough to be cheap.
_PARTITIONS_PER_CORE = 4
_PARTITIONS_MIN = 8
# Adaptive plans divide a shuffle into so many times as many, and merge those that are small: of a
# hundred million keys each task still has them in memory.
_FIRST_PARTITIONS = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_FIRST_PER_PARTITION = 8
# Names that repeat take next to nothing in the lake's files: this is some million rows.
_TASK_BYTES = "16m"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_PYTHON = "spark.pyspark.python"
_PYTHON_VARIABLE = "PYSPARK_PYTHON"


def is_local(master: str | None) -> bool:
    return master is not None and master.startswith("local")


def start(
    master: str | None, *, driver_memory: str = "", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session; `master` None leaves that to `spark-submit`. What it was given before stays.

    `conf` are settings of Spark's, before which ours give way.
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
    wanted[_DRIVER_OPTIONS] = f"{log_options} {wanted.get(_DRIVER_OPTIONS, '')}".strip()
    partitions = _partitions(master)
    builder = (
        builder.config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.adaptive.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(partitions))
        .config(_FIRST_PARTITIONS, str(partitions * _FIRST_PER_PARTITION))
        .config("spark.sql.files.maxPartitionBytes", _TASK_BYTES)
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    )
    for name, value in wanted.items():
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


def _choose_python(master: str | None, conf: Mapping[str, str]) -> None:
    """Which Python runs what Spark has in Python: on this machine this one.

    The setting's name is that of `spark-submit`; where that is not what starts Spark, nobody else
    looks at it.
    """
    if python := conf.get(_PYTHON):
        os.environ[_PYTHON_VARIABLE] = python
    elif is_local(master):
        os.environ.setdefault(_PYTHON_VARIABLE, sys.executable)


def _partitions(master: str | None) -> int:
    """On a cluster its size is not known yet; there adaptive plans begin with many."""
    if master is None or not master.startswith("local"):
        return 200
    inside = master.removeprefix("local").strip("[]").partition(",")[0]
    cores = int(inside) if inside.isdigit() else 1 if not inside else os.cpu_count() or 1
    return max(_PARTITIONS_MIN, cores * _PARTITIONS_PER_CORE)
