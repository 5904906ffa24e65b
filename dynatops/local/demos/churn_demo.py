"""The demonstration of broker selection: one workload of users who keep changing what they follow,
twice, on real clusters in this process.

Once brokers send users to where others follow the like; once every user stays at the broker that
chance gave it. Compared is what it costs the brokers: how often one begins or ceases to subscribe
to a topic; DYNATOPS' subscription management overhead, which are the messages that change topic
trees and those that exchange summaries; and how even the load is. Events flow all the while, and
every one is accounted for (`ledger`).

Users, their changes and what is published are the same in both runs, to the instant. What is owed
to whom is not: an event is owed to a subscription that was confirmed before it was published, and
how soon that is depends on where the user is and on what else the machine does.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import dynatops
from broker_agent.core.selection.selection_settings import SelectionSettings
from dynatops.local.cluster import LocalCluster
from dynatops.local.ledger import Balance, Followed, Ledger
from experiments.workloads.churn import (
    Change,
    ChurnSpec,
    changes,
    publications,
)
from experiments.workloads.modes import topic_name

UPDATE_PERIOD_S = 1.0
PUBLISHERS = 2
EVENTS_PER_S = 100.0
SAMPLE_S = 1.0

# Told once a second: what is being done, and seconds since it began.
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class ChurnOutcome:
    broker_subscription_changes: int
    # Of brokers' subscriptions, averaged over the time after all users have come.
    load_std: float
    load_mean: float
    moves: int
    # What DYNATOPS counts as subscription management overhead.
    tree_messages: int
    summary_messages: int
    balance: Balance

    @property
    def management_messages(self) -> int:
        return self.tree_messages + self.summary_messages


@dataclass(frozen=True, slots=True)
class ChurnResult:
    brokers: int
    spec: ChurnSpec
    selected: ChurnOutcome
    random: ChurnOutcome

    @property
    def reduction(self) -> float:
        """The share of broker subscription changes that selection avoids."""
        mine, other = self.selected, self.random
        return 1.0 - mine.broker_subscription_changes / max(1, other.broker_subscription_changes)

    @property
    def management_reduction(self) -> float:
        """The share of messages for managing subscriptions that selection avoids, with its own."""
        mine, other = self.selected, self.random
        return 1.0 - mine.management_messages / max(1, other.management_messages)

    @property
    def ok(self) -> bool:
        balances = (self.selected.balance, self.random.balance)
        return not any(b.lost or b.duplicated or b.reordered for b in balances)

    def as_json(self) -> dict[str, object]:
        mine, other = self.selected, self.random
        return {
            "brokers": self.brokers,
            "users": self.spec.users,
            "topics": self.spec.topics,
            "seconds": self.spec.seconds,
            "broker_subscription_changes": mine.broker_subscription_changes,
            "broker_subscription_changes_random": other.broker_subscription_changes,
            "reduction": round(self.reduction, 4),
            "load_std": round(mine.load_std, 3),
            "load_std_random": round(other.load_std, 3),
            "load_std_ratio": round(mine.load_std / max(other.load_std, 1e-9), 3),
            "load_mean": round(mine.load_mean, 3),
            "moves": mine.moves,
            "tree_messages": mine.tree_messages,
            "tree_messages_random": other.tree_messages,
            "summary_messages": mine.summary_messages,
            "management_messages": mine.management_messages,
            "management_messages_random": other.management_messages,
            "management_reduction": round(self.management_reduction, 4),
            "published": mine.balance.published + other.balance.published,
            "expected": mine.balance.expected + other.balance.expected,
            "delivered": mine.balance.delivered + other.balance.delivered,
            "lost": mine.balance.lost + other.balance.lost,
            "duplicated": mine.balance.duplicated + other.balance.duplicated,
            "reordered": mine.balance.reordered + other.balance.reordered,
        }


class _User:
    """One user: a client that makes the changes it is told, and writes down what it hears."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        self._address = address
        self._ledger = ledger
        self._changes: asyncio.Queue[Change] = asyncio.Queue()
        self._following: dict[str, Followed] = {}

    def tell(self, change: Change) -> None:
        self._changes.put_nowait(change)

    async def live(self) -> None:
        first = await self._changes.get()
        async with (
            dynatops.connect(self._address, timeout_s=60.0) as client,
            client.subscribe(*map(topic_name, first.added)) as events,
        ):
            self._begin(first)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(events))
                while True:
                    change = await self._changes.get()
                    now_s = time.monotonic()
                    for topic in map(topic_name, change.dropped):
                        self._following.pop(topic).until_s = now_s
                    await events.change(
                        add=[topic_name(topic) for topic in change.added],
                        drop=[topic_name(topic) for topic in change.dropped],
                    )
                    self._begin(change)

    def _begin(self, change: Change) -> None:
        for topic in map(topic_name, change.added):
            self._following[topic] = self._ledger.follow(topic)

    async def _listen(self, events: dynatops.Subscription) -> None:
        async for event in events:
            following = self._following.get(event.topic)
            if following is not None:
                following.hear(event)


