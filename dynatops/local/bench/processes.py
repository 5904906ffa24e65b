"""What the benchmarks share: brokers to measure, workers in processes of their own, percentiles.

Publishers and subscribers must not share a process with what is measured, nor with
each other. Workers say what they have to say as lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynatops.kit.security.credentials import Credentials
from dynatops.local.cluster import ProcessCluster
from dynatops.local.tree_cluster import PlacedTree, ProcessTree, star

# A line that a worker is told.
_LINE_BYTES_MAX = 4 << 20
# Deliveries that do not come for so long never do.
STANDSTILL_S = 20.0
# How events travel between the brokers that are started: along a ring, or in a tree.
RENDEZVOUS, FORWARDING = ROUTINGS = ("rendezvous", "forwarding")


class BenchWorker:
    """A module of this package, or another program that says lines of JSON, run as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *arguments: str) -> BenchWorker:
        return await cls.of_program(sys.executable, "-m", module, *arguments)

    @classmethod
    async def of_program(cls, *command: str) -> BenchWorker:
        return cls(
            await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self, timeout_s: float | None = None) -> Any:
        """The next thing it says. Raises RuntimeError if it ends instead, or says nothing."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                raw = await self._process.stdout.readline()
        except TimeoutError:
            self._process.kill()
            raise RuntimeError(f"nothing has come for {timeout_s:g} s") from None
        if not raw:
            raise RuntimeError(f"a worker ended early, exit code {await self._process.wait()}")
        return json.loads(raw)

    async def tell(self, document: object) -> None:
        """Raises RuntimeError if it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError:
            raise RuntimeError(
                f"a worker ended early, exit code {await self._process.wait()}"
            ) from None

    async def end_of_words(self) -> None:
        """No more will be told."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def finish(self) -> None:
        """No more will be told; wait until it ends."""
        await self.end_of_words()
        await self._process.wait()

    async def end(self) -> None:
        """It is not needed any more, whatever it does."""
        if self._process.returncode is None:
            self._process.kill()
        await self.finish()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)


StartWorker = Callable[..., Awaitable[BenchWorker]]


@asynccontextmanager
async def workers(module: str) -> AsyncIterator[StartWorker]:
    """What starts workers of this module, given arguments; they end here at the latest."""
    started: list[BenchWorker] = []

    async def start(*arguments: str) -> BenchWorker:
        worker = await BenchWorker.start(module, *arguments)
        started.append(worker)
        return worker

    try:
        yield start
    finally:
        for worker in started:
            await worker.end()


def say(document: object) -> None:
    """A worker's word to the process that started it."""
    print(json.dumps(document), flush=True)


async def heard() -> AsyncIterator[Any]:
    """What a worker is told."""
    reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield json.loads(line)


class BenchWindow:
    """Keeps a publisher from running ahead of what it is told has been delivered."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._delivered = 0
        self._moved = asyncio.Event()
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for report in heard():
            self._delivered = report["delivered"]
            self._moved.set()

    async def begun(self) -> None:
        """Wait until something has been told."""
        await self._moved.wait()

    async def room(self, sent: int) -> None:
        """Wait until so many sent are not too many."""
        while sent - self._delivered >= self._size and not self._following.done():
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            await asyncio.wait((moved, self._following), return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be told."""
        return self._following.done()

    async def ended(self) -> None:
        """Wait until nothing more will be told: the subscriber has everything."""
        await self._following


@dataclass(frozen=True, slots=True)
class BenchBrokers:
    """The brokers to measure."""

    addresses: Sequence[str]
    # Their processes, where they were started for the purpose.
    pids: Sequence[int] = ()
    # How they are linked, where they were started in a tree; for people.
    tree: str = ""

    def facts(self) -> dict[str, Any]:
        """For the result."""
        of_tree = {"routing": FORWARDING, "tree": self.tree} if self.tree else {}
        return {"brokers": len(self.addresses), **of_tree}

    def processor_s(self) -> float | None:
        """Processor time that they have used; None where nobody can tell."""
        try:
            return sum(map(processor_s, self.pids)) if self.pids else None
        except OSError:
            return None


