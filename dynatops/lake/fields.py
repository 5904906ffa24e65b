"""The tables of the lake, their fields and types, and where files lie: for writer and reader.

    LAKE/TABLE/date=YYYY-MM-DD/hour=HH/BROKER-INCARNATION-NUMBER.parquet

A file holds rows of one hour (UTC). Where a store can rename, files are written below `LAKE/_tmp`
first: readers pass over names that begin with `_` or `.`. Partition columns are in the path only.
This module knows neither pyarrow nor Spark: both derive their schemas from it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType

# The columns that the path has.
PARTITION_DATE = "date"
PARTITION_HOUR = "hour"
# Below the lake: files that are not whole yet.
UNFINISHED = "_tmp"
SUFFIX = ".parquet"
HOUR_S = 3_600

# Values of `op`.
SUBSCRIBE = "subscribe"
UNSUBSCRIBE = "unsubscribe"
# A client came and has a new session; came and goes on with one that was kept; its connection
# ended, and the session waits for it; the session is over here.
OPEN = "open"
RESUME = "resume"
CLOSE = "close"
LEAVE = "leave"
SUBSCRIPTION_OPS = (SUBSCRIBE, UNSUBSCRIBE)
SESSION_OPS = (OPEN, RESUME, CLOSE, LEAVE)


class FieldType(StrEnum):
    # Microseconds, in UTC.
    TIMESTAMP = "timestamp"
    DOUBLE = "double"
    INT64 = "int64"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: FieldType
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    fields: tuple[Field, ...]
    # The field whose hour says which partition a row is in.
    time_field: str
    # Values that a field may have; any if it is not here.
    values: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


def _table(name: str, time_field: str, *fields: Field, ops: tuple[str, ...] | None = None) -> Table:
    values = MappingProxyType({} if ops is None else {"op": ops})
    return Table(name, fields, time_field, values)


_WINDOW = (Field("window_start", FieldType.TIMESTAMP), Field("window_s", FieldType.DOUBLE))
_BROKER = Field("broker_id", FieldType.STRING)
_USER = Field("user_id", FieldType.STRING)
_TOPIC = Field("topic", FieldType.STRING)
_OP = Field("op", FieldType.STRING)

# What was stamped for a topic at its rendezvous point during a window: each event counts once in
# the network, at the broker that hosts the rendezvous point. `bytes` are those of payloads.
PUBLICATIONS = _table(
    "publications",
    "window_start",
    *_WINDOW,
    _BROKER,
    _TOPIC,
    Field("events", FieldType.INT64),
    Field("bytes", FieldType.INT64),
)
# A user's session begins or ceases to want a topic, or a pattern of topics, at a broker.
SUBSCRIPTIONS = _table(
    "subscriptions",
    "time",
    Field("time", FieldType.TIMESTAMP),
    _BROKER,
    _USER,
    _TOPIC,
    _OP,
    ops=SUBSCRIPTION_OPS,
)
SESSIONS = _table(
    "sessions",
    "time",
    Field("time", FieldType.TIMESTAMP),
    _USER,
    _BROKER,
    _OP,
    Field("latitude", FieldType.DOUBLE, nullable=True),
    Field("longitude", FieldType.DOUBLE, nullable=True),
    ops=SESSION_OPS,
)
# How often the past of a topic was asked for at a broker during a window.
REQUESTS = _table(
    "requests", "window_start", *_WINDOW, _BROKER, _TOPIC, Field("count", FieldType.INT64)
)
TABLES: Mapping[str, Table] = MappingProxyType(
    {table.name: table for table in (PUBLICATIONS, SUBSCRIPTIONS, SESSIONS, REQUESTS)}
)


def partition_path(time_s: float) -> str:
    """Where rows of a time (UNIX, seconds) lie, below their table."""
    at = datetime.fromtimestamp(time_s // HOUR_S * HOUR_S, UTC)
    return f"{PARTITION_DATE}={at:%Y-%m-%d}/{PARTITION_HOUR}={at:%H}"


def file_name(broker_id: str, incarnation: int, number: int) -> str:
    """Never used before: an incarnation is one life of a broker, and counts its files."""
    return f"{owner_name(broker_id)}-{incarnation:x}-{number:06}{SUFFIX}"


def part_name(name: str, number: int) -> str:
    """Of a file that had to be divided."""
    return f"{name.removesuffix(SUFFIX)}.{number}{SUFFIX}"


def owner_name(broker_id: str) -> str:
    """How files name a broker. Its id is an address as a rule, which has what no path should."""
    name = re.sub(r"[^A-Za-z0-9.]+", "_", broker_id).lstrip("_.")[:100]
    if name == broker_id:
        return name
    # Others may look alike.
    digest = hashlib.sha1(broker_id.encode(), usedforsecurity=False).hexdigest()
    return f"{name or 'broker'}.{digest[:8]}"


def file_owner(name: str) -> str:
    """Whose file this is, as `owner_name` says it; empty if it is nobody's."""
    parts = name.split("-")
    return parts[0] if len(parts) == 3 and name.endswith(SUFFIX) else ""
