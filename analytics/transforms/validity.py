"""Which rows of the lake are good, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from dynatops.lake.fields import Field, FieldType, Table

REASON = "_reason"
# No broker logged anything before 2000.
_FIRST_US = 946_684_800_000_000
# Longer than any name or topic may be.
TEXT_CHARACTERS_MAX = 65_535
_BOUNDS = {"latitude": (-90.0, 90.0), "longitude": (-180.0, 180.0)}


def time_us(table: Table) -> Column:
    """When a row happened, in microseconds since 1970."""
    return fn.unix_micros(fn.col(table.time_field))


def judged(rows: DataFrame, table: Table, now_us: int) -> DataFrame:
    """With a column `_reason`: null for good rows. `now_us`: later ones have a wrong clock."""
    reasons = [reason for field in table.fields for reason in _reasons(table, field)]
    when = time_us(table)
    reasons.append(
        fn.when(when < _FIRST_US, f"{table.time_field} is before 2000").when(
            when > now_us, f"{table.time_field} is in the future"
        )
    )
    return rows.withColumn(REASON, fn.coalesce(*reasons))


def _reasons(table: Table, field: Field) -> Iterator[Column]:
    column, name = fn.col(field.name), field.name
    if not field.nullable:
        yield fn.when(column.isNull(), f"{name} is null")
    if name in table.values:
        yield fn.when(~column.isin(*table.values[name]), f"{name} is unknown")
    elif field.type is FieldType.STRING:
        yield fn.when(column == "", f"{name} is empty")
        # Characters are counted one by one: only where there are bytes enough for so many.
        is_long = fn.octet_length(column) > TEXT_CHARACTERS_MAX
        is_too_long = is_long & (fn.length(column) > TEXT_CHARACTERS_MAX)
        yield fn.when(is_too_long, f"{name} is too long")
    elif field.type is FieldType.INT64:
        yield fn.when(column < 0, f"{name} is negative")
    elif field.type is FieldType.DOUBLE:
        low, high = _BOUNDS.get(name, (0.0, 1e9))
        # NaN is above everything else to Spark.
        yield fn.when(~column.between(low, high), f"{name} is out of range")
