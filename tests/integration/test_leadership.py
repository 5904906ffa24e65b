"""Who leads: one at a time, with ever higher fences, and nobody while the store is away."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from reconfig_manager.ports import FENCE_MAX, ManagerFacts
from reconfig_manager.store.embedded import EmbeddedServer
from reconfig_manager.store.leadership import Leadership, LeadershipHost
from reconfig_manager.store.redis_store import RedisStore
from reconfig_manager.store.store_settings import LeadershipSettings, StoreSettings
from tests.support.manager_store import storing
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("redis")
SETTINGS = LeadershipSettings(ttl_s=1.0, renew_s=0.1, margin_s=0.2, poll_s=0.05)


class Contender:
    def __init__(self, name: str, store: RedisStore) -> None:
        self.name = name
        self.store = store
        # Fences that it led with, and why it stopped; 0 for the latter.
        self.fences: list[int] = []
        self.reasons: list[str] = []
        self.deposed_s = 0.0
        host = LeadershipHost(self.fences.append, self._on_depose)
        facts = ManagerFacts(manager_id=name, agents=f"{name}:1", http=f"http://{name}")
        self.leadership = Leadership(store, SETTINGS, facts, host)
        self.running = asyncio.create_task(self.leadership.run())

    def _on_depose(self, reason: str) -> None:
        self.reasons.append(reason)
        self.deposed_s = asyncio.get_running_loop().time()

    @property
    def leads(self) -> bool:
        return self.leadership.fence is not None

    async def stop(self) -> None:
        self.leadership.stop()
        await self.running
        await self.store.close()

    async def vanish(self) -> None:
        """As if it were killed."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.store.close()


@asynccontextmanager
async def contenders(server: EmbeddedServer, *names: str) -> AsyncIterator[list[Contender]]:
    there = [
        Contender(name, RedisStore(StoreSettings(timeout_s=0.3), server.url)) for name in names
    ]
    try:
        yield there
    finally:
        for contender in there:
            if not contender.running.done():
                await contender.stop()


