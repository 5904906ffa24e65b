"""`analytics run`: options, progress, summary and exit codes; Spark is imported when it runs.

Exit codes, for whatever starts it every hour: 0 something was done, 3 there was nothing new, 1 it
could not be done (what was done counts, and the next run goes on), 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analytics.analytics_settings import AnalyticsSettings, SettingsError, with_values
from analytics.continuous import StopSignal, run_rounds
from analytics.errors import AnalyticsError, AnalyticsUsageError
from analytics.jobs.catalogue import JOBS, default_settings, jobs
from dynatops.kit.redis_access import (
    PASSWORD_VARIABLE,
    RedisPasswordError,
    exposed_password,
    read_password,
)
from dynatops.kit.strict_json import write_json

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

    from analytics.commits import Counts
    from analytics.recording import JobRecorder
    from analytics.runner import Runner, Summary

ALL = "all"
DONE, FAILED, USAGE, NOTHING_NEW = 0, 1, 2, 3
_PROGRESS_PERIOD_S = 10.0
_PYTHON_STACK = "Traceback (most recent call last)"
_SEPARATOR = re.compile(r"\s*[=:]\s*|\s+")
_LINE = 79
_EVERY_S = 60.0

DESCRIPTION = (
    "Turn what brokers have written to the lake since the last run into results and advice."
)
EPILOG = """\
Exit code 0: done. 3: nothing new. 1: failed; run it again. 2: the command line is wrong.

Where there is no --master, spark-submit decides: spark-submit analytics/main.py run all --lake ...
URLs are folders, s3://bucket/prefix, gs://bucket/prefix, hdfs://…; for S3 the usual variables
count: $AWS_ENDPOINT_URL, $AWS_REGION, $AWS_ACCESS_KEY_ID and so on.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """All but --json."""
    parser.add_argument("job", choices=(*JOBS, ALL), metavar="JOB", help=", ".join((*JOBS, ALL)))
    parser.add_argument("--lake", metavar="URL", required=True, help="where brokers write to")
    parser.add_argument(
        "--output",
        metavar="URL",
        required=True,
        help="where results, state and quarantine are; a folder of these jobs alone",
    )
    parser.add_argument("--redis", metavar="URL", default="", help="write advice there, too")
    parser.add_argument(
        "--redis-password-file",
        metavar="FILE",
        default="",
        help=f"with that server's password (default: ${PASSWORD_VARIABLE})",
    )
    parser.add_argument(
        "--master", metavar="URL", help="local[*], spark://…, k8s://… (default: local[*])"
    )
    parser.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Spark, such as spark.executor.memory=2g",
    )
    parser.add_argument(
        "--properties-file",
        metavar="FILE",
        default="",
        help="with such settings, a line each, as spark-submit reads it",
    )
    parser.add_argument(
        "--packages", metavar="NAMES", default="", help="Maven packages for Spark, with commas"
    )
    parser.add_argument("--jars", metavar="FILES", default="", help="jars for Spark, with commas")
    parser.add_argument(
        "--driver-memory", metavar="SIZE", default="", help="such as 4g (default: Spark's)"
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="assignments",
        help="a setting, such as rates.period_s=60; docs/reference.md has all",
    )
    parser.add_argument(
        "--nothing-new-is-fine",
        action="store_true",
        help="exit code 0, not 3, where there was nothing new: for schedulers that know only 0",
    )
    parser.add_argument(
        "--continuous",
        action="store_true",
        help="go on, with one session of Spark, until SIGTERM or SIGINT",
    )
    parser.add_argument(
        "--every",
        type=_seconds,
        default=_EVERY_S,
        metavar="SECONDS",
        help="with --continuous: from one round's beginning to the next (default: 60)",
    )
    parser.add_argument(
        "--explain", action="store_true", help="print Spark's plans, and run nothing"
    )


