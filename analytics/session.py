"""The Spark session that jobs run in: UTC, adaptive plans, as many shuffle partitions as suit."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

# Parts of a shuffle for each core: enough for adaptive plans to merge, few enough to be cheap.
_PARTITIONS_PER_CORE = 4
_PARTITIONS_MIN = 8
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def start(master: str | None, *, driver_memory: str = "", quiet: bool = True) -> SparkSession:
    """A session; `master` None leaves that to `spark-submit`. What it was given before stays."""
    builder = SparkSession.builder.appName("dynatops analytics")
    if master:
        builder = builder.master(master)
    if driver_memory:
        builder = builder.config("spark.driver.memory", driver_memory)
    if master and master.startswith("local"):
        # One machine: nobody else needs to reach it.
        builder = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
    if quiet:
        # What goes wrong comes as an exception; the log would repeat it for every task.
        builder = builder.config("spark.log.level", "FATAL").config(
            "spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
        )
    builder = (
        builder.config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.adaptive.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(_partitions(master)))
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    )
    return builder.getOrCreate()


def _partitions(master: str | None) -> int:
    """On a cluster its size is not known yet; there adaptive plans begin with many."""
    if master is None or not master.startswith("local"):
        return 200
    inside = master.removeprefix("local").strip("[]").partition(",")[0]
    cores = int(inside) if inside.isdigit() else 1 if not inside else os.cpu_count() or 1
    return max(_PARTITIONS_MIN, cores * _PARTITIONS_PER_CORE)
