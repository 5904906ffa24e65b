"""Lakes in a bucket: whole files or none, whatever the store does; and what is said of it.

The store is moto, behind a proxy that stalls, cuts off, or answers what S3 answers when it refuses.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

import dynatops
from dynatops.cli.main import main
from dynatops.kit.observing.log_lines import OPERATION_OF_RECORD, VALUES_OF_RECORD
from dynatops.lake.fields import SUBSCRIPTIONS, UNFINISHED
from dynatops.lake.files import Lake, arrow_schema
from dynatops.lake.lake_settings import LakeSettings
from dynatops.lake.writer import LakeWriter, Row
from dynatops.local.cluster import ProcessCluster
from tests.support.failing_store import (
    BUCKET,
    CUT,
    RESET,
    STALL,
    Answer,
    Fault,
    S3Server,
    StoreProxy,
    make_bucket,
    s3_server,
    s3_variables,
)
from tests.support.waiting import until, wait_for

# 2026-01-01 00:59:59.
AT_US = 1_767_229_199_000_000
DENIED = Answer(403, "AccessDenied", "Access Denied")
SKEWED = Answer(
    403,
    "RequestTimeTooSkewed",
    "The difference between the request time and the current time is too large.",
)
SLOW_DOWN = Answer(503, "SlowDown", "Please reduce your request rate.")
BROKEN = Answer(500, "InternalError", "We encountered an internal error. Please try again.")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        make_bucket(server)
        yield server


@pytest.fixture
def store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    with StoreProxy(s3.address) as proxy:
        for name, value in s3_variables(proxy.url).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A lake of this test's own."""
    return f"s3://{BUCKET}/{re.sub(r'[^a-z0-9]+', '_', request.node.name.lower())}"


def rows(first: int, count: int) -> list[Row]:
    return [(AT_US + i, "b0", "ann", f"t/{i}", "subscribe") for i in range(first, first + count)]


def writer_at(url: str, **values: Any) -> LakeWriter:
    defaults = {"file_age_max_s": 1_000.0, "file_rows_max": 10, "buffer_rows_max": 100}
    settings = LakeSettings.model_validate(
        {**defaults, "url": url, "retry_s": 0.01, "retry_max_s": 0.2, "timeout_s": 1.0, **values}
    )
    writer = LakeWriter(Lake.open(url, timeout_s=settings.timeout_s), settings, "b0", 1)
    writer.start()
    return writer


def stored(url: str) -> list[str]:
    """Topics of all rows, each file read as whole."""
    lake = Lake.open(url)
    dataset = ds.dataset(
        lake.path(SUBSCRIPTIONS.name),
        schema=arrow_schema(SUBSCRIPTIONS),
        filesystem=lake.filesystem,
        format="parquet",
    )
    return sorted(dataset.to_table().column("topic").to_pylist(), key=lambda t: int(t[2:]))


def topics(count: int) -> list[str]:
    return [f"t/{i}" for i in range(count)]


def operations(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, OPERATION_OF_RECORD, "") for record in caplog.records]


def below(folder: str) -> Any:
    return pafs.FileSelector(folder, allow_not_found=True)


def test_rows_are_in_the_bucket_and_nothing_else(store: StoreProxy, url: str) -> None:
    writer = writer_at(url)
    writer.put(SUBSCRIPTIONS, rows(0, 25))
    assert writer.close()
    assert stored(url) == topics(25)
    lake = Lake.open(url)
    folder = lake.path(SUBSCRIPTIONS.name, "date=2026-01-01", "hour=00")
    found = lake.filesystem.get_file_info(below(folder))
    assert [info.base_name for info in found] == [f"b0-1-00000{n}.parquet" for n in (1, 2, 3)]
    assert writer.counters.lake_file_bytes == sum(info.size for info in found)
    # Nothing was put aside first: there is no rename to take it from there.
    assert lake.filesystem.get_file_info(below(lake.path(UNFINISHED))) == []


@pytest.mark.parametrize("fault", [RESET, CUT, SLOW_DOWN, BROKEN, DENIED], ids=lambda f: f.name)
def test_what_fails_is_tried_again_and_is_there_once(
    store: StoreProxy, url: str, fault: Fault
) -> None:
    writer = writer_at(url)
    wait_for(lambda: writer._is_tried_out)
    store.fault = fault
    writer.put(SUBSCRIPTIONS, rows(0, 30))
    wait_for(lambda: writer.counters.lake_failures >= 2, 60.0)
    assert writer.is_failing
    store.fault = None
    wait_for(lambda: writer.counters.lake_rows_written == 30)
    assert writer.close()
    assert not writer.is_failing
    assert stored(url) == topics(30)


@pytest.mark.slow
def test_what_arrived_although_no_answer_came_is_not_there_twice(
    store: StoreProxy, url: str
) -> None:
    """The store takes the upload, long after the client has given it up and sent it again."""
    writer = writer_at(url)
    wait_for(lambda: writer._is_tried_out)
    store.fault = STALL
    writer.put(SUBSCRIPTIONS, rows(0, 30))
    wait_for(lambda: writer.counters.lake_failures >= 1, 60.0)
    store.fault = None
    wait_for(lambda: writer.counters.lake_rows_written == 30)
    writer.close()
    assert stored(url) == topics(30)


