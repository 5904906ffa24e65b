"""Publications by topic and period, and what they say about the next (DYNATOPS eq. 12).

    R'(k+1) = (1 - alpha) R'(k) + alpha R(k)

with R(k) the events of period k over its length, 0 where there were none, and R'(first + 1) =
R(first): a topic's first observation is its first estimate. Unrolled, the estimate after period K
is a sum over the periods that had events, each with weight alpha (1 - alpha)^(K - k), the first
with (1 - alpha)^(K - first): one aggregation, in any order. What was estimated before is one more
summand. Nothing walks over rows one after the other, and rows are summed where they are read, by
topic and broker at once: not by period first, as most rows of a lake are the only ones of theirs.
A topic with half of all rows is a few numbers of each task before anything is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

_KEYS = ("topic", "broker_id", "period")
# So many topics at brokers are sent to every task, some 100 MB; with more of them rows are sent to
# where their sums are, and sorted: slower, in as little memory.
_BROADCAST_SUMS_MAX = 1_000_000


def period_events(publications: DataFrame, period_s: float) -> DataFrame:
    """Rows of `publications` as PERIOD_EVENTS, not summed.

    A window counts in the period in which it begins.
    """
    micros = fn.unix_micros("window_start")
    period = fn.floor(micros / fn.lit(round(period_s * 1e6))).cast("long").alias("period")
    return publications.filter(fn.col("events") > 0).select("topic", "broker_id", period, "events")


def summed(events: DataFrame) -> DataFrame:
    """PERIOD_EVENTS with one row for each topic, broker and period."""
    return events.groupBy(*_KEYS).agg(fn.sum("events").cast("long").alias("events"))


def observed(events: DataFrame, *, alpha: float, period_s: float, until: int) -> DataFrame:
    """What the periods below `until` add to estimates after all of them, by topic and broker.

    `events` are PERIOD_EVENTS, of complete periods, in as many rows as it takes. `weighted` is what
    all periods add but for their common factor, `first` what the first of them does. Runs a job: it
    depends on how many topics and brokers there are.
    """
    weight = fn.pow(fn.lit(1.0 - alpha), fn.lit(until - 1) - fn.col("period"))
    weighted = fn.sum(fn.col("events") / fn.lit(period_s) * weight)
    sums = events.groupBy("topic", "broker_id").agg(
        weighted.alias("weighted"), fn.min("period").alias("first_period")
    )
    # Which period is the first is only known then: rows of first periods are looked at once more.
    all_of = sums.withColumnRenamed("weighted", "all").persist()
    begun = events.join(
        fn.broadcast(all_of) if all_of.count() <= _BROADCAST_SUMS_MAX else all_of,
        ["topic", "broker_id"],
    ).filter(fn.col("period") == fn.col("first_period"))
    return begun.groupBy("topic", "broker_id").agg(
        fn.any_value("all").alias("weighted"),
        fn.any_value("first_period").alias("first_period"),
        weighted.alias("first"),
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
