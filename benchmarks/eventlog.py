"""The log of a store on this disk: how fast it takes events in and gives them back, what it needs.

    python -m benchmarks.eventlog [--json] [--events N] [--folder DIR] [--seconds S]

Events of 100 bytes. Taken in: runs of many events on one topic, few, and bundles over many topics;
an append is answered when it is synced, and some are always on their way. Beside each: as many
bytes, written and synced in groups of the same size by nothing but a loop. Given back: runs as they
go to one client, in frames. Then a topic of a million events and one of `--events`: how long
opening takes, and seeking by time, and how much memory the process has. Each step is a process of
its own, and files leave the cache before they are opened. The folder is a temporary one, below
`--folder`, and is removed: 20 million events are 2.3 GB.
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
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_requests import (
    AppendStored,
    AppendToLog,
    ReadUnit,
    UnitAnswer,
)
from broker_agent.core.stores.log.log_rows import LogRow
from broker_agent.core.stores.log.log_settings import LogSettings
from broker_agent.core.stores.log.stored_runs import row_of_run, rows_of_bundle, run_of
from broker_agent.runtime.eventlog.disk_files import DiskLogFiles
from dynatops.kit.bundles import Bundle
from dynatops.v1.overlay_pb2 import Event, Events, Run, Runs

PAYLOAD = bytes(range(100))
TOPIC = "bench/eventlog"
# Microseconds from one event to the next, as published.
STEP_US = 1_000
BEGIN_US = 1_700_000_000_000_000
SEEKS = 50
FRAME_BYTES = 256 << 10


def run(topic: str, first: int, count: int) -> Run:
    published_us = BEGIN_US + first * STEP_US
    events = [Event(payload=PAYLOAD, published_us=published_us + i * STEP_US) for i in range(count)]
    return Run(
        topic=topic, term=1, first_seq=first, count=count, publisher=7, first_number=first,
        events=Events(events=events).SerializeToString(),
    )  # fmt: skip


def run_rows(batch: int) -> Iterator[list[LogRow]]:
    """One run after the other; the events are made once, as a broker gets them made."""
    made = run(TOPIC, 1, batch)
    first = 1
    while True:
        made.first_seq = made.first_number = first
        published_us = BEGIN_US + (first + batch) * STEP_US
        yield [row_of_run(made, TOPIC, published_us)]
        first += batch


def bundle_rows(topics: int, batch: int) -> Iterator[list[LogRow]]:
    names = [f"bench/eventlog/{number:05}" for number in range(topics)]
    seq, place = 1, 0
    while True:
        chosen = names[place : place + batch]
        published = [BEGIN_US + seq * STEP_US] * len(chosen)
        bundle = Bundle(7, chosen, [seq] * len(chosen), published, [PAYLOAD] * len(chosen))
        bundle.terms, bundle.seqs = [1] * len(chosen), [seq] * len(chosen)
        yield rows_of_bundle(bundle, str, published[0])
        place += batch
        if place >= topics:
            seq, place = seq + 1, 0


# ---- steps, each in a process of its own ---------------------------------------------------------


def ingest(folder: Path, rows: Iterator[list[LogRow]], *, seconds: float, together: int) -> Any:
    """So many appends are on their way at a time: a group is what has come since the last one."""
    log = open_log(folder)
    events = nbytes = groups = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        appends = [AppendToLog(number, next(rows)) for number in range(together)]
        if not all(isinstance(outcome, AppendStored) for outcome in log.commit(appends)):
            raise RuntimeError("the log did not take it")
        events += sum(row.events for append in appends for row in append.rows)
        groups += 1
    took_s = time.perf_counter() - begin
    nbytes = log.counters.log_bytes_written
    plain_s = write_plainly(folder / "plain", nbytes // groups, groups)
    log.close()
    return {
        "events_a_second": events / took_s,
        "mb_a_second": nbytes / took_s / 1e6,
        "bytes_an_event": nbytes / events,
        "syncs_a_second": groups / took_s,
        "share_of_plain_writing": plain_s / took_s,
    }


def write_plainly(path: Path, group_bytes: int, groups: int) -> float:
    data = Random(1).randbytes(group_bytes)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    begin = time.perf_counter()
    for _ in range(groups):
        os.write(fd, data)
        os.fdatasync(fd)
    took_s = time.perf_counter() - begin
    os.close(fd)
    path.unlink()
    return took_s


def fill(folder: Path, events: int, batch: int = 5_000) -> Any:
    log = open_log(folder)
    rows = run_rows(batch)
    begin = time.perf_counter()
    for _ in range(0, events, 8 * batch):
        log.commit([AppendToLog(number, next(rows)) for number in range(8)])
    took_s = time.perf_counter() - begin
    log.close()
    return {"events_a_second": log.events / took_s, "resident_mb": resident_mb()}


def replay(folder: Path, begin: int = 0) -> Any:
    """All of it, in frames for one client."""
    log = open_log(folder)
    request: ReadUnit | None = ReadUnit(1, TOPIC, after=(1, begin))
    events = nbytes = 0
    started = time.perf_counter()
    while request is not None:
        answer = log.read(request)
        if not isinstance(answer, UnitAnswer):
            raise TypeError(answer)
        runs = [found for row in answer.rows if (found := run_of(row)) is not None]
        nbytes += len(Runs(runs=runs).SerializeToString())
        events += sum(row.events for row in answer.rows)
        request = answer.following
    took_s = time.perf_counter() - started
    return {
        "events": events,
        "events_a_second": events / took_s,
        "mb_a_second": nbytes / took_s / 1e6,
        "resident_mb": resident_mb(),
    }


def look(folder: Path) -> Any:
    """Opened, and sought in by time."""
    for path in folder.iterdir():
        forget_cached(path)
    before_mb = resident_mb()
    begin = time.perf_counter()
    log = open_log(folder)
    open_s = time.perf_counter() - begin
    rng, took_ms = Random(1), []
    for _ in range(SEEKS):
        wanted_us = BEGIN_US + rng.randrange(log.events) * STEP_US
        begin = time.perf_counter()
        answer = log.read(ReadUnit(1, TOPIC, since_us=wanted_us, bytes_max=1))
        took_ms.append(1e3 * (time.perf_counter() - begin))
        if not isinstance(answer, UnitAnswer) or not answer.rows[0].last_us >= wanted_us:
            raise RuntimeError("another time was found")
    took_ms.sort()
    return {
        "events": log.events,
        "gigabytes": log.nbytes / 1e9,
        "open_ms": 1e3 * open_s,
        "seek_median_ms": took_ms[SEEKS // 2],
        "seek_worst_ms": took_ms[-1],
        "resident_mb": resident_mb(),
        "resident_before_mb": before_mb,
    }


def open_log(folder: Path) -> EventLog:
    return EventLog.open(DiskLogFiles(folder), LogSettings(), int(time.time()))


def forget_cached(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text().split("VmRSS:")[1]
    return int(status.split()[0]) / 1e3


STEPS: dict[str, Callable[..., Any]] = {
    "runs of 5,000": lambda folder, seconds: ingest(
        folder, run_rows(5_000), seconds=seconds, together=8
    ),
    "runs of 100": lambda folder, seconds: ingest(
        folder, run_rows(100), seconds=seconds, together=100
    ),
    "runs of 5,000, one at a time": lambda folder, seconds: ingest(
        folder, run_rows(5_000), seconds=seconds, together=1
    ),
    "bundles of 1,000 over 10,000 topics": lambda folder, seconds: ingest(
        folder, bundle_rows(10_000, 1_000), seconds=seconds, together=10
    ),
    "fill": lambda folder, events: fill(folder, int(events)),
    "look": lambda folder, _: look(folder),
    "replay": lambda folder, _: replay(folder),
}
INGESTS = tuple(name for name in STEPS if "of" in name)


# ---- report --------------------------------------------------------------------------------------


def measure(events: Sequence[int], seconds: float, base: str | None) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="eventlog-", dir=base))
    try:
        ingested = {}
        for place, name in enumerate(INGESTS):
            ingested[name] = step(name, folder / str(place), seconds)
            shutil.rmtree(folder / str(place))
        sizes = []
        for count in events:
            path = folder / f"of-{count}"
            filled = step("fill", path, count)
            point = step("look", path, 0)
            point["filling_resident_mb"] = filled["resident_mb"]
            point["filled_a_second"] = filled["events_a_second"]
            point["replay"] = step("replay", path, 0)
            sizes.append(point)
            shutil.rmtree(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "ingest": ingested,
        "sizes": sizes,
    }


def step(name: str, folder: Path, value: float) -> Any:
    command = [sys.executable, "-m", "benchmarks.eventlog", "--step", name, str(folder), str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603  # itself
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=float, default=20e6, help="of the larger topic")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each way of taking in")
    parser.add_argument("--folder", help="below which the files are; on the disk to be measured")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        name, folder, value = arguments.step
        print(json.dumps(STEPS[name](Path(folder), float(value))))
        return 0
    report = measure([1_000_000, int(arguments.events)], arguments.seconds, arguments.folder)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    print("| taken in, synced | events/s | MB/s | bytes an event | syncs/s | of plain writing |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, point in report["ingest"].items():
        print(
            f"| {name} | {point['events_a_second']:,.0f} | {point['mb_a_second']:.0f}"
            f" | {point['bytes_an_event']:.0f} | {point['syncs_a_second']:.0f}"
            f" | {point['share_of_plain_writing']:.2f} |"
        )
    print("\n| events | GB | opening ms | seeking ms, median, worst | replay events/s | MB filling,"
          " opened, replaying |")  # fmt: skip
    print("|---:|---:|---:|---:|---:|---:|")
    for point in report["sizes"]:
        print(
            f"| {point['events']:,} | {point['gigabytes']:.2f} | {point['open_ms']:.0f}"
            f" | {point['seek_median_ms']:.1f}, {point['seek_worst_ms']:.1f}"
            f" | {point['replay']['events_a_second']:,.0f} | {point['filling_resident_mb']:.0f},"
            f" {point['resident_mb']:.0f}, {point['replay']['resident_mb']:.0f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
