"""Where users go next: by broker, by hour of the day (UTC), and by where they came from.

A visit is a session that begins or goes on at a broker; visits at the broker where the user is
already are none. A move is from one visit to the next. Only visits that are complete (older than
what may still come late) become moves; the last two of every user are kept, so that its next move
has a past.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from dynatops.lake.fields import OPEN, RESUME

_DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
_SETTLED = "_settled"


def visits(sessions: DataFrame) -> DataFrame:
    """Rows of `sessions` as VISITS."""
    arrived = sessions.filter(fn.col("op").isin(OPEN, RESUME))
    return arrived.select("user_id", fn.unix_micros("time").alias("time_us"), "broker_id")


def paths(complete: DataFrame, heads: DataFrame) -> DataFrame:
    """Every visit with those before and after it.

    `complete` and `heads` are VISITS; `heads` are earlier, and have been counted as moves.
    """
    known = heads.withColumn(_SETTLED, fn.lit(True))
    fresh = complete.dropDuplicates().withColumn(_SETTLED, fn.lit(False))
    in_order = Window.partitionBy("user_id").orderBy("time_us", "broker_id")
    last = fn.lag("broker_id").over(in_order)
    arrivals = known.unionByName(fresh).withColumn("last", last)
    arrivals = arrivals.filter(fn.col("last").isNull() | (fn.col("last") != fn.col("broker_id")))
    return arrivals.select(
        "user_id",
        "time_us",
        "broker_id",
        fn.lag("broker_id", 1).over(in_order).alias("from"),
        fn.lag("broker_id", 2).over(in_order).alias("previous"),
        fn.lead("broker_id", 2).over(in_order).isNull().alias("is_head"),
        _SETTLED,
    )


def heads_of(paths: DataFrame, since_us: int) -> DataFrame:
    """The last two visits of every user who was seen since then, as VISITS."""
    recent = fn.col("is_head") & (fn.col("time_us") >= since_us)
    return paths.filter(recent).select("user_id", "time_us", "broker_id")


def moves_of(paths: DataFrame) -> DataFrame:
    """New moves, as MOVES."""
    arrivals = paths.filter(~fn.col(_SETTLED) & fn.col("from").isNotNull())
    day = fn.floor(fn.col("time_us") / fn.lit(_DAY_US)).cast("long")
    hour = fn.floor(fn.col("time_us") % fn.lit(_DAY_US) / fn.lit(_HOUR_US)).cast("int")
    grouped = arrivals.groupBy(
        day.alias("day"),
        hour.alias("hour"),
        "previous",
        fn.col("from").alias("broker_id"),
        fn.col("broker_id").alias("next"),
    )
    return grouped.agg(fn.count(fn.lit(1)).alias("moves"))


def summed(moves: DataFrame) -> DataFrame:
    grouped = moves.groupBy("day", "hour", "previous", "broker_id", "next")
    return grouped.agg(fn.sum("moves").cast("long").alias("moves"))


def next_brokers(moves: DataFrame, *, support: int, next_max: int) -> DataFrame:
    """NEXT_BROKERS of MOVES: most probable first, in every context with enough moves.

    Contexts are (broker), (broker, hour), (broker, previous) and all three; what does not matter in
    a context is null. Moves of users who had been nowhere before count where that does not matter.
    """
    counted = moves.groupBy("broker_id", "hour", "previous", "next").agg(
        fn.sum("moves").alias("moves")
    )
    levels = [
        counted.select(
            "broker_id",
            (fn.col("hour") if by_hour else fn.lit(None).cast("int")).alias("hour"),
            (fn.col("previous") if by_path else fn.lit(None).cast("string")).alias("previous"),
            "next",
            "moves",
        ).filter(fn.col("previous").isNotNull() if by_path else fn.lit(True))
        for by_hour in (False, True)
        for by_path in (False, True)
    ]
    table = levels[0]
    for level in levels[1:]:
        table = table.unionByName(level)
    by_next = table.groupBy("broker_id", "hour", "previous", "next").agg(
        fn.sum("moves").cast("long").alias("moves")
    )
    context = Window.partitionBy("broker_id", "hour", "previous")
    ranked = by_next.select(
        "*",
        fn.sum("moves").over(context).alias("all"),
        fn.row_number().over(context.orderBy(fn.col("moves").desc(), "next")).alias("rank"),
    )
    return ranked.filter((fn.col("all") >= support) & (fn.col("rank") <= next_max)).select(
        "broker_id",
        "hour",
        "previous",
        "next",
        "moves",
        (fn.col("moves") / fn.col("all")).alias("probability"),
        "rank",
    )
