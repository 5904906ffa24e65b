"""Writes advice to Redis: tables first, under a version that was never used, then the head.

Readers see the old advice or the new, whole, and never anything between. Everything has an expiry:
a table that a crash left behind, too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from redis import Redis
from redis.exceptions import RedisError

from analytics.analytics_settings import RunSettings
from analytics.errors import AnalyticsError
from analytics.job import Advice
from dynatops.kit.advice.keys import head_key, table_key
from dynatops.kit.observing.logs import without_passwords
from dynatops.kit.redis_access import RedisPasswordError, password_options

_AT_ONCE = 1_000
# Tables outlive their head: a reader may be halfway through.
_TABLES_LONGER_S = 600
# As wide as the client's types want it.
Table = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class Published:
    version: str
    entries: int
    left_out: int


def publish(
    advice: Advice,
    redis_url: str,
    settings: RunSettings,
    number: int,
    now_s: float | None = None,
    *,
    password_file: str = "",
) -> Published:
    """`number` is that of the results; it begins the version's name."""
    version = f"{number}-{uuid4().hex[:8]}"
    kind = advice.kind
    head_name = head_key(kind.name)
    redis = connect(redis_url, password_file)
    try:
        counts: dict[str, str] = {}
        left_out = 0
        for name, table in advice.tables.items():
            key = table_key(head_name, version, name)
            entries, all_of = _write(redis, key, table, settings)
            counts[kind.advice_tables[name]] = str(entries)
            left_out += all_of - entries
        computed_s = time.time() if now_s is None else now_s
        head: Table = {
            "version": version,
            "computed_s": f"{computed_s:.3f}",
            **counts,
            **advice.head,
        }
        with redis.pipeline(transaction=True) as pipeline:
            pipeline.delete(head_name)
            pipeline.hset(head_name, mapping=head)
            pipeline.expire(head_name, settings.expiry_s)
            pipeline.execute()
    except (RedisError, OSError) as error:
        raise AnalyticsError(
            f"advice could not be written to {without_passwords(redis_url)}: {error}; results are "
            "kept, run it again"
        ) from error
    finally:
        redis.close()
    return Published(version, sum(int(count) for count in counts.values()), left_out)


def connect(url: str, password_file: str) -> Redis:
    try:
        return Redis.from_url(
            url,
            socket_timeout=30.0,
            socket_connect_timeout=10.0,
            **password_options(url, password_file),
        )
    except RedisPasswordError as error:
        raise AnalyticsError(str(error)) from None
    except ValueError:
        # Not what is wrong with it: there may be a password in that.
        raise AnalyticsError("--redis: write redis://host:port/0, or unix:///path") from None


def _write(redis: Redis, key: str, table: DataFrame, settings: RunSettings) -> tuple[int, int]:
    """How many entries were written, and how many there are."""
    all_of = table.count()
    limited = table.limit(settings.entries_max) if all_of > settings.entries_max else table
    entries = 0
    rows = ((row.field, row.value) for row in limited.toLocalIterator())
    batch: Table
    while batch := dict(islice(rows, _AT_ONCE)):
        with redis.pipeline(transaction=False) as pipeline:
            pipeline.hset(key, mapping=batch)
            pipeline.expire(key, settings.expiry_s + _TABLES_LONGER_S)
            pipeline.execute()
        entries += len(batch)
    return entries, all_of
