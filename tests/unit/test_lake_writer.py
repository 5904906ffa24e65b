"""Rows become whole files; what cannot be written waits, and what cannot wait is counted."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dynatops.lake.fields import (
    PUBLICATIONS,
    SESSIONS,
    SUBSCRIPTIONS,
    UNFINISHED,
    file_name,
)
from dynatops.lake.files import Lake, LakeError
from dynatops.lake.lake_settings import LakeSettings
from dynatops.lake.stores import LakeStore, Location
from dynatops.lake.writer import LakeWriter, Row
from tests.support.failing_disk import FailingDisk
from tests.support.lakes import read_rows, unfinished_files, whole_files
from tests.support.waiting import wait_for

# 2026-01-01 00:59:59.
AT_US = 1_767_229_199_000_000
FAR_S = 1_000.0


def settings(**values: Any) -> LakeSettings:
    defaults = {"file_age_max_s": FAR_S, "file_rows_max": 10, "buffer_rows_max": 100}
    return LakeSettings.model_validate({**defaults, "retry_s": 0.01, **values})


def rows(first: int, count: int) -> list[Row]:
    return [(AT_US + i, "b0", "ann", f"t/{i}", "subscribe") for i in range(first, first + count)]


def topics(lake: Path) -> list[str]:
    return [row["topic"] for row in read_rows(lake, SUBSCRIPTIONS)]


def writer_at(folder: Path, disk: FailingDisk | None = None, **values: Any) -> LakeWriter:
    lake = Lake.open(str(folder))
    if disk is not None:
        lake = Lake(Location(LakeStore("failing", lambda: disk.filesystem), str(folder)))
    writer = LakeWriter(lake, settings(**values), "b0", 1)
    writer.start()
    return writer


def test_a_full_file_is_written_and_the_rest_when_it_ends(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    writer.put(SUBSCRIPTIONS, rows(0, 25))
    wait_for(lambda: writer.counters.lake_rows_written == 20)
    assert writer.waiting_rows == 5
    assert writer.close()
    assert topics(tmp_path) == [f"t/{i}" for i in range(25)]
    assert [pq.read_metadata(path).num_rows for path in whole_files(tmp_path)] == [10, 10, 5]
    assert unfinished_files(tmp_path) == []
    counters = writer.counters
    assert (counters.lake_rows, counters.lake_files) == (25, 3)
    sizes = sum(path.stat().st_size for path in whole_files(tmp_path))
    assert counters.lake_file_bytes == sizes


def test_an_old_file_is_written(tmp_path: Path) -> None:
    writer = writer_at(tmp_path, file_age_max_s=0.02)
    writer.put(SUBSCRIPTIONS, rows(0, 3))
    wait_for(lambda: writer.counters.lake_rows_written == 3)
    writer.close()


def test_a_file_has_rows_of_one_hour(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    later: list[Row] = [(AT_US + 2_000_000, "b0", "bob", "t/x", "subscribe")]
    writer.put(SUBSCRIPTIONS, [*rows(0, 2), *later])
    writer.close()
    places = [str(path.parent.relative_to(tmp_path)) for path in whole_files(tmp_path)]
    assert places == [f"subscriptions/date=2026-01-01/hour={hour}" for hour in ("00", "01")]


def test_places_may_be_unknown(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    known: Row = (AT_US, "ann", "b0", "open", 48.2, 16.4)
    unknown: Row = (AT_US + 1, "ann", "b0", "leave", None, None)
    writer.put(SESSIONS, [known, unknown])
    writer.close()
    assert [row["latitude"] for row in read_rows(tmp_path, SESSIONS)] == [48.2, None]


def test_pressure_drops_and_counts(tmp_path: Path) -> None:
    disk = FailingDisk()
    disk.may_go_on.clear()
    writer = writer_at(tmp_path, disk)
    for first in range(0, 300, 30):
        # Returns although the disk is stuck.
        writer.put(SUBSCRIPTIONS, rows(first, 30))
    assert writer.waiting_rows == 100
    assert writer.counters.lake_rows_dropped == 200
    disk.may_go_on.set()
    writer.close()
    assert topics(tmp_path) == [f"t/{i}" for i in range(100)]
    assert writer.counters.lake_rows_written == 100


@pytest.mark.parametrize("what", ["write", "move"])
def test_a_full_disk_costs_nothing_while_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    disk = FailingDisk()
    disk.full_for = frozenset({what})
    writer = writer_at(tmp_path, disk)
    with caplog.at_level(logging.WARNING):
        writer.put(SUBSCRIPTIONS, rows(0, 20))
        wait_for(lambda: writer.counters.lake_failures > 3)
        assert whole_files(tmp_path) == unfinished_files(tmp_path) == []
        disk.full_for = frozenset()
        wait_for(lambda: writer.counters.lake_rows_written == 20)
        writer.close()
    assert topics(tmp_path) == [f"t/{i}" for i in range(20)]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "No space left" in caplog.text
    assert "can be written to again" in caplog.text


def test_a_disk_that_stays_full_loses_rows_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    disk.full_for = frozenset({"write"})
    writer = writer_at(tmp_path, disk)
    writer.put(SUBSCRIPTIONS, rows(0, 130))
    writer.close()
    counters = writer.counters
    assert (counters.lake_rows_dropped, counters.lake_rows_lost) == (30, 100)
    assert counters.lake_rows_written == 0
    assert "100 rows could not be written" in caplog.text


def test_closing_waits_no_longer_than_it_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    disk.may_go_on.clear()
    writer = writer_at(tmp_path, disk, close_timeout_s=0.05)
    writer.put(SUBSCRIPTIONS, rows(0, 30))
    assert not writer.close()
    assert "took too long" in caplog.text
    disk.may_go_on.set()
    writer._thread.join()
    # What was on its way is whole; nothing was begun after it.
    assert len(whole_files(tmp_path)) == 1


def test_abandoned_it_writes_nothing(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    writer.put(SUBSCRIPTIONS, rows(0, 3))
    writer.abandon()
    writer._thread.join()
    assert whole_files(tmp_path) == []
    writer.put(SUBSCRIPTIONS, rows(0, 3))
    assert writer.counters.lake_rows_dropped == 3


def test_rows_that_are_none_stop_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = writer_at(tmp_path)
    writer.put(PUBLICATIONS, [(AT_US, 1.0, "b0", "t", "many", 1)])
    writer.put(SUBSCRIPTIONS, rows(0, 1))
    writer.close()
    assert writer.counters.lake_rows_lost == 1
    assert topics(tmp_path) == ["t/0"]
    assert "are no such rows" in caplog.text


def test_what_a_former_life_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / UNFINISHED
    folder.mkdir()
    mine = folder / f"sessions.{file_name('b0', 0, 9)}"
    others = folder / f"sessions.{file_name('b00', 0, 9)}"
    for path in (mine, others):
        path.write_bytes(b"PAR1 and then")
    writer = writer_at(tmp_path)
    writer.put(SUBSCRIPTIONS, rows(0, 1))
    writer.close()
    assert unfinished_files(tmp_path) == [others]


def test_putting_does_not_wait_for_writing(tmp_path: Path) -> None:
    disk, attempts = FailingDisk(), threading.Semaphore(0)
    disk.on_attempt = lambda _: attempts.release()
    disk.may_go_on.clear()
    writer = writer_at(tmp_path, disk)
    writer.put(SUBSCRIPTIONS, rows(0, 10))
    attempts.acquire(timeout=10)
    # The thread is in the middle of writing.
    writer.put(SUBSCRIPTIONS, rows(10, 10))
    disk.may_go_on.set()
    writer.close()
    assert len(topics(tmp_path)) == 20


WRITES_FOR_EVER = """
import sys
from dynatops.lake.fields import SUBSCRIPTIONS
from dynatops.lake.files import Lake
from dynatops.lake.lake_settings import LakeSettings
from dynatops.lake.writer import LakeWriter
settings = LakeSettings(file_rows_max=2_000, buffer_rows_max=20_000)
writer = LakeWriter(Lake.open(sys.argv[1]), settings, "b0", int(sys.argv[2]))
writer.start()
while True:
    if writer.waiting_rows < 10_000:
        rows = [(i * 1000, "b0", "ann", f"t/{i}", "subscribe") for i in range(1_000)]
        writer.put(SUBSCRIPTIONS, rows)
