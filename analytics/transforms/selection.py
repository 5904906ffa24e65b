"""Who follows what where, and the best broker for everybody at once (DYNATOPS III-B).

    Util(b, u) = Sim(b, u) - load_weight x Load(b)

Sim is the share of u's topics that others at b follow; Load(b) is b's subscriptions over the
average of its cluster, with u there. As brokers have it themselves: docs/selection.md.

Users are placed in rounds. In each, every other user says where its utility would be highest, and
by how much; brokers take those who gain most, as long as they have room; then everything is counted
again. Half of the users wait in each round, so that two do not swap places for ever. When nobody
gains any more, or nobody has room, that is the fixed point.

Considered for a user are brokers of its cluster that share a topic with it, the one where it is,
and the one with the least load: rows grow with what is shared, never with users times brokers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as fn

from analytics.analytics_settings import DAY_S, late_setting, setting
from dynatops.lake.fields import SUBSCRIBE, UNSUBSCRIBE

# Utilities and brokers are ordered as one number: billionths of the utility, then the broker.
_BILLION = 1e9
_BROKER_BITS = 20
_BROKER_MASK = (1 << _BROKER_BITS) - 1
# What a row of the topics' table says of a broker: one user follows the topic there, several do; or
# the broker is considered whatever it follows.
_ONE, _SEVERAL, _ANYWAY = 0, 1, 2
_KIND_BITS = 2
# A table of so many topics at brokers is sent to everybody; a larger one is joined.
_BROADCAST_ENTRIES_MAX = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionJobSettings:
    late_s: float = late_setting(DAY_S)
    load_weight: float = setting(
        1.2,
        "What a load of twice the average costs, in similarity: w_l over the number of brokers, as "
        "brokers have it.",
    )
    load_floor: float = setting(
        20.0, "Loads are compared as if each broker had so many subscriptions more."
    )
    margin: float = setting(0.05, "Nobody is moved for a gain of utility below this.")
    capacity: float = setting(
        1.2, "A broker takes users until it has so many times the average load.", least=1.0
    )
    intake: float = setting(
        0.5,
        "In one round a broker takes users of so many times the average load at most: all move at "
        "once, and would run to the same one.",
        above=True,
    )
    rounds_max: int = setting(16, "Rounds at most, if nothing settles before.", least=1)
    settled: float = setting(
        0.002, "Users are settled when fewer than this share of them moves in a round."
    )
    cluster_size: int = setting(
        16, "Brokers without a cluster are divided into clusters of about so many.", least=1
    )
    keep_s: float = setting(
        30 * DAY_S,
        "A subscription that nothing was heard of for so long is forgotten: a broker that crashed "
        "does not say who left.",
        above=True,
    )


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


def selected(
    followed: DataFrame, clusters: DataFrame, settings: SelectionJobSettings, partitions: int
) -> Selected:
    """The best broker of its cluster for everybody in FOLLOWED.

    `clusters` are BROKER_CLUSTERS; brokers that are not in it form clusters of their own. Runs a
    job in each round. `partitions`: into how many users are divided.
    """
    brokers = _numbered(followed, clusters, settings.cluster_size).localCheckpoint()
    users = (
        _users(followed, brokers)
        .repartition(partitions, "user")
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    rounds = _Rounds(users, brokers, settings)
    before = rounds.count()
    while rounds.number < settings.rounds_max and not rounds.is_settled:
        rounds.run()
    after = rounds.count()
    chosen = _chosen(users, brokers, rounds).localCheckpoint()
    names = followed.select("topic").distinct().select("topic", _key_of("topic").alias("key"))
    topics = _gathering(after.followers, names, brokers).localCheckpoint()
    loads = _loads_of(brokers, before, after).localCheckpoint()
    users.unpersist()
    return Selected(chosen, topics, loads, rounds.number)


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
    rows = followed.select(_key_of("user_id").alias("user"), "user_id", "broker_id", "topic")
    return (
        rows.join(numbers, "broker_id")
        .groupBy("user")
        .agg(
            fn.min("user_id").alias("user_id"),
            fn.min("broker").alias("origin"),
            fn.min("cluster_number").alias("cluster_number"),
            fn.collect_list(_key_of("topic")).alias("topics"),
        )
        .withColumn("size", fn.size("topics"))
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    # broker, key, n: how many users at the broker follow a topic.
    followers: DataFrame
    # [broker] -> subscriptions, and the average of its cluster; the least loaded of each cluster.
    loads: dict[int, int]
    means: dict[int, float]
    least: dict[int, int]
    # Topics that brokers follow.
    entries: int
    topics: dict[int, int]


class _Rounds:
    """Where users are, and the next round."""

    def __init__(
        self, users: DataFrame, brokers: DataFrame, settings: SelectionJobSettings
    ) -> None:
        self.number = 0
        self._users = users
        self._settings = settings
        self._cluster_of = {row.broker: row.cluster_number for row in brokers.collect()}
        self._at = users.select("user", fn.col("origin").alias("at"))
        self._counts: _Counts | None = None
        self._few = settings.settled * users.count()
        # Rounds in a row in which hardly anybody moved: two, and both halves have been asked.
        self._quiet = 0

    @property
    def is_settled(self) -> bool:
        return self._quiet >= 2

    def placed(self) -> DataFrame:
        return self._users.join(self._at, "user")

    def run(self) -> None:
        counts = self.count()
        asked = self.placed().filter(fn.pmod(fn.col("user") + self.number, fn.lit(2)) == 0)
        options = self.options(asked, counts)
        moves = self._admitted(options, counts).localCheckpoint()
        moved = moves.count()
        self.number += 1
        self._quiet = 0 if moved > self._few else self._quiet + 1
        if moved:
            at = fn.coalesce("target", "at").alias("at")
            moved_to = self._at.join(moves, "user", "left").select("user", at)
            self._at = moved_to.localCheckpoint()
            self._counts = None

    def count(self) -> _Counts:
        if self._counts is None:
            placed = self.placed()
            followers = (
                placed.select(fn.col("at").alias("broker"), fn.explode("topics").alias("key"))
                .groupBy("broker", "key")
                .agg(fn.count(fn.lit(1)).alias("n"))
                .localCheckpoint()
            )
            sums = followers.groupBy("broker").agg(
                fn.sum("n").alias("load"), fn.count(fn.lit(1)).alias("topics")
            )
            self._counts = self._summed_up(followers, sums.collect())
        return self._counts

    def _summed_up(self, followers: DataFrame, sums: list[Row]) -> _Counts:
        loads = dict.fromkeys(self._cluster_of, 0) | {row.broker: row.load for row in sums}
        topics = dict.fromkeys(self._cluster_of, 0) | {row.broker: row.topics for row in sums}
        members: dict[int, list[int]] = {}
        for broker, cluster in sorted(self._cluster_of.items()):
            members.setdefault(cluster, []).append(broker)
        mean_of = {c: sum(loads[b] for b in of) / len(of) for c, of in members.items()}
        least = {c: min(of, key=lambda b: (loads[b], b)) for c, of in members.items()}
        means = {broker: mean_of[cluster] for broker, cluster in self._cluster_of.items()}
        entries = sum(topics.values())
        return _Counts(followers, loads, means, least, entries, topics)

    # ---- what users gain ------------------------------------------------------------------------

    def options(self, asked: DataFrame, counts: _Counts) -> DataFrame:
        """For each user its utility here (`own`), elsewhere at best (`other`), and where it was.

        All are numbers that order by utility, then by broker.
        """
        considered = self._considered(asked, counts)
        hits = considered.groupBy("user", "broker").agg(
            fn.sum("hit").alias("hits"),
            *(fn.any_value(name).alias(name) for name in ("at", "origin", "size")),
        )
        settings = self._settings
        here = fn.col("broker") == fn.col("at")
        load = _looked_up(counts.loads, "long", "broker")
        load = load + fn.when(here, 0).otherwise(fn.col("size"))
        mean = _looked_up(counts.means, "double", "broker")
        relative = (load + settings.load_floor) / (mean + settings.load_floor)
        utility = fn.col("hits") / fn.col("size") - fn.lit(settings.load_weight) * relative
        ordered = fn.shiftleft(fn.floor(utility * _BILLION + 0.5), _BROKER_BITS)
        ranked = hits.withColumn("rank", ordered + _BROKER_MASK - fn.col("broker"))
        return ranked.groupBy("user").agg(
            fn.max(fn.when(here, fn.col("rank"))).alias("own"),
            fn.max(fn.when(~here, fn.col("rank"))).alias("other"),
            fn.max(fn.when(fn.col("broker") == fn.col("origin"), fn.col("rank"))).alias("before"),
            *(fn.any_value(name).alias(name) for name in ("at", "origin", "size")),
        )

    def _considered(self, asked: DataFrame, counts: _Counts) -> DataFrame:
        """A row for each user, topic and broker where that topic is followed."""
        entry = fn.col("broker") * 4 + fn.when(fn.col("n") > 1, _SEVERAL).otherwise(_ONE)
        cluster = _looked_up(self._cluster_of, "int", "broker").alias("cluster_number")
        table = counts.followers.groupBy(cluster, "key").agg(
            fn.collect_list(entry).alias("entries")
        )
        users_topics = asked.select(
            "user",
            "at",
            "origin",
            "size",
            "cluster_number",
            # Beside its topics none, for brokers that are considered anyway.
            fn.explode(fn.concat(fn.array(fn.lit(None).cast("long")), "topics")).alias("key"),
        )
        least = _looked_up(counts.least, "int", "cluster_number")
        anyway = fn.array(*(b * 4 + _ANYWAY for b in (fn.col("at"), fn.col("origin"), least)))
        rows = users_topics.join(
            fn.broadcast(table) if _is_small(counts) else table, ["cluster_number", "key"], "left"
        ).select(
            "user",
            "at",
            "origin",
            "size",
            fn.explode(fn.coalesce("entries", fn.array_distinct(anyway))).alias("entry"),
        )
        kind = fn.col("entry").bitwiseAND(3)
        broker = fn.shiftright("entry", _KIND_BITS)
        alone = (kind == _ONE) & (broker == fn.col("at"))
        hit = fn.when((kind == _ANYWAY) | alone, 0).otherwise(1)
        return rows.select("user", "at", "origin", "size", broker.alias("broker"), hit.alias("hit"))

    def _admitted(self, options: DataFrame, counts: _Counts) -> DataFrame:
        """Who moves where (`user`, `target`): those who gain most, while there is room."""
        gain = fn.shiftright("other", _BROKER_BITS) - fn.shiftright("own", _BROKER_BITS)
        wants = options.select(
            "user", "size", broker_of("other").alias("target"), gain.alias("gain")
        ).filter(fn.col("gain") > round(self._settings.margin * _BILLION))
        first = Window.partitionBy("target").orderBy(fn.col("gain").desc(), "user")
        taken = fn.sum("size").over(first.rowsBetween(Window.unboundedPreceding, 0))
        room = _looked_up(self._rooms(counts), "double", "target")
        with_room = wants.withColumn("room", room).filter(fn.col("room") > 0)
        queued = with_room.select("user", "target", "room", taken.alias("taken"))
        return queued.filter(fn.col("taken") <= fn.col("room")).select("user", "target")

    def _rooms(self, counts: _Counts) -> dict[int, float]:
        """How many subscriptions more each broker takes in one round."""
        settings = self._settings
        return {
            broker: min(settings.capacity * mean - counts.loads[broker], settings.intake * mean)
            for broker, mean in counts.means.items()
        }


def _looked_up(table: Mapping[int, float], kind: str, index: str) -> Column:
    """The value of a small table, with keys 0, 1, 2, ..., in a row: no join for a few numbers."""
    values = json.dumps([table[i] for i in range(len(table))])
    return fn.element_at(fn.from_json(fn.lit(values), f"array<{kind}>"), fn.col(index) + 1)


def _is_small(counts: _Counts) -> bool:
    """Whether every task can have the topics' table: of some 100 MB at most."""
    return counts.entries <= _BROADCAST_ENTRIES_MAX


