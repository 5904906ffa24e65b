"""Who follows what where, and the best broker for everybody at once (DYNATOPS III-B).

    Util(b, u) = Sim(b, u) - load_weight x Load(b)

Sim is the share of u's topics that others at b follow; Load(b) is b's subscriptions over the
average of its cluster, with u there. As brokers have it themselves: docs/selection.md.

Users are placed in rounds. In each, every other user says where its utility would be highest, and
by how much; brokers take those who gain most, as long as they have room; then everything is counted
again. Half of the users wait in each round, so that two do not swap places for ever. When nobody
gains any more, or nobody has room, that is the fixed point.

Considered for a user are brokers of its cluster that share a topic with it, the one where it is,
and the one with the least load. Clusters have nothing to do with each other: Spark brings the users
of each to one task, once, and rounds are run there on arrays (`selection_rounds`).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from analytics.transforms.selection_rounds import (
    BILLION,
    BROKER_BITS,
    BROKER_MASK,
    PLACED,
    placed_clusters,
)
from analytics.transforms.selection_settings import SelectionJobSettings
from dynatops.lake.fields import SUBSCRIBE, UNSUBSCRIBE

_KEPT = StorageLevel.MEMORY_AND_DISK


class Selected(NamedTuple):
    users: DataFrame
    topics: DataFrame
    brokers: DataFrame
    rounds: int


# ---- who follows what ----------------------------------------------------------------------------


def subscription_ops(subscriptions: DataFrame) -> DataFrame:
    """Rows of `subscriptions` as SUBSCRIPTION_OPS, not summed: they seldom have repeats."""
    micros = fn.unix_micros("time")
    return subscriptions.select(
        "user_id",
        "topic",
        "broker_id",
        fn.when(fn.col("op") == SUBSCRIBE, micros).alias("subscribed_us"),
        fn.when(fn.col("op") == UNSUBSCRIBE, micros).alias("unsubscribed_us"),
    )


def latest_ops(ops: DataFrame, since_us: int) -> DataFrame:
    """The last of each kind for each user, topic and broker, in any order of the input."""
    latest = ops.groupBy("user_id", "topic", "broker_id").agg(
        fn.max("subscribed_us").alias("subscribed_us"),
        fn.max("unsubscribed_us").alias("unsubscribed_us"),
    )
    return latest.filter(fn.greatest("subscribed_us", "unsubscribed_us") >= since_us)


def followed(ops: DataFrame) -> DataFrame:
    """FOLLOWED of latest ops: a user is where it subscribed last, and only that counts.

    A broker that crashed never says that its users have left.
    """
    # Given up and taken up in the same microsecond is a session that replaces another.
    lasts = fn.col("unsubscribed_us").isNull() | (
        fn.col("subscribed_us") >= fn.col("unsubscribed_us")
    )
    active = ops.filter(fn.col("subscribed_us").isNotNull() & lasts)
    of_user = Window.partitionBy("user_id")
    latest = fn.max(fn.struct("subscribed_us", "broker_id")).over(of_user)
    placed = active.withColumn("latest", latest)
    here = placed.filter(fn.col("broker_id") == fn.col("latest.broker_id"))
    return here.select("user_id", "broker_id", "topic")


# ---- the best broker -----------------------------------------------------------------------------


def selected(followed: DataFrame, clusters: DataFrame, settings: SelectionJobSettings) -> Selected:
    """The best broker of its cluster for everybody in FOLLOWED.

    `clusters` are BROKER_CLUSTERS; brokers that are not in it form clusters of their own. What the
    outcome is made of is computed here, once, and kept where it was computed; what a worker takes
    with it is computed again.
    """
    brokers = _numbered(followed, clusters, settings.cluster_size).persist(_KEPT)
    placed = _placed(_users(followed, brokers), brokers, settings).persist(_KEPT)
    names = followed.select("topic").distinct().select("topic", _key_of("topic").alias("key"))
    rounds = placed.agg(fn.max("broker.rounds").alias("rounds")).collect()[0].rounds
    users = (
        followed.select("user_id").distinct().select("user_id", _key_of("user_id").alias("user"))
    )
    return Selected(
        _chosen(_said_of("user", placed), users, brokers),
        _gathering(_said_of("topic", placed), names, brokers),
        _loads_of(_said_of("broker", placed), brokers),
        rounds or 0,
    )


def _key_of(name: str) -> Column:
    """64 bits stand for a name, as in what brokers tell each other."""
    return fn.xxhash64(name)


def _numbered(followed: DataFrame, clusters: DataFrame, cluster_size: int) -> DataFrame:
    """Brokers by number, with their cluster and its number."""
    seen = followed.select("broker_id").distinct()
    known = clusters.select("broker_id", "cluster").dropDuplicates(["broker_id"])
    all_of = seen.join(known, "broker_id", "full_outer").coalesce(1)
    others = Window.partitionBy(fn.col("cluster").isNull()).orderBy("broker_id")
    number = fn.floor((fn.row_number().over(others) - 1) / fn.lit(cluster_size))
    own = fn.concat(fn.lit("other "), number.cast("string"))
    named = all_of.withColumn("cluster", fn.coalesce("cluster", own))
    everything = Window.partitionBy(fn.lit(0))
    return named.select(
        "broker_id",
        "cluster",
        (fn.row_number().over(everything.orderBy("broker_id")) - 1).alias("broker"),
        (fn.dense_rank().over(everything.orderBy("cluster")) - 1).alias("cluster_number"),
    )


def _users(followed: DataFrame, brokers: DataFrame) -> DataFrame:
    """One row for each user: its key, where it is, and the keys of its topics."""
    numbers = fn.broadcast(brokers.select("broker_id", "broker", "cluster_number"))
    rows = followed.select(_key_of("user_id").alias("user"), "broker_id", "topic")
    return (
        rows.join(numbers, "broker_id")
        .groupBy("user")
        .agg(
            fn.min("cluster_number").alias("cluster_number"),
            fn.min("broker").alias("broker"),
            fn.collect_list(_key_of("topic")).alias("topics"),
        )
    )


def _placed(users: DataFrame, brokers: DataFrame, settings: SelectionJobSettings) -> DataFrame:
    """PLACED: each cluster goes to one task, and is placed there."""
    everybody = users.select("cluster_number", "user", "broker", "topics").unionByName(
        brokers.select(
            "cluster_number",
            fn.lit(None).cast("long").alias("user"),
            "broker",
            fn.array().cast("array<long>").alias("topics"),
        )
    )
    return (
        everybody.repartition("cluster_number")
        .sortWithinPartitions("cluster_number", fn.col("user").bitwiseAND(1), "user")
        .mapInArrow(partial(placed_clusters, settings=settings), PLACED)
    )


def _said_of(kind: str, placed: DataFrame) -> DataFrame:
    return placed.filter(fn.col(kind).isNotNull()).select(f"{kind}.*")


def broker_of(rank: str) -> Column:
    return (fn.lit(BROKER_MASK) - fn.col(rank).bitwiseAND(BROKER_MASK)).cast("int")


def utility_of(rank: str) -> Column:
    return fn.shiftright(rank, BROKER_BITS) / BILLION


# ---- what comes out ------------------------------------------------------------------------------


def _chosen(placed: DataFrame, users: DataFrame, brokers: DataFrame) -> DataFrame:
    """SELECTED: where rounds ended, with utilities as they are then."""
    names = brokers.select("broker_id", "broker")

    def named(column: str) -> DataFrame:
        return fn.broadcast(
            names.select(fn.col("broker_id").alias(f"{column}_id"), fn.col("broker").alias(column))
        )

    found = placed.withColumn("runner", broker_of("other"))
    return (
        found.join(users, "user")
        .join(named("at"), "at")
        .join(named("origin"), "origin")
        .join(named("runner"), "runner", "left")
        .select(
            "user_id",
            fn.col("origin_id").alias("broker_id"),
            fn.col("at_id").alias("best"),
            utility_of("own").alias("utility"),
            fn.col("runner_id").alias("runner_up"),
            utility_of("other").alias("runner_up_utility"),
            (utility_of("own") - utility_of("before")).alias("gain"),
            fn.col("size").alias("topics"),
        )
    )


def _gathering(placed: DataFrame, names: DataFrame, brokers: DataFrame) -> DataFrame:
    """GATHERING: of each topic the broker at which most follow it."""
    most = placed.groupBy("key").agg(fn.max("rank").alias("rank"))
    at = most.select(
        "key",
        broker_of("rank").alias("broker"),
        fn.shiftright("rank", BROKER_BITS).alias("followers"),
    )
    numbers = fn.broadcast(brokers.select("broker", "broker_id"))
    return names.join(at, "key").join(numbers, "broker").select("topic", "broker_id", "followers")


def _loads_of(placed: DataFrame, brokers: DataFrame) -> DataFrame:
    """BROKER_LOADS."""
    return brokers.join(fn.broadcast(placed), "broker").select(
        "broker_id", "cluster", "load", "load_before", "topics", "topics_before"
    )
