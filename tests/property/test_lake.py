"""Rows in are rows out, whatever they hold and in whatever portions they come."""

from __future__ import annotations

import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
from hypothesis import given, settings

from dynatops.lake.fields import (
    PUBLICATIONS,
    REQUESTS,
    SESSION_OPS,
    SESSIONS,
    SUBSCRIPTION_OPS,
    SUBSCRIPTIONS,
    TABLES,
    FieldType,
    Table,
)
from dynatops.lake.files import Lake
from dynatops.lake.lake_settings import LakeSettings
from dynatops.lake.writer import LakeWriter, Row
from tests.support.lakes import read_rows, unfinished_files

EPOCH = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))
# Within a few hours, so that some rows share a file, or anywhere.
times = st.integers(0, 10_000_000_000) | st.integers(0, 4_102_444_800_000_000)
names = st.text(st.characters(codec="utf-8"), max_size=8)
counts = st.integers(min_value=0, max_value=(1 << 63) - 1)
degrees = st.none() | st.floats(-90, 90)
windows = st.floats(min_value=0, max_value=3_600)
ROWS: dict[str, st.SearchStrategy[Row]] = {
    PUBLICATIONS.name: st.tuples(times, windows, names, names, counts, counts),
    REQUESTS.name: st.tuples(times, windows, names, names, counts),
    SUBSCRIPTIONS.name: st.tuples(times, names, names, names, st.sampled_from(SUBSCRIPTION_OPS)),
    SESSIONS.name: st.tuples(times, names, names, st.sampled_from(SESSION_OPS), degrees, degrees),
}
portions = st.sampled_from(sorted(ROWS)).flatmap(
    lambda name: st.tuples(st.just(TABLES[name]), st.lists(ROWS[name], max_size=9))
)


def shown(table: Table, row: Row) -> str:
    values = [
        EPOCH + timedelta(microseconds=value)  # type: ignore[arg-type]
        if field.type is FieldType.TIMESTAMP
        else value
        for field, value in zip(table.fields, row, strict=True)
    ]
    return repr(dict(zip(table.names, values, strict=True)))


@given(st.lists(portions, max_size=6), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_rows_in_are_rows_out(puts: list[tuple[Table, list[Row]]], file_rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder)
        bounds = LakeSettings(file_rows_max=file_rows, buffer_rows_max=100)
        writer = LakeWriter(Lake.open(folder), bounds, "host:7400", 1)
        writer.start()
        for table, rows in puts:
            writer.put(table, rows)
        assert writer.close()
        for table in TABLES.values():
            put = [shown(table, row) for of, rows in puts for row in rows if of is table]
            assert sorted(map(repr, read_rows(lake, table))) == sorted(put)
        assert unfinished_files(lake) == []
        total = sum(len(rows) for _, rows in puts)
        counters = writer.counters
        assert counters.lake_rows == counters.lake_rows_written == total
