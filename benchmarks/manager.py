"""What a manager of a large network needs: processor and memory while brokers report, and the time
of a plan from its proposal to its end.

    python -m benchmarks.manager [--json] [--agents N] [--topics T] [--seconds S] [--budget-s S]

The manager is a process of its own, with its store and its solver. Brokers are made up, with
interests in modes (DYNATOPS IV-A), but their streams are real: the uplink of real brokers, each
over a connection of its own, reporting every ten seconds with all counters, round trip times and a
few changed subscriptions. They obey every step at once, so that a plan takes what the manager and
its messages take. Processor time is a share of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import math
import os
import platform
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from broker_agent.core.base.counters import BrokerCounters
from broker_agent.process_settings import ManagerLinkSettings
from broker_agent.runtime.manager.uplink import Uplink
from dynatops.kit.security.peer_credentials import LinkCredentials
from dynatops.local.managers import ManagerProcess
from dynatops.v1.manager_pb2 import (
    RCFG_TREE_RESTORE,
    LoadReport,
    Registration,
    RoundTrip,
    Step,
    StepReply,
    TopicCount,
)
from dynatops.v1.overlay_pb2 import NodeRef
from experiments.workloads.instances import make_instance
from experiments.workloads.patterns import Pattern
from overlay.base.counters import OverlayCounters
from overlay.base.identifiers import key_of
from reconfig_manager.placement.instance import Instance
from reconfig_manager.store.embedded import EmbeddedServer

REPORT_PERIOD_S = 10.0
ROUND_TRIPS = 30
CHANGED_PER_REPORT = 3
AT_ONCE = 50
PATIENCE_S = 180.0
OVER = ("COMMITTED", "ROLLED_BACK", "REJECTED", "EXPIRED", "CANCELLED")
MIB = 1 << 20


class MadeUpBroker:
    """Reports what the instance says, and obeys."""

    def __init__(self, name: str, manager: str, instance: Instance, rng: Random) -> None:
        self.name = name
        self.registration_version = 0
        self.node_id = int(instance.placement[name], 16)
        self.epoch = 0
        self.fence = 0
        # Topics whose rendezvous point it hosts.
        self.stamps: list[str] = []
        self.steps = 0
        self._instance = instance
        self._topics = set(instance.brokers[name])
        self._changed: list[str] = []
        self._reports = 0
        self._rng = rng
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        settings = ManagerLinkSettings(addresses=(manager,))
        self.uplink = Uplink(settings, LinkCredentials(), self, options)

    def registration(self) -> Registration:
        node = NodeRef(
            node_id=self.node_id, broker_id=self.name, address=f"{self.name}.example:7400",
            epoch=self.epoch, incarnation=1,
        )  # fmt: skip
        return Registration(
            protocol_min=1, protocol_max=1, node=node, epoch=self.epoch, fence=self.fence,
            labels={"region": "eu"},
        )  # fmt: skip

    def attend(self) -> None:
        self._reports = 0

    def load_report(self, *, full: bool) -> LoadReport:
        self._reports += 1
        report = LoadReport(
            window_s=REPORT_PERIOD_S, sessions=1_000, subscriptions=5_000,
            counters={**BrokerCounters().as_dict(), **OverlayCounters().as_dict()},
        )  # fmt: skip
        rates = self._instance.publications
        stamped = 0
        for topic in self.stamps:
            events = round(rates[topic] * self._rng.uniform(0.8, 1.2))
            stamped += events
            report.publications.append(TopicCount(topic=topic, events=events, bytes=100 * events))
        report.counters["stamped_events"] = stamped * self._reports
        for _ in range(ROUND_TRIPS):
            other = f"b{self._rng.randrange(len(self._instance.brokers))}"
            report.round_trips.append(RoundTrip(broker_id=other, ms=self._rng.uniform(1, 50)))
        if full:
            report.subscribed.extend(sorted(self._topics))
        else:
            self._change(report)
        return report

    def _change(self, report: LoadReport) -> None:
        """Some topics go and come back with the next report."""
        report.subscribed.extend(self._changed)
        self._changed = self._rng.sample(
            sorted(self._topics), min(CHANGED_PER_REPORT, len(self._topics))
        )
        report.unsubscribed.extend(self._changed)

    def on_step(self, step: Step) -> None:
        self.steps += 1
        self.fence = max(self.fence, step.fence)
        if step.kind == RCFG_TREE_RESTORE:
            for node in step.moved:
                if node.broker_id == self.name:
                    self.node_id, self.epoch = node.node_id, step.epoch
        self.uplink.reply(
            StepReply(fence=step.fence, plan=step.plan, epoch=step.epoch, kind=step.kind)
        )


def made_up(agents: int, topics: int, manager: str) -> list[MadeUpBroker]:
    instance = make_instance(agents, topics, Pattern.MULTIMODAL, seed=1)
    rng = Random(1)
    brokers = [MadeUpBroker(name, manager, instance, rng) for name in instance.brokers]
    by_node = sorted(brokers, key=lambda broker: broker.node_id)
    nodes = [broker.node_id for broker in by_node]
    for topic in instance.publications:
        successor = bisect.bisect_left(nodes, key_of(topic)) % len(nodes)
        by_node[successor].stamps.append(topic)
    return brokers


# ---- what a process takes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_s: float
    resident_mib: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE") / MIB
        return cls(ticks / os.sysconf("SC_CLK_TCK"), resident)


def peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def children_of(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# ---- the measurement -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    agents: int
    topics: int
    subscriptions: int
    reports_per_s: float
    attach_s: float
    # Of the manager's process, while brokers report; a share of one core.
    cpu_share: float
    cpu_share_with_store: float
    resident_mib: float
    resident_peak_mib: float
    solver_resident_peak_mib: float
    store_resident_mib: float
    plan_state: str
    plan_moves: int
    plan_messages: int
    # From the proposal to the end of the plan; of this, until the solver was done.
    plan_s: float
    plan_solved_s: float
    plan_cpu_s: float
    # How long somebody else's question waited at most: while brokers reported, and during the plan.
    longest_answer_s: float
    longest_answer_in_plan_s: float


async def measure(arguments: argparse.Namespace, folder: str) -> Result:
    store = await EmbeddedServer.start(folder)
    period = f"manager.monitor.period_s={REPORT_PERIOD_S:g}"
    manager = await ManagerProcess.start("m0", store.url, options=["--set", period])
    try:
        brokers = made_up(arguments.agents, arguments.topics, manager.address)
        async with attending(brokers) as attach_s:
            return await observe(arguments, manager, store.pid, brokers, attach_s)
    finally:
        await manager.stop()
        await store.stop()


@asynccontextmanager
async def attending(brokers: Sequence[MadeUpBroker]) -> AsyncIterator[float]:
    """Seconds until all were."""
    began_s = time.monotonic()
    tasks: list[asyncio.Task[None]] = []
    try:
        for first in range(0, len(brokers), AT_ONCE):
            batch = brokers[first : first + AT_ONCE]
            tasks += [asyncio.create_task(broker.uplink.run()) for broker in batch]
            await until(lambda batch=batch: all(b.uplink.manager for b in batch))
        yield time.monotonic() - began_s
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def observe(
    arguments: argparse.Namespace,
    manager: ManagerProcess,
    store_pid: int,
    brokers: Sequence[MadeUpBroker],
    attach_s: float,
) -> Result:
    pid = manager.process.pid
    (solver_pid,) = children_of(pid)

    async def ready() -> bool:
        return bool((await ask(manager, "/v1/cluster"))["model"]["ready"])

    await until_so(ready)
    reports = sum(broker.uplink.counters.manager_reports for broker in brokers)
    before, store_before = Usage.of(pid), Usage.of(store_pid)
    began_s = time.monotonic()
    longest_s = await ask_now_and_then(manager, began_s + arguments.seconds)
    seconds = time.monotonic() - began_s
    after, store_after = Usage.of(pid), Usage.of(store_pid)
    reports = sum(broker.uplink.counters.manager_reports for broker in brokers) - reports
    cpu_s = after.cpu_s - before.cpu_s
    over = asyncio.Event()
    asking = asyncio.create_task(ask_now_and_then(manager, math.inf, over))
    plan, plan_s, solved_s = await execute(manager, arguments.budget_s)
    over.set()
    subscriptions = (await ask(manager, "/v1/cluster"))["subscriptions"]
    steps = sum(broker.steps for broker in brokers)
    return Result(
        agents=len(brokers),
        topics=arguments.topics,
        subscriptions=subscriptions,
        reports_per_s=reports / seconds,
        attach_s=attach_s,
        cpu_share=cpu_s / seconds,
        cpu_share_with_store=(cpu_s + store_after.cpu_s - store_before.cpu_s) / seconds,
        resident_mib=after.resident_mib,
        resident_peak_mib=peak_mib(pid),
        solver_resident_peak_mib=peak_mib(solver_pid),
        store_resident_mib=Usage.of(store_pid).resident_mib,
        plan_state=plan["state"],
        plan_moves=len(plan["moves"]),
        plan_messages=2 * steps,
        plan_s=plan_s,
        plan_solved_s=solved_s,
        plan_cpu_s=Usage.of(pid).cpu_s - after.cpu_s,
        longest_answer_s=longest_s,
        longest_answer_in_plan_s=await asking,
    )


async def ask_now_and_then(
    manager: ManagerProcess, until_s: float, over: asyncio.Event | None = None
) -> float:
    """The longest that a question had to wait: the manager's loop was held up for so long."""
    longest_s = 0.0
    while time.monotonic() < until_s and not (over and over.is_set()):
        asked_s = time.monotonic()
        await ask(manager, "/v1/healthz")
        longest_s = max(longest_s, time.monotonic() - asked_s)
        await asyncio.sleep(0.1)
    return longest_s


