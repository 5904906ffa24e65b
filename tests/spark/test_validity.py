from __future__ import annotations

import math
from typing import Any

import pytest
from pyspark.sql import SparkSession

from analytics.transforms.validity import REASON, judged
from dynatops.lake.fields import PUBLICATIONS, SESSIONS, SUBSCRIPTIONS, TABLES, Table
from tests.support.spark_frames import START_S, at, lake_frame

NOW = at(START_S)
PUBLICATION = (NOW, 1.0, "b0", "quake", 3, 30)
SUBSCRIPTION = (NOW, "b0", "ann", "quake", "subscribe")
SESSION = (NOW, "ann", "b0", "open", 52.5, 13.4)


def changed(row: tuple[Any, ...], column: int, value: object) -> tuple[Any, ...]:
    return (*row[:column], value, *row[column + 1 :])


CASES: list[tuple[Table, tuple[Any, ...], str | None]] = [
    (PUBLICATIONS, PUBLICATION, None),
    (PUBLICATIONS, changed(PUBLICATION, 0, None), "window_start is null"),
    (PUBLICATIONS, changed(PUBLICATION, 0, at(1.0)), "window_start is before 2000"),
    (PUBLICATIONS, changed(PUBLICATION, 0, at(START_S + 1)), "window_start is in the future"),
    (PUBLICATIONS, changed(PUBLICATION, 1, math.nan), "window_s is out of range"),
    (PUBLICATIONS, changed(PUBLICATION, 1, -1.0), "window_s is out of range"),
    (PUBLICATIONS, changed(PUBLICATION, 2, ""), "broker_id is empty"),
    (PUBLICATIONS, changed(PUBLICATION, 3, None), "topic is null"),
    (PUBLICATIONS, changed(PUBLICATION, 3, "x" * 65_536), "topic is too long"),
    (PUBLICATIONS, changed(PUBLICATION, 4, -1), "events is negative"),
    (SUBSCRIPTIONS, SUBSCRIPTION, None),
    (SUBSCRIPTIONS, changed(SUBSCRIPTION, 4, "like"), "op is unknown"),
    (SUBSCRIPTIONS, changed(SUBSCRIPTION, 4, None), "op is null"),
    (SESSIONS, SESSION, None),
    (SESSIONS, changed(SESSION, 4, None), None),
    (SESSIONS, changed(SESSION, 4, 91.0), "latitude is out of range"),
    (SESSIONS, changed(SESSION, 5, math.nan), "longitude is out of range"),
]


@pytest.mark.parametrize("table", [PUBLICATIONS, SUBSCRIPTIONS, SESSIONS], ids=lambda t: t.name)
def test_what_is_wrong_with_rows(spark: SparkSession, table: Table) -> None:
    cases = [(row, reason) for of, row, reason in CASES if of is table]
    rows = lake_frame(spark, table, [row for row, _ in cases]).coalesce(1)
    found = judged(rows, table, round(START_S * 1e6)).collect()
    assert [row[REASON] for row in found] == [reason for _, reason in cases]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda t: t.name)
def test_nothing_and_nothing_but_nulls(spark: SparkSession, table: Table) -> None:
    nothing = lake_frame(spark, table, [])
    assert judged(nothing, table, 0).collect() == []
    nulls = lake_frame(spark, table, [[None] * len(table.names)])
    (row,) = judged(nulls, table, 0).collect()
    assert row[REASON] == f"{table.names[0]} is null"
