"""Brokers grouped by geography, into clusters of about a wanted size (DYNATOPS III-B).

A broker is where its sessions are: the mean of unit vectors, so that no meridian is special. All
brokers are halved along the axis along which they are spread most, and each half again, until the
parts are as many as clusters are wanted. Parts differ by one broker at most. Brokers of which no
place is known are divided alike, by name, among themselves.
"""

from __future__ import annotations

import math

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

EARTH_KM = 6_371.0
_AXES = ("x", "y", "z")
_PART = ("is_placed", "part")


def broker_places(sessions: DataFrame) -> DataFrame:
    """Rows of `sessions` as BROKER_PLACES."""
    latitude, longitude = fn.radians("latitude"), fn.radians("longitude")
    known = fn.col("latitude").isNotNull() & fn.col("longitude").isNotNull()
    flat = fn.cos(latitude)
    rows = sessions.select(
        "broker_id",
        known.cast("long").alias("located"),
        fn.when(known, flat * fn.cos(longitude)).otherwise(0.0).alias("x"),
        fn.when(known, flat * fn.sin(longitude)).otherwise(0.0).alias("y"),
        fn.when(known, fn.sin(latitude)).otherwise(0.0).alias("z"),
        fn.unix_micros("time").alias("seen_us"),
    )
    return summed(rows)


def summed(places: DataFrame) -> DataFrame:
    return places.groupBy("broker_id").agg(
        fn.sum("located").cast("long").alias("located"),
        *(fn.sum(axis).alias(axis) for axis in _AXES),
        fn.max("seen_us").alias("seen_us"),
    )


def clustered(places: DataFrame, size: int) -> DataFrame:
    """CLUSTERED of BROKER_PLACES. A cluster has the name of the first of its brokers."""
    # A million brokers would still be little: one task, no exchange in every level.
    brokers = places.coalesce(1).select(
        "broker_id",
        (fn.col("located") > 0).alias("is_placed"),
        "located",
        # Means, rounded: sums in another order put nobody elsewhere.
        *(
            fn.when(fn.col("located") > 0, fn.round(fn.col(axis) / fn.col("located"), 9))
            .otherwise(0.0)
            .alias(axis)
            for axis in _AXES
        ),
        fn.lit(0).alias("part"),
    )
    wanted = fn.ceil(fn.count(fn.lit(1)).over(Window.partitionBy("is_placed")) / fn.lit(size))
    parts = brokers.withColumn("wanted", wanted.cast("int"))
    wanted_most = max(1, math.ceil(places.count() / size))
    for _ in range(math.ceil(math.log2(wanted_most))):
        parts = _halved(parts)
    named = parts.withColumn("cluster", fn.min("broker_id").over(Window.partitionBy(*_PART)))
    return named.select(
        "broker_id",
        "cluster",
        fn.when(fn.col("is_placed"), _latitude()).alias("latitude"),
        fn.when(fn.col("is_placed"), _longitude()).alias("longitude"),
        fn.col("located").alias("sessions"),
    )


def _halved(parts: DataFrame) -> DataFrame:
    """Each part of which more than one cluster is wanted, in two."""
    part = Window.partitionBy(*_PART)
    spread = {axis: fn.max(axis).over(part) - fn.min(axis).over(part) for axis in _AXES}
    measured = parts.select("*", *(column.alias(f"s{axis}") for axis, column in spread.items()))
    widest = fn.greatest(*(fn.col(f"s{axis}") for axis in _AXES))
    along = fn.lit(0.0)
    for axis in reversed(_AXES):
        along = fn.when(fn.col(f"s{axis}") == widest, fn.col(axis)).otherwise(along)
    order = part.orderBy("along", "broker_id")
    ordered = measured.withColumn("along", along).select(
        "*",
        fn.row_number().over(order).alias("number"),
        fn.count(fn.lit(1)).over(part).alias("brokers"),
    )
    first_half = fn.floor(fn.col("wanted") / 2).cast("int")
    first = fn.col("number") <= fn.floor(fn.col("brokers") * first_half / fn.col("wanted"))
    is_split = fn.col("wanted") > 1
    return ordered.select(
        "broker_id",
        "is_placed",
        "located",
        *_AXES,
        (fn.col("part") * 2 + (~(is_split & first)).cast("int")).alias("part"),
        fn.when(is_split & first, first_half)
        .when(is_split, fn.col("wanted") - first_half)
        .otherwise(fn.col("wanted"))
        .alias("wanted"),
    )


def _latitude() -> Column:
    flat = fn.sqrt(fn.col("x") * fn.col("x") + fn.col("y") * fn.col("y"))
    return fn.degrees(fn.atan2(fn.col("z"), flat))


def _longitude() -> Column:
    return fn.degrees(fn.atan2(fn.col("y"), fn.col("x")))


def cluster_sizes(clustered: DataFrame) -> DataFrame:
    """CLUSTERS of CLUSTERED: their middle, and how far the farthest broker is from it."""
    latitude, longitude = fn.radians("latitude"), fn.radians("longitude")
    vectors = clustered.select(
        "cluster",
        (fn.cos(latitude) * fn.cos(longitude)).alias("x"),
        (fn.cos(latitude) * fn.sin(longitude)).alias("y"),
        fn.sin(latitude).alias("z"),
    )
    means = vectors.groupBy("cluster").agg(
        fn.count(fn.lit(1)).alias("brokers"),
        *(fn.avg(axis).alias(f"m{axis}") for axis in _AXES),
    )
    length = fn.sqrt(sum((fn.col(f"m{a}") * fn.col(f"m{a}") for a in _AXES), fn.lit(0.0)))
    unit = means.select(
        "cluster", "brokers", *((fn.col(f"m{a}") / length).alias(f"m{a}") for a in _AXES)
    )
    along = sum((fn.col(a) * fn.col(f"m{a}") for a in _AXES), fn.lit(0.0))
    # Beyond 1 by rounding only.
    angle = fn.acos(fn.when(along > 1.0, 1.0).otherwise(along))
    farthest = (
        vectors.join(unit, "cluster")
        .groupBy("cluster")
        .agg(fn.max(angle * fn.lit(EARTH_KM)).alias("radius_km"))
    )
    middle = unit.select(
        "cluster",
        "brokers",
        *(fn.col(f"m{axis}").alias(axis) for axis in _AXES),
    ).select("cluster", "brokers", _latitude().alias("latitude"), _longitude().alias("longitude"))
    return middle.join(farthest, "cluster").select(
        "cluster", "brokers", "latitude", "longitude", "radius_km"
    )
