"""Data frames of a few rows, there and back; and files of a lake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from analytics.schemas import lake_schema
from dynatops.lake.fields import Table
from dynatops.lake.files import Lake, arrow_schema

# Examples share the session, and every one is a job of Spark's.
SLOW = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Noon of some day: tests count from here.
START_S = 1_767_268_800.0


def at(time_s: float) -> datetime:
    return EPOCH + timedelta(seconds=time_s)


def frame(spark: SparkSession, schema: StructType, rows: Iterable[Sequence[Any]]) -> DataFrame:
    return spark.createDataFrame([tuple(row) for row in rows], schema)


def lake_frame(spark: SparkSession, table: Table, rows: Iterable[Sequence[Any]]) -> DataFrame:
    return frame(spark, lake_schema(table), rows)


def tuples(rows: DataFrame) -> list[tuple[Any, ...]]:
    """In an order that does not depend on Spark."""
    return sorted((tuple(row) for row in rows.collect()), key=repr)


def write_file(
    lake: Path, table: Table, name: str, rows: Iterable[Sequence[Any]], hour_s: float = START_S
) -> Path:
    """One file of a lake, as brokers write it; rows are taken as they are."""
    columns = list(zip(*rows, strict=True)) or [()] * len(table.names)
    schema = pa.schema([field.with_nullable(True) for field in arrow_schema(table)])
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    content = pa.table(arrays, schema=schema)
    Lake.open(str(lake)).write(table, hour_s, f"{name}.parquet", content)
    (path,) = (lake / table.name).glob(f"*/*/{name}.parquet")
    return path
