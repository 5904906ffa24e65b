"""A store's log in real files: killed in the middle of appends, on a disk without room, with a
flipped bit; and through the driver that a broker has.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_files import LogDiskFullError, LogFiles, LogFilesError
from broker_agent.core.stores.log.log_notices import (
    LogDamaged,
    LogDiskIsFull,
    LogFailed,
    LogResumed,
)
from broker_agent.core.stores.log.log_requests import (
    AppendRefusal,
    AppendRefused,
    AppendStored,
    AppendToLog,
)
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.retention import RetentionRule
from broker_agent.core.stores.store_reader import ReadOrder, ServedKey
from broker_agent.runtime.eventlog.disk_files import DiskLogFiles
from broker_agent.runtime.eventlog.log_driver import LogDriver, LogOutput, PastOutput
from dynatops.kit.background import Supervisor
from dynatops.v1.overlay_pb2 import PastError, PastRange
from simulator.eventlog.log_disk import SimulatedLogDisk
from tests.support.event_logs import UnitContents, row, store

SETTINGS = LogSettings(
    segment_bytes=20_000, frame_bytes=2_000, refuse_below_free_bytes=0, resume_above_free_bytes=0
)


def open_log(folder: Path, life: int = 1, settings: LogSettings = SETTINGS) -> EventLog:
    return EventLog.open(DiskLogFiles(folder), settings, life)


# ---- both disks keep to one contract -------------------------------------------------------------


@pytest.fixture(params=["real", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> LogFiles:
    return DiskLogFiles(tmp_path) if request.param == "real" else SimulatedLogDisk(Random(1))


def test_files_do_what_a_log_relies_on(files: LogFiles) -> None:
    files.create("a")
    files.append("a", [b"one", b"", b"two"])
    files.append("a", [b"%d" % (number % 10) for number in range(3_000)])
    files.sync("a")
    assert files.size("a") == 3_006
    assert files.read("a", 3, 5) == b"two01"
    assert files.read("a", 3_000, 50) == b"456789"
    files.write_at("a", 1, b"N")
    files.cut("a", 4)
    files.append("a", [b"!"])
    assert files.read("a", 0, 99) == b"oNet!"
    files.write_at("mark", 0, b"12")
    assert set(files.names()) == {"a", "mark"}
    files.create("b")
    files.rename("b", "a")
    assert files.read("a", 0, 99) == b""
    files.remove("mark")
    files.remove("mark")
    assert set(files.names()) == {"a"}
    assert files.free_bytes() > 0
    with pytest.raises(LogFilesError):
        files.create("a")
    for missing in (lambda: files.size("c"), lambda: files.read("c", 0, 1)):
        with pytest.raises(LogFilesError):
            missing()


def test_one_process_has_the_folder(tmp_path: Path) -> None:
    files = DiskLogFiles(tmp_path)
    with pytest.raises(LogFilesError, match="another broker"):
        DiskLogFiles(tmp_path)
    files.close()
    DiskLogFiles(tmp_path).close()


def test_files_that_are_not_open_any_more_are_opened_again(tmp_path: Path) -> None:
    files = DiskLogFiles(tmp_path)
    for number in range(200):
        files.create(str(number))
        files.append(str(number), [b"%d" % number])
    assert all(files.read(str(number), 0, 9) == b"%d" % number for number in range(200))
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) < 150


# ---- what goes wrong -----------------------------------------------------------------------------

# Says how many rows are stored after each answer; the last line may be cut off by the kill.
APPENDER = """
import sys
from pathlib import Path
from tests.integration.test_log_on_disk import open_log
from tests.support.event_logs import row, store
log = open_log(Path(sys.argv[1]), life=int(sys.argv[2]))
extent = log.extent("a")
first = extent.upto[1] + 1 if extent else 1
while True:
    store(log, row("a", first, 7), row("b", first, 7))
    first += 7
    print(first - 1, flush=True)
