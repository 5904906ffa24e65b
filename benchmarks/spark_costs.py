"""What Spark itself costs where `rates` is measured: to read rows, and to sum them up.

    python -m benchmarks.spark_costs read|sum|periods LAKE --master URL [--driver-memory SIZE]
        [--conf KEY=VALUE]...

With the settings that jobs have, in a process of its own, as a job: what is compiled and warm for
one question is not for the next. `read` reads what sums need; `sum` is a plain sum of events by
topic and broker, `periods` by topic, broker and period as well, which is what DuckDB begins with.
Nothing is checked, counted or written. Prints JSON: the seconds, without the start of Spark.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from analytics.jobs.rates import RatesSettings
from analytics.schemas import lake_schema
from analytics.session import divide_for, start
from analytics.storage.opening import open_storage
from dynatops.lake.fields import PUBLICATIONS, SUFFIX


def _read(rows: DataFrame) -> DataFrame:
    return rows.select("window_start", "topic", "broker_id", "events")


def _sum(rows: DataFrame) -> DataFrame:
    return rows.groupBy("topic", "broker_id").agg(fn.sum("events"))


def _periods(rows: DataFrame) -> DataFrame:
    period_us = round(RatesSettings().period_s * 1e6)
    period = fn.floor(fn.unix_micros("window_start") / period_us).alias("period")
    return rows.groupBy("topic", "broker_id", period).agg(fn.sum("events"))


QUESTIONS: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    "read": _read,
    "sum": _sum,
    "periods": _periods,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("lake")
    parser.add_argument("--master", required=True)
    parser.add_argument("--driver-memory", default="")
    parser.add_argument("--conf", action="append", default=[])
    arguments = parser.parse_args(argv)
    conf = dict(pair.split("=", 1) for pair in arguments.conf)
    spark = start(arguments.master, driver_memory=arguments.driver_memory, conf=conf)
    started_s = time.perf_counter()
    lake = open_storage(spark, arguments.lake, for_results=False)
    found = lake.found(f"{lake.root}/{PUBLICATIONS.name}", SUFFIX)
    divide_for(spark, sum(file.size for file in found))
    rows = lake.rows_of([file.path for file in found], lake_schema(PUBLICATIONS))
    QUESTIONS[arguments.question](rows).write.format("noop").mode("overwrite").save()
    print(json.dumps({"seconds": round(time.perf_counter() - started_s, 3)}))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
