"""eq. 12 as one aggregation, and period by period."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest
from chispa import assert_approx_df_equality, assert_df_equality
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from analytics.jobs.rates import BLOCK_EVENTS, TOPIC_RATES, block_events
from analytics.transforms.rates import (
    BLOCK_PERIODS,
    EVENT_COUNTS,
    estimated,
    observed,
    of_topics,
    since,
    summed,
)
from dynatops.lake.fields import PUBLICATIONS
from tests.support.analytics_reference import Event, filtered_rates
from tests.support.spark_frames import SLOW, at, frame, lake_frame

PERIOD_S = 10.0
ALPHA = 0.3


def blocks(spark: SparkSession, events: Iterable[Event]) -> DataFrame:
    """A row for each event of `Event`: several of a block, as parts have them."""
    rows = [
        (topic, broker, period // BLOCK_PERIODS, *in_its_place(period, count))
        for topic, broker, period, count in events
    ]
    return frame(spark, BLOCK_EVENTS, rows)


def in_its_place(period: int, count: int) -> list[int]:
    return [count if i == period % BLOCK_PERIODS else 0 for i in range(BLOCK_PERIODS)]


def estimates(
    spark: SparkSession,
    events: Iterable[Event],
    *,
    until: int,
    before: int | None = None,
    former: Iterable[tuple[str, float]] = (),
    alpha: float = ALPHA,
) -> DataFrame:
    sums = observed(blocks(spark, events), alpha=alpha, period_s=PERIOD_S, until=until)
    known = frame(spark, TOPIC_RATES, former)
    periods = until - (before if before is not None else until)
    return estimated(of_topics(sums), known, ("topic",), alpha=alpha, periods=periods)


def test_events_by_topic_broker_and_period(spark: SparkSession) -> None:
    rows = [
        (at(100.0), 1.0, "b0", "quake", 3, 30),
        (at(109.999999), 1.0, "b0", "quake", 4, 40),
        (at(110.0), 1.0, "b0", "quake", 5, 50),
        (at(120.0), 1.0, "b0", "quake", 8, 50),
        (at(100.0), 1.0, "b1", "quake", 6, 60),
        (at(100.0), 1.0, "b0", "silent", 0, 0),
    ]
    found = block_events(PERIOD_S)(lake_frame(spark, PUBLICATIONS, rows))
    early, late = [0] * 10, [0] * 11
    expected = [
        ("quake", "b0", 0, *early, 7, 5),
        ("quake", "b0", 1, 8, *late),
        ("quake", "b1", 0, *early, 6, 0),
    ]
    assert_df_equality(
        found,
        frame(spark, BLOCK_EVENTS, expected),
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_what_is_not_complete_is_kept(spark: SparkSession) -> None:
    events = [("a", "b0", 11, 1), ("a", "b0", 12, 2), ("a", "b0", 13, 3), ("a", "b0", 13, 4)]
    found = summed(since(blocks(spark, events), 13))
    assert [tuple(row) for row in found.collect()] == [("a", "b0", 1, *in_its_place(13, 7))]
    assert since(blocks(spark, events), 24).collect() == []


def test_only_the_newest_period_counts_if_alpha_is_1(spark: SparkSession) -> None:
    for until in (12, 13, 23, 24, 36):
        events = [("a", "b0", until - 5, 9), ("a", "b0", until - 1, 4), ("a", "b0", until, 7)]
        (row,) = estimates(spark, events, until=until, alpha=1.0).collect()
        assert row.rate == pytest.approx(0.4)


def test_a_first_observation_then_silence_then_more(spark: SparkSession) -> None:
    events = [("a", "b0", 5, 100), ("a", "b1", 7, 50), ("once", "b0", 5, 10)]
    # a: 10/s; 0.7 of it; 0.7 of that and 0.3 of 5/s.
    expected = [("a", 10.0 * 0.49 + 0.3 * 5.0), ("once", 1.0 * 0.49)]
    assert_approx_df_equality(
        estimates(spark, events, until=8),
        frame(spark, TOPIC_RATES, expected),
        1e-12,
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_what_was_estimated_before_goes_on(spark: SparkSession) -> None:
    found = estimates(
        spark, [("a", "b0", 9, 20)], until=10, before=8, former=[("a", 4.0), ("quiet", 1.0)]
    )
    expected = [("a", 4.0 * 0.49 + 0.3 * 2.0), ("quiet", 0.49)]
    assert_approx_df_equality(
        found,
        frame(spark, TOPIC_RATES, expected),
        1e-12,
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_nothing_and_a_single_row(spark: SparkSession) -> None:
    assert estimates(spark, [], until=3).collect() == []
    (row,) = estimates(spark, [("a", "b0", 2, 7)], until=3).collect()
    assert (row.topic, row.rate) == ("a", pytest.approx(0.7))


def test_a_very_long_silence_is_no_fault(spark: SparkSession) -> None:
    (row,) = estimates(spark, [("a", "b0", 0, 7)], until=100_000).collect()
    assert row.rate == 0.0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["b0", "b1"]),
        st.integers(18, 28),
        st.integers(1, 1_000),
    ),
    max_size=12,
)
CASES = st.lists(EVENTS, min_size=10, max_size=40)


@settings(
    max_examples=4,
    suppress_health_check=SLOW,
)
@given(cases=CASES, cut=st.integers(18, 29))
def test_it_is_the_filter_and_may_be_cut_anywhere(
    spark: SparkSession, cases: list[list[Event]], cut: int
) -> None:
    """Many cases in one frame; computed at once, and in two parts."""
    events = [(f"{i}/{t}", b, p, n) for i, case in enumerate(cases) for t, b, p, n in case]
    counts = Counter[tuple[str, int]]()
    for topic, _, period, n in events:
        counts[(topic, period)] += n
    # What nobody has seen by then begins later.
    expected = filtered_rates(counts, {}, alpha=ALPHA, period_s=PERIOD_S, before=None, until=29)
    whole = estimates(spark, events, until=29)
    assert dict(map(tuple, whole.collect())) == pytest.approx(expected, rel=1e-9)
    early = estimates(spark, [e for e in events if e[2] < cut], until=cut)
    late = estimates(
        spark,
        [e for e in events if e[2] >= cut],
        until=29,
        before=cut,
        former=[tuple(row) for row in early.collect()],
    )
    assert dict(map(tuple, late.collect())) == pytest.approx(expected, rel=1e-9)


def test_a_topic_with_half_of_all_rows_is_summed_before_it_is_sent(spark: SparkSession) -> None:
    rows = spark.range(200_000).selectExpr(
        f"timestamp_seconds({1_000_000} + id % 1000) as window_start",
        "1.0d as window_s",
        "'b' || id % 7 as broker_id",
        "if(id % 2 = 0, 'hot', 't' || id % 5000) as topic",
        "1L as events",
        "1L as bytes",
    )
    events = block_events(PERIOD_S)(rows.repartition(4))
    found = observed(events, alpha=ALPHA, period_s=PERIOD_S, until=100_100)
    assert found.filter("topic = 'hot'").count() == 7
    # Sums before each exchange: what goes over it of the hot topic are brokers and blocks, once for
    # each task.
    found.collect()
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert "SortMergeJoin" not in plan
    assert "Exchange hashpartitioning(topic" in plan
    assert re.search(r"partial_sum", plan[plan.index("Exchange hashpartitioning(topic") :])
    hot = events.filter("topic = 'hot'").select(fn.expr(" + ".join(EVENT_COUNTS)).alias("events"))
    assert hot.agg(fn.sum("events")).first() == (100_000,)