def run(arguments: argparse.Namespace, *, default_master: str | None = "local[*]") -> int:
    """Run the jobs. What goes wrong in one does not stop the next."""
    _require("pyspark", "redis" if arguments.redis else "")
    try:
        settings = with_values(default_settings(), arguments.assignments)
    except SettingsError as error:
        raise AnalyticsUsageError(str(error)) from None
    conf = spark_settings(arguments)
    if warning := exposed_password([arguments.redis], "--redis-password-file"):
        print(f"warning: {warning}", file=sys.stderr)
    _check_password(arguments)
    if arguments.continuous and arguments.explain:
        raise AnalyticsUsageError("--explain runs nothing, so there is nothing to be --continuous")
    names = JOBS if arguments.job == ALL else (arguments.job,)
    progress = _ProgressLine()
    started_s = time.monotonic()
    is_ours = _session() is None
    try:
        new_runner = _runners(
            arguments, settings, progress, arguments.master or default_master, conf
        )
        progress.say(f"Spark is there after {time.monotonic() - started_s:.1f} s")
        if arguments.continuous:
            return _run_continuously(new_runner, settings, names, arguments, progress)
        runner = new_runner()
        runner.check()
        if arguments.explain:
            return _explain(runner, settings, names)
        return _status(_run_jobs(runner, settings, names, arguments, progress), arguments)
    except AnalyticsError as error:
        _record_failures(arguments, names, error, time.monotonic() - started_s)
        raise
    finally:
        progress.close()
        if is_ours and (session := _session()) is not None:
            # Executors elsewhere are told to end, and what a cluster was asked for is given back.
            session.stop()


def spark_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """Of the properties file, then of the options: what is said last counts."""
    settings = _properties(arguments.properties_file) if arguments.properties_file else {}
    for assignment in arguments.conf:
        name, equals, value = assignment.partition("=")
        if not equals or not name.startswith("spark."):
            raise AnalyticsUsageError(f"--conf: {assignment!r} is no spark.KEY=VALUE")
        settings[name] = value
    for name, value in (
        ("spark.jars.packages", arguments.packages),
        ("spark.jars", arguments.jars),
    ):
        if value:
            settings[name] = value
    return settings


