"""Two runs of a job at once, and runs that are cut off, where no rename is one step: every row
counts once, and nobody writes over what another has done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from analytics.commits import Counts
from analytics.errors import AnalyticsError
from analytics.storage.places import explained
from dynatops.lake.fields import PUBLICATIONS
from dynatops.lake.stores import call_max_s
from tests.spark.test_runner import FAST, lake_of_all, published
from tests.support.failing_store import STALL, StoreProxy
from tests.support.object_store import ObjectStore, object_store
from tests.support.running_analytics import Running, RunningOnStore, close
from tests.support.spark_frames import write_file
from tests.support.waiting import wait_for

STEPS = (
    *("part", "results"),
    *(pytest.param(s, marks=pytest.mark.slow) for s in ("batch", "state", "finish", "latest")),
)
KINDS = ("folder", pytest.param("objects", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def bucket(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return store.make_bucket(tmp_path.name.lower().replace("_", "-")[-60:].strip("-"))


@pytest.fixture(params=KINDS)
def running(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Running:
    if request.param == "folder":
        return Running(spark, tmp_path, *FAST)
    store, bucket = (request.getfixturevalue(name) for name in ("store", "bucket"))
    return RunningOnStore(spark, tmp_path, *FAST, store=store, bucket=bucket)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", STEPS)
def test_one_run_overtakes_another(running: Running, where: str) -> None:
    """At each step of one another does all there is to do: what is there in the end is whole."""
    write_file(running.lake, PUBLICATIONS, "b0-1-1", [published(0), published(30)])
    overtaken: list[Counts] = []

    def overtake(name: str) -> None:
        if name == where and not overtaken:
            overtaken.append(running.run("rates").counts)

    if where in ("finish", "latest"):
        # There is nothing left to commit: the other finds it done.
        assert running.run("rates", overtake).counts == Counts(files=1, rows=2)
        assert overtaken == [Counts()]
    else:
        with pytest.raises(AnalyticsError, match="another run of this job is under way"):
            running.run("rates", overtake)
        assert overtaken == [Counts(files=1, rows=2)]
    assert running.results("rates")["topics"] == [("quake", 1.0)]
    write_file(running.lake, PUBLICATIONS, "b0-1-2", [published(12), published(55, events=50)])
    # What the loser has left behind is in nobody's way, and is swept away.
    assert running.run("rates").counts == Counts(files=1, rows=2, late=1)
    expected = (1.0 * 0.7 + 0.3 * 1.0) * 0.7
    assert running.results("rates")["topics"] == [("quake", pytest.approx(expected))]
    kept = list(running.output.glob("rates/topics/version=*"))
    assert len(kept) == 2
    assert len(list(running.output.glob("state/rates/states/*"))) == 1


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_in_a_store_a_run_cut_off_at_every_step_comes_to_the_same(
    spark: SparkSession, tmp_path: Path, store: ObjectStore, bucket: str
) -> None:
    values = ("mobility.late_s=300", "mobility.support=1")
    cut = RunningOnStore(spark, tmp_path, *values, store=store, bucket=bucket)
    whole = Running(spark, tmp_path, *values, name="whole")
    lake_of_all(cut.lake)
    summary, been = cut.run_cut_everywhere("mobility")
    assert len(been) == 10
    assert summary.version == whole.run("mobility").version
    assert close(cut.results("mobility"), whole.results("mobility"))


@pytest.mark.parametrize(
    "where",
    [
        # Before each of the two commits: it is not known whether they were made.
        *("part", "results"),
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("batch", "state", "finish", "latest")),
    ],
)
def test_a_store_that_says_nothing_ends_the_run_and_nothing_is_lost(
    spark: SparkSession,
    tmp_path: Path,
    store: ObjectStore,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    """From one step on the store is silent; what it was told meanwhile it does later, and late."""
    timeout_s, tries = 0.4, 2
    values = (*FAST, f"run.store_timeout_s={timeout_s}", f"run.store_tries={tries}")
    with StoreProxy(store.address) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        running = RunningOnStore(spark, tmp_path, *values, store=store, bucket=bucket)
        write_file(running.lake, PUBLICATIONS, "b0-1-1", [published(0), published(30)])
        silent_s: list[float] = []

        def stall(name: str) -> None:
            if name == where:
                silent_s.append(time.monotonic())
                proxy.fault = STALL

        with pytest.raises((AnalyticsError, OSError, PySparkException)) as ended:
            running.run("rates", stall)
        assert time.monotonic() - silent_s[0] < call_max_s(timeout_s, tries)
        told = explained(str(ended.value), f"{bucket}/out")
        assert f"the store at {proxy.url}, region us-east-1 takes connections and does not" in told
        proxy.fault = None
        wait_for(lambda: not proxy.stalled)
        running.run("rates")
        assert running.results("rates")["topics"] == [("quake", 1.0)]
        write_file(running.lake, PUBLICATIONS, "b0-1-2", [published(12), published(55, events=50)])
        assert running.run("rates").counts == Counts(files=1, rows=2, late=1)
        assert len(list(running.output.glob("state/rates/states/*"))) == 1


def test_a_run_that_finds_nothing_sweeps_nothing_of_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The other has written a part, and makes its commit afterwards."""
    running = Running(spark, tmp_path, *FAST)
    write_file(running.lake, PUBLICATIONS, "b0-1-1", [published(0), published(30)])
    running.run("rates")
    write_file(running.lake, PUBLICATIONS, "b0-1-2", [published(55, events=50)])
    file = next(running.lake.glob("*/*/*/b0-1-2.parquet"))
    away = tmp_path / "away"

    def look(name: str) -> None:
        if name == "part":
            # As a run sees the lake that has looked at it a moment before.
            file.rename(away)
            assert not running.run("rates").new
            away.rename(file)

    assert running.run("rates", look).counts == Counts(files=1, rows=1)
    assert running.results("rates")["topics"] == [("quake", pytest.approx(0.49))]