class _ChurnRun:
    def __init__(self, cluster: LocalCluster, spec: ChurnSpec, seed: int) -> None:
        self._cluster = cluster
        self._spec = spec
        self._seed = seed
        # The same in both runs: each user's first broker.
        self._rng = Random(f"places {seed}")
        self._ledger = Ledger()
        self._spreads: list[float] = []
        self._means: list[float] = []
        self._began_s = 0.0

    async def play(self, progress: Callable[[float], None]) -> ChurnOutcome:
        users = [_User(self._rng.choice(self._cluster.addresses), self._ledger)
                 for _ in range(self._spec.users)]  # fmt: skip
        self._began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            living = [tasks.create_task(user.live()) for user in users]
            living.append(tasks.create_task(self._watch(progress)))
            publishing = [tasks.create_task(self._publish(i)) for i in range(PUBLISHERS)]
            await self._drive(users)
            await asyncio.gather(*publishing)
            await self._ledger.catch_up()
            outcome = self._outcome()
            for task in living:
                task.cancel()
        return outcome

    @property
    def _at_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _drive(self, users: list[_User]) -> None:
        for change in changes(self._spec, self._seed):
            await asyncio.sleep(change.at_s - self._at_s)
            users[change.user].tell(change)
        await asyncio.sleep(self._spec.seconds - self._at_s)

    async def _publish(self, index: int) -> None:
        async with dynatops.connect(self._cluster.addresses[index]) as client:
            pending: set[asyncio.Task[None]] = set()
            for due in publications(self._spec, index, EVENTS_PER_S / PUBLISHERS, self._seed):
                await asyncio.sleep(max(0.0, due.at_s - self._at_s))
                task = asyncio.create_task(self._ledger.publish(client, topic_name(due.topic)))
                pending.add(task)
                task.add_done_callback(pending.discard)
            await asyncio.gather(*pending)

    async def _watch(self, progress: Callable[[float], None]) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            progress(self._at_s)
            if self._at_s > self._spec.arrival_s:
                loads = [agent.core.status().subscriptions for agent in self._cluster.agents]
                self._spreads.append(statistics.pstdev(loads))
                self._means.append(statistics.fmean(loads))

    def _outcome(self) -> ChurnOutcome:
        brokers = [agent.core.status() for agent in self._cluster.agents]
        counts: defaultdict[str, int] = defaultdict(int)
        for broker in brokers:
            for name, value in broker.selection_counters.as_dict().items():
                counts[name] += value
        moves = ("redirects_similarity", "redirects_load", "redirects_advised")
        return ChurnOutcome(
            broker_subscription_changes=sum(broker.subscription_changes for broker in brokers),
            load_std=statistics.fmean(self._spreads) if self._spreads else 0.0,
            load_mean=statistics.fmean(self._means) if self._means else 0.0,
            moves=sum(counts[name] for name in moves),
            tree_messages=sum(broker.hosted.counters.tree_control_sent for broker in brokers),
            summary_messages=counts["summary_messages"],
            balance=self._ledger.balance(),
        )


async def run_churn_demo(
    brokers: int, spec: ChurnSpec, seed: int, progress: Progress
) -> ChurnResult:
    """Both runs, one after the other."""
    outcomes = []
    for enabled in (True, False):
        what = "with selection" if enabled else "at random"
        selection = SelectionSettings(enabled=enabled, update_period_s=UPDATE_PERIOD_S)
        async with LocalCluster(brokers, selection=selection) as cluster:
            run = _ChurnRun(cluster, spec, seed)
            outcomes.append(await run.play(partial(progress, what)))
    return ChurnResult(brokers, spec, *outcomes)