def broker_of(rank: str) -> Column:
    return (fn.lit(_BROKER_MASK) - fn.col(rank).bitwiseAND(_BROKER_MASK)).cast("int")


def utility_of(rank: str) -> Column:
    return fn.shiftright(rank, _BROKER_BITS) / _BILLION


# ---- what comes out ------------------------------------------------------------------------------


def _chosen(users: DataFrame, brokers: DataFrame, rounds: _Rounds) -> DataFrame:
    """SELECTED: where rounds ended, with utilities as they are then."""
    options = rounds.options(rounds.placed(), rounds.count())
    names = brokers.select("broker_id", "broker")

    def named(column: str) -> DataFrame:
        return fn.broadcast(
            names.select(fn.col("broker_id").alias(f"{column}_id"), fn.col("broker").alias(column))
        )

    found = options.withColumn("runner", broker_of("other"))
    return (
        found.join(users.select("user", "user_id"), "user")
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


def _gathering(followers: DataFrame, names: DataFrame, brokers: DataFrame) -> DataFrame:
    """GATHERING: of each topic the broker at which most follow it."""
    rank = fn.shiftleft(fn.col("n"), _BROKER_BITS) + _BROKER_MASK - fn.col("broker")
    most = followers.groupBy("key").agg(fn.max(rank).alias("rank"))
    at = most.select(
        "key",
        broker_of("rank").alias("broker"),
        fn.shiftright("rank", _BROKER_BITS).alias("followers"),
    )
    numbers = fn.broadcast(brokers.select("broker", "broker_id"))
    return names.join(at, "key").join(numbers, "broker").select("topic", "broker_id", "followers")


def _loads_of(brokers: DataFrame, before: _Counts, after: _Counts) -> DataFrame:
    """BROKER_LOADS."""
    rows = [
        (b, after.loads[b], before.loads[b], after.topics[b], before.topics[b]) for b in after.loads
    ]
    numbers = brokers.sparkSession.createDataFrame(
        rows, "broker int, load long, load_before long, topics long, topics_before long"
    )
    return brokers.join(fn.broadcast(numbers), "broker").select(
        "broker_id", "cluster", "load", "load_before", "topics", "topics_before"
    )
