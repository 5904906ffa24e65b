"""What clients hear when their broker dies: one loss each, and nobody is sent back to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial

import pytest

import dynatops
from dynatops.local.cluster import ProcessCluster
from tests.support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

# Users of one mode have the same topics, and selection gathers them.
MODES = 4
TOPICS_OF_A_MODE = 5


class User:
    def __init__(self, number: int) -> None:
        self.topics = [f"mode{number % MODES}/{i}" for i in range(TOPICS_OF_A_MODE)]
        self.client: dynatops.Client
        # Since the kill.
        self.losses: list[str] = []
        self.heard: set[bytes] = set()

    async def come(self, addresses: list[str], stack: AsyncExitStack) -> None:
        connecting = dynatops.connect(addresses, on_connection=self._on_connection)
        self.client = await stack.enter_async_context(connecting)
        events = await self.client.subscribe(*self.topics)
        task = asyncio.create_task(self._listen(events))
        stack.callback(task.cancel)

    async def _listen(self, events: dynatops.Subscription) -> None:
        async for event in events:
            self.heard.add(event.payload)

    def _on_connection(self, broker: str, reason: str) -> None:
        if not broker:
            self.losses.append(reason)


async def lose_the_broker_of_most(users_count: int, brokers: int, *, orderly: bool) -> None:
    async with ProcessCluster(brokers) as cluster, AsyncExitStack() as stack:
        users = [User(i) for i in range(users_count)]
        for first in range(0, users_count, 50):
            batch = users[first : first + 50]
            await asyncio.gather(*(user.come(cluster.addresses, stack) for user in batch))
        crowds = Counter(user.client.broker for user in users)
        crowded = crowds.most_common(1)[0][0]
        victim = next(broker for broker in cluster.brokers if broker.name == crowded)
        for user in users:
            user.losses.clear()
        orphans = [user for user in users if user.client.broker == victim.name]
        if orderly:
            await victim.stop()
        else:
            victim.kill()
            await victim.process.wait()
        everybody_elsewhere = partial(_are_elsewhere, users, victim.name)
        await until(everybody_elsewhere, 20.0, "everybody at a living broker")
        living = [b.address for b in cluster.brokers if b is not victim]
        # Who changes its mind is judged anew, and so is who has never met the dead one.
        changing = (user.client.subscribe(f"more/{i % 7}") for i, user in enumerate(users))
        newcomers = [User(i) for i in range(2 * MODES)]
        coming = (user.come(living, stack) for user in newcomers)
        await asyncio.gather(*changing, *coming)
        # Nor is the dead one named to those who come.
        welcomes = [user.client._core.welcome for user in newcomers]
        assert victim.address not in {a for w in welcomes if w for a in w.alternatives}
        users += newcomers
        told = Counter(len(user.losses) for user in orphans)
        assert told == {1: len(orphans)}, [u.losses for u in orphans if len(u.losses) != 1][:3]
        assert [u.losses for u in users if u not in orphans and u.losses] == []
        async with dynatops.connect(living) as publisher:
            for mode in range(MODES):
                await publisher.publish(f"mode{mode}/0", b"afterwards")
        await until(lambda: all(b"afterwards" in user.heard for user in users), 10.0)


def _are_elsewhere(users: list[User], victim: str) -> bool:
    return all(user.client.broker not in ("", victim) for user in users)


@pytest.mark.timeout(120)
def test_each_of_fifty_clients_is_told_of_one_loss() -> None:
    asyncio.run(lose_the_broker_of_most(50, brokers=4, orderly=False))


@pytest.mark.timeout(120)
def test_so_if_the_broker_says_goodbye() -> None:
    asyncio.run(lose_the_broker_of_most(50, brokers=4, orderly=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_of_five_hundred_clients_is_told_of_one_loss() -> None:
    asyncio.run(lose_the_broker_of_most(500, brokers=5, orderly=False))