def run(folder: Path, scenario: Callable[[EmbeddedServer], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with storing(folder) as (server, _):
            await scenario(server)

    asyncio.run(all_of_it())


async def led_by_one(there: list[Contender]) -> Contender:
    await until(lambda: sum(c.leads for c in there) == 1)
    return next(c for c in there if c.leads)


def test_one_leads_and_the_others_know_it(tmp_path: Path) -> None:
    async def scenario(server: EmbeddedServer) -> None:
        async with contenders(server, "m1", "m2", "m3") as there:
            leader = await led_by_one(there)
            facts = leader.leadership.facts
            await until(lambda: all(c.leadership.leader == facts for c in there))
            names = ["m1", "m2", "m3"]
            for contender in there:
                known = contender.leadership

                def all_known(known: Leadership = known) -> bool:
                    return [m.manager_id for m in known.managers] == names

                await until(all_known)

    run(tmp_path, scenario)


def test_a_leader_that_stops_makes_room_at_once(tmp_path: Path) -> None:
    async def scenario(server: EmbeddedServer) -> None:
        async with contenders(server, "m1", "m2") as there:
            leader = await led_by_one(there)
            (other,) = [c for c in there if c is not leader]
            await leader.stop()
            assert leader.reasons == ["this manager stops"]
            assert await until(lambda: other.leads) < SETTINGS.ttl_s / 2
            assert other.fences[0] > leader.fences[-1]

    run(tmp_path, scenario)


def test_a_leader_that_vanishes_is_followed_when_its_lease_is_over(tmp_path: Path) -> None:
    async def scenario(server: EmbeddedServer) -> None:
        async with contenders(server, "m1", "m2") as there:
            leader = await led_by_one(there)
            (other,) = [c for c in there if c is not leader]
            await leader.vanish()
            assert await until(lambda: other.leads) < 2 * SETTINGS.ttl_s

    run(tmp_path, scenario)


def test_nobody_leads_while_the_store_is_away(tmp_path: Path) -> None:
    async def scenario(server: EmbeddedServer) -> None:
        async with contenders(server, "m1", "m2") as there:
            leader = await led_by_one(there)
            os.kill(server.pid, signal.SIGSTOP)
            stopped_s = asyncio.get_running_loop().time()
            try:
                await until(lambda: bool(leader.reasons))
                # Before the lease can have run out in the store.
                assert leader.deposed_s < stopped_s + SETTINGS.ttl_s
                assert "could not be renewed" in leader.reasons[0]
                await until(lambda: all(c.leadership.problem for c in there))
                assert not any(c.leads for c in there)
                assert all(c.leadership.leader is None for c in there if c is leader)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            second = await led_by_one(there)
            assert second.fences[-1] > leader.fences[0]
            await until(lambda: not any(c.leadership.problem for c in there))

    run(tmp_path, scenario)


def test_one_that_was_held_up_does_not_believe_that_it_leads(tmp_path: Path) -> None:
    async def scenario(server: EmbeddedServer) -> None:
        async with contenders(server, "m1") as (only,):
            await until(lambda: only.leads)
            # Everything in this process stands still for longer than the lease.
            time.sleep(SETTINGS.ttl_s)  # noqa: ASYNC251
            assert only.leadership.fence is None
            await until(lambda: bool(only.reasons))
            await until(lambda: only.leads)
            assert only.fences[-1] > only.fences[0]

    run(tmp_path, scenario)


def test_outranked_by_what_a_broker_obeys(tmp_path: Path) -> None:
    async def scenario(server: EmbeddedServer) -> None:
        async with contenders(server, "m1") as (only,):
            await until(lambda: only.leads)
            only.leadership.outranked(500)
            await until(lambda: only.fences[-1] > 500 and only.leads)
            assert only.reasons == ["it stepped down"]
            # Nobody was ever given such a number.
            only.leadership.outranked(FENCE_MAX // 2 + 1)
            only.leadership.outranked((1 << 64) - 1)
            await only.stop()
            assert len(only.fences) == 2

    run(tmp_path, scenario)


def test_stepping_down_lets_another_lead(tmp_path: Path) -> None:
    async def scenario(server: EmbeddedServer) -> None:
        async with contenders(server, "m1", "m2") as there:
            leader = await led_by_one(there)
            (other,) = [c for c in there if c is not leader]
            leader.leadership.step_down()
            await until(lambda: other.leads)
            assert not leader.leads

    run(tmp_path, scenario)


def test_a_store_that_has_forgotten_everything(tmp_path: Path) -> None:
    async def scenario(server: EmbeddedServer) -> None:
        async with contenders(server, "m1") as (only,):
            await until(lambda: only.leads)
            only.leadership.outranked(40)
            await until(lambda: only.leads and only.fences[-1] > 40)
            redis = Redis.from_url(server.url)
            await redis.flushall()
            await redis.aclose()
            await until(lambda: len(only.reasons) == 2)
            assert "is over" in only.reasons[1]
            await until(lambda: only.leads)
            assert only.fences == sorted(set(only.fences))

    run(tmp_path, scenario)


def test_never_two_at_once(tmp_path: Path) -> None:
    """Leaders come and go; whoever looks sees one at most."""

    async def scenario(server: EmbeddedServer) -> None:
        async with contenders(server, "m1", "m2", "m3") as there:
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, sum(c.leads for c in there))
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            for number in range(4):
                leader = await led_by_one(there)
                before = len(leader.reasons)
                leader.leadership.outranked(100 * (number + 1))
                await until(lambda c=leader, n=before: len(c.reasons) > n)
            watching.cancel()
            assert most == 1
            fences = sorted(fence for c in there for fence in c.fences)
            assert len(fences) == len(set(fences))

    run(tmp_path, scenario)
