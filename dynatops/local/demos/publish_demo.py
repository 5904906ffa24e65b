"""The demonstration: a cluster in this process, people who keep changing what they follow, steady
news.

It is also a check of itself. Every event carries a number; every user writes down what came; in the
end the two are compared (`ledger`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import dynatops
from dynatops.client.aio import Client
from dynatops.client.inspection import Inspector, TreeNode
from dynatops.local.cluster import LocalCluster
from dynatops.local.ledger import FAREWELL_S, Ledger

TOPIC_GROUPS = 6
TOPICS_PER_GROUP = 4
USERS_PER_BROKER = 3
TOPICS_PER_USER = 4
PUBLISHERS = 4
EVENTS_PER_S = 240.0
CHANGE_EVERY_S = 4.0


@dataclass(frozen=True, slots=True)
class DemoResult:
    brokers: int
    users: int
    topics: int
    seconds: float
    ready_s: float
    published: int
    expected: int
    delivered: int
    lost: int
    duplicated: int
    reordered: int
    subscription_changes: int
    tree_messages: int
    relay_messages: int
    p50_ms: float
    p99_ms: float
    topic: str
    tree: TreeNode

    @property
    def ok(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered)


class _Demo:
    def __init__(self, cluster: LocalCluster, seconds: float, seed: int) -> None:
        self._cluster = cluster
        self._rng = Random(seed)
        self._groups = [
            [f"news/{group}/{item}" for item in range(TOPICS_PER_GROUP)]
            for group in range(TOPIC_GROUPS)
        ]
        self._ends_s = time.monotonic() + seconds
        self.ledger = Ledger()
        self.changes = 0

    @property
    def topics(self) -> list[str]:
        return [topic for group in self._groups for topic in group]

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_s

    async def run(self) -> tuple[str, TreeNode]:
        """Everything until the last event has arrived; then the largest tree, while it stands."""
        users = USERS_PER_BROKER * len(self._cluster.agents)
        async with asyncio.TaskGroup() as tasks:
            publishing = [tasks.create_task(self._publisher()) for _ in range(PUBLISHERS)]
            following = [tasks.create_task(self._user()) for _ in range(users)]
            await asyncio.gather(*publishing)
            await self.ledger.catch_up()
            picture = await _largest_tree(self._cluster, self.topics)
            for task in following:
                task.cancel()
        return picture

    def _address(self) -> str:
        return self._rng.choice(self._cluster.addresses)

    # ---- publishers -----------------------------------------------------------------------------

    async def _publisher(self) -> None:
        rate = EVENTS_PER_S / PUBLISHERS
        async with dynatops.connect(self._address()) as client:
            pending: set[asyncio.Task[None]] = set()
            while not self._is_over:
                task = asyncio.create_task(
                    self.ledger.publish(client, self._rng.choice(self.topics))
                )
                pending.add(task)
                task.add_done_callback(pending.discard)
                await asyncio.sleep(self._rng.expovariate(rate))
            await asyncio.gather(*pending)

    # ---- users ----------------------------------------------------------------------------------

    async def _user(self) -> None:
        """Follows some topics of one group and a stray one, and now and then another."""
        group = self._rng.choice(self._groups)
        topics = self._rng.sample(group, min(TOPICS_PER_USER - 1, len(group)))
        topics.append(self._rng.choice(self.topics))
        async with dynatops.connect(self._address()) as client:
            async with asyncio.TaskGroup() as tasks:
                for topic in dict.fromkeys(topics):
                    tasks.create_task(self._follow_on_and_on(client, topic))

    async def _follow_on_and_on(self, client: Client, topic: str) -> None:
        while True:
            patience_s = self._rng.expovariate(1 / CHANGE_EVERY_S) + 2 * FAREWELL_S
            if time.monotonic() + patience_s > self._ends_s:
                patience_s = float("inf")
            await self._follow(client, topic, patience_s)
            self.changes += 1
            topic = self._rng.choice(self.topics)

    async def _follow(self, client: Client, topic: str, patience_s: float) -> None:
        async with client.subscribe(topic) as events:
            following = self.ledger.follow(topic)
            try:
                async with asyncio.timeout(None if patience_s == float("inf") else patience_s):
                    async for event in events:
                        following.hear(event)
            except TimeoutError:
                following.until_s = time.monotonic()


async def run_demo(
    brokers: int,
    seconds: float,
    seed: int = 0,
    progress: Callable[[float, int, int], None] | None = None,
) -> DemoResult:
    """Run it. `progress` is told once a second: seconds, events published, deliveries made."""
    async with LocalCluster(brokers) as cluster:
        demo = _Demo(cluster, seconds, seed)
        watching = asyncio.create_task(_watch(demo, progress)) if progress else None
        try:
            topic, tree = await demo.run()
        finally:
            if watching is not None:
                watching.cancel()
        return _result(cluster, demo, seconds, topic, tree)


async def _watch(demo: _Demo, progress: Callable[[float, int, int], None]) -> None:
    started_s = time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        heard = sum(len(following.heard) for following in demo.ledger.followings)
        progress(time.monotonic() - started_s, len(demo.ledger.published), heard)


def _result(
    cluster: LocalCluster, demo: _Demo, seconds: float, topic: str, tree: TreeNode
) -> DemoResult:
    balance = demo.ledger.balance()
    latencies = sorted(us for f in demo.ledger.followings for us in f.latencies_us)
    counters = [agent.core.status().hosted.counters for agent in cluster.agents]
    return DemoResult(
        brokers=len(cluster.agents),
        users=USERS_PER_BROKER * len(cluster.agents),
        topics=len(demo.topics),
        seconds=seconds,
        ready_s=cluster.ready_s,
        published=balance.published,
        expected=balance.expected,
        delivered=balance.delivered,
        lost=balance.lost,
        duplicated=balance.duplicated,
        reordered=balance.reordered,
        subscription_changes=demo.changes,
        tree_messages=sum(counter.tree_events for counter in counters),
        relay_messages=sum(counter.relayed_events for counter in counters),
        p50_ms=_percentile_ms(latencies, 0.50),
        p99_ms=_percentile_ms(latencies, 0.99),
        topic=topic,
        tree=tree,
    )


def _percentile_ms(sorted_us: list[int], share: float) -> float:
    if not sorted_us:
        return 0.0
    return sorted_us[min(len(sorted_us) - 1, int(share * len(sorted_us)))] / 1_000


async def _largest_tree(cluster: LocalCluster, topics: list[str]) -> tuple[str, TreeNode]:
    """The tree worth a picture: the one with the most nodes."""
    async with Inspector(cluster.addresses) as inspector:
        trees = [(topic, await inspector.tree(topic)) for topic in topics]
    return max(trees, key=lambda pair: len(list(pair[1].walk())))
