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

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

_KEYS = ("topic", "broker_id", "period")


def period_of(time_us: int, period_s: float) -> int:
    """The number of the period in which this is."""
    return time_us // round(period_s * 1e6)


def period_events(publications: DataFrame, period_s: float) -> DataFrame:
    """Rows of `publications` as PERIOD_EVENTS; a window counts in the period in which it begins."""
    micros = fn.unix_micros("window_start")
    period = fn.floor(micros / fn.lit(round(period_s * 1e6))).cast("long").alias("period")
    rows = publications.filter(fn.col("events") > 0)
    return summed(rows.select("topic", "broker_id", period, "events"))


def summed(events: DataFrame) -> DataFrame:
    """PERIOD_EVENTS with one row for each topic, broker and period."""
    return events.groupBy(*_KEYS).agg(fn.sum("events").cast("long").alias("events"))


def estimated(
    events: DataFrame,
    former: DataFrame,
    keys: Sequence[str],
    *,
    alpha: float,
    period_s: float,
    before: int | None,
    until: int,
) -> DataFrame:
    """The filter's estimates, by `keys`, after all periods below `until`.

    `events` are PERIOD_EVENTS of [before, until), in which every period is complete; `former` the
    estimates after all below `before` (keys and `rate`).
    """
    by_period = events.groupBy(*keys, "period").agg(fn.sum("events").alias("events"))
    left = fn.lit(1.0 - alpha)
    weight = fn.pow(left, fn.lit(until - 1) - fn.col("period"))
    observed = by_period.select(
        *keys,
        "period",
        (fn.col("events") / fn.lit(period_s) * weight).alias("weighted"),
        fn.lit(None).cast("double").alias("former"),
    )
    faded = (1.0 - alpha) ** (until - before) if before is not None else 1.0
    known = former.select(
        *keys,
        fn.lit(None).cast("long").alias("period"),
        fn.lit(None).cast("double").alias("weighted"),
        (fn.col("rate") * fn.lit(faded)).alias("former"),
    )
    sums = (
        observed.unionByName(known)
        .groupBy(*keys)
        .agg(
            fn.coalesce(fn.sum("weighted"), fn.lit(0.0)).alias("weighted"),
            fn.min_by("weighted", "period").alias("first"),
            fn.max("former").alias("former"),
        )
    )
    begun = fn.coalesce(fn.col("former"), left * fn.col("first"))
    return sums.select(*keys, (fn.lit(alpha) * fn.col("weighted") + begun).alias("rate"))