"""


def kill_while_appending(folder: Path, life: int, wait_lines: int) -> int:
    """How far it said that everything is stored."""
    command = [sys.executable, "-c", APPENDER, str(folder), str(life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(wait_lines):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().splitlines()
    return int(said[-1]) if said else 0


@pytest.mark.parametrize("lives", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_after_kills_everything_acknowledged_is_there(tmp_path: Path, lives: int) -> None:
    rng = Random(lives)
    for life in range(1, lives + 1):
        acknowledged = kill_while_appending(tmp_path, life, rng.randint(1, 120))
        files = DiskLogFiles(tmp_path)
        log = EventLog.open(files, SETTINGS, life)
        assert not any(isinstance(notice, LogDamaged) for notice in log.take_notices())
        for unit in "ab":
            contents = UnitContents(log, unit, after=(1, 0), bytes_max=1 << 20)
            assert contents.seqs == list(range(1, len(contents.seqs) + 1))
            assert len(contents.seqs) >= acknowledged
            assert contents.missing == []
        files.close()


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    store(log, row("a", 1, 10))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limits[1]))
        (outcome,) = log.commit([AppendToLog(2, [row("a", 11, 500)])])
        assert isinstance(outcome, AppendRefused)
        assert outcome.refusal is AppendRefusal.FULL
        assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 11))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    store(log, row("a", 11, 500))
    assert [type(notice) for notice in log.take_notices()] == [LogDiskIsFull, LogResumed]
    assert UnitContents(log, "a", after=(1, 0)).seqs == list(range(1, 511))


def test_a_flipped_bit_in_a_file_is_told(tmp_path: Path) -> None:
    files = DiskLogFiles(tmp_path)
    log = EventLog.open(files, SETTINGS, 1)
    for number in range(100):
        store(log, row("a", 1 + 10 * number, 10))
    path = tmp_path / "000000000002.segment"
    raw = bytearray(path.read_bytes())
    raw[5_000] ^= 8
    path.write_bytes(raw)
    contents = UnitContents(log, "a", after=(1, 0))
    (((_, after), (_, upto)),) = contents.missing
    assert contents.seqs == [seq for seq in range(1, 1_001) if not after < seq <= upto]
    (told,) = log.take_notices()
    assert isinstance(told, LogDamaged)
    assert told.segment == 2
    store(log, row("a", after + 1, upto - after))
    files.close()
    assert UnitContents(open_log(tmp_path, 2), "a", after=(1, 0)).seqs == list(range(1, 1_001))


class FailingFiles(DiskLogFiles):
    """Syncs fail from some time on."""

    is_failing = False
    sync_s = 0.0

    def sync(self, name: str) -> None:
        if self.is_failing:
            raise LogFilesError(f"{name}: Input/output error")
        time.sleep(self.sync_s)
        super().sync(name)

    def free_bytes(self) -> int:
        return 1 << 40


def clock_us() -> int:
    return 1_000_000_000


# ---- the driver ----------------------------------------------------------------------------------


KEY = ServedKey("b9", 1, 5)


class Told:
    """What a broker's core is told."""

    def __init__(self) -> None:
        self.outputs: list[LogOutput] = []
        self.deliveries = 0
        self._more = asyncio.Event()

    def deliver(self, outputs: Sequence[LogOutput]) -> None:
        self.outputs += outputs
        self.deliveries += 1
        self._more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.outputs) < count:
                self._more.clear()
                await self._more.wait()


def test_appends_are_stored_in_groups_and_read(tmp_path: Path) -> None:
    asyncio.run(_appends_are_stored_in_groups_and_read(tmp_path))


async def _appends_are_stored_in_groups_and_read(tmp_path: Path) -> None:
    log, told = open_log(tmp_path), Told()
    driver = LogDriver(log, SETTINGS, told.deliver, clock_us)
    driver.start(Supervisor())
    for number in range(1_000):
        driver.append(AppendToLog(number, [row("a", number + 1)]))
    await told.until(1_000)
    assert told.outputs == [AppendStored(number) for number in range(1_000)]
    assert log.counters.log_syncs < 50
    driver.read(ReadOrder(KEY, "a", PastRange(), b"", 1 << 20))
    await told.until(1_001)
    answer = told.outputs[-1]
    assert isinstance(answer, PastOutput)
    assert (answer.key, len(answer.portion.events)) == (KEY, 1_000)
    for number in range(10):
        driver.append(AppendToLog(number, [row("a", 1_001 + number)]))
    await driver.stop()
    assert told.outputs[-10:] == [AppendStored(number) for number in range(10)]