def _properties(path: str) -> dict[str, str]:
    """As Spark reads it: a name, and after `=`, `:` or a space its value; `#` begins a remark."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise AnalyticsUsageError(f"--properties-file: {error}") from None
    settings: dict[str, str] = {}
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith(("#", "!")):
            name, _, value = _SEPARATOR.sub("=", line, count=1).partition("=")
            if not name.startswith("spark."):
                raise AnalyticsUsageError(f"--properties-file: {line!r} is no setting of Spark")
            settings[name] = value
    return settings


def _check_password(arguments: argparse.Namespace) -> None:
    """Before Spark is started, which takes long."""
    try:
        read_password(arguments.redis_password_file)
    except RedisPasswordError as error:
        raise AnalyticsUsageError(f"--redis-password-file: {error}") from None


def _require(*packages: str) -> None:
    for package in filter(None, packages):
        if find_spec(package) is None:
            raise AnalyticsError(f"{package} is not installed: pip install 'dynatops[analytics]'")


def _runners(
    arguments: argparse.Namespace,
    settings: AnalyticsSettings,
    progress: _ProgressLine,
    master: str | None,
    conf: Mapping[str, str],
) -> Callable[[], Runner]:
    """Starts Spark; each runner opens lake and results anew, with the credentials of the day."""
    from analytics.executors import send_package
    from analytics.runner import Place, Runner
    from analytics.session import SMALL_BYTES, start
    from analytics.storage.places import is_small_folder

    is_small = not arguments.continuous and is_small_folder(arguments.lake, SMALL_BYTES)
    spark = start(master, driver_memory=arguments.driver_memory, conf=conf, is_small=is_small)
    send_package(spark)
    progress.watch(spark.sparkContext.statusTracker())
    place = Place(
        lake=arguments.lake,
        output=arguments.output,
        redis=arguments.redis,
        redis_password_file=arguments.redis_password_file,
    )
    return lambda: Runner(spark, place, settings, progress=progress.taken_in)


def _explain(runner: Runner, settings: AnalyticsSettings, names: tuple[str, ...]) -> int:
    catalogue = jobs(settings)
    for name in names:
        print(runner.explained(catalogue[name]))
    return DONE


def _run_continuously(
    new_runner: Callable[[], Runner],
    settings: AnalyticsSettings,
    names: tuple[str, ...],
    arguments: argparse.Namespace,
    progress: _ProgressLine,
) -> int:
    is_checked = False

    def run_round() -> bool:
        nonlocal is_checked
        begun_s = time.monotonic()
        try:
            runner = new_runner()
            if not is_checked:
                runner.check()
                is_checked = True
        except _failures() as error:
            _warn(_short(error, arguments))
            _record_failures(arguments, names, error, time.monotonic() - begun_s)
            return False
        summaries = _run_jobs(runner, settings, names, arguments, progress, stop)
        return _status(summaries, arguments) != FAILED

    with StopSignal() as stop:
        is_well = run_rounds(run_round, every_s=arguments.every, wait=stop.wait, say=_warn)
    return DONE if is_well else FAILED


def _recorder(arguments: argparse.Namespace) -> JobRecorder:
    from analytics.recording import JobRecorder

    redis = "" if arguments.explain else arguments.redis
    return JobRecorder(redis, arguments.redis_password_file)


def _record_failures(
    arguments: argparse.Namespace, names: tuple[str, ...], error: Exception, seconds: float
) -> None:
    """As failed as if they had begun: none runs until that is mended."""
    recorder = _recorder(arguments)
    for name in names:
        recorder.failed(name, _short(error, arguments), seconds)


def _run_jobs(
    runner: Runner,
    settings: AnalyticsSettings,
    names: tuple[str, ...],
    arguments: argparse.Namespace,
    progress: _ProgressLine,
    stop: StopSignal | None = None,
) -> list[dict[str, Any]]:
    """What each has done."""
    catalogue = jobs(settings)
    recorder = _recorder(arguments)
    summaries: list[dict[str, Any]] = []
    for name in names:
        if stop is not None and stop.is_given:
            break
        progress.begin(name)
        begun_s = time.monotonic()
        try:
            summary = runner.run(catalogue[name])
            summaries.append(_as_dict(summary))
            recorder.ended(name, summary.counts, summary.seconds, new=summary.new)
        except _failures() as error:
            summaries.append({"job": name, "status": "failed", "error": _short(error, arguments)})
            recorder.failed(name, _short(error, arguments), time.monotonic() - begun_s)
        finally:
            progress.end()
        if not arguments.json:
            print(_sentence(summaries[-1]), flush=True)
    if arguments.json:
        print(write_json({"jobs": summaries}), flush=True)
    return summaries


def _failures() -> tuple[type[Exception], ...]:
    """What a job may fail of, without a fault of ours."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return AnalyticsError, PySparkException, Py4JError, OSError


def _status(summaries: Sequence[Mapping[str, Any]], arguments: argparse.Namespace) -> int:
    statuses = {summary["status"] for summary in summaries}
    if "failed" in statuses:
        return FAILED
    if "done" in statuses or arguments.nothing_new_is_fine:
        return DONE
    return NOTHING_NEW


def _as_dict(summary: Summary) -> dict[str, Any]:
    counts, published = summary.counts, summary.published
    return {
        "job": summary.job,
        "status": "done" if summary.new else "nothing new",
        "version": summary.version,
        "files_in": counts.files,
        "rows_in": counts.rows,
        "rows_out": dict(summary.rows_out),
        "quarantined_files": counts.quarantined_files,
        "quarantined_rows": counts.quarantined,
        "late_rows": counts.late,
        "dropped_rows": counts.dropped,
        "seconds": round(summary.seconds, 3),
        "advice": asdict(published) if published else None,
    }


