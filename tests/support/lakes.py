"""Lakes in a folder, read back by pyarrow as anyone would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from dynatops.lake.fields import PARTITION_DATE, PARTITION_HOUR, TABLES, UNFINISHED, Table
from dynatops.lake.files import arrow_schema


def read_rows(lake: Path, table: Table) -> list[dict[str, Any]]:
    """All rows in order of time, with the partition that their files are in."""
    folder = lake / table.name
    if not folder.exists():
        return []
    dataset = ds.dataset(folder, format="parquet", partitioning="hive")
    for name, kind in zip(table.names, arrow_schema(table).types, strict=True):
        assert dataset.schema.field(name).type == kind
    rows: list[dict[str, Any]] = dataset.to_table().to_pylist()
    for row in rows:
        at = row[table.time_field]
        assert row.pop(PARTITION_DATE) == f"{at:%Y-%m-%d}"
        assert int(row.pop(PARTITION_HOUR)) == at.hour
    return sorted(rows, key=lambda row: row[table.time_field])


def whole_files(lake: Path) -> list[Path]:
    return [path for name in TABLES for path in sorted((lake / name).rglob("*.parquet"))]


def unfinished_files(lake: Path) -> list[Path]:
    folder = lake / UNFINISHED
    return sorted(folder.iterdir()) if folder.exists() else []
