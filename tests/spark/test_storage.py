"""Folders and stores of objects keep the same promises, and say plainly what is wrong."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from analytics.errors import AnalyticsError
from analytics.executors import check_machines
from analytics.session import compilers
from analytics.storage import opening
from analytics.storage.arrow import ArrowStorage
from analytics.storage.hadoop import hadoop_settings
from analytics.storage.opening import open_storage
from analytics.storage.places import explained, is_small_folder
from analytics.storage.storage import AlreadyThereError, Storage, packed, read_text, write_text
from analytics.storage.store_access import StorePatience
from dynatops.lake.store_urls import LakeError, parse_store_url
from tests.support.object_store import (
    ObjectStore,
    ignoring_conditions,
    object_store,
    refusing,
)
from tests.support.ports import free_addresses
from tests.support.spark_frames import tuples

SCHEMA = StructType([StructField("n", LongType()), StructField("name", StringType())])
KINDS = ("folder", "objects")


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        store.make_bucket("bucket")
        yield store


@pytest.fixture(params=KINDS)
def storage(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, store: ObjectStore
) -> Storage:
    if request.param == "folder":
        return open_storage(spark, f"{tmp_path}/out/", for_results=True)
    monkeypatch = request.getfixturevalue("monkeypatch")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://bucket/{tmp_path.name}/out/"
    return open_storage(spark, url, for_results=True)


def parquet(table: pa.Table) -> bytes:
    content = io.BytesIO()
    pq.write_table(table, content)
    return content.getvalue()


def test_files_are_there_whole_and_created_once(storage: Storage) -> None:
    root = storage.root
    assert not storage.exists(f"{root}/some/file")
    assert storage.names(f"{root}/some") == []
    write_text(storage, f"{root}/some/file", "one")
    write_text(storage, f"{root}/some/file", "two")
    assert read_text(storage, f"{root}/some/file") == "two"
    storage.put(f"{root}/some/large", (bytes([i]) * 5_000_000 for i in range(3)))
    assert b"".join(storage.blocks(f"{root}/some/large"))[9_999_999:10_000_001] == b"\1\2"
    storage.create(f"{root}/commits/1", "mine")
    with pytest.raises(AlreadyThereError):
        storage.create(f"{root}/commits/1", "another's")
    assert read_text(storage, f"{root}/commits/1") == "mine"
    assert storage.names(root) == sorted({"commits", "some", *storage.names(root)})
    assert storage.names(f"{root}/some") == ["file", "large"]
    storage.delete(f"{root}/some")
    storage.delete(f"{root}/nothing")
    assert not storage.exists(f"{root}/some/file")
    assert storage.exists(f"{root}/commits/1")


def test_only_whole_files_are_found(storage: Storage) -> None:
    table = f"{storage.root}/publications"
    assert storage.found(table, ".parquet") == []
    for name in ("date=1/hour=2/a.parquet", "date=1/_tmp/b.parquet", "date=1/.c.parquet", "d.txt"):
        write_text(storage, f"{table}/{name}", "xyz")
    storage.put(f"{table}/date=1/empty.parquet", [])
    (file,) = storage.found(table, ".parquet")
    assert (file.path, file.name, file.size) == (f"{table}/{file.name}", file.name, 3)
    assert file.name == "date=1/hour=2/a.parquet"
    assert file.modified_us > 1_600_000_000_000_000


def test_frames_come_back_as_they_were(storage: Storage, spark: SparkSession) -> None:
    root = storage.root
    rows = [(i, f"n{i}") for i in range(500)]
    frame = spark.createDataFrame(rows, SCHEMA).repartition(3)
    storage.save(frame, f"{root}/one")
    storage.save(frame.filter("n < 0"), f"{root}/none")
    assert storage.saved([f"{root}/one"]).schema.names == ["n", "name"]
    assert tuples(storage.saved([f"{root}/one"])) == sorted(rows, key=repr)
    both = storage.saved([f"{root}/one", f"{root}/none"], SCHEMA)
    assert both.count() == 500
    assert storage.saved([f"{root}/none"]).schema.names == ["n", "name"]
    assert storage.saved([], SCHEMA).count() == 0
    # What readers ask for is all that is read; what files do not have is null.
    narrow = StructType([StructField("name", StringType()), StructField("more", LongType())])
    assert tuples(storage.saved([f"{root}/one"], narrow).limit(1))[0][1] is None


def test_rows_of_a_task_that_was_repeated_count_once(
    spark: SparkSession, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    storage = open_storage(spark, "s3://bucket/repeated", for_results=True)
    # Of an attempt that came to nothing: its file is nobody's, and goes.
    left = parquet(pa.table({"n": [7], "name": ["lost"]}))
    storage.put(f"{storage.root}/rows/part-0.parquet", [left])
    storage.save(spark.createDataFrame([(1, "a")], SCHEMA), f"{storage.root}/rows")
    assert len(storage.names(f"{storage.root}/rows")) == 2
    # Of one that goes on although it was given up: it comes too late to be named.
    storage.put(f"{storage.root}/rows/part-1.parquet", [left])
    assert tuples(storage.saved([f"{storage.root}/rows"])) == [(1, "a")]


def test_bad_files_are_told_from_good_ones(storage: Storage) -> None:
    good = parquet(pa.table({"n": [1, 2], "name": ["a", "b"]}))
    narrow = parquet(pa.table({"n": pa.array([1], pa.int32())}))
    contents = {
        "good": good,
        "narrow": narrow,
        "half": good[:-30],
        "nonsense": b"nonsense" * 50,
        "type": parquet(pa.table({"n": ["many"]})),
    }
    paths = [f"{storage.root}/lake/{name}.parquet" for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        storage.put(path, [content])
    storage.found(f"{storage.root}/lake", ".parquet")
    bad = storage.bad_files(paths, SCHEMA)
    assert {file.path.rpartition("/")[2] for file in bad} == {
        "half.parquet", "nonsense.parquet", "type.parquet"
    }  # fmt: skip
    assert all(file.reason for file in bad)
    fine = [path for path in paths if "good" in path or "narrow" in path]
    assert tuples(storage.rows_of(fine, SCHEMA)) == [(1, "a"), (1, None), (2, "b")]
    column = storage.with_paths(fine, SCHEMA, "file").select("file").distinct()
    assert SCHEMA.names == ["n", "name"]
    assert {row.file.rpartition("/")[2] for row in column.collect()} == {
        "good.parquet", "narrow.parquet"
    }  # fmt: skip


def test_files_are_packed_into_tasks() -> None:
    sizes = {"a": 10, "b": 10, "large": 500, "c": 1, "d": 1}
    assert packed(sizes, 100, 5) == [["a", "b"], ["large"], ["c", "d"]]
    assert packed({}, 100, 5) == []


def test_what_is_a_small_lake(tmp_path: Path) -> None:
    (tmp_path / "publications").mkdir()
    (tmp_path / "publications" / "a.parquet").write_bytes(bytes(600))
    (tmp_path / "b.parquet").write_bytes(bytes(400))
    assert is_small_folder(str(tmp_path), 1_000)
    assert is_small_folder(f"file://{tmp_path}", 1_000)
    assert not is_small_folder(str(tmp_path), 999)
    # Nobody asks a store before Spark is there.
    assert not is_small_folder("s3://bucket/lake", 1_000)
    assert not is_small_folder("nonsense://", 1_000)
    first_compiler, _ = compilers("spark://host:1", is_small=False)
    assert compilers("local[2]", is_small=True) == (first_compiler, first_compiler)
    assert first_compiler not in compilers("local[2]", is_small=False)


def test_executors_that_do_not_see_a_folder_are_told_of(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Asked as those of a cluster are."""
    (tmp_path / "file").write_text("x")
    check_machines(spark, {str(tmp_path): str(tmp_path / "file")})
    check_machines(spark, {f"file://{tmp_path}": f"file://{tmp_path}/file"})
    with pytest.raises(AnalyticsError, match=rf"executors do not see {tmp_path} \("):
        check_machines(spark, {str(tmp_path): str(tmp_path / "of-another-machine")})