"""


def _has_files(lake: Path, count: int) -> bool:
    return len(whole_files(lake)) >= count


def test_killed_it_leaves_whole_files_only(tmp_path: Path) -> None:
    for incarnation in range(1, 4):
        writing = subprocess.Popen(
            [sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path), str(incarnation)]
        )
        try:
            wait_for(partial(_has_files, tmp_path, 20 * incarnation), timeout_s=60.0)
        finally:
            writing.send_signal(signal.SIGKILL)
            writing.wait()
    for path in whole_files(tmp_path):
        assert pq.read_table(path, partitioning=None).num_rows == 2_000
    # The whole lake can be read with what is unfinished in it.
    dataset = ds.dataset(tmp_path / "subscriptions", partitioning="hive")
    assert dataset.count_rows() == 2_000 * len(whole_files(tmp_path))


class TestLake:
    def test_urls(self, tmp_path: Path) -> None:
        for url in (str(tmp_path / "x"), f"file://{tmp_path}/x", f"file://{tmp_path}/x/"):
            assert Lake.open(url).root == f"{tmp_path}/x"

    @pytest.mark.parametrize("url", ["", "gopher://x/y", "s3:///"])
    def test_no_lake(self, url: str) -> None:
        with pytest.raises(LakeError):
            Lake.open(url)

    def test_types_are_those_of_the_schema_however_columns_are_encoded(
        self, tmp_path: Path
    ) -> None:
        content = pa.table(
            {
                "window_start": pa.array([AT_US], pa.timestamp("us", "UTC")),
                "window_s": [10.0],
                "broker_id": pa.array(["b0"]).dictionary_encode(),
                "topic": pa.array(["t"]).dictionary_encode(),
                "events": [1],
                "bytes": [2],
            }
        )
        Lake.open(str(tmp_path)).write(PUBLICATIONS, AT_US / 1e6, file_name("g", 1, 1), content)
        assert read_rows(tmp_path, PUBLICATIONS)[0]["topic"] == "t"


def test_a_buffer_holds_a_file() -> None:
    with pytest.raises(ValueError, match="no file would ever be full"):
        LakeSettings(buffer_rows_max=10, file_rows_max=11)