def _sentence(summary: dict[str, Any]) -> str:
    name = summary["job"]
    if summary["status"] == "failed":
        return f"{name}: failed: {summary['error']}"
    if summary["status"] == "nothing new":
        return f"{name}: nothing new"
    out = ", ".join(f"{rows:,} {table}" for table, rows in summary["rows_out"].items())
    text = (
        f"{name}: {summary['rows_in']:,} rows in ({summary['late_rows']:,} late, "
        f"{summary['dropped_rows']:,} dropped, {summary['quarantined_rows']:,} quarantined) "
        f"from {summary['files_in']:,} files ({summary['quarantined_files']:,} quarantined); "
        f"out: {out or 'as before'}; {summary['seconds']:.1f} s"
    )
    if summary["advice"]:
        advice = summary["advice"]
        text += f"; advised: {advice['entries']:,} entries, version {advice['version']}"
        if advice["left_out"]:
            text += f" ({advice['left_out']:,} left out)"
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _short(error: Exception, arguments: argparse.Namespace) -> str:
    """Of a failure's stack what matters: of the JVM's the beginning, of Python's the end.

    What Spark says of a store is told as what it means, where that is known.
    """
    from analytics.storage.places import explained, is_folder

    said = str(error)
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("\tat ")]
    for begin in [n for n, line in enumerate(lines) if _PYTHON_STACK in line][-1:]:
        after = (line for line in lines[begin + 1 :] if not line.startswith((" ", "\t")))
        lines = [next(after, lines[begin])]
    text = " ".join(lines[:3])[:1_000] or type(error).__name__
    stores = [url for url in (arguments.output, arguments.lake) if not is_folder(url)]
    if not stores or isinstance(error, AnalyticsError):
        return text
    return explained(text, *stores)


class _ProgressLine:
    """On a terminal one line that is written over; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._job = ""
        self._done = ""
        self._begun_s = 0.0
        self._said_s = 0.0
        self._is_open = False
        self._lock = threading.Lock()
        self._tracker: StatusTracker | None = None
        self._over = threading.Event()

    def close(self) -> None:
        self._over.set()

    def watch(self, tracker: StatusTracker) -> None:
        """Say what Spark does in between, too: a large batch takes minutes."""
        self._tracker = tracker
        threading.Thread(target=self._look_forever, daemon=True).start()

    def begin(self, job: str) -> None:
        with self._lock:
            self._job, self._begun_s = job, time.monotonic()
            self._done = "looking for new files"
        self._tell()

    def taken_in(self, table: str, counts: Counts) -> None:
        with self._lock:
            self._done = f"{counts.files:,} files, {counts.rows:,} rows, last of {table}"
        self._tell()

    def say(self, text: str) -> None:
        with self._lock:
            self._say(text)

    def end(self) -> None:
        with self._lock:
            self._job = ""
            if self._is_open:
                print(f"\r{'':<{_LINE}}\r", end="", file=sys.stderr, flush=True)
                self._is_open = False

    def _look_forever(self) -> None:
        while not self._over.wait(1.0 if self._is_terminal else _PROGRESS_PERIOD_S):
            self._tell()

    def _tell(self) -> None:
        tasks = self._tasks()
        with self._lock:
            if self._job:
                seconds = time.monotonic() - self._begun_s
                self._say(f"{self._job}: {self._done}{tasks}, {seconds:.0f} s")

    def _tasks(self) -> str:
        from py4j.protocol import Py4JError

        if self._tracker is None:
            return ""
        try:
            stages = [self._tracker.getStageInfo(i) for i in self._tracker.getActiveStageIds()]
        except (OSError, Py4JError):
            # Spark has ended: the job itself says so.
            return ""
        found = [stage for stage in stages if stage is not None and stage.numTasks]
        done = sum(stage.numCompletedTasks for stage in found)
        every = sum(stage.numTasks for stage in found)
        return f"; {done} of {every} tasks" if found else ""

    def _say(self, text: str) -> None:
        now_s = time.monotonic()
        if self._is_terminal:
            print(f"\r{text[:_LINE]:<{_LINE}}", end="", file=sys.stderr, flush=True)
            self._is_open = True
        elif now_s - self._said_s >= _PROGRESS_PERIOD_S:
            print(text, file=sys.stderr, flush=True)
            self._said_s = now_s


def await_end(seconds: float) -> None:
    """Wait for the end of what there is of Spark, when this process is about to end."""
    if "pyspark" in sys.modules:
        from analytics import session

        session.await_end(seconds)


def _session() -> SparkSession | None:
    """What there is of Spark in this process; that is not asked for more than it has loaded."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
