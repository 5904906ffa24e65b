"""Who follows what where, and the best broker for everybody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from chispa import assert_df_equality
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from analytics.jobs.selection import BROKER_CLUSTERS, FOLLOWED, SUBSCRIPTION_OPS
from analytics.transforms.selection import (
    Selected,
    _numbered,
    followed,
    latest_ops,
    selected,
    subscription_ops,
)
from analytics.transforms.selection_settings import SelectionJobSettings
from dynatops.lake.fields import SUBSCRIPTIONS
from tests.support.analytics_reference import BILLION, Placing, User, place
from tests.support.spark_frames import SLOW, at, frame, lake_frame, tuples

PLAIN = SelectionJobSettings(
    load_weight=0.0, load_floor=0.0, margin=0.0, capacity=100.0, intake=100.0
)
Followed = Iterable[tuple[str, str, str]]


def select(
    spark: SparkSession,
    rows: Followed,
    settings: SelectionJobSettings = PLAIN,
    clusters: Mapping[str, str] | None = None,
) -> Selected:
    return selected(
        frame(spark, FOLLOWED, rows),
        frame(spark, BROKER_CLUSTERS, (clusters or {}).items()),
        settings,
    )


def following(user: str, broker: str, topics: Iterable[str]) -> list[tuple[str, str, str]]:
    return [(user, broker, topic) for topic in topics]


# ---- who follows what ----------------------------------------------------------------------------


def test_ops_of_rows_and_the_latest_of_each_kind(spark: SparkSession) -> None:
    rows = [
        (at(100.0), "b0", "ann", "quake", "subscribe"),
        (at(101.0), "b0", "ann", "quake", "unsubscribe"),
        (at(99.0), "b0", "ann", "quake", "unsubscribe"),
        (at(50.0), "b0", "bob", "quake", "subscribe"),
    ]
    ops = subscription_ops(lake_frame(spark, SUBSCRIPTIONS, rows))
    expected = [("ann", "quake", "b0", 100_000_000, 101_000_000)]
    assert_df_equality(
        latest_ops(ops, since_us=60_000_000),
        frame(spark, SUBSCRIPTION_OPS, expected),
        ignore_row_order=True,
        ignore_nullable=True,
    )


def test_a_user_is_where_it_subscribed_last(spark: SparkSession) -> None:
    ops = [
        # Moved from b0, which crashed before it could say so.
        ("ann", "a", "b0", 10, None),
        ("ann", "b", "b0", 12, None),
        ("ann", "a", "b1", 20, None),
        # Gave up; took up again; both in one instant.
        ("bob", "a", "b0", 10, 11),
        ("bob", "b", "b0", 12, 11),
        ("bob", "c", "b0", 12, 12),
        # Only ever left.
        ("cat", "a", "b0", None, 5),
        # Two brokers in one instant: the name decides.
        ("dan", "a", "b0", 10, None),
        ("dan", "a", "b1", 10, None),
    ]
    found = followed(frame(spark, SUBSCRIPTION_OPS, ops))
    expected = [
        ("ann", "b1", "a"),
        ("bob", "b0", "b"),
        ("bob", "b0", "c"),
        ("dan", "b1", "a"),
    ]
    assert_df_equality(
        found,
        frame(spark, FOLLOWED, expected),
        ignore_row_order=True,
        ignore_nullable=True,
    )


# ---- the best broker -----------------------------------------------------------------------------


def test_everything_of_a_small_network(spark: SparkSession) -> None:
    rows = [
        *following("ann", "b0", "wxyz"),
        *following("bob", "b1", "wxy"),
        *following("cat", "b1", "xyz"),
        *following("dan", "b2", "w"),
    ]
    whole = select(spark, rows, replace(PLAIN, rounds_max=2))
    gathered = {row.user_id: row.best for row in whole.users.collect()}
    assert len(set(gathered.values())) == 1
    home = gathered["ann"]
    assert {(row.topic, row.broker_id, row.followers) for row in whole.topics.collect()} == {
        ("w", home, 3), ("x", home, 3), ("y", home, 3), ("z", home, 2)
    }  # fmt: skip
    loads = {row.broker_id: row for row in whole.brokers.collect()}
    assert (loads[home].load, loads[home].topics) == (11, 4)
    assert sum(row.load_before for row in loads.values()) == 11
    assert {row.broker_id: row.topics_before for row in loads.values()} == {
        "b0": 4, "b1": 4, "b2": 1
    }  # fmt: skip


def test_best_runner_up_and_gain(spark: SparkSession) -> None:
    weighing = SelectionJobSettings(load_weight=0.1, load_floor=0.0, margin=0.5, capacity=9.0)
    rows = [
        *following("ann", "b0", "ab"),
        *following("bob", "b1", "abcd"),
        *following("cat", "b2", "a"),
    ]
    found = select(spark, rows, replace(weighing, rounds_max=1, intake=9.0, settled=0.0))
    after = {row.user_id: row.best for row in found.users.collect()}
    loads = {"b0": 0, "b1": 0, "b2": 0}
    topics = {"ann": "ab", "bob": "abcd", "cat": "a"}
    for user, broker in after.items():
        loads[broker] += len(topics[user])

    def utility(user: str, broker: str) -> float:
        others = {t for u, b in after.items() if b == broker and u != user for t in topics[u]}
        similar = sum(t in others for t in topics[user]) / len(topics[user])
        here = after[user] == broker
        load = loads[broker] + (0 if here else len(topics[user]))
        return similar - 0.1 * load / (7 / 3)

    for row in found.users.collect():
        assert row.utility == pytest.approx(utility(row.user_id, row.best), abs=1e-8)
        assert row.runner_up_utility == pytest.approx(utility(row.user_id, row.runner_up), abs=1e-8)
        assert row.runner_up != row.best
        gain = utility(row.user_id, row.best) - utility(row.user_id, row.broker_id)
        assert row.gain == pytest.approx(gain, abs=2e-8)


def test_a_broker_takes_no_more_than_it_may(spark: SparkSession) -> None:
    # Nobody shares a topic at its own broker; everywhere else somebody does. Numbers decide.
    rows = [(f"u{i}", f"b{i // 10}", f"t{i % 10}") for i in range(60)]
    crowding = replace(PLAIN, capacity=1.5, intake=1.0, rounds_max=4)
    loads = [row.load for row in select(spark, rows, crowding).brokers.collect()]
    assert 10 < max(loads) <= 15
    assert sum(loads) == 60


def test_nothing_a_single_user_and_brokers_without_users(spark: SparkSession) -> None:
    once = replace(PLAIN, rounds_max=1)
    nothing = select(spark, [], once, clusters={"b0": "west"})
    assert nothing.users.collect() == []
    assert [row.load for row in nothing.brokers.collect()] == [0]
    alone = select(spark, following("ann", "b0", "a"), once)
    (row,) = alone.users.collect()
    assert (row.best, row.runner_up, row.gain) == ("b0", None, 0.0)


def test_brokers_without_a_cluster_are_divided(spark: SparkSession) -> None:
    rows = frame(spark, FOLLOWED, [("u", f"b{i}", "a") for i in range(7)])
    known = frame(spark, BROKER_CLUSTERS, [("b3", "west"), ("silent", "west")])
    numbered = sorted(_numbered(rows, known, 3).collect(), key=lambda row: row.broker)
    assert [(row.broker_id, row.cluster, row.broker) for row in numbered] == [
        ("b0", "other 0", 0), ("b1", "other 0", 1), ("b2", "other 0", 2), ("b3", "west", 3),
        ("b4", "other 1", 4), ("b5", "other 1", 5), ("b6", "other 1", 6), ("silent", "west", 7),
    ]  # fmt: skip
    assert [row.cluster_number for row in numbered] == [0, 0, 0, 2, 1, 1, 1, 2]


def test_users_and_brokers_are_never_paired_but_by_topics(spark: SparkSession) -> None:
    """Each topic has its own broker: rows that are considered grow with users alone."""
    rows = spark.range(4_000).selectExpr(
        "'u' || id as user_id", "'b' || id % 400 as broker_id", "'t' || id % 400 as topic"
    )
    clusters = rows.select("broker_id", fn.lit("one").alias("cluster")).distinct()
    found = selected(rows, clusters, replace(PLAIN, rounds_max=1))
    assert found.users.count() == 4_000
    assert found.users.filter("best != broker_id").count() == 0


def test_a_topic_that_half_of_all_rows_are_of(spark: SparkSession) -> None:
    rows = [
        row
        for i in range(400)
        for row in (
            *following(f"u{i:03}", f"b{i % 8}", "h"),
            (f"u{i:03}", f"b{i % 8}", f"t{i % 90}"),
        )
    ]
    found = select(spark, rows, replace(SelectionJobSettings(), rounds_max=3))
    assert found.users.count() == 400
    loads = [row.load for row in found.brokers.collect()]
    assert max(loads) <= 1.2 * 100


# ---- beside the reference ------------------------------------------------------------------------

USER = st.tuples(st.integers(0, 3), st.frozensets(st.sampled_from("abcdef"), min_size=1))
CLUSTER = st.lists(USER, max_size=14)
SETTINGS = st.builds(
    SelectionJobSettings,
    load_weight=st.sampled_from([0.0, 0.3, 1.2]),
    load_floor=st.sampled_from([0.0, 3.0]),
    margin=st.sampled_from([0.0, 0.05]),
    capacity=st.sampled_from([1.0, 1.3, 3.0]),
    intake=st.sampled_from([0.5, 2.0]),
    rounds_max=st.just(3),
    settled=st.just(0.0),
)


@settings(
    max_examples=2,
    suppress_health_check=SLOW,
)
@given(cases=st.lists(CLUSTER, min_size=8, max_size=20), wanted=SETTINGS)
def test_as_one_user_after_the_other(
    spark: SparkSession, cases: list[list[tuple[int, frozenset[str]]]], wanted: SelectionJobSettings
) -> None:
    """Many small clusters in one frame, each beside the plain reference."""
    rows = [
        (f"u{i}.{j}", f"b{i}.{broker}", f"{i}/{topic}")
        for i, case in enumerate(cases)
        for j, (broker, topics) in enumerate(case)
        for topic in topics
    ]
    clusters = {f"b{i}.{b}": f"c{i}" for i in range(len(cases)) for b in range(4)}
    names = spark.createDataFrame([(user,) for user in {row[0] for row in rows}], "user_id string")
    lots = dict(map(tuple, names.select("user_id", fn.xxhash64("user_id")).collect()))
    numbers = {broker: i for i, broker in enumerate(sorted(clusters))}
    placings = []
    for i, case in enumerate(cases):
        users = {
            f"u{i}.{j}": User(
                f"b{i}.{broker}", frozenset(f"{i}/{t}" for t in topics), lots[f"u{i}.{j}"]
            )
            for j, (broker, topics) in enumerate(case)
        }
        placings.append(Placing(users, [f"b{i}.{b}" for b in range(4)], numbers, wanted))
    rounds = place(placings, wanted)
    found = select(spark, rows, wanted, clusters)
    assert found.rounds == rounds
    best = {row.user_id: row for row in found.users.collect()}
    for placing in placings:
        assert {name: best[name].best for name in placing.users} == placing.at
        for name in placing.users:
            others = placing.others(name)
            own = placing.utility(name, placing.at[name])
            assert best[name].utility == pytest.approx(own / BILLION, abs=1e-12)
            assert best[name].runner_up == (others[-1][2] if others else None)
    assert tuples(found.brokers.select("broker_id", "load")) == sorted(
        ((b, load) for placing in placings for b, load in placing.loads.items()), key=repr
    )
