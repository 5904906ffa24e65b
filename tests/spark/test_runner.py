"""Every file once, whatever happens: increments, crashes, late rows, bad files and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from analytics.commits import CommitLog, Counts
from analytics.errors import AnalyticsError
from analytics.jobs.catalogue import jobs
from analytics.storage.hadoop import HadoopStorage
from dynatops.lake.fields import PUBLICATIONS, REQUESTS, SESSIONS, SUBSCRIPTIONS
from dynatops.lake.store_urls import parse_store_url
from tests.support.running_analytics import Cut, Running, close
from tests.support.spark_frames import START_S, at, write_file

FAST = ("rates.period_s=10", "rates.late_s=20")


def published(second: float, topic: str = "quake", events: int = 10) -> tuple[Any, ...]:
    return (at(START_S + second), 1.0, "b0", topic, events, 100)


def test_a_run_adds_what_is_new_and_no_more(spark: SparkSession, tmp_path: Path) -> None:
    running = Running(spark, tmp_path, *FAST)
    running.lake.mkdir()
    assert not running.run("rates").new
    write_file(running.lake, PUBLICATIONS, "b0-1-1", [published(0), published(30)])
    first = running.run("rates")
    # [0, 10) is complete: 30 s, less 20 s.
    assert (first.new, first.counts) == (True, Counts(files=1, rows=2))
    assert running.results("rates")["topics"] == [("quake", 1.0)]
    again = running.run("rates")
    assert (again.new, again.counts, again.version) == (False, Counts(), first.version)
    write_file(running.lake, PUBLICATIONS, "b0-1-2", [published(55, events=50), published(12)])
    second = running.run("rates")
    # 12 s is late, and counts: [10, 20); nothing in [20, 30).
    assert second.counts == Counts(files=1, rows=2, late=1)
    expected = (1.0 * 0.7 + 0.3 * 1.0) * 0.7
    assert running.results("rates")["topics"] == [("quake", pytest.approx(expected))]
    write_file(running.lake, PUBLICATIONS, "b0-1-3", [published(29, "gone"), published(60)])
    third = running.run("rates")
    assert third.counts == Counts(files=1, rows=2, dropped=1)
    assert [topic for topic, _ in running.results("rates")["topics"]] == ["quake"]
    versions = (running.output / "rates" / "topics").iterdir()
    kept = {path.name.partition("-")[0] for path in versions}
    assert kept == {f"version={second.version}", f"version={third.version}"}
    assert len(list((running.output / "state" / "rates" / "states").iterdir())) == 1


def lake_of_all(lake: Path) -> None:
    for number in range(3):
        hour = number * 3_600
        times = [START_S + hour + 60 * i for i in range(40)]
        publications = [
            (at(t), 1.0, f"b{i % 2}", f"t{i % 5}", i + 1, 9) for i, t in enumerate(times)
        ]
        sessions = [
            (at(t), f"u{i % 4}", f"b{(i * i + number) % 3}", "open", i % 3 * 20.0, i % 3 * 30.0)
            for i, t in enumerate(times)
        ]
        subscriptions = [
            (at(t), f"b{i % 3}", f"u{i % 9}", f"t{i % 5}", "subscribe") for i, t in enumerate(times)
        ]
        requests = [(at(t), 60.0, f"b{i % 3}", f"t{i % 5}", i) for i, t in enumerate(times)]
        name, hour_s = f"b-1-{number}", START_S + hour
        write_file(lake, PUBLICATIONS, name, publications, hour_s)
        write_file(lake, SESSIONS, name, sessions, hour_s)
        write_file(lake, SUBSCRIPTIONS, name, subscriptions, hour_s)
        write_file(lake, REQUESTS, name, requests, hour_s)


@pytest.mark.parametrize("job", ["rates", "mobility"])
def test_cut_off_at_every_step_it_comes_to_the_same(
    spark: SparkSession, tmp_path: Path, job: str
) -> None:
    values = ("rates.late_s=300", "mobility.late_s=300", "mobility.support=1")
    cut, whole = Running(spark, tmp_path, *values), Running(spark, tmp_path, *values, name="whole")
    lake_of_all(cut.lake)
    summary, been = cut.run_cut_everywhere(job)
    assert [name.split()[0] for name in been] == [
        *("part", "batch") * 3, "state", "results", "finish", "latest"
    ]  # fmt: skip
    undisturbed = whole.run(job)
    assert undisturbed.counts == Counts(files=3, rows=120)
    assert summary.version == undisturbed.version
    assert close(cut.results(job), whole.results(job))
    # Nothing of the attempts is left.
    assert not list((cut.output / "state" / job / "parts").glob("*.parquet"))
    assert len(list((cut.output / "state" / job / "states").iterdir())) == 1


def test_what_was_taken_in_before_a_crash_is_in_the_summary(
    spark: SparkSession, tmp_path: Path
) -> None:
    running = Running(spark, tmp_path)
    lake_of_all(running.lake)

    def step(name: str) -> None:
        if name == "state":
            raise Cut(name)

    with pytest.raises(Cut):
        running.run("demand", step)
    assert running.run("demand").counts == Counts(files=3, rows=120)


def test_all_jobs_one_after_the_other(spark: SparkSession, tmp_path: Path) -> None:
    running = Running(spark, tmp_path, "run.files_per_batch=99", "selection.rounds_max=2")
    lake_of_all(running.lake)
    for job in ("clusters", "selection"):
        assert running.run(job).counts == Counts(files=3, rows=120)
    clusters = {row[0]: row[1] for row in running.results("clusters")["brokers"]}
    assert set(clusters) == {"b0", "b1", "b2"}
    users = running.results("selection")["users"]
    assert len(users) == 9
    assert {row[1] for row in running.results("selection")["brokers"]} == set(clusters.values())


def test_bad_files_and_rows_go_to_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    running = Running(spark, tmp_path, *FAST, "run.files_per_batch=10")
    lake = running.lake
    good = write_file(lake, PUBLICATIONS, "good", [published(0), published(100)])
    folder = good.parent
    (folder / "nonsense.parquet").write_bytes(b"nonsense" * 100)
    # There is nothing in it to be lost: passed over.
    (folder / "empty.parquet").write_bytes(b"")
    cut_off = write_file(lake, PUBLICATIONS, "cut", [published(i) for i in range(99)])
    cut_off.write_bytes(cut_off.read_bytes()[:-50])
    damaged = write_file(lake, PUBLICATIONS, "damaged", [published(i % 7) for i in range(5_000)])
    content = bytearray(damaged.read_bytes())
    content[4:200] = bytes(196)
    damaged.write_bytes(content)
    pq.write_table(pa.table({"events": ["many"], "topic": ["t"]}), folder / "types.parquet")
    pq.write_table(pa.table({"topic": ["t"]}), folder / "columns.parquet")
    rows = [published(1), (None, *published(2)[1:]), (*published(3)[:4], -5, 0)]
    write_file(lake, PUBLICATIONS, "rows", rows)
    summary = running.run("rates")
    assert summary.counts == Counts(files=7, rows=6, quarantined=3, quarantined_files=4)
    assert running.results("rates")["topics"] == [("quake", pytest.approx(2.0 * 0.7**7))]
    quarantine = running.output / "quarantine" / "rates"
    records = [json.loads(path.read_text()) for path in quarantine.glob("files/*.json")]
    names = {record["file"].rpartition("/")[2] for record in records}
    assert names == {f"{n}.parquet" for n in ("nonsense", "cut", "damaged", "types")}
    assert all(record["reason"] for record in records)
    copies = {path.read_bytes() for path in quarantine.glob("files/*.parquet")}
    assert bytes(content) in copies
    bad = spark.read.parquet(str(quarantine / "rows" / "*")).collect()
    assert {(row.reason, row.file.rpartition("/")[2]) for row in bad} == {
        ("window_start is null", "rows.parquet"), ("events is negative", "rows.parquet"),
        ("window_start is null", "columns.parquet"),
    }  # fmt: skip
    assert not running.run("rates").new


def test_two_runs_at_once_do_not_both_count(spark: SparkSession, tmp_path: Path) -> None:
    log = CommitLog(HadoopStorage(spark, parse_store_url(str(tmp_path))), f"{tmp_path}/commits")
    one = log.append(log.latest())
    assert log.latest() == one
    log.append(one)
    with pytest.raises(AnalyticsError, match="another run"):
        log.append(one)
    assert [path.name for path in (tmp_path / "commits").glob("[0-9]*.json")] != []
    assert not list((tmp_path / "commits").glob(".0*.json.*[!c]"))


def test_plans_are_told_and_nothing_is_run(spark: SparkSession, tmp_path: Path) -> None:
    running = Running(spark, tmp_path)
    lake_of_all(running.lake)
    for job in jobs(running.settings).values():
        text = running.runner().explained(job)
        assert "Scan parquet" in text
        assert "BatchEvalPython" not in text
        assert "CartesianProduct" not in text
    assert not running.output.exists()
