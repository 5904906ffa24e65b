"""Publications by topic and period, and what they say about the next (DYNATOPS eq. 12).

    R'(k+1) = (1 - alpha) R'(k) + alpha R(k)

with R(k) the events of period k over its length, 0 where there were none, and R'(first + 1) =
R(first): a topic's first observation is its first estimate. Unrolled, the estimate after period K
is a sum over the periods that had events, each with weight alpha (1 - alpha)^(K - k), the first
with (1 - alpha)^(K - first): one aggregation, in any order. What was estimated before is one more
summand. Nothing walks over rows one after the other, and rows are summed where they are read, so
that a topic with half of all rows is a few numbers of each file before anything is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

_KEYS = ("topic", "broker_id", "period")


def period_events(publications: DataFrame, period_s: float) -> DataFrame:
    """Rows of `publications` as PERIOD_EVENTS; a window counts in the period in which it begins."""
    micros = fn.unix_micros("window_start")
    period = fn.floor(micros / fn.lit(round(period_s * 1e6))).cast("long").alias("period")
    rows = publications.filter(fn.col("events") > 0)
    return summed(rows.select("topic", "broker_id", period, "events"))


def summed(events: DataFrame) -> DataFrame:
    """PERIOD_EVENTS with one row for each topic, broker and period."""
    return events.groupBy(*_KEYS).agg(fn.sum("events").cast("long").alias("events"))


def observed(events: DataFrame, *, alpha: float, period_s: float, until: int) -> DataFrame:
    """What the periods below `until` add to estimates after all of them, by topic and broker.

    `events` are PERIOD_EVENTS, of complete periods; repeats are added up. `weighted` is what all
    periods add but for their common factor, `first` what the first of them does.
    """
    weight = fn.pow(fn.lit(1.0 - alpha), fn.lit(until - 1) - fn.col("period"))
    # One exchange for both aggregations; rows are few for each key, however many it had before.
    by_period = summed(events.repartition("topic", "broker_id"))
    return (
        by_period.withColumn("weighted", fn.col("events") / fn.lit(period_s) * weight)
        .groupBy("topic", "broker_id")
        .agg(
            fn.sum("weighted").alias("weighted"),
            fn.min("period").alias("first_period"),
            fn.min_by("weighted", "period").alias("first"),
        )
    )


def of_topics(sums: DataFrame) -> DataFrame:
    """`observed` by topic alone: first is what brokers had in the first period of any."""
    first = fn.min("first_period").over(Window.partitionBy("topic"))
    begun = fn.when(fn.col("first_period") == first, fn.col("first")).otherwise(0.0)
    return (
        sums.select("topic", "weighted", begun.alias("first"))
        .groupBy("topic")
        .agg(fn.sum("weighted").alias("weighted"), fn.sum("first").alias("first"))
    )


def estimated(
    sums: DataFrame, former: DataFrame, keys: Sequence[str], *, alpha: float, periods: int
) -> DataFrame:
    """The filter's estimates, by `keys`: `former` ones (keys and `rate`), and what was observed in
    so many periods since.
    """
    known = former.select(
        *keys,
        fn.lit(None).cast("double").alias("weighted"),
        fn.lit(None).cast("double").alias("first"),
        (fn.col("rate") * fn.lit((1.0 - alpha) ** periods)).alias("former"),
    )
    new = sums.select(*keys, "weighted", "first", fn.lit(None).cast("double").alias("former"))
    both = (
        new.unionByName(known)
        .groupBy(*keys)
        .agg(
            fn.coalesce(fn.sum("weighted"), fn.lit(0.0)).alias("weighted"),
            fn.max("first").alias("first"),
            fn.max("former").alias("former"),
        )
    )
    begun = fn.coalesce(fn.col("former"), fn.lit(1.0 - alpha) * fn.col("first"))
    return both.select(*keys, (fn.lit(alpha) * fn.col("weighted") + begun).alias("rate"))
