"""The demonstration of reconfiguration: brokers with interests in modes, live load, one plan.

The manager watches, a plan is asked for, approved and carried out, all over its REST API, while
events flow. Relays and hops are counted by the brokers themselves before and after, and every
event is accounted for (`ledger`).
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import dynatops
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.local.cluster import LocalCluster
from dynatops.local.ledger import Balance, Followed, Ledger
from experiments.workloads.instances import make_instance
from experiments.workloads.patterns import Pattern
from reconfig_manager.placement.instance import Instance

TOPICS = 100
TOPICS_PER_BROKER = 10
EVENTS_PER_S = 400.0
PUBLISHERS = 4
# Sooner than in production, where a manager watches for minutes.
MANAGER = {
    "manager": {
        "monitor": {"report_period_s": 1.0, "period_s": 3.0, "periods_min": 2, "window_s": 4.0},
        "measuring": {"settle_s": 1.0, "measure_s": 10.0},
    }
}
SETTLE_S = 1.5
_POLL_S = 0.1
_PLAN_TIMEOUT_S = 60.0
_MEASURE_TIMEOUT_S = 60.0

# Told once a second: what is being done, and seconds since the beginning.
Progress = Callable[[str, float], None]


class DemoError(Exception):
    """The manager did not do what the demonstration asks for."""


@dataclass(frozen=True, slots=True)
class DemoTraffic:
    """What brokers counted in some seconds."""

    stamped: int
    relayed: int
    delivered: int
    hops: int

    @property
    def relays_per_event(self) -> float:
        return self.relayed / max(1, self.stamped)

    @property
    def mean_hops(self) -> float:
        return self.hops / max(1, self.delivered)

    def since(self, before: DemoTraffic) -> DemoTraffic:
        return DemoTraffic(
            self.stamped - before.stamped,
            self.relayed - before.relayed,
            self.delivered - before.delivered,
            self.hops - before.hops,
        )


@dataclass(frozen=True, slots=True)
class ReconfigureResult:
    brokers: int
    seconds: float
    before: DemoTraffic
    after: DemoTraffic
    balance: Balance
    # As the manager's REST API shows it, after its end and its measurement.
    plan: dict[str, Any]

    @property
    def relay_reduction(self) -> float:
        return 1.0 - self.after.relays_per_event / max(1e-9, self.before.relays_per_event)

    @property
    def hop_reduction(self) -> float:
        return 1.0 - self.after.mean_hops / max(1e-9, self.before.mean_hops)

    @property
    def control_messages(self) -> int:
        steps = self.plan["execution"]["messages"].values()
        return sum(step["manager"] + step["brokers"] for step in steps)

    @property
    def ok(self) -> bool:
        balance = self.balance
        whole = not (balance.lost or balance.duplicated or balance.reordered)
        return whole and self.plan["state"] == "COMMITTED"

    def as_json(self) -> dict[str, Any]:
        measured = self.plan["measurement"] or {}
        return {
            "brokers": self.brokers,
            "topics": TOPICS,
            "plan": self.plan["id"],
            "state": self.plan["state"],
            "moved": len(self.plan["moves"]),
            "relays_per_event": round(self.before.relays_per_event, 4),
            "relays_per_event_after": round(self.after.relays_per_event, 4),
            "relay_reduction": round(self.relay_reduction, 4),
            "mean_hops": round(self.before.mean_hops, 4),
            "mean_hops_after": round(self.after.mean_hops, 4),
            "hop_reduction": round(self.hop_reduction, 4),
            "pause_ms_p99": round(1000.0 * self.plan["execution"]["paused"]["p99_s"], 1),
            "predicted_benefit": round(measured.get("predicted_benefit", 0.0), 1),
            "measured_benefit": round(measured.get("measured_benefit", 0.0), 1),
            "benefit_ratio": round(measured.get("benefit_ratio", 0.0), 4),
            "control_messages": self.control_messages,
            "control_messages_bound": round(self.plan["prediction"]["moving_cost"], 1),
            "flags": self.plan["flags"],
            "published": self.balance.published,
            "expected": self.balance.expected,
            "delivered": self.balance.delivered,
            "lost": self.balance.lost,
            "duplicated": self.balance.duplicated,
            "reordered": self.balance.reordered,
        }


class _Manager:
    """Its REST API."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await asyncio.to_thread(self._ask, path, body)

    def _ask(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310  # a URL of this process's own
            f"{self._url}/v1/{path}",
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_PLAN_TIMEOUT_S) as answer:
            document: dict[str, Any] = json.load(answer)
            return document

    async def plan_once(
        self, plan_id: str, done: Callable[[dict[str, Any]], bool], timeout_s: float
    ) -> dict[str, Any]:
        """The plan, as soon as it is so, or as it is when time is up."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            plan = await self.ask(f"reconfigurations/{plan_id}")
            if done(plan) or time.monotonic() > deadline_s:
                return plan
            await asyncio.sleep(_POLL_S)


class _ReconfigureRun:
    def __init__(
        self, cluster: LocalCluster, instance: Instance, seconds: float, seed: int, show: Progress
    ) -> None:
        self._cluster = cluster
        self._instance = instance
        self._seconds = seconds
        self._rng = Random(f"reconfigure {seed}")
        self._show = show
        self._ledger = Ledger()
        self._publishing = True
        self._began_s = time.monotonic()

    async def play(self) -> tuple[DemoTraffic, DemoTraffic, Balance, dict[str, Any]]:
        places = dict(zip(self._instance.brokers, self._cluster.agents, strict=True))
        ready: list[asyncio.Event] = []
        async with asyncio.TaskGroup() as tasks:
            living = []
            for name, topics in self._instance.brokers.items():
                ready.append(asyncio.Event())
                user = self._listen(places[name].address, topics, ready[-1])
                living.append(tasks.create_task(user))
            await asyncio.gather(*(event.wait() for event in ready))
            publishing = [tasks.create_task(self._publish(i)) for i in range(PUBLISHERS)]
            before, after, plan = await self._reconfigure()
            self._publishing = False
            await asyncio.gather(*publishing)
            await self._ledger.catch_up()
            balance = self._ledger.balance()
            for task in living:
                task.cancel()
        return before, after, balance, plan

    async def _reconfigure(self) -> tuple[DemoTraffic, DemoTraffic, dict[str, Any]]:
        leader = self._cluster.managers.leader
        if leader is None:
            raise DemoError("no manager leads")
        manager = _Manager(leader.http_url)
        before = await self._watch("as it is")
        proposal = {"reason": "demonstration", "algorithm": "refine", "budget_s": 3.0}
        proposed = await manager.ask("reconfigurations", proposal)
        plan_id = proposed["id"]
        self._tell("planning")
        plan = await manager.plan_once(plan_id, lambda p: p["prediction"] is not None, 30.0)
        if plan["state"] != "PROPOSED":
            raise DemoError(f"plan {plan_id} is {plan['state']}: {plan['note']}")
        self._tell("moving brokers")
        await manager.ask(f"reconfigurations/{plan_id}/approve", {"reason": "demonstration"})
        over = ("COMMITTED", "ROLLED_BACK")
        plan = await manager.plan_once(plan_id, lambda p: p["state"] in over, _PLAN_TIMEOUT_S)
        await asyncio.sleep(SETTLE_S)
        after = await self._watch("reconfigured")
        self._tell("waiting for the manager's figures")

        def is_measured(plan: dict[str, Any]) -> bool:
            return plan["measurement"] is not None or "not_measured" in plan["flags"]

        return before, after, await manager.plan_once(plan_id, is_measured, _MEASURE_TIMEOUT_S)

    def _tell(self, what: str) -> None:
        self._show(what, time.monotonic() - self._began_s)

    async def _watch(self, what: str) -> DemoTraffic:
        start = self._traffic()
        end_s = time.monotonic() + self._seconds
        while time.monotonic() < end_s:
            self._tell(what)
            await asyncio.sleep(min(1.0, max(0.0, end_s - time.monotonic())))
        return self._traffic().since(start)

    def _traffic(self) -> DemoTraffic:
        counters = [agent.core.status().hosted.counters for agent in self._cluster.agents]
        return DemoTraffic(
            sum(c.stamped_events for c in counters),
            sum(c.relayed_events for c in counters),
            sum(c.tree_delivered_events for c in counters),
            sum(c.tree_delivered_hops for c in counters),
        )

    async def _listen(self, address: str, topics: Sequence[str], ready: asyncio.Event) -> None:
        async with (
            dynatops.connect(address, timeout_s=60.0) as client,
            client.subscribe(*topics) as events,
        ):
            followings: dict[str, Followed] = {t: self._ledger.follow(t) for t in topics}
            ready.set()
            async for event in events:
                followings[event.topic].hear(event)

    async def _publish(self, index: int) -> None:
        """Topics as often as the instance says, in a random order."""
        rng = Random(self._rng.getrandbits(64))
        topics, weights = zip(*self._instance.publications.items(), strict=True)
        addresses = self._cluster.addresses
        async with dynatops.connect(addresses[index * len(addresses) // PUBLISHERS]) as client:
            pending: set[asyncio.Task[None]] = set()
            due_s = time.monotonic()
            while self._publishing:
                (topic,) = rng.choices(topics, weights)
                task = asyncio.create_task(self._ledger.publish(client, topic))
                pending.add(task)
                task.add_done_callback(pending.discard)
                due_s += PUBLISHERS / EVENTS_PER_S
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await asyncio.gather(*pending)


async def run_reconfigure_demo(
    brokers: int, seconds: float, seed: int, show: Progress
) -> ReconfigureResult:
    """`seconds` before the plan, and as many after it. Raises DemoError."""
    instance = make_instance(brokers, TOPICS, Pattern.MULTIMODAL, seed, TOPICS_PER_BROKER)
    cluster = LocalCluster(
        brokers,
        selection=SelectionSettings(enabled=False),
        managers=1,
        manager_values=MANAGER,
    )
    async with cluster:
        run = _ReconfigureRun(cluster, instance, seconds, seed, show)
        before, after, balance, plan = await run.play()
    return ReconfigureResult(brokers, seconds, before, after, balance, plan)
