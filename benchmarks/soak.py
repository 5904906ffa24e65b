"""A network that is used for long: do memory, descriptors, tasks and threads stay what they are?

    python -m benchmarks.soak [--minutes N] [--every S] [--brokers N] [--users N] [--json]

Brokers and a manager are processes; so are two that have clients. Users come, subscribe to exact
topics, wildcards and conditions, publish, listen, and leave; most are new each time, some come back
to a session that was kept, some break off without a word, and one of the two client processes is
killed again and again, and replaced. New topics come all the time, until there have been `--topics`
of them; then they come again. The brokers' bounds are set so low that they are reached while it
warms up (`BOUNDS`): what grows after that grows for ever.

Each process is sampled: resident memory, descriptors, threads, asyncio tasks. The slope is that of
a straight line through the samples after warm-up, the first third.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import dynatops
from dynatops.local.cluster import ProcessCluster

# Reached within minutes; by default they are for machines, not for an hour.
BOUNDS: Mapping[str, str] = {
    "overlay.log_events_max": "50",
    "overlay.log_total_bytes_max": "8000000",
    "overlay.publishers_max": "8",
    "overlay.topic_idle_s": "20",
    "core.publishers_per_topic_max": "8",
    "core.rendezvous_cache_max": "200",
    "core.session_queue_events_max": "2000",
    "core.session_expiry_max_s": "30",
    "core.offline_age_max_s": "20",
}
GROUPS = 16
TOPICS_A_SECOND = 10.0
KEPT_USERS = 12
KEEP_S = 20
LIFE_S = 3.0
EVENTS = 8
PAYLOAD = b"x" * 120
KILL_EVERY_S = 20.0
WARM_UP = 1 / 3
FIGURES = ("rss_mb", "fds", "threads", "tasks")


# ---- users ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class SoakTally:
    lives: int = 0
    published: int = 0
    heard: int = 0
    missed: int = 0
    problems: dict[str, int] = field(default_factory=dict)


class Users:
    """One process of them."""

    def __init__(self, name: str, addresses: Sequence[str], users: int, topics: int) -> None:
        self.tally = SoakTally()
        self._name = name
        self._addresses = list(addresses)
        self._users = users
        self._topics = topics
        self._rng = random.Random(name)
        self._began_s = time.monotonic()

    def _topic(self) -> str:
        """One of the newest."""
        newest = int((time.monotonic() - self._began_s) * TOPICS_A_SECOND)
        number = max(newest - self._rng.randrange(50), 0) % self._topics
        return f"soak/{number % GROUPS}/{number}"

    async def live(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(self._users):
                group.create_task(self._come_and_go(index))
            group.create_task(self._report())

    async def _report(self) -> None:
        while True:
            tally = self.tally
            document = {
                "tasks": len(asyncio.all_tasks()), "lives": tally.lives, "heard": tally.heard,
                "published": tally.published, "missed": tally.missed, "problems": tally.problems,
            }  # fmt: skip
            print(json.dumps(document), flush=True)
            await asyncio.sleep(1.0)

    async def _come_and_go(self, index: int) -> None:
        await asyncio.sleep(self._rng.random() * LIFE_S)
        while True:
            try:
                async with asyncio.timeout(60):
                    await self._live_once(index)
            except (dynatops.DynatopsError, TimeoutError) as error:
                name = f"{type(error).__name__}: {str(error)[:80]}"
                problems = self.tally.problems
                if name in problems or len(problems) < 20:
                    problems[name] = problems.get(name, 0) + 1
                await asyncio.sleep(1.0)

    async def _live_once(self, index: int) -> None:
        self.tally.lives += 1
        kept = index < KEPT_USERS
        options: dict[str, Any] = {}
        if kept:
            options = {"client_id": f"{self._name}-{index}", "keep_s": KEEP_S, "stay": True}
        addresses = self._rng.sample(self._addresses, len(self._addresses))
        if kept:
            addresses = [self._addresses[index % len(self._addresses)]]
        client = await dynatops.connect(addresses, **options)
        try:
            # A session that is kept has the same filters in each of its lives: it collects none.
            group = index % GROUPS if kept else self._rng.randrange(GROUPS)
            topics = {f"soak/{group}/{index}"} if kept else {self._topic() for _ in range(3)}
            subscriptions = [
                await client.subscribe(*topics),
                await client.subscribe(f"soak/{group}/+", where="price < 50"),
            ]
            if kept:
                subscriptions.append(await client.subscribe(f"soak/{index % GROUPS}/#"))
            listening = [asyncio.ensure_future(self._listen(one)) for one in subscriptions]
            try:
                for _ in range(EVENTS):
                    price = self._rng.randrange(100)
                    await client.publish(self._topic(), PAYLOAD, attributes={"price": price})
                    self.tally.published += 1
                    await asyncio.sleep(self._rng.random() * LIFE_S / EVENTS)
            finally:
                for task in listening:
                    task.cancel()
                await asyncio.gather(*listening, return_exceptions=True)
            if self._rng.random() < 0.7:
                await client.flush()
            self.tally.missed += sum(one.missed for one in subscriptions)
        finally:
            # Otherwise it breaks off: nothing more is said.
            await client.close()

    async def _listen(self, events: Any) -> None:
        async for batch in events.batches():
            self.tally.heard += len(batch)


# ---- samples -------------------------------------------------------------------------------------


def of_system(pid: int) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "rss_mb": int(lines["VmRSS"].split()[0]) / 1024,
        "threads": int(lines["Threads"]),
        "fds": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


async def tasks_of(url: str) -> float:
    def fetch() -> float:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
            for line in answer.read().decode().splitlines():
                if "_tasks " in line and not line.startswith("#"):
                    return float(line.split()[-1])
        return float("nan")

    return await asyncio.to_thread(fetch)


class UsersProcess:
    """Users in a process of their own, and what they last said of themselves."""

    def __init__(self, name: str, arguments: argparse.Namespace, addresses: Sequence[str]) -> None:
        self.last: dict[str, Any] = {}
        self.pid = 0
        self._command = [
            sys.executable, "-m", "benchmarks.soak", "--as-users", name,
            "--addresses", ",".join(addresses), "--users", str(arguments.users),
            "--topics", str(arguments.topics),
        ]  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.PIPE
        )
        self.pid = self._process.pid
        self._reading = asyncio.ensure_future(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self.last = json.loads(line)

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
        if self._reading is not None:
            await self._reading


@dataclass(slots=True)
class Watched:
    pid: int
    # Where its tasks are told; None: by the process itself.
    url: str | None
    samples: list[dict[str, float]] = field(default_factory=list)


# ---- the run -------------------------------------------------------------------------------------


async def soak(arguments: argparse.Namespace) -> dict[str, Any]:
    options = ["--http", "127.0.0.1:0"]
    for name, value in BOUNDS.items():
        options += ["--set", f"{name}={value}"]
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        cluster = ProcessCluster(
            arguments.brokers, data_dir=folder, managers=1, options=options,
            manager_options=["--set", "manager.monitor.report_period_s=1"],
        )  # fmt: skip
        async with cluster:
            staying = UsersProcess("stays", arguments, cluster.addresses)
            killed = UsersProcess("killed", arguments, cluster.addresses)
            await staying.start()
            await killed.start()
            watched = {
                b.name: Watched(b.process.pid, f"http://{b.http}/metrics") for b in cluster.brokers
            }
            manager = cluster.managers.managers[0]
            watched["manager"] = Watched(manager.process.pid, f"{manager.url}/v1/metrics")
            watched["clients"] = Watched(staying.pid, None)
            killing = asyncio.ensure_future(_kill_again_and_again(killed))
            try:
                await _sample(watched, staying, arguments)
                ended = [b.name for b in cluster.brokers if b.process.returncode is not None]
            finally:
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
                await staying.kill()
                await killed.kill()
    return {
        "minutes": arguments.minutes,
        "every_s": arguments.every,
        "bounds": dict(BOUNDS),
        "clients": staying.last,
        "ended": ended,
        "processes": {name: _described(one, arguments.every) for name, one in watched.items()},
    }


async def _until_terminated(arguments: argparse.Namespace) -> dict[str, Any]:
    """Who is told to end ends what it has started first."""
    running = asyncio.ensure_future(soak(arguments))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


async def _kill_again_and_again(users: UsersProcess) -> None:
    while True:
        await asyncio.sleep(KILL_EVERY_S)
        await users.kill()
        await users.start()


async def _sample(
    watched: Mapping[str, Watched], staying: UsersProcess, arguments: argparse.Namespace
) -> None:
    began_s = time.monotonic()
    if not arguments.json:
        print(f"{'minute':>7} {'process':>9} " + " ".join(f"{name:>8}" for name in FIGURES))
    while (passed_s := time.monotonic() - began_s) < 60 * arguments.minutes:
        await asyncio.sleep(arguments.every)
        for name, one in watched.items():
            sample = of_system(one.pid)
            own = staying.last.get("tasks", float("nan"))
            sample["tasks"] = await tasks_of(one.url) if one.url else own
            sample["minute"] = passed_s / 60
            one.samples.append(sample)
            if not arguments.json:
                shown = " ".join(f"{sample[figure]:8.1f}" for figure in FIGURES)
                print(f"{sample['minute']:7.1f} {name:>9} {shown}", flush=True)


def _described(one: Watched, every_s: float) -> dict[str, Any]:
    after = one.samples[int(len(one.samples) * WARM_UP) :]
    minutes = [sample["minute"] for sample in after]
    slopes = {}
    for figure in FIGURES:
        values = [sample[figure] for sample in after]
        slope = np.polyfit(minutes, values, 1)[0] if len(after) > 2 else float("nan")
        slopes[figure] = {
            "first": values[0],
            "last": values[-1],
            "most": max(values),
            "an_hour": round(60 * float(slope), 2),
        }
    return {"after_warm_up": slopes, "samples": one.samples}


def _print(report: Mapping[str, Any]) -> None:
    print(f"\nafter warm-up, the first {report['minutes'] * WARM_UP:.0f} minutes:\n")
    print("| process | figure | first | last | most | slope an hour |")
    print("|---|---|---:|---:|---:|---:|")
    for name, process in report["processes"].items():
        for figure, slope in process["after_warm_up"].items():
            numbers = " | ".join(
                f"{slope[key]:,.1f}" for key in ("first", "last", "most", "an_hour")
            )
            print(f"| {name} | {figure} | {numbers} |")
    print(f"\nclients of the process that stayed: {report['clients']}")
    if report["ended"]:
        print(f"ENDED by themselves: {', '.join(report['ended'])}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between samples")
    parser.add_argument("--brokers", type=int, default=4)
    parser.add_argument("--users", type=int, default=24, help="in each of two processes")
    parser.add_argument("--topics", type=int, default=400)
    # What this program starts itself as.
    parser.add_argument("--as-users", default="", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_users:
        addresses = arguments.addresses.split(",")
        users = Users(arguments.as_users, addresses, arguments.users, arguments.topics)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(users.live())
        return 0
    try:
        report = asyncio.run(_until_terminated(arguments))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 1 if report["ended"] else 0


if __name__ == "__main__":
    sys.exit(main())
