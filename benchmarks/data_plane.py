"""The same work on other brokers, in the same run: ratios, since absolute figures mean little here.

    python -m benchmarks.data_plane [--topics 1,1000] [--bytes 100,16000] [--systems …] [--json]

One publisher, one subscriber, one broker, each a process; nothing acknowledged. Events go to each
topic in turn, and the subscriber hears all of them; every topic has had an event before anything is
measured. Under way are as many events as fit two windows, one in events and one in bytes.

Measured are the systems that are installed (`data_plane_systems.py`), each with the quickest call
that its client has. For each number of topics and size of events, rounds go through all systems in
turn, so that a disturbance does not hit one alone. Told are medians; that of ratios is of each
round's own.

Events that were sent and not heard are missed, and told; if they are ours, the benchmark fails.
Each run ends: after `--limit` seconds, or once nothing comes any more, no more is sent, and it is
said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data_plane_clients import FlowPlan
from benchmarks.data_plane_systems import (
    OURS,
    SYSTEMS,
    RunningServer,
    client,
    compile_c_client,
    missing,
    running_server,
)
from dynatops.cli.common import positive
from dynatops.local.bench.processes import BenchWorker, processor_s, us_per_event

WINDOW = 20_000
WINDOW_BYTES = 8 << 20
# Of a run, however large its events are.
_RUN_BYTES_MAX = 1 << 30
_EVENTS_MIN = 1_000
_TOPICS_MAX = 100_000
_PAYLOAD_BYTES_MAX = 1_000_000
_STILL_S = 5.0
# Of a step that is not measured: a client that connects, topics that are founded.
_STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class GridCell:
    topics: int = 1
    payload_bytes: int = 100

    @property
    def under_way(self) -> int:
        return max(1, min(WINDOW, WINDOW_BYTES // max(self.payload_bytes, 1)))

    def events(self, name: str, scale: float) -> int:
        """How many to publish."""
        events = min(SYSTEMS[name].events, _RUN_BYTES_MAX // max(self.payload_bytes, 1))
        return max(_EVENTS_MIN, int(events * scale))

    def systems(self, names: Sequence[str]) -> list[str]:
        """Those of them that differ here: with several topics, all calls are single ones."""
        twice = self.topics > 1 and "dynatops" in names
        return [name for name in names if not (twice and name == "dynatops-single")]


@dataclass(frozen=True, slots=True)
class FlowRun:
    """What came of one run of one system."""

    sent: int = 0
    heard: int = 0
    events_per_s: float = 0.0
    server_us: float | None = None
    publisher_us: float | None = None
    subscriber_us: float | None = None
    # Why it ended before everything was sent, or at all, if it did.
    stopped: str = ""
    failed: str = ""

    @property
    def missed(self) -> int:
        return max(0, self.sent - self.heard)


# ---- one run -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ended:
    sent: Mapping[str, Any]
    heard: Mapping[str, Any]
    started_s: float
    stopped: str


class _Flow:
    """Events from a publisher to a subscriber: each hears of the other through this process."""

    def __init__(self, publisher: BenchWorker, subscriber: BenchWorker, still_s: float) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._still_s = still_s
        self._moved_s = 0.0
        self._sending = True

    async def run(self, limit_s: float) -> _Ended:
        started_s = time.time()
        await self._publisher.tell({"delivered": 0})
        async with asyncio.TaskGroup() as tasks:
            sent = tasks.create_task(self._publisher.line())
            heard = tasks.create_task(self._pass_on())
            stopped = await self._stopped(sent, limit_s)
            self._sending = False
            await self._publisher.end_of_words()
            async with asyncio.timeout(_STEP_TIMEOUT_S):
                await sent
                await self._subscriber.tell({"sent": sent.result()["sent"]})
                await heard
        return _Ended(sent.result(), heard.result(), started_s, stopped)

    async def _pass_on(self) -> Any:
        """Tell the publisher how far the subscriber has come; its last word."""
        while "heard" not in (report := await self._subscriber.line()):
            self._moved_s = time.monotonic()
            if self._sending:
                await self._publisher.tell(report)
        return report

    async def _stopped(self, sent: asyncio.Task[Any], limit_s: float) -> str:
        """Wait until everything has been sent; why it is to be no more, if it took too long."""
        self._moved_s = time.monotonic()
        end_s = self._moved_s + limit_s
        while True:
            left_s = min(end_s, self._moved_s + self._still_s) - time.monotonic()
            if left_s <= 0:
                return (
                    f"after {limit_s:g} s"
                    if time.monotonic() >= end_s
                    else f"nothing came for {self._still_s:g} s"
                )
            done, _ = await asyncio.wait((sent,), timeout=left_s)
            if done:
                return ""


async def run_flow(
    name: str, plan: FlowPlan, server: RunningServer, c_client: Path, limit_s: float
) -> FlowRun:
    async with AsyncExitStack() as stack:
        workers = []
        for role in ("subscribe", "publish"):
            command = client(name, role, server.address, plan, c_client)
            worker = await BenchWorker.of_program(*command)
            stack.push_async_callback(worker.end)
            await worker.line(_STEP_TIMEOUT_S)
            workers.append(worker)
        subscriber, publisher = workers
        await subscriber.line(_STEP_TIMEOUT_S)
        before_s = _processor_s(server)
        ended = await _Flow(publisher, subscriber, plan.still_s).run(limit_s)
        after_s = _processor_s(server)
        # They end by themselves now; what is killed while it does so is complained of by asyncio.
        with suppress(TimeoutError):
            async with asyncio.timeout(_STILL_S):
                await asyncio.gather(publisher.finish(), subscriber.finish())
    sent, heard = ended.sent["sent"], ended.heard["heard"]
    seconds = ended.heard["measured_s"] - ended.started_s
    return FlowRun(
        sent=sent,
        heard=heard,
        events_per_s=round(ended.heard["measured"] / seconds, 1) if seconds > 0 else 0.0,
        server_us=us_per_event(before_s, after_s, sent),
        publisher_us=us_per_event(0.0, ended.sent["cpu_s"], sent),
        subscriber_us=us_per_event(0.0, ended.heard["cpu_s"], heard),
        stopped=ended.stopped,
    )


def _processor_s(server: RunningServer) -> float | None:
    try:
        return processor_s(server.pid)
    except OSError:
        return None


async def measure(
    name: str, cell: GridCell, events: int, c_client: Path, limit_s: float
) -> FlowRun:
    plan = FlowPlan(cell.topics, cell.payload_bytes, events, cell.under_way, _STILL_S)
    try:
        async with running_server(name) as server:
            return await run_flow(name, plan, server, c_client, limit_s)
    except* (RuntimeError, TimeoutError, OSError) as failures:
        failed = _why(failures)
    return FlowRun(failed=failed)


def _why(failures: BaseException) -> str:
    while isinstance(failures, BaseExceptionGroup):
        failures = failures.exceptions[0]
    return str(failures) or type(failures).__name__


# ---- all runs ------------------------------------------------------------------------------------


def summary(runs: Sequence[FlowRun]) -> dict[str, Any]:
    """What is told of a system in a cell: medians of its rounds, and all that was missed."""
    whole = [run for run in runs if not run.failed]
    return {
        "events_per_s": _median([run.events_per_s for run in whole]),
        "sent": sum(run.sent for run in runs),
        "missed": sum(run.missed for run in runs),
        "server_cpu_us_per_event": _median([run.server_us for run in whole]),
        "publisher_cpu_us_per_event": _median([run.publisher_us for run in whole]),
        "subscriber_cpu_us_per_event": _median([run.subscriber_us for run in whole]),
        "stopped": [run.stopped for run in runs if run.stopped],
        "failed": [run.failed for run in runs if run.failed],
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None


def ratio(ours: Sequence[FlowRun], theirs: Sequence[FlowRun]) -> float | None:
    """How many times as many events are ours: the median of what each round says."""
    return _median(
        [
            one.events_per_s / other.events_per_s
            for one, other in zip(ours, theirs, strict=True)
            if one.events_per_s and other.events_per_s
        ]
    )


def cell_report(cell: GridCell, runs: Mapping[str, Sequence[FlowRun]]) -> dict[str, Any]:
    ours = runs.get("dynatops")
    return {
        "topics": cell.topics,
        "bytes": cell.payload_bytes,
        "systems": {name: summary(of_system) for name, of_system in runs.items()},
        "dynatops_times": {
            name: ratio(ours, of_system)
            for name, of_system in runs.items()
            if ours is not None and name != "dynatops"
        },
    }


async def compare(
    cells: Sequence[GridCell],
    names: Sequence[str],
    *,
    rounds: int = 3,
    scale: float = 1.0,
    limit_s: float = 60.0,
) -> dict[str, Any]:
    absent = {name: parts for name in names if (parts := missing(name))}
    reports = []
    with tempfile.TemporaryDirectory() as folder:
        c_client = Path(folder)
        if any(SYSTEMS[name].in_c and name not in absent for name in names):
            c_client = compile_c_client(c_client)
        for cell in cells:
            runs: dict[str, list[FlowRun]] = {
                name: [] for name in cell.systems(names) if name not in absent
            }
            for _ in range(rounds):
                for name, of_system in runs.items():
                    events = cell.events(name, scale)
                    of_system.append(await measure(name, cell, events, c_client, limit_s))
            reports.append(cell_report(cell, runs))
    return {
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "rounds": rounds,
        "cells": reports,
        "not_installed": absent,
    }


# ---- the command ---------------------------------------------------------------------------------


_HEADINGS = ("events/s", "missed", "server", "publisher", "subscriber")
_PROCESSOR_TIMES = (
    *("server_cpu_us_per_event", "publisher_cpu_us_per_event"),
    "subscriber_cpu_us_per_event",
)


def lines(report: Mapping[str, Any]) -> list[str]:
    """What a person reads."""
    return [
        *_measured_lines(report["cells"]),
        *_ratio_lines(report["cells"]),
        *_warning_lines(report),
    ]


def _measured_lines(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    text = ["Processor time of server, publisher and subscriber in microseconds an event.", ""]
    text.append(f"{'topics':>7} {'bytes':>7}  {'system':<16}" + "".join(map(_right, _HEADINGS)))
    for cell in cells:
        for name, of_system in cell["systems"].items():
            rate = of_system["events_per_s"]
            values = [
                "-" if rate is None else f"{rate:,.0f}",
                f"{of_system['missed']:,}",
                *(_fraction(of_system[key]) for key in _PROCESSOR_TIMES),
            ]
            where = f"{cell['topics']:>7} {cell['bytes']:>7}"
            text.append(f"{where}  {name:<16}" + "".join(map(_right, values)))
    return text


def _ratio_lines(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    others = list(dict.fromkeys(name for cell in cells for name in cell["dynatops_times"]))
    if not others:
        return []
    wide = [f"{name:>16}" for name in others]
    text = ["", "dynatops moves so many times as many events as", ""]
    text.append(f"{'topics':>7} {'bytes':>7}" + "".join(wide))
    for cell in cells:
        ratios = (_fraction(cell["dynatops_times"].get(name)) for name in others)
        where = f"{cell['topics']:>7} {cell['bytes']:>7}"
        text.append(where + "".join(f"{value:>16}" for value in ratios))
    return text


def _warning_lines(report: Mapping[str, Any]) -> list[str]:
    text = []
    for cell in report["cells"]:
        for name, of_system in cell["systems"].items():
            which = f"{name}, {cell['topics']:,} topics, {cell['bytes']:,} bytes"
            if of_system["missed"]:
                missed, sent = of_system["missed"], of_system["sent"]
                text.append(f"{which}: {missed:,} of {sent:,} events were missed")
            text += [f"{which}: stopped, {reason}" for reason in of_system["stopped"]]
            text += [f"{which}: failed, {reason}" for reason in of_system["failed"]]
    for name, parts in report["not_installed"].items():
        text.append(f"{name}: not measured; to be installed: {', '.join(parts)}")
    return ["", *text] if text else []


def _right(value: str) -> str:
    return f"{value:>12}"


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def ours_lacks(report: Mapping[str, Any]) -> bool:
    """Whether an event of ours was missed, or a run of ours failed."""
    return any(
        of_system["missed"] or of_system["failed"]
        for cell in report["cells"]
        for name, of_system in cell["systems"].items()
        if name in OURS
    )


def numbers(text: str, *, most: int) -> list[int]:
    """Of a list with commas, each once."""
    found = [int(part) for part in text.split(",")]
    if not all(1 <= number <= most for number in found):
        raise argparse.ArgumentTypeError(f"numbers from 1 to {most:,}, not {text}")
    return list(dict.fromkeys(found))


def _topics(text: str) -> list[int]:
    return numbers(text, most=_TOPICS_MAX)


def _sizes(text: str) -> list[int]:
    return numbers(text, most=_PAYLOAD_BYTES_MAX)


def _systems(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in SYSTEMS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(SYSTEMS)}")
    return list(dict.fromkeys(names))


def parser() -> argparse.ArgumentParser:
    parsing = argparse.ArgumentParser(description="Throughput beside other brokers, as ratios.")
    parsing.add_argument(
        *("--topics",),
        type=_topics,
        default=[1],
        metavar="N[,…]",
        help="over how many events are spread (default: 1)",
    )
    parsing.add_argument(
        *("--bytes",),
        type=_sizes,
        default=[100],
        metavar="N[,…]",
        help="sizes of events; all pairs with --topics are measured (default: 100)",
    )
    parsing.add_argument(
        *("--systems",),
        type=_systems,
        default=list(SYSTEMS),
        metavar="NAME[,…]",
        help=f"of {', '.join(SYSTEMS)} (default: all that are installed)",
    )
    parsing.add_argument(
        "--rounds", type=positive(int), default=3, metavar="N", help="(default: 3)"
    )
    parsing.add_argument(
        "--scale",
        type=positive(float),
        default=1.0,
        metavar="X",
        help="times the usual number of events",
    )
    parsing.add_argument(
        "--limit",
        type=positive(float),
        default=60.0,
        metavar="SECONDS",
        help="a run sends no longer than this (default: 60)",
    )
    parsing.add_argument("--json", action="store_true")
    return parsing


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    cells = [GridCell(topics, size) for topics in arguments.topics for size in arguments.bytes]
    report = asyncio.run(
        compare(
            cells,
            arguments.systems,
            rounds=arguments.rounds,
            scale=arguments.scale,
            limit_s=arguments.limit,
        )
    )
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(lines(report)))
    return 1 if ours_lacks(report) else 0


if __name__ == "__main__":
    sys.exit(main())
