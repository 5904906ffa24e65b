"""Who asks for which past."""

from __future__ import annotations

from collections import Counter

import pytest
from chispa import assert_approx_df_equality, assert_df_equality
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from analytics.jobs.demand import BROKER_DEMAND, HOUR_REQUESTS, TOPIC_DEMAND
from analytics.transforms.demand import broker_demand, hour_requests, topic_demand
from dynatops.lake.fields import REQUESTS
from tests.support.spark_frames import SLOW, at, frame, lake_frame


def test_requests_by_hour(spark: SparkSession) -> None:
    rows = [
        (at(3_599.9), 60.0, "b0", "quake", 2),
        (at(0.0), 60.0, "b0", "quake", 3),
        (at(3_600.0), 60.0, "b0", "quake", 4),
        (at(0.0), 60.0, "b1", "silent", 0),
    ]
    assert_df_equality(
        hour_requests(lake_frame(spark, REQUESTS, rows)),
        frame(spark, HOUR_REQUESTS, [(0, "b0", "quake", 5), (1, "b0", "quake", 4)]),
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_rate_share_popularity_and_locality(spark: SparkSession) -> None:
    hours = [
        (10, "b0", "quake", 2_700), (11, "b0", "quake", 2_700), (11, "b1", "quake", 1_800),
        (11, "b1", "news", 7_200),
    ]  # fmt: skip
    brokers = broker_demand(frame(spark, HOUR_REQUESTS, hours))
    assert_approx_df_equality(
        brokers,
        frame(
            spark,
            BROKER_DEMAND,
            [
                ("b0", "quake", 5_400, 0.75, 0.75, 1),
                ("b1", "quake", 1_800, 0.25, 0.25, 2),
                ("b1", "news", 7_200, 1.0, 1.0, 1),
            ],
        ),
        1e-12,
        ignore_row_order=True,
        ignore_nullable=True,
    )
    assert_approx_df_equality(
        topic_demand(brokers),
        frame(
            spark,
            TOPIC_DEMAND,
            [("quake", 7_200, 1.0, 0.5, 0.625, 2), ("news", 7_200, 1.0, 0.5, 1.0, 1)],
        ),
        1e-12,
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_nothing_and_a_single_row(spark: SparkSession) -> None:
    nothing = broker_demand(frame(spark, HOUR_REQUESTS, []))
    assert nothing.collect() == []
    assert topic_demand(nothing).collect() == []
    single = broker_demand(frame(spark, HOUR_REQUESTS, [(5, "b0", "quake", 36)]))
    assert topic_demand(single).collect() == [("quake", 36, 0.01, 1.0, 1.0, 1)]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from(["b0", "b1", "b2"]),
        # Half of all are of one topic.
        st.sampled_from(["hot", "hot", "hot", "x", "y", "z"]),
        st.integers(1, 99),
    ),
    min_size=1,
    max_size=60,
)


@settings(
    max_examples=4,
    suppress_health_check=SLOW,
)
@given(rows=ROWS)
def test_as_plain_sums(spark: SparkSession, rows: list[tuple[int, str, str, int]]) -> None:
    pairs, topics = Counter[tuple[str, str]](), Counter[str]()
    for _, broker, topic, requests in rows:
        pairs[(broker, topic)] += requests
        topics[topic] += requests
    hours = max(row[0] for row in rows) - min(row[0] for row in rows) + 1
    brokers = broker_demand(frame(spark, HOUR_REQUESTS, rows))
    for row in brokers.collect():
        requests = pairs.pop((row.broker_id, row.topic))
        assert row.requests == requests
        assert row.rate == pytest.approx(requests / hours / 3_600)
        assert row.share == pytest.approx(requests / topics[row.topic])
    assert not pairs
    found = {row.topic: row for row in topic_demand(brokers).collect()}
    assert {topic: row.requests for topic, row in found.items()} == dict(topics)
    assert sum(row.popularity for row in found.values()) == pytest.approx(1.0)
    for row in found.values():
        assert 1 / row.brokers - 1e-9 <= row.locality <= 1 + 1e-9