def test_a_store_that_hangs_keeps_nobody_waiting(
    store: StoreProxy, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_at(url, timeout_s=30.0, close_timeout_s=0.1)
    wait_for(lambda: writer._is_tried_out)
    store.fault = STALL
    longest_s = 0.0
    for first in range(0, 300, 30):
        began_s = time.monotonic()
        writer.put(SUBSCRIPTIONS, rows(first, 30))
        longest_s = max(longest_s, time.monotonic() - began_s)
    assert longest_s < 0.5
    assert (writer.waiting_rows, writer.counters.lake_rows_dropped) == (100, 200)
    # The interpreter's lock is free while the thread waits.
    other = threading.Event()
    threading.Thread(target=other.set).start()
    assert other.wait(1.0)
    began_s = time.monotonic()
    assert not writer.close()
    assert time.monotonic() - began_s < 5.0
    assert writer.counters.lake_rows_lost == 100
    assert operations(caplog) == ["lake_rows_dropped", "lake_rows_lost"]
    store.fault = None
    writer._thread.join()


@pytest.mark.processes
def test_a_broker_ends_in_time_although_its_store_hangs(store: StoreProxy, url: str) -> None:
    """The store's client would wait for its call, at the end of the process."""
    lake = LakeSettings(
        url=url, window_s=0.1, file_age_max_s=0.1, timeout_s=60.0, close_timeout_s=0.5
    )

    async def scenario() -> None:
        async with ProcessCluster(1, lake=lake, options=["--http", "127.0.0.1:0"]) as cluster:
            (broker,) = cluster.brokers
            async with dynatops.connect(broker.address) as client:
                store.fault = STALL
                await client.publish("quake/ca", b"x")
                # The thread is in the middle of a call.
                await until(lambda: store.stalled > 0, 30.0)
                await client.publish("quake/ny", b"x")
            began_s = time.monotonic()
            broker.process.terminate()
            assert await broker.process.wait() == 0
            # It leaves the ring, gives the lake its half second, and ends.
            assert time.monotonic() - began_s < 30.0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fault", "trouble", "advice"),
    [
        (DENIED, "not_allowed", "s3:PutObject"),
        (SKEWED, "clock", "the clock of this machine"),
        (SLOW_DOWN, "busy", "look at the store"),
        (CUT, "cut_off", "nothing half is in the lake"),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_trouble_is_said_when_the_broker_starts(
    store: StoreProxy,
    url: str,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    trouble: str,
    advice: str,
) -> None:
    store.fault = fault
    writer = writer_at(url, retry_s=0.01)
    wait_for(lambda: writer.counters.lake_failures >= 2, 60.0)
    # Without a row that is to be written.
    assert operations(caplog) == ["lake_failed"]
    assert getattr(caplog.records[0], VALUES_OF_RECORD)["trouble"] == trouble
    assert advice in caplog.records[0].getMessage()
    store.fault = None
    wait_for(lambda: not writer.is_failing)
    writer.close()


def test_a_bucket_that_is_not_there(
    store: StoreProxy, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_at("s3://some-other-bucket/lake")
    wait_for(lambda: "lake_failed" in operations(caplog), 30.0)
    writer.abandon()
    writer._thread.join()
    assert f"there is no bucket some-other-bucket at {store.url}" in caplog.text


def test_another_trouble_is_said_too(
    store: StoreProxy, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.fault = DENIED
    writer = writer_at(url)
    wait_for(lambda: writer.counters.lake_failures >= 2)
    store.fault = SLOW_DOWN
    wait_for(lambda: "look at the store" in caplog.text, 30.0)
    store.fault = None
    wait_for(lambda: not writer.is_failing, 30.0)
    writer.close()
    assert operations(caplog) == ["lake_failed", "lake_failed", "lake_recovered"]


def test_a_large_file_is_divided_so_that_each_goes_up_at_once(
    store: StoreProxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.open(url)
    # As if so little were as much as goes up in one request.
    monkeypatch.setattr(lake.store, "upload_bytes_max", 2_500)
    writer = LakeWriter(lake, LakeSettings(url=url, retry_s=0.01), "b0", 1)
    writer.start()
    writer.put(SUBSCRIPTIONS, rows(0, 1_000))
    writer.close()
    assert stored(url) == topics(1_000)
    assert 2 < writer.counters.lake_files < 20
    for info in lake.filesystem.get_file_info(
        below(lake.path(SUBSCRIPTIONS.name, "date=2026-01-01", "hour=00"))
    ):
        assert info.size <= 2_500
        with lake.filesystem.open_input_file(info.path) as file:
            assert pq.read_metadata(file).num_rows > 0


SMALL = ("--users", "50", "--brokers", "5", "--topics", "20", "--days", "1", "--rows", "1e3")


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_generate_and_describe(
    store: StoreProxy, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "lake", "generate", url, *SMALL)
    assert (code, err) == (0, "")
    code, out, _ = run(capsys, "lake", "describe", url, "--json")
    assert code == 0
    tables = {table["table"]: table for table in json.loads(out)["tables"]}
    assert tables["publications"]["rows"] == pytest.approx(1_000, rel=0.2)
    assert tables["publications"]["bytes"] > 0
    assert not any(table["bad"] for table in tables.values())


@pytest.mark.parametrize(
    ("fault", "advice"), [(DENIED, "s3:ListBucket"), (SKEWED, "clock"), (CUT, "cut off")]
)
def test_describe_says_what_is_wrong_with_the_store(
    store: StoreProxy, url: str, capsys: pytest.CaptureFixture[str], fault: Fault, advice: str
) -> None:
    store.fault = fault
    code, _, err = run(capsys, "lake", "describe", url)
    assert code == 1
    assert advice in err


def test_describe_tells_no_bucket_from_no_lake(
    store: StoreProxy, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no lake at" in run(capsys, "lake", "describe", url)[2]
    err = run(capsys, "lake", "describe", "s3://some-other-bucket/lake")[2]
    assert "there is no bucket some-other-bucket" in err
