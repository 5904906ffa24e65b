"""What `selection` is for: brokers' subscriptions change no more often than with online selection
alone, at an even load, on the multimodal workload of DYNATOPS IV-A.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from analytics.jobs.selection import BROKER_CLUSTERS
from analytics.transforms.selection import (
    Selected,
    followed,
    latest_ops,
    selected,
    subscription_ops,
)
from analytics.transforms.selection_settings import SelectionJobSettings
from broker_agent.core.selection.selection_settings import SelectionSettings as OnlineSettings
from dynatops.lake.fields import SUBSCRIPTIONS
from experiments.workloads.churn import ChurnSpec
from tests.support.spark_frames import frame, lake_frame
from tests.support.two_days import Day, advice, first_day, second_day

ONLINE = OnlineSettings()


def place(spark: SparkSession, day: Day, settings: SelectionJobSettings) -> Selected:
    ops = latest_ops(subscription_ops(lake_frame(spark, SUBSCRIPTIONS, day.log)), 0)
    clusters = frame(spark, BROKER_CLUSTERS, [(name, "all") for name in day.names])
    return selected(followed(ops).localCheckpoint(), clusters, settings)


@pytest.mark.timeout(600)
def test_beside_online_selection_and_beside_similarity_alone(spark: SparkSession) -> None:
    day = first_day(ChurnSpec(), brokers=12, seed=1)
    chosen = place(spark, day, SelectionJobSettings())
    users = {row.user_id: row for row in chosen.users.collect()}
    # The log says where everybody is.
    assert {name: row.broker_id for name, row in users.items()} == {
        f"u{user}": broker for user, broker in day.at.items()
    }
    loads = [row.load for row in chosen.brokers.collect()]
    held, before = chosen.brokers.selectExpr("sum(topics)", "sum(topics_before)").first() or (0, 0)
    assert held <= before
    topics = {row.topic: row.broker_id for row in chosen.topics.collect()}
    advised = advice({name: row.best for name, row in users.items()}, topics)
    for seed in (7, 8):
        online = second_day(day, seed, ONLINE, None)
        with_advice = second_day(day, seed, ONLINE, advised)
        similar = second_day(day, seed, replace(ONLINE, load_weight=0.0), None)
        assert with_advice.changes <= online.changes
        assert with_advice.load_std <= 0.5 * similar.load_std
        assert statistics.pstdev(loads) <= 0.5 * similar.load_std