def processor_s(pid: int) -> float:
    """What the process has used. Raises OSError where the system does not say."""
    # The name before it may have blanks and brackets of its own.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user_ticks, system_ticks = fields[11:13]
    return (int(user_ticks) + int(system_ticks)) / os.sysconf("SC_CLK_TCK")


def us_per_event(before_s: float | None, after_s: float | None, events: int) -> float | None:
    """Processor time an event, in microseconds; None where nobody can tell."""
    if before_s is None or after_s is None or not events:
        return None
    return round((after_s - before_s) * 1e6 / events, 3)


def kept_for(ack: str) -> Sequence[str]:
    """Topics that stores must keep for events to be acknowledged at this level."""
    return ("#",) if ack == "stored" else ()


@asynccontextmanager
async def brokers(
    given: str | None,
    count: int,
    routing: str = RENDEZVOUS,
    *,
    in_one_process: bool = False,
    saving: bool = False,
    keep: Sequence[str] = (),
) -> AsyncIterator[BenchBrokers]:
    """The brokers to measure: those given, or some started for the purpose. In a tree they are a
    hub with leaves: the first and the last address are leaves', and what goes from one to the other
    passes the hub. `keep`: topics that the first of them are stores of."""
    if given:
        yield BenchBrokers([part.strip() for part in given.split(",")])
        return
    with ExitStack() as stack:
        tree = stack.enter_context(star(count - 1)) if routing == FORWARDING else None
        if in_one_process:
            starting = _started_together(count, tree)
        else:
            folder = stack.enter_context(TemporaryDirectory()) if saving or keep else ""
            starting = _started_apart(count, tree, folder, keep)
        async with starting as started:
            yield started


@asynccontextmanager
async def _started_together(count: int, tree: PlacedTree | None) -> AsyncIterator[BenchBrokers]:
    """In one process."""
    which = ["--topology", tree.path] if tree else ["--brokers", str(count), "--port", "0"]
    worker = await BenchWorker.start("dynatops", "up", *which, "--json")
    try:
        yield BenchBrokers((await worker.line())["addresses"], (worker.pid,), _shape(tree))
    finally:
        worker.interrupt()
        await worker.finish()


@asynccontextmanager
async def _started_apart(
    count: int, tree: PlacedTree | None, folder: str, keep: Sequence[str]
) -> AsyncIterator[BenchBrokers]:
    """Each in a process of its own, with its sessions in the folder, if there is one."""
    cluster: ProcessTree | ProcessCluster
    if tree is not None:
        cluster = ProcessTree(tree, data_dir=folder, keep=keep)
    else:
        cluster = ProcessCluster(count, data_dir=folder, keep=keep)
    async with cluster:
        pids = [broker.process.pid for broker in cluster.brokers]
        yield BenchBrokers(cluster.addresses, pids, _shape(tree))


def _shape(tree: PlacedTree | None) -> str:
    if tree is None:
        return ""
    leaves = len(tree.names) - 1
    if not leaves:
        return "a hub alone"
    few = "leaf" if leaves == 1 else "leaves"
    return f"a hub with {leaves} {few}; between leaves events pass the hub"


def access() -> dict[str, Any]:
    """How to show oneself to the brokers measured, from the environment."""
    return Credentials.from_environment(os.environ).options()


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a share of all do not exceed; values need not be sorted."""
    if not values:
        return 0.0
    in_order = sorted(values)
    return in_order[min(len(in_order) - 1, int(len(in_order) * share))]


def thinned(values: Sequence[int], most: int = 1_000) -> list[int]:
    """As many of them as fit a line, with the same percentiles; the largest is kept."""
    in_order = sorted(values)
    step = -(-len(in_order) // most) or 1
    return in_order[::-1][::step]


def in_ms(latencies_us: Sequence[float]) -> dict[str, float]:
    return {
        "p50_ms": round(percentile(latencies_us, 0.50) / 1_000, 3),
        "p99_ms": round(percentile(latencies_us, 0.99) / 1_000, 3),
        "max_ms": round(max(latencies_us, default=0.0) / 1_000, 3),
    }
