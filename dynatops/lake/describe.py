"""What is in a lake, told from the ends of its files: rows, bytes, and the time that they span."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from dynatops.lake.fields import SUFFIX, TABLES, Table
from dynatops.lake.files import Lake, arrow_schema
from dynatops.lake.store_errors import explained, store_error

_READERS = 8


@dataclass(slots=True)
class TableSummary:
    name: str
    files: int = 0
    rows: int = 0
    nbytes: int = 0
    # Times of rows; None where there are none, or files do not say.
    first: datetime | None = None
    last: datetime | None = None
    # Path and reason of files that are none of this table's.
    bad: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _DescribedFile:
    path: str
    rows: int = 0
    nbytes: int = 0
    times: tuple[datetime, ...] = ()
    problem: str = ""


def describe(lake: Lake) -> list[TableSummary]:
    """All tables, in their order. Raises OSError if the lake cannot be read."""
    tables = [_summary(lake, table) for table in TABLES.values()]
    if not any(table.files or table.bad for table in tables):
        lake.must_be()
    return tables


def _summary(lake: Lake, table: Table) -> TableSummary:
    selector = pafs.FileSelector(lake.path(table.name), allow_not_found=True, recursive=True)
    with explained(lake.location):
        there = lake.filesystem.get_file_info(selector)
    found = [
        info
        for info in there
        if info.type == pafs.FileType.File
        and info.path.endswith(SUFFIX)
        and not info.base_name.startswith(("_", "."))
    ]
    with ThreadPoolExecutor(_READERS) as readers:
        files = list(readers.map(lambda info: _read(lake, table, info), found))
    return _sum(table, files)


def _sum(table: Table, files: Iterable[_DescribedFile]) -> TableSummary:
    summary = TableSummary(table.name)
    times: list[datetime] = []
    for file in files:
        if file.problem:
            summary.bad.append((file.path, file.problem))
            continue
        summary.files += 1
        summary.rows += file.rows
        summary.nbytes += file.nbytes
        times += file.times
    summary.bad.sort()
    summary.first, summary.last = min(times, default=None), max(times, default=None)
    return summary


def _read(lake: Lake, table: Table, info: pafs.FileInfo) -> _DescribedFile:
    try:
        with lake.filesystem.open_input_file(info.path) as source:
            metadata = pq.read_metadata(source)
    except (OSError, pa.ArrowException) as error:
        if not lake.store.renames and (trouble := store_error(error, lake.location)).is_known:
            # It is the store that failed, and not this file that is bad.
            raise trouble from error
        return _DescribedFile(info.path, problem=str(error).splitlines()[0])
    schema = metadata.schema.to_arrow_schema()
    if missing := [f.name for f in arrow_schema(table) if f.name not in schema.names]:
        return _DescribedFile(info.path, problem=f"it has no {', '.join(missing)}")
    column = schema.names.index(table.time_field)
    times: list[datetime] = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(column).statistics
        if statistics is not None and statistics.has_min_max:
            times += [_utc(statistics.min), _utc(statistics.max)]
    return _DescribedFile(info.path, metadata.num_rows, info.size or 0, tuple(times))


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
