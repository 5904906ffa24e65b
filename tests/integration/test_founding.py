"""Brokers that are all started alike: the first founds a ring, if and only if nobody has one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

import dynatops
from broker_agent.core.routing.rendezvous.rendezvous import ring_of
from broker_agent.process_settings import BrokerSettings
from broker_agent.runtime.agent import Agent, JoinError
from overlay.base.identifiers import NodeId
from overlay.base.membership import Status
from overlay.placement.geometry import RingGeometry
from tests.support.ports import free_addresses
from tests.support.waiting import until

ALONE_S = 0.6


class Pods:
    """Brokers that know each other's addresses, and may be started and killed in any order."""

    def __init__(self, count: int) -> None:
        self.addresses = free_addresses(count)
        self.running: dict[int, Agent] = {}

    async def start(self, index: int, **runtime: Any) -> Agent:
        agent = Agent(
            BrokerSettings.model_validate(
                {
                    "broker_id": f"pod-{index}",
                    "listen": self.addresses[index],
                    "join": tuple(self.addresses),
                    "found_if_alone": True,
                    "runtime": {"alone_s": ALONE_S, **runtime},
                }
            )
        )
        self.running[index] = agent
        await agent.start()
        return agent

    async def start_all(self, indices: Iterable[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for index in indices:
                group.create_task(self.start(index))

    async def kill(self, index: int) -> None:
        await self.running.pop(index).kill()

    async def whole(self) -> None:
        """All that run are one ring."""
        await until(self._is_whole, 15.0, "one ring of all")

    def _is_whole(self) -> bool:
        nodes = {
            ring_of(agent.core).node.me.node_id: ring_of(agent.core).node
            for agent in self.running.values()
        }
        if any(node.ring.status is not Status.MEMBER for node in nodes.values()):
            return False
        geometry = RingGeometry(nodes)
        ids = [int(node_id) for node_id in geometry.node_ids]
        return all(
            nodes[NodeId(ids[i])].reigns.ready
            and nodes[NodeId(ids[i])].ring.range_low == ids[i - 1]
            for i in range(len(ids))
        )

    async def exchange(self) -> None:
        """From each to each."""
        addresses = [self.addresses[index] for index in self.running]
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(dynatops.connect(address, stay=True))
                for address in addresses
            ]
            heard = [await client.subscribe("quake/+") for client in clients]
            for number, client in enumerate(clients):
                await client.publish(f"quake/{number}", b"M5.1")
            for events in heard:
                topics = {(await anext(events)).topic for _ in clients}
                assert topics == {f"quake/{number}" for number in range(len(clients))}


Scenario = Callable[[Pods], Awaitable[None]]


@contextlib.asynccontextmanager
async def pods(count: int) -> AsyncIterator[Pods]:
    started = Pods(count)
    try:
        yield started
    finally:
        await asyncio.gather(*(agent.kill() for agent in started.running.values()))


def run(count: int, scenario: Scenario) -> None:
    async def all_of_it() -> None:
        async with pods(count) as started:
            await scenario(started)

    asyncio.run(all_of_it())


def test_all_start_at_once_and_are_one_ring() -> None:
    async def scenario(started: Pods) -> None:
        await started.start_all(range(4))
        await started.whole()
        await started.exchange()

    run(4, scenario)


def test_the_first_comes_late_and_the_others_wait_for_it() -> None:
    async def scenario(started: Pods) -> None:
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(started.start(index)) for index in (1, 2)]
            await until(lambda: len(started.running) == 2)
            await until(
                lambda: all(a.started_s and a._now() > a.started_s + 2 * ALONE_S
                            for a in started.running.values())
            )  # fmt: skip
            assert not any(task.done() for task in waiting)
            group.create_task(started.start(0))
        await started.whole()
        await started.exchange()

    run(3, scenario)


def test_the_first_comes_back_to_the_ring_that_is_there() -> None:
    async def scenario(started: Pods) -> None:
        await started.start_all(range(3))
        await started.whole()
        await started.kill(0)
        # It must have no reason to found one, however impatient it is.
        await started.start(0, alone_s=5.0)
        seen = ring_of(started.running[0].core).node.ring
        assert seen.successor is not None
        await started.whole()
        await started.exchange()

    run(3, scenario)


def test_rings_that_came_about_apart_find_together() -> None:
    """The first founds one before the others could answer."""

    async def scenario(started: Pods) -> None:
        await started.start_all(range(3))
        await started.whole()
        await started.kill(0)
        founder = await started.start(0, alone_s=1e-6)
        assert ring_of(founder.core).node.ring.alone
        await started.whole()
        await started.exchange()

    run(3, scenario)


def test_only_the_first_founds() -> None:
    async def scenario(started: Pods) -> None:
        with pytest.raises(JoinError, match=r"let pod-1 join within 1\.5 s"):
            await started.start(1, join_timeout_s=1.5, alone_s=0.1)
        del started.running[1]

    run(2, scenario)


def test_one_that_names_but_itself_founds_at_once() -> None:
    async def scenario(started: Pods) -> None:
        await started.start(0, alone_s=100.0)
        await started.whole()

    run(1, scenario)


def test_it_must_be_told_who_is_first() -> None:
    with pytest.raises(ValueError, match="name all, this broker too, with --join"):
        BrokerSettings(found_if_alone=True)
