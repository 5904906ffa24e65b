"""Where users go next."""

from __future__ import annotations

import pytest
from chispa import assert_df_equality
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from analytics.jobs.mobility import MOVES, NEXT_BROKERS, VISITS
from analytics.transforms.mobility import heads_of, moves_of, next_brokers, paths, summed, visits
from dynatops.lake.fields import SESSIONS
from tests.support.analytics_reference import Visit
from tests.support.analytics_reference import next_brokers as next_brokers_of
from tests.support.spark_frames import SLOW, at, frame, lake_frame, tuples

HOUR_US = 3_600_000_000


def moved(spark: SparkSession, seen: list[Visit], heads: list[Visit] | None = None) -> DataFrame:
    return paths(frame(spark, VISITS, seen), frame(spark, VISITS, heads or []))


def test_only_those_who_come_are_visits(spark: SparkSession) -> None:
    rows = [
        (at(10.0 + i), "ann", f"b{i}", op, None, None)
        for i, op in enumerate(("open", "resume", "close", "leave"))
    ]
    expected = [("ann", 10_000_000, "b0"), ("ann", 11_000_000, "b1")]
    assert_df_equality(
        visits(lake_frame(spark, SESSIONS, rows)),
        frame(spark, VISITS, expected),
        ignore_nullable=True,
    )


def test_moves_with_the_path_that_led_there(spark: SparkSession) -> None:
    day = 24 * HOUR_US
    seen = [
        ("ann", 8 * HOUR_US, "home"),
        # The same broker again is no move; the same row twice is one.
        ("ann", 8 * HOUR_US + 1, "home"),
        ("ann", 9 * HOUR_US, "work"),
        ("ann", 9 * HOUR_US, "work"),
        ("ann", day + 18 * HOUR_US, "home"),
        ("bob", 9 * HOUR_US, "home"),
    ]
    expected = [
        (0, 9, None, "home", "work", 1),
        (1, 18, "home", "work", "home", 1),
    ]
    found = moved(spark, seen)
    assert_df_equality(
        moves_of(found),
        frame(spark, MOVES, expected),
        ignore_row_order=True,
        ignore_nullable=True,
    )
    assert set(tuples(heads_of(found, 0))) == {
        ("ann", 9 * HOUR_US, "work"), ("ann", day + 18 * HOUR_US, "home"),
        ("bob", 9 * HOUR_US, "home"),
    }  # fmt: skip
    assert tuples(heads_of(found, day)) == [("ann", day + 18 * HOUR_US, "home")]


def test_nothing_and_a_single_visit(spark: SparkSession) -> None:
    assert moves_of(moved(spark, [])).collect() == []
    assert moves_of(moved(spark, [("ann", 1, "b0")])).collect() == []
    nothing = frame(spark, MOVES, [])
    assert next_brokers(nothing, support=1, next_max=3).collect() == []


def test_probabilities_in_every_context(spark: SparkSession) -> None:
    moves = [
        (0, 8, None, "a", "b", 6),
        (1, 8, "x", "a", "b", 1),
        (1, 9, "x", "a", "c", 3),
        # Too few to say anything.
        (1, 9, None, "c", "a", 1),
    ]
    found = next_brokers(frame(spark, MOVES, moves), support=3, next_max=1)
    expected = [
        ("a", None, None, "b", 7, 0.7, 1),
        ("a", 8, None, "b", 7, 1.0, 1),
        ("a", 9, None, "c", 3, 1.0, 1),
        ("a", None, "x", "c", 3, 0.75, 1),
        ("a", 9, "x", "c", 3, 1.0, 1),
    ]
    assert_df_equality(
        found,
        frame(spark, NEXT_BROKERS, expected),
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_one_user_with_half_of_all_visits(spark: SparkSession) -> None:
    rows = spark.range(20_000).selectExpr(
        "if(id % 2 = 0, 'bot', 'u' || id) as user_id",
        "id * 1000000 as time_us",
        "'b' || (id DIV 2) % 5 as broker_id",
    )
    found = moves_of(paths(rows, frame(spark, VISITS, [])))
    assert found.selectExpr("sum(moves)").first() == (9_999,)


_SOME_VISITS = st.lists(
    st.tuples(
        st.sampled_from(["u0", "u1", "u2"]),
        st.integers(0, 48).map(lambda half_hours: half_hours * HOUR_US // 2),
        st.sampled_from("abcd"),
    ),
    max_size=14,
)


@settings(
    max_examples=3,
    suppress_health_check=SLOW,
)
@given(cases=st.lists(_SOME_VISITS, min_size=10, max_size=30), cut=st.integers(0, 48))
def test_as_one_visit_after_the_other_and_cut_anywhere(
    spark: SparkSession, cases: list[list[Visit]], cut: int
) -> None:
    seen = [(f"{i}/{u}", t, f"{i}/{b}") for i, case in enumerate(cases) for u, t, b in case]
    expected = next_brokers_of(seen, support=2, next_max=2)
    cut_us = cut * HOUR_US // 2
    early = moved(spark, [visit for visit in seen if visit[1] < cut_us])
    heads = [(row.user_id, row.time_us, row.broker_id) for row in heads_of(early, 0).collect()]
    late = moved(spark, [visit for visit in seen if visit[1] >= cut_us], heads)
    moves = summed(moves_of(early).unionByName(moves_of(late)))
    found = {tuple(row) for row in next_brokers(moves, support=2, next_max=2).collect()}
    assert {row[:5] for row in found} == {row[:5] for row in expected}
    assert sorted(row[5] for row in found) == pytest.approx(sorted(row[5] for row in expected))