# ---- options in URLs -----------------------------------------------------------------------------


def test_a_url_says_where_its_store_is(
    spark: SparkSession, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(store, monkeypatch)
    (nobody,) = free_addresses(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{nobody}")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    host = store.endpoint.partition("://")[2]
    url = f"s3://bucket/told?endpoint_override={host}&scheme=http&region=us-east-1"
    storage = open_storage(spark, url, for_results=True)
    assert storage.root == "s3://bucket/told"
    storage.save(spark.createDataFrame([(1, "a")], SCHEMA), f"{storage.root}/rows")
    assert tuples(storage.saved([f"{storage.root}/rows"])) == [(1, "a")]
    storage.create(f"{storage.root}/commits/1", "mine")
    assert storage.names(f"{storage.root}/commits") == ["1"]


def test_options_that_brokers_refuse_jobs_refuse(spark: SparkSession) -> None:
    for url in ("s3://bucket/lake?endpoint=x", "gs://b/lake?region=x", "ftp://host/lake"):
        with pytest.raises(LakeError) as refused:
            parse_store_url(url)
        with pytest.raises(AnalyticsError, match=re.escape(str(refused.value))):
            open_storage(spark, url, for_results=False)


def test_hadoop_is_told_of_options_in_its_own_words() -> None:
    told = hadoop_settings(parse_store_url("s3a://b/lake?endpoint_override=http://m:1&region=x"))
    assert told == {
        "fs.s3a.bucket.b.endpoint": "http://m:1",
        "fs.s3a.bucket.b.endpoint.region": "x",
        "fs.s3a.bucket.b.path.style.access": "true",
    }
    told = hadoop_settings(parse_store_url("hdfs://n/lake?replication=2&buffer_size=4096"))
    assert told == {"dfs.replication": "2", "io.file.buffer.size": "4096"}
    assert hadoop_settings(parse_store_url("hdfs://n/lake")) == {}
    with pytest.raises(AnalyticsError, match=r"does not know user: .*HADOOP_USER_NAME"):
        hadoop_settings(parse_store_url("hdfs://n/lake?user=ann"))


def test_to_hadoop_a_bucket_is_in_one_store(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the connector were there: any class will do."""
    monkeypatch.setitem(opening._CONNECTORS, "s3", "java.lang.String")
    urls = ("s3://bucket/lake?region=x", "s3a://bucket/out")
    with pytest.raises(AnalyticsError, match="in one bucket and have different options"):
        opening.open_lake_and_output(spark, *urls, StorePatience())


# ---- what is wrong -------------------------------------------------------------------------------


def use(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    # One refusal is enough.
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("AccessDenied", "do not allow that"),
        ("RequestTimeTooSkewed", "the clock of this machine"),
        ("InvalidAccessKeyId", "does not know this access key"),
        ("AuthorizationHeaderMalformed", "set AWS_REGION"),
    ],
)
def test_refusals_say_what_to_do(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, code: str, advice: str
) -> None:
    with object_store(refusing(code)) as store:
        use(store, monkeypatch)
        with pytest.raises(AnalyticsError, match=rf"s3://bucket/lake: .*{advice}.*{code}"):
            open_storage(spark, "s3://bucket/lake", for_results=False)


def test_no_bucket_and_no_store(
    spark: SparkSession, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(store, monkeypatch)
    with pytest.raises(AnalyticsError, match="there is no bucket nobodys"):
        open_storage(spark, "s3://nobodys/lake", for_results=False)
    (nobody,) = free_addresses(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{nobody}")
    with pytest.raises(AnalyticsError, match="nobody listens at"):
        open_storage(spark, "s3://bucket/lake", for_results=False)


def test_a_store_that_would_lose_a_commit_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store(ignoring_conditions) as store:
        store.make_bucket("careless")
        use(store, monkeypatch)
        open_storage(spark, "s3://careless/lake", for_results=False)
        with pytest.raises(AnalyticsError, match="two runs at once could both count"):
            open_storage(spark, "s3://careless/out", for_results=True)


def test_what_is_not_known_is_said_as_it_is() -> None:
    assert explained("odd", "s3://b/c") == "odd"
    assert explained("AWS Error ACCESS_DENIED at d/e", "s3://b/c", "s3a://d/e").startswith(
        "the credentials do not allow that: brokers need to write objects below d/e"
    )


def test_secrets_are_in_no_plan(
    spark: SparkSession, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(store, monkeypatch)
    storage = open_storage(spark, "s3a://bucket/lake", for_results=False)
    assert isinstance(storage, ArrowStorage)
    frame = storage.rows_of(["s3://bucket/lake/some.parquet"], SCHEMA)
    plan = frame._jdf.queryExecution().toString()
    assert store.environment["AWS_SECRET_ACCESS_KEY"] not in plan
