"""Who asks for the past of which topics: what store planning needs.

rate        requests/s, over the hours that were observed
popularity  of a topic: its share of all requests
share       of a broker in a topic: the share of the topic's requests that it made
locality    of a topic: the sum of squares of the shares. 1: one broker asks for it, and a store
            beside that one serves all; 1/n: n brokers ask alike
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

HOUR_US = 3_600_000_000
_HOUR_S = 3_600.0


def hour_requests(requests: DataFrame) -> DataFrame:
    """Rows of `requests` as HOUR_REQUESTS."""
    hour = fn.floor(fn.unix_micros("window_start") / fn.lit(HOUR_US)).cast("long").alias("hour")
    rows = requests.filter(fn.col("count") > 0)
    return summed(rows.select(hour, "broker_id", "topic", fn.col("count").alias("requests")))


def summed(requests: DataFrame) -> DataFrame:
    grouped = requests.groupBy("hour", "broker_id", "topic")
    return grouped.agg(fn.sum("requests").cast("long").alias("requests"))


def broker_demand(requests: DataFrame) -> DataFrame:
    """BROKER_DEMAND of HOUR_REQUESTS; `rank` 1 is the broker that asks most for the topic."""
    hours = requests.agg((fn.max("hour") - fn.min("hour") + 1).alias("hours"))
    pairs = requests.groupBy("broker_id", "topic").agg(
        fn.sum("requests").cast("long").alias("requests")
    )
    of_topic = Window.partitionBy("topic")
    most = of_topic.orderBy(fn.col("requests").desc(), "broker_id")
    return pairs.crossJoin(fn.broadcast(hours)).select(
        "broker_id",
        "topic",
        "requests",
        (fn.col("requests") / (fn.col("hours") * _HOUR_S)).alias("rate"),
        (fn.col("requests") / fn.sum("requests").over(of_topic)).alias("share"),
        fn.row_number().over(most).alias("rank"),
    )


def topic_demand(demand: DataFrame) -> DataFrame:
    """TOPIC_DEMAND of BROKER_DEMAND."""
    total = demand.agg(fn.sum("requests").alias("total"))
    topics = demand.groupBy("topic").agg(
        fn.sum("requests").cast("long").alias("requests"),
        fn.sum("rate").alias("rate"),
        fn.sum(fn.col("share") * fn.col("share")).alias("locality"),
        fn.count(fn.lit(1)).alias("brokers"),
    )
    popularity = (fn.col("requests") / fn.col("total")).alias("popularity")
    return topics.crossJoin(fn.broadcast(total)).select(
        "topic", "requests", "rate", popularity, "locality", "brokers"
    )
