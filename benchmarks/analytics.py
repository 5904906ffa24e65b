"""How fast the analytics jobs are on two cores, how they grow, and DuckDB beside them.

    python -m benchmarks.analytics [--json] [--scale X] [--folder DIR] [--jobs all,rates,...]
        [--masters local[2],cluster] [--once]

Lakes are made up, once and twice as large: 100 million rows of publications for `rates`, 20 million
of subscriptions and 1,000 brokers for `selection`, 20 million sessions at as many for `mobility`.
Each job runs as a cron would start it, in a process of its own, from an empty state to its results:
on `local[2]`, with a driver of 4 GB, and on a standalone cluster of this machine, a master and two
workers of one core and 2 GB each that share no folder but lake and results. Seconds are those of
the job, without the start of Spark; memory is the most that each process had of its own, processor
time that of all of them, with the start of Spark: it says more where others work on the machine,
too. `all` is all jobs one after the other on a small lake, with the start of Spark: 2,000 users and
a day. DuckDB computes the estimates of `rates` from the same files with two threads: the reference
of what one machine can do, without increments, quarantine or late rows. All must come to the same.
Beside that stands what Spark itself costs on each master (`spark_costs`): to read what sums need,
and plain sums of it, by topic and broker, and by period as well.
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
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from analytics.jobs.rates import RatesSettings
from benchmarks.spark_costs import QUESTIONS
from dynatops.lake.files import Lake
from dynatops.local.made_up_lake.generate import generate
from dynatops.local.made_up_lake.world import LakeSpec
from tests.support.spark_cluster import spark_cluster

BROKERS = 1_000
CORES = 2
DRIVER_MEMORY = "4g"
EXECUTOR_MEMORY = "2g"
RATIO_MAX = 2.2
TIMES = (1, 2)
LOCAL, CLUSTER = f"local[{CORES}]", "cluster"
ALL = "all"
# Seconds for `all`, and how many files the cluster may write for one of local[2].
ALL_SECONDS_MAX = {LOCAL: 25.0, CLUSTER: 40.0}
FILES_RATIO_MAX = 2.0
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Master:
    """Where jobs run: its name, its URL, and what Spark is told."""

    name: str
    url: str
    options: tuple[str, ...] = ()
    # Ids of processes that are there already.
    others: tuple[int, ...] = ()


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


_EVERY_CASE = ",".join((ALL, *(case.job for case in CASES)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="times the sizes")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where lakes are made")
    parser.add_argument("--jobs", default=_EVERY_CASE, metavar="NAMES")
    parser.add_argument("--masters", default=f"{LOCAL},{CLUSTER}", metavar="NAMES")
    parser.add_argument("--once", action="store_true", help="not twice as much as well")
    arguments = parser.parse_args(argv)
    wanted = set(arguments.jobs.split(","))
    times = TIMES[:1] if arguments.once else TIMES
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        with _masters(folder / "cluster", arguments.masters.split(",")) as masters:
            measured = []
            for case in CASES:
                if case.job in wanted:
                    place = folder / case.job
                    measured.append(measure(case, arguments.scale, place, masters, times))
                    if not arguments.json:
                        print(_sentence(measured[-1]), flush=True)
            small = measure_all(folder / ALL, masters) if ALL in wanted else None
    missed = [
        f"{entry['job']} on {master}"
        for entry in measured
        for master, run in entry["masters"].items()
        if run.get("ratio", 0.0) > RATIO_MAX
    ]
    if small is not None:
        missed += _missed_by_all(small)
    if arguments.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        found = {"machine": machine, "jobs": measured, "all": small}
        print(json.dumps({**found, "ratio_max": RATIO_MAX, "missed": missed}))
    elif small is not None:
        for master, run in small.items():
            took = f"{run['seconds']:.1f} s, processor {run['cpu_s']:.0f} s"
            print(f"all on {master}: {took}, {run['files']} files")
    for what in missed:
        _say(f"missed: {what}")
    return 1 if missed else 0


@contextmanager
def _masters(folder: Path, wanted: Sequence[str]) -> Iterator[tuple[Master, ...]]:
    if unknown := set(wanted) - {LOCAL, CLUSTER}:
        raise SystemExit(f"there is no {unknown.pop()}: {LOCAL}, {CLUSTER}")
    local = (Master(LOCAL, LOCAL),) if LOCAL in wanted else ()
    if CLUSTER not in wanted:
        yield local
        return
    with spark_cluster(folder, workers=CORES, memory=EXECUTOR_MEMORY) as cluster:
        told = {
            "spark.pyspark.python": sys.executable,
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        }
        options = tuple(part for pair in told.items() for part in ("--conf", "=".join(pair)))
        workers = tuple(worker.pid for worker in cluster.workers)
        yield (*local, Master(CLUSTER, cluster.url, options, workers))


def measure(
    case: AnalyticsCase,
    scale: float,
    folder: Path,
    masters: Sequence[Master],
    times: Sequence[int],
) -> dict[str, Any]:
    once, *twice = (_measure_one(case, scale, n, folder, masters) for n in times)
    entry: dict[str, Any] = {"job": case.job, "rows": once["rows"], "masters": once["masters"]}
    for run in entry["masters"].values():
        run["rows_per_s"] = round(once["rows"] / run["seconds"])
        if "duckdb_seconds" in once:
            run["times_duckdb"] = round(run["seconds"] / once["duckdb_seconds"], 2)
    if "duckdb_seconds" in once:
        entry["duckdb_seconds"] = once["duckdb_seconds"]
    for more in twice:
        entry["twice_rows"] = more["rows"]
        times_twice = more["rows"] / once["rows"] / 2
        for name, run in entry["masters"].items():
            run.update(_compared(run, more["masters"][name], times_twice))
    return entry


def _compared(run: Mapping[str, Any], twice: Mapping[str, Any], more: float) -> dict[str, Any]:
    """With a run of about twice as many rows; exactly, `more` times that."""
    told = {f"twice_{name}": twice[name] for name in ("seconds", "memory_mb", "cpu_s")}
    return {**told, "ratio": round(twice["seconds"] / run["seconds"] / more, 3)}


def _measure_one(
    case: AnalyticsCase, scale: float, times: int, folder: Path, masters: Sequence[Master]
) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    lake = folder / "lake"
    made = generate(Lake.open(str(lake)), case.lake(scale, times))
    _say(f"{case.job}: a lake of {made[case.table]:,} rows of {case.table}")
    run: dict[str, Any] = {"rows": made[case.table], "masters": {}}
    rows_out = []
    for number, master in enumerate(masters):
        # The name of a master has what is a pattern to DuckDB.
        output = folder / f"output-{number}"
        for job in case.after:
            _run(job, lake, output, master)
        (summary,), used = _run(case.job, lake, output, master)
        if summary["rows_in"] != made[case.table] or summary["quarantined_rows"]:
            raise SystemExit(f"{case.job} took in {summary['rows_in']:,} rows of what there is")
        rows_out.append(summary["rows_out"])
        _say(f"{case.job} on {master.name}: {summary['seconds']:.1f} s, {used}")
        run["masters"][master.name] = {"seconds": summary["seconds"], **used}
        if case.job == "rates" and times == 1:
            if "duckdb_seconds" not in run:
                run["duckdb_seconds"] = _rates_by_duckdb(lake, output, folder)
                _say(f"DuckDB: {run['duckdb_seconds']:.1f} s")
            costs = {question: _cost_of_spark(question, lake, master) for question in QUESTIONS}
            run["masters"][master.name]["spark_seconds"] = costs
            _say(f"Spark alone on {master.name}: {costs}")
    if any(rows != rows_out[0] for rows in rows_out):
        raise SystemExit(f"{case.job}: results differ by where it ran: {rows_out}")
    shutil.rmtree(folder)
    return run


def measure_all(folder: Path, masters: Sequence[Master]) -> dict[str, Any]:
    """All jobs on a small lake: what Spark costs when there is hardly any work."""
    lake = folder / "lake"
    generate(Lake.open(str(lake)), replace(LakeSpec(), users=2_000, days=1))
    found = {}
    for master in masters:
        output = folder / f"output-{master.name}"
        started_s = time.perf_counter()
        summaries, used = _run(ALL, lake, output, master)
        found[master.name] = {
            "seconds": round(time.perf_counter() - started_s, 3),
            "files": len(list(output.rglob("*.parquet"))),
            "jobs": {summary["job"]: summary["seconds"] for summary in summaries},
            **used,
        }
    return found


def _missed_by_all(small: Mapping[str, Any]) -> list[str]:
    missed = [
        f"all on {name}: {run['seconds']:.1f} s"
        for name, run in small.items()
        if run["seconds"] > ALL_SECONDS_MAX[name]
    ]
    files = {name: run["files"] for name, run in small.items()}
    if files[CLUSTER] > FILES_RATIO_MAX * files[LOCAL]:
        missed.append(f"all: {files} files")
    return missed


def _run(
    job: str, lake: Path, output: Path, master: Master
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What jobs say of themselves; memory and processor time that they used."""
    command = [
        *(sys.executable, "-m", "analytics.main", "run", job, "--json"),
        *("--lake", str(lake), "--output", str(output)),
        *("--master", master.url, "--driver-memory", DRIVER_MEMORY, *master.options),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    watch = _MemoryWatch((process.pid, *master.others))
    watch.start()
    try:
        said, _ = process.communicate()
    finally:
        watch.stop()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {said}")
    summaries: list[dict[str, Any]] = json.loads(said)["jobs"]
    return summaries, watch.used()


def _cost_of_spark(question: str, lake: Path, master: Master) -> float:
    """Seconds."""
    command = [
        *(sys.executable, "-m", "benchmarks.spark_costs", question, str(lake)),
        *("--master", master.url, "--driver-memory", DRIVER_MEMORY, *master.options),
    ]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    return float(json.loads(said.stdout)["seconds"])


class _MemoryWatch(threading.Thread):
    """Looks at processes and all that they have started, now and then."""

    def __init__(self, roots: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._roots = roots
        self._most: dict[str, int] = {}
        # By process: a number is not given again so soon.
        self._cpu_s: dict[int, float] = {}
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            for kind, kilobytes in self._sums().items():
                self._most[kind] = max(self._most.get(kind, 0), kilobytes)

    def stop(self) -> None:
        self._over.set()
        self.join()

    def used(self) -> dict[str, Any]:
        memory_mb = {kind: kilobytes // 1024 for kind, kilobytes in sorted(self._most.items())}
        return {"memory_mb": memory_mb, "cpu_s": round(sum(self._cpu_s.values()), 1)}

    def _sums(self) -> dict[str, int]:
        """By kind of process: of executors, the largest; of their Python workers, all."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        family = set(self._roots)
        while more := {pid for pid, of in parents.items() if of in family} - family:
            family |= more
        sums: dict[str, int] = {}
        for pid in family:
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                kilobytes = _own_kilobytes(pid)
                kind = next((kind for mark, kind in _KINDS.items() if mark in line), None)
                if kind or pid == self._roots[0]:
                    self._cpu_s[pid] = _cpu_s(pid)
                if kind in ("driver", "executor"):
                    sums[kind] = max(sums.get(kind, 0), kilobytes)
                elif kind:
                    sums[kind] = sums.get(kind, 0) + kilobytes
        return sums


# By what the command line of a process has in it.
_KINDS = {
    "CoarseGrainedExecutorBackend": "executor",
    "org.apache.spark.deploy.SparkSubmit": "driver",
    "pyspark.daemon": "python",
}


def _cpu_s(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _own_kilobytes(pid: int) -> int:
    """Memory that nobody shares, or a part of what is shared."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


# ---- the reference -------------------------------------------------------------------------------


def _rates_by_duckdb(lake: Path, output: Path, folder: Path) -> float:
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
        spark = f"read_parquet('{output}/rates/topics/version=*/*.parquet')"
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
    return "\n".join(
        part
        for name, run in entry["masters"].items()
        for part in (_speed(entry, name, run), _beside(entry, name, run))
        if part
    )


def _speed(entry: Mapping[str, Any], name: str, run: Mapping[str, Any]) -> str:
    text = (
        f"{entry['job']} on {name}: {entry['rows']:,} rows in {run['seconds']:.1f} s, "
        f"{run['rows_per_s']:,} a second; processor {run['cpu_s']:.0f} s; MB: {run['memory_mb']}"
    )
    if "ratio" in run:
        text += (
            f"; {entry['twice_rows']:,} in {run['twice_seconds']:.1f} s, {run['ratio']:.2f} times "
            f"as long for twice as many; processor {run['twice_cpu_s']:.0f} s; "
            f"MB: {run['twice_memory_mb']}"
        )
    return text


def _beside(entry: Mapping[str, Any], name: str, run: Mapping[str, Any]) -> str:
    """What the job costs, beside what others take to do less."""
    if "times_duckdb" not in run:
        return ""
    duckdb_s, alone = entry["duckdb_seconds"], run["spark_seconds"]
    told = {
        "DuckDB": duckdb_s,
        "Spark reads": alone["read"],
        "Spark sums by topic and broker": alone["sum"],
        "Spark sums by period": alone["periods"],
        "rates": run["seconds"],
    }
    lines = ", ".join(f"{what} {s:.1f} s ({s / duckdb_s:.2f})" for what, s in told.items())
    return f"on {name}, and how many times DuckDB's time that is: {lines}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
