"""How fast the analytics jobs are on two cores, how they grow, and DuckDB beside them.

    python -m benchmarks.analytics [--json] [--scale X] [--folder DIR] [--jobs rates,...]

Lakes are made up, once and twice as large: 100 million rows of publications for `rates`, 20 million
of subscriptions and 1,000 brokers for `selection`, 20 million sessions at as many for `mobility`.
Each job runs as a cron would start it, in a process of its own (local[2], a driver of 4 GB), from
an empty state to its results; seconds are those of the job, without the start of Spark. DuckDB
computes the estimates of `rates` from the same files with two threads: the reference of what one
machine can do, without increments, quarantine or late rows. Both must come to the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from analytics.jobs.rates import RatesSettings
from dynatops.lake.files import Lake
from dynatops.local.made_up_lake.generate import generate
from dynatops.local.made_up_lake.world import LakeSpec

BROKERS = 1_000
CORES = 2
DRIVER_MEMORY = "4g"
RATIO_MAX = 2.2
TIMES = (1, 2)


@dataclass(frozen=True, slots=True)
class AnalyticsCase:
    """A job, and the lake that it is measured with."""

    job: str
    table: str
    spec: Mapping[str, Any]
    # What is twice as much in a lake twice as large.
    grows: tuple[str, ...]
    # Jobs whose results this one uses.
    after: tuple[str, ...] = ()

    def lake(self, scale: float, times: int) -> LakeSpec:
        sizes = {**self.spec, "brokers": BROKERS}
        sizes |= {name: round(sizes[name] * scale) for name in ("rows", "users")}
        sizes |= {name: sizes[name] * times for name in self.grows}
        return replace(LakeSpec(), **sizes)


CASES = (
    # A week, and another one: of 30,000 topics, each with a count for every minute with events.
    AnalyticsCase(
        "rates",
        "publications",
        {"rows": 100_000_000, "topics": 30_000, "users": 10_000, "days": 7},
        ("rows", "days"),
    ),
    # A day of 900,000 users who go to work and home; and of twice as many.
    AnalyticsCase(
        "selection",
        "subscriptions",
        {"rows": 100_000, "topics": 30_000, "users": 900_000, "days": 1},
        ("users",),
        ("clusters",),
    ),
    # Twelve days of 410,000 users, and of twice as many.
    AnalyticsCase(
        "mobility",
        "sessions",
        {"rows": 100_000, "topics": 30_000, "users": 410_000, "days": 12},
        ("users",),
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="times the sizes")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where lakes are made")
    parser.add_argument("--jobs", default=",".join(case.job for case in CASES), metavar="NAMES")
    arguments = parser.parse_args(argv)
    wanted = set(arguments.jobs.split(","))
    measured = []
    for case in CASES:
        if case.job in wanted:
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                measured.append(measure(case, arguments.scale, Path(folder)))
            if not arguments.json:
                print(_sentence(measured[-1]), flush=True)
    missed = [entry["job"] for entry in measured if entry["ratio"] > RATIO_MAX]
    if arguments.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        found = {"machine": machine, "master": f"local[{CORES}]", "jobs": measured}
        print(json.dumps({**found, "ratio_max": RATIO_MAX, "missed": missed}))
    return 1 if missed else 0


def measure(case: AnalyticsCase, scale: float, folder: Path) -> dict[str, Any]:
    runs = [_measure_one(case, scale, times, folder) for times in TIMES]
    once, twice = runs
    entry: dict[str, Any] = {
        "job": case.job,
        "rows": once["rows"],
        "seconds": once["seconds"],
        "rows_per_s": round(once["rows"] / once["seconds"]),
        "twice_rows": twice["rows"],
        "twice_seconds": twice["seconds"],
        "ratio": round(twice["seconds"] / once["seconds"] / (twice["rows"] / once["rows"] / 2), 3),
        "rows_out": once["rows_out"],
    }
    if case.job == "rates":
        entry["duckdb_seconds"] = once["duckdb_seconds"]
        entry["duckdb_rows_per_s"] = round(once["rows"] / once["duckdb_seconds"])
        entry["times_duckdb"] = round(once["seconds"] / once["duckdb_seconds"], 2)
    return entry


def _measure_one(case: AnalyticsCase, scale: float, times: int, folder: Path) -> dict[str, Any]:
    lake, output = folder / "lake", folder / "output"
    made = generate(Lake.open(str(lake)), case.lake(scale, times))
    _say(f"{case.job}: a lake of {made[case.table]:,} rows of {case.table}")
    for job in case.after:
        _run(job, lake, output)
    summary = _run(case.job, lake, output)
    if summary["rows_in"] != made[case.table] or summary["quarantined_rows"]:
        raise SystemExit(f"{case.job} took in {summary['rows_in']:,} of {made[case.table]:,} rows")
    _say(f"{case.job}: {summary['seconds']:.1f} s")
    run = {
        "rows": made[case.table],
        "seconds": summary["seconds"],
        "rows_out": summary["rows_out"],
    }
    if case.job == "rates" and times == 1:
        run["duckdb_seconds"] = _rates_by_duckdb(lake, output, summary["version"], folder)
    shutil.rmtree(lake)
    shutil.rmtree(output)
    return run


def _run(job: str, lake: Path, output: Path) -> dict[str, Any]:
    """The job's summary."""
    command = [
        *(sys.executable, "-m", "analytics.main", "run", job, "--json"),
        *("--lake", str(lake), "--output", str(output)),
        *("--master", f"local[{CORES}]", "--driver-memory", DRIVER_MEMORY),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}")
    summary: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
    return summary