def test_what_is_not_retained_goes_between_groups(tmp_path: Path) -> None:
    asyncio.run(_what_is_not_retained_goes_between_groups(tmp_path))


async def _what_is_not_retained_goes_between_groups(tmp_path: Path) -> None:
    settings = LogSettings(
        segment_bytes=2_000, refuse_below_free_bytes=0, retention_interval_s=0.001
    )
    rules = [RetentionRule(pattern="#", events_max=10)]
    log, told = EventLog.open(DiskLogFiles(tmp_path), settings, 1, rules), Told()
    driver = LogDriver(log, settings, told.deliver, clock_us)
    driver.start(Supervisor())
    for number in range(500):
        driver.append(AppendToLog(number, [row("a", number + 1)]))
        if number % 20 == 0:
            await told.until(number + 1)
    await told.until(500)
    async with asyncio.timeout(20):
        while log.events > 30:
            driver.read(ReadOrder(KEY, "a", PastRange(), b"", 1))
            await told.until(len(told.outputs) + 1)
    await driver.stop()
    extent = log.extent("a")
    assert extent is not None
    assert extent.upto == (1, 500)
    assert extent.since <= (1, 490)


def test_more_than_may_wait_is_refused_at_once(tmp_path: Path) -> None:
    asyncio.run(_more_than_may_wait_is_refused_at_once(tmp_path))


async def _more_than_may_wait_is_refused_at_once(tmp_path: Path) -> None:
    settings = LogSettings(waiting_bytes_max=1_000, reads_max=2)
    log, told = open_log(tmp_path, settings=settings), Told()
    driver = LogDriver(log, settings, told.deliver, clock_us)
    for number in range(3):
        driver.append(AppendToLog(number, [row("a", 1 + number * 30, 30)]))
        driver.read(ReadOrder(ServedKey("b9", 1, number), "a", PastRange(), b"", 1))
    refused = [each for each in told.outputs if isinstance(each, AppendRefused)]
    assert [(each.number, each.refusal) for each in refused] == [
        (1, AppendRefusal.BUSY),
        (2, AppendRefusal.BUSY),
    ]
    unread = [each for each in told.outputs if isinstance(each, PastOutput)]
    assert [each.key.request for each in unread] == [2]
    assert unread[0].portion.error == PastError.PAST_ERROR_OVERLOADED
    driver.start(Supervisor())
    await driver.stop()
    assert told.outputs[3] == AppendStored(0)


def test_a_disk_that_fails_is_told_and_nothing_is_stored_any_more(tmp_path: Path) -> None:
    asyncio.run(_a_disk_that_fails_is_told_and_nothing_is_stored_any_more(tmp_path))


async def _a_disk_that_fails_is_told_and_nothing_is_stored_any_more(tmp_path: Path) -> None:
    files, told = FailingFiles(tmp_path), Told()
    driver = LogDriver(EventLog.open(files, SETTINGS, 1), SETTINGS, told.deliver, clock_us)
    driver.start(Supervisor())
    driver.append(AppendToLog(1, [row("a", 1)]))
    await told.until(1)
    files.is_failing = True
    driver.append(AppendToLog(2, [row("a", 2)]))
    await told.until(3)
    files.is_failing = False
    driver.append(AppendToLog(3, [row("a", 3)]))
    await told.until(4)
    stored, failed, notice, refused = told.outputs
    assert stored == AppendStored(1)
    assert isinstance(failed, AppendRefused)
    assert isinstance(notice, LogFailed)
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is AppendRefusal.FAILED
    driver.read(ReadOrder(KEY, "a", PastRange(), b"", 1))
    await told.until(5)
    await driver.stop()


def test_no_room_in_the_folder_is_said_by_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DiskLogFiles(tmp_path)
    files.create("a")

    def no_room(_fd: int, _parts: Sequence[bytes]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", no_room)
    with pytest.raises(LogDiskFullError, match="a: No space left on device"):
        files.append("a", [b"x"])
