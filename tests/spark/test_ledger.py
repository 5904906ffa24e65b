"""What was taken in is remembered for 30 days, and nothing twice."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from analytics.ledger import REMEMBERED_US, SEGMENTS_MAX, FileLedger
from analytics.storage.hadoop import HadoopStorage
from analytics.storage.storage import FoundFile
from dynatops.lake.fields import PUBLICATIONS
from dynatops.lake.store_urls import parse_store_url
from tests.spark.test_runner import FAST, published
from tests.support.running_analytics import Running
from tests.support.spark_frames import write_file

DAY_US = 86_400_000_000


def file(name: str, modified_us: int) -> FoundFile:
    return FoundFile(f"s3://bucket/lake/{name}", name, 1, modified_us)


def test_what_is_new_comes_oldest_first_and_once() -> None:
    files = [file("c", 3), file("a", 9), file("b", 3)]
    ledger = FileLedger()
    assert [f.name for f in ledger.new_files(files, None)] == ["b", "c", "a"]
    ledger = ledger.with_files(files[:1])
    assert [f.name for f in ledger.new_files(files, 3)] == ["b", "a"]
    # However the lake is reached: only what is below the table counts.
    elsewhere = FoundFile("/mnt/lake/c", "c", 1, 3)
    assert FileLedger().with_files(files).new_files([elsewhere], 9) == []


def test_after_thirty_days_a_file_is_passed_over() -> None:
    newest_us = REMEMBERED_US + 10 * DAY_US
    old, edge = file("old", 10 * DAY_US - 1), file("edge", 10 * DAY_US)
    ledger = FileLedger().with_files([old, edge]).without_forgotten(newest_us)
    # It is not known any more, and passed over all the same.
    assert ledger.new_files([old, edge], newest_us) == []
    assert FileLedger().new_files([old, edge], newest_us) == [edge]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2 * REMEMBERED_US)), max_size=40),
    st.lists(st.integers(1, 5), min_size=1, max_size=20),
)
def test_every_file_once_however_it_is_divided(
    named: list[tuple[int, int]], batches: list[int]
) -> None:
    """All that is there at the beginning is taken in, in batches of any size, and runs cut off."""
    files = [file(f"f{n}", us) for n, us in dict(named).items()]
    ledger, newest_us, taken = FileLedger(), None, []
    for size in [*batches, *([1] * len(files))]:
        batch = ledger.new_files(files, newest_us)[:size]
        if batch:
            ledger = ledger.with_files(batch)
            newest_us = max(batch[-1].modified_us, newest_us or 0)
            ledger = ledger.without_forgotten(newest_us)
        taken += [f.name for f in batch]
    assert sorted(taken) == sorted(f.name for f in files)


def test_segments_are_read_together(spark: SparkSession, tmp_path: Path) -> None:
    storage = HadoopStorage(spark, parse_store_url(str(tmp_path)))
    files = [file(f"f{n}", n) for n in range(3)]
    paths = [f"{tmp_path}/{f.name}.parquet" for f in files]
    for path, one in zip(paths, files, strict=True):
        storage.put(path, [FileLedger().with_files([one]).content()])
    assert FileLedger.read(storage, paths).new_files(files, 2) == []
    assert FileLedger.read(storage, paths[1:]).new_files(files, 2) == files[:1]
    assert FileLedger.read(storage, []).new_files(files, None) == files


def test_many_segments_become_one(spark: SparkSession, tmp_path: Path) -> None:
    running = Running(spark, tmp_path, *FAST)
    write_file(running.lake, PUBLICATIONS, "b0-1-0", [published(0)])
    running.run("rates")
    (segment,) = (running.output / "state" / "rates" / "taken").glob("*.parquet")
    # As so many batches would have left it.
    (commit,) = sorted((running.output / "state" / "rates" / "commits").glob("*2.json"))
    more = [f'"{segment}"'] * SEGMENTS_MAX
    commit.write_text(commit.read_text().replace(f'"{segment}"', ",".join(more)))
    (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    write_file(running.lake, PUBLICATIONS, "b0-1-1", [published(30)])
    assert running.run("rates").counts.files == 1
    assert len(list((running.output / "state" / "rates" / "taken").glob("*.parquet"))) == 1
    assert not running.run("rates").new