# ---- the reference -------------------------------------------------------------------------------


def _rates_by_duckdb(lake: Path, output: Path, version: int, folder: Path) -> float:
    """Seconds; and a complaint if it does not come to what Spark has found."""
    settings = RatesSettings()
    results = folder / "duckdb"
    results.mkdir()
    started_s = time.perf_counter()
    with duckdb.connect(str(folder / "rates.duckdb"), config={"threads": CORES}) as database:
        database.execute(f"set memory_limit = '{DRIVER_MEMORY}b'")
        source = f"read_parquet('{lake}/publications/*/*/*.parquet', hive_partitioning = false)"
        period_us = round(settings.period_s * 1e6)
        database.execute(
            f"create table by_period as select topic, broker_id, "
            f"epoch_us(window_start) // {period_us} as period, sum(events)::bigint as events "
            f"from {source} where events > 0 group by all"
        )
        (newest_us,) = database.execute(
            f"select max(epoch_us(window_start)) from {source}"
        ).fetchall()[0]
        until = (newest_us - round(settings.late_s * 1e6)) // period_us
        for name, keys in (("topics", "topic"), ("brokers", "topic, broker_id")):
            database.execute(_estimates(keys, until, settings, results / f"{name}.parquet"))
        seconds = time.perf_counter() - started_s
        spark = f"read_parquet('{output}/rates/topics/version={version}/*.parquet')"
        (differing,) = database.execute(
            f"select count(*) from '{results}/topics.parquet' a full join {spark} b using (topic) "
            f"where coalesce(a.rate, b.rate) >= {settings.forget_rate} and ("
            " a.rate is null or b.rate is null or abs(a.rate - b.rate) > 1e-9 * a.rate)"
        ).fetchall()[0]
    if differing:
        raise SystemExit(f"DuckDB and Spark differ in {differing} topics")
    return round(seconds, 3)


def _estimates(keys: str, until: int, settings: RatesSettings, path: Path) -> str:
    alpha, period_s = settings.alpha, settings.period_s
    return f"""
        copy (
            with periods as (
                select {keys}, period,
                       sum(events) / {period_s} * pow({1 - alpha}, {until - 1} - period) as weighted
                from by_period where period < {until} group by {keys}, period
            )
            select {keys}, {alpha} * sum(weighted) + {1 - alpha} * arg_min(weighted, period) as rate
            from periods group by {keys}
        ) to '{path}' (format parquet)
    """


def _sentence(entry: Mapping[str, Any]) -> str:
    text = (
        f"{entry['job']}: {entry['rows']:,} rows in {entry['seconds']:.1f} s, "
        f"{entry['rows_per_s']:,} a second; {entry['twice_rows']:,} in "
        f"{entry['twice_seconds']:.1f} s, {entry['ratio']:.2f} times as long for twice as many"
    )
    if "duckdb_seconds" in entry:
        text += f"; DuckDB {entry['duckdb_seconds']:.1f} s: {entry['times_duckdb']:.2f} times that"
    return text


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