async def execute(manager: ManagerProcess, budget_s: float) -> tuple[Any, float, float]:
    """The plan, its seconds, and those until it was solved."""
    body = {"reason": "benchmark", "execute": True, "budget_s": budget_s}
    began_s = time.monotonic()
    plan = await ask(manager, "/v1/reconfigurations", body)
    solved_s = 0.0

    async def over() -> bool:
        nonlocal plan, solved_s
        plan = await ask(manager, f"/v1/reconfigurations/{plan['id']}")
        if plan["prediction"] is not None and not solved_s:
            solved_s = time.monotonic() - began_s
        return plan["state"] in OVER

    await until_so(over)
    return plan, time.monotonic() - began_s, solved_s


async def ask(manager: ManagerProcess, path: str, body: object = None) -> Any:
    def request() -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        question = urllib.request.Request(manager.url + path, data, headers)  # noqa: S310
        with urllib.request.urlopen(question, timeout=PATIENCE_S) as answer:  # noqa: S310
            return json.load(answer)

    return await asyncio.to_thread(request)


async def until(condition: Any) -> None:
    async def so() -> bool:
        return bool(condition())

    await until_so(so)


async def until_so(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110  # no single event says so
            await asyncio.sleep(0.05)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.manager")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of reporting (default: 60)")
    parser.add_argument("--budget-s", type=float, default=5.0, help="of the solver (default: 5)")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with tempfile.TemporaryDirectory(prefix="dynatops-") as folder:
        result = asyncio.run(measure(arguments, folder))
    machine = {"cpus": os.cpu_count(), "machine": platform.machine()}
    if arguments.json:
        print(json.dumps({**asdict(result), **machine}))
        return 0
    for name, value in {**asdict(result), **machine}.items():
        print(f"{name:26} {value:,.2f}" if isinstance(value, float) else f"{name:26} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
