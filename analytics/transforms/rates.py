"""Publications by topic and period, and what they say about the next (DYNATOPS eq. 12).

    R'(k+1) = (1 - alpha) R'(k) + alpha R(k)

with R(k) the events of period k over its length, 0 where there were none, and R'(first + 1) =
R(first): a topic's first observation is its first estimate. Unrolled, the estimate after period K
is a sum over the periods that had events, each with weight alpha (1 - alpha)^(K - k), the first
with (1 - alpha)^(K - first): one aggregation, in any order. What was estimated before is one more
summand. Nothing walks over rows one after the other.

Rows are summed where they are read, and once: twelve periods in a row are a block, and a block of a
topic at a broker is one row with a sum for each of its periods. Most rows of a lake are the only
ones of their period, so that sums by period would be as many as rows; and which periods are
complete, and which is a topic's first, is only known when all rows are read, so that sums of all
periods together would not do. A topic with half of all rows is a few numbers of each task before
anything is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

BLOCK_PERIODS = 12
# Events of a block, by period.
EVENT_COUNTS = tuple(f"events_{i:02}" for i in range(BLOCK_PERIODS))
BLOCK_KEYS = ("topic", "broker_id", "block")
# So many topics at brokers are sent to every task, some 100 MB; with more of them rows are sent to
# where their sums are, and sorted: slower, in as little memory.
_BROADCAST_SUMS_MAX = 1_000_000


def row_columns(period_s: float) -> Mapping[str, Column]:
    """Of rows of `publications`: the block that each belongs to, and its period's place in it.

    A window counts in the period in which it begins.
    """
    micros = fn.unix_micros("window_start")
    period = fn.floor(micros / fn.lit(round(period_s * 1e6)))
    block = fn.floor(period / BLOCK_PERIODS)
    place = period - block * BLOCK_PERIODS
    return {
        # Nothing is not even a topic.
        "topic": fn.when(fn.col("events") > 0, fn.col("topic")),
        "broker_id": fn.col("broker_id"),
        "block": block,
        "place": place.cast("int"),
    }


def block_sums() -> Sequence[Column]:
    """Of rows with a place in a block."""
    events = fn.col("events")
    return [fn.sum(_where(fn.col("place") == i, events)).alias(name) for i, name in _each()]


def summed(blocks: DataFrame) -> DataFrame:
    """BLOCK_EVENTS with one row for each topic, broker and block."""
    return blocks.groupBy(*BLOCK_KEYS).agg(*(fn.sum(name).alias(name) for name in EVENT_COUNTS))


def since(blocks: DataFrame, first: int) -> DataFrame:
    """What BLOCK_EVENTS have of this period and later ones."""
    return blocks.filter((fn.col("block") + 1) * BLOCK_PERIODS > first).select(
        *BLOCK_KEYS, *(_where(_period(i) >= first, fn.col(name)).alias(name) for i, name in _each())
    )


def observed(blocks: DataFrame, *, alpha: float, period_s: float, until: int) -> DataFrame:
    """What the periods below `until` add to estimates after all of them, by topic and broker.

    `blocks` are BLOCK_EVENTS, in as many rows as it takes. `weighted` is what all periods add but
    for their common factor, `first` what the first of them does. Runs a job: it depends on how many
    topics and brokers there are.
    """
    rows = _weighted(blocks, 1.0 - alpha, period_s, until)
    sums = rows.groupBy("topic", "broker_id").agg(
        fn.sum("weighted").alias("weighted"), fn.min("first_period").alias("begun_in")
    )
    # Which period is the first is only known then: rows of first periods are looked at once more.
    all_of = sums.withColumnRenamed("weighted", "all").persist()
    begun = rows.join(
        fn.broadcast(all_of) if all_of.count() <= _BROADCAST_SUMS_MAX else all_of,
        ["topic", "broker_id"],
    ).filter(fn.col("first_period") == fn.col("begun_in"))
    return begun.groupBy("topic", "broker_id").agg(
        fn.any_value("all").alias("weighted"),
        fn.any_value("begun_in").alias("first_period"),
        fn.sum("first").alias("first"),
    )


def _weighted(blocks: DataFrame, keeps: float, period_s: float, until: int) -> DataFrame:
    """Of each block, of its periods below `until`: what they add, the first, and what that adds.

    Weights within a block are constants, so that Spark's code for it stays small: what is longer
    than 8,000 bytes the JVM never compiles, and that is ten times slower.
    """
    last, places = divmod(until, BLOCK_PERIODS)
    # A block's last period weighs this, those before it a constant times that.
    of_block = fn.pow(fn.lit(keeps), fn.lit(until) - (fn.col("block") + 1) * BLOCK_PERIODS)
    inside = [keeps ** (BLOCK_PERIODS - 1 - i) / period_s for i in range(BLOCK_PERIODS)]
    whole = _summed_up(blocks.filter(fn.col("block") < last), inside, of_block)
    if not places:
        return whole
    so_far = [keeps ** (places - 1 - i) / period_s for i in range(places)]
    begun = blocks.filter(fn.col("block") == last)
    return whole.unionByName(_summed_up(begun, so_far, fn.lit(1.0)))


def _summed_up(blocks: DataFrame, weights: Sequence[float], of_block: Column) -> DataFrame:
    """By these weights of their first periods; without blocks that have nothing there."""
    counts = [fn.col(name) for name in EVENT_COUNTS[: len(weights)]]
    added = [count * fn.lit(weight) for count, weight in zip(counts, weights, strict=True)]
    return blocks.select(
        "topic",
        "broker_id",
        (reduce(add, added, fn.lit(0.0)) * of_block).alias("weighted"),
        _first(counts, [_period(i) for i in range(len(counts))]).alias("first_period"),
        (_first(counts, added) * of_block).alias("first"),
    ).filter(fn.col("first_period").isNotNull())


def _first(counts: Sequence[Column], values: Sequence[Column]) -> Column:
    """The value beside the first count that there is."""
    found = fn.lit(None)
    for count, value in reversed(list(zip(counts, values, strict=True))):
        found = fn.when(count > 0, value).otherwise(found)
    return found


def _each() -> Iterable[tuple[int, str]]:
    return enumerate(EVENT_COUNTS)


def _period(place: int) -> Column:
    return fn.col("block") * BLOCK_PERIODS + place


def _where(condition: Column, value: Column) -> Column:
    return fn.when(condition, value).otherwise(fn.lit(0))


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
