"""What goes into the jobs, what they keep, and what comes out: every schema is here.

Tables of the lake come from `dynatops.lake.fields`. Times in states and results are microseconds
since 1970 or numbers of periods, so that nothing depends on a time zone.
"""

from __future__ import annotations

from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dynatops.lake.fields import FieldType, Table

_TYPES: dict[FieldType, DataType] = {
    FieldType.TIMESTAMP: TimestampType(),
    FieldType.DOUBLE: DoubleType(),
    FieldType.INT64: LongType(),
    FieldType.STRING: StringType(),
}


def lake_schema(table: Table) -> StructType:
    """All fields may be null here: that they are not is checked row by row."""
    return StructType([StructField(f.name, _TYPES[f.type], True) for f in table.fields])


def _schema(**types: DataType) -> StructType:
    return StructType([StructField(name, kind, True) for name, kind in types.items()])


_LONG, _INT, _DOUBLE, _STRING = LongType(), IntegerType(), DoubleType(), StringType()

# ---- rates ---------------------------------------------------------------------------------------

# Events of a topic at a broker in a period that may still get more.
PERIOD_EVENTS = _schema(topic=_STRING, broker_id=_STRING, period=_LONG, events=_LONG)
TOPIC_RATES = _schema(topic=_STRING, rate=_DOUBLE)
BROKER_RATES = _schema(topic=_STRING, broker_id=_STRING, rate=_DOUBLE)

# ---- selection -----------------------------------------------------------------------------------

SUBSCRIPTION_OPS = _schema(
    user_id=_STRING, topic=_STRING, broker_id=_STRING, subscribed_us=_LONG, unsubscribed_us=_LONG
)
# Who is where now, and follows what.
FOLLOWED = _schema(user_id=_STRING, broker_id=_STRING, topic=_STRING)
BROKER_CLUSTERS = _schema(broker_id=_STRING, cluster=_STRING)
SELECTED = _schema(
    user_id=_STRING,
    broker_id=_STRING,
    best=_STRING,
    utility=_DOUBLE,
    runner_up=_STRING,
    runner_up_utility=_DOUBLE,
    gain=_DOUBLE,
    topics=_INT,
)
GATHERING = _schema(topic=_STRING, broker_id=_STRING, followers=_LONG)
BROKER_LOADS = _schema(
    broker_id=_STRING,
    cluster=_STRING,
    load=_LONG,
    load_before=_LONG,
    topics=_LONG,
    topics_before=_LONG,
)

# ---- clusters ------------------------------------------------------------------------------------

# Sums of unit vectors towards where sessions were.
BROKER_PLACES = _schema(
    broker_id=_STRING, located=_LONG, x=_DOUBLE, y=_DOUBLE, z=_DOUBLE, seen_us=_LONG
)
CLUSTERED = _schema(
    broker_id=_STRING, cluster=_STRING, latitude=_DOUBLE, longitude=_DOUBLE, sessions=_LONG
)
CLUSTERS = _schema(
    cluster=_STRING, brokers=_LONG, latitude=_DOUBLE, longitude=_DOUBLE, radius_km=_DOUBLE
)

# ---- mobility ------------------------------------------------------------------------------------

VISITS = _schema(user_id=_STRING, time_us=_LONG, broker_id=_STRING)
# From where to where users went, and where they had been before.
MOVES = _schema(
    day=_LONG, hour=_INT, previous=_STRING, broker_id=_STRING, next=_STRING, moves=_LONG
)
NEXT_BROKERS = _schema(
    broker_id=_STRING,
    hour=_INT,
    previous=_STRING,
    next=_STRING,
    moves=_LONG,
    probability=_DOUBLE,
    rank=_INT,
)

# ---- demand --------------------------------------------------------------------------------------

HOUR_REQUESTS = _schema(hour=_LONG, broker_id=_STRING, topic=_STRING, requests=_LONG)
BROKER_DEMAND = _schema(
    broker_id=_STRING, topic=_STRING, requests=_LONG, rate=_DOUBLE, share=_DOUBLE, rank=_INT
)
TOPIC_DEMAND = _schema(
    topic=_STRING,
    requests=_LONG,
    rate=_DOUBLE,
    popularity=_DOUBLE,
    locality=_DOUBLE,
    brokers=_LONG,
)
