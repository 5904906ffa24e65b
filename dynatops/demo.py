"""The demonstration: a cluster in this process, people who keep changing what they follow, steady
news.

It is also a check of itself. Every event carries a number; every user writes down what came; in the
end the two are compared. An event counts as owed to a subscription if it was published after the
subscription was confirmed and acknowledged a moment before it was given up, so that what was under
way just then counts neither way.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import dynatops
from dynatops.client.aio import Client
from dynatops.client.subscription import Event
from dynatops.cluster import LocalCluster
from dynatops.inspection import Inspector, TreeNode

TOPIC_GROUPS = 6
TOPICS_PER_GROUP = 4
USERS_PER_BROKER = 3
TOPICS_PER_USER = 4
PUBLISHERS = 4
EVENTS_PER_S = 240.0
CHANGE_EVERY_S = 4.0
# Around giving up a subscription, for this long nothing is owed.
FAREWELL_S = 1.0
CATCH_UP_S = 5.0


@dataclass(slots=True)
class _Published:
    topic: str
    number: int
    begun_s: float
    acknowledged_s: float | None = None


@dataclass(slots=True)
class _Following:
    """One user's interest in one topic, from confirmation to the end."""

    topic: str
    since_s: float
    until_s: float | None = None
    heard: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    reordered: int = 0
    last: tuple[int, int] = (0, 0)
    latencies_us: list[int] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        self.latencies_us.append(time.time_ns() // 1_000 - event.published_us)
        self.heard[int.from_bytes(event.payload[:8], "big")] += 1
        place = (event.term, event.seq)
        if place <= self.last:
            self.reordered += 1
        self.last = max(self.last, place)


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
        self.published: list[_Published] = []
        self.followings: list[_Following] = []
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
            await self._catch_up()
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
                task = asyncio.create_task(self._publish(client, self._rng.choice(self.topics)))
                pending.add(task)
                task.add_done_callback(pending.discard)
                await asyncio.sleep(self._rng.expovariate(rate))
            await asyncio.gather(*pending)

    async def _publish(self, client: Client, topic: str) -> None:
        event = _Published(topic, len(self.published) + 1, time.monotonic())
        self.published.append(event)
        await client.publish(topic, event.number.to_bytes(8, "big") + bytes(92))
        event.acknowledged_s = time.monotonic()

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
            following = _Following(topic, time.monotonic())
            self.followings.append(following)
            try:
                async with asyncio.timeout(None if patience_s == float("inf") else patience_s):
                    async for event in events:
                        following.hear(event)
            except TimeoutError:
                following.until_s = time.monotonic()

    # ---- the reckoning --------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Give what is under way a moment to arrive."""
        deadline_s = time.monotonic() + CATCH_UP_S
        while time.monotonic() < deadline_s:
            expected, delivered = self.reckon()
            if delivered == expected:
                return
            await asyncio.sleep(0.05)

    def reckon(self) -> tuple[int, int]:
        """How many deliveries are owed, and how many of these have been made."""
        by_topic: defaultdict[str, list[_Published]] = defaultdict(list)
        for event in self.published:
            if event.acknowledged_s is not None:
                by_topic[event.topic].append(event)
        expected = delivered = 0
        for following in self.followings:
            until_s = (following.until_s or float("inf")) - FAREWELL_S
            for event in by_topic[following.topic]:
                assert event.acknowledged_s is not None
                if following.since_s < event.begun_s and event.acknowledged_s < until_s:
                    expected += 1
                    delivered += event.number in following.heard
        return expected, delivered


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
        heard = sum(len(following.heard) for following in demo.followings)
        progress(time.monotonic() - started_s, len(demo.published), heard)


def _result(
    cluster: LocalCluster, demo: _Demo, seconds: float, topic: str, tree: TreeNode
) -> DemoResult:
    expected, delivered = demo.reckon()
    latencies = sorted(us for following in demo.followings for us in following.latencies_us)
    counters = [agent.core.node.counters for agent in cluster.agents]
    return DemoResult(
        brokers=len(cluster.agents),
        users=USERS_PER_BROKER * len(cluster.agents),
        topics=len(demo.topics),
        seconds=seconds,
        ready_s=cluster.ready_s,
        published=len(demo.published),
        expected=expected,
        delivered=delivered,
        lost=expected - delivered,
        duplicated=sum(n - 1 for f in demo.followings for n in f.heard.values()),
        reordered=sum(following.reordered for following in demo.followings),
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
