"""What schemas of jobs are made of. Each job declares those of what it keeps and what comes out.

Tables of the lake come from `dynatops.lake.fields`. Times in states and results are microseconds
since 1970 or numbers of periods, so that nothing depends on a time zone.
"""

from __future__ import annotations

from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dynatops.lake.fields import FieldType, Table

_TYPES: dict[FieldType, DataType] = {
    FieldType.TIMESTAMP: TimestampType(),
    FieldType.DOUBLE: DoubleType(),
    FieldType.INT64: LongType(),
    FieldType.STRING: StringType(),
}


def lake_schema(table: Table) -> StructType:
    """All fields may be null here: that they are not is checked row by row."""
    return StructType([StructField(f.name, _TYPES[f.type], True) for f in table.fields])


def schema_of(**types: DataType) -> StructType:
    return StructType([StructField(name, kind, True) for name, kind in types.items()])


LONG, INT, DOUBLE, STRING = LongType(), IntegerType(), DoubleType(), StringType()
