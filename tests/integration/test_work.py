"""Events that the application acknowledges: the real client at real brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dynatops
from tests.support.security import running
from tests.support.waiting import until
from tests.support.wires import Wire

TOPIC = "orders/eu"
DEAD = "dead/orders"
TIMEOUT_S = 20.0


def worker(address: str, **options: Any) -> Any:
    return dynatops.connect(
        address, **{"client_id": "worker", "keep_s": 60, "stay": True, **options}
    )


async def publish(address: str, *numbers: int) -> None:
    async with dynatops.connect(address) as client:
        await client.publish_many(TOPIC, [b"%d" % number for number in numbers])


async def take(events: dynatops.Subscription, count: int) -> list[dynatops.Event]:
    async with asyncio.timeout(TIMEOUT_S):
        return [await events.__anext__() for _ in range(count)]


def numbers_of(events: Sequence[dynatops.Event]) -> list[int]:
    return [int(event.payload) for event in events]


async def die(client: dynatops.Client) -> None:
    """As a process does that is killed: without another word."""
    await client.close()


class TestWorkersThatDie:
    def test_what_was_not_acknowledged_comes_again_and_nothing_else(self) -> None:
        """In one run of ten events, out of order."""

        async def scenario() -> None:
            async with running() as agent:
                first = await worker(agent.address)
                events = await first.subscribe(TOPIC, ack="manual")
                await publish(agent.address, *range(10))
                had = await take(events, 10)
                assert [event.deliveries for event in had] == [1] * 10
                for event in (had[0], had[7], had[3]):
                    await event.ack()
                await had[9].ack(wait=True)
                await die(first)
                second = await worker(agent.address)
                events = await second.subscribe(TOPIC, ack="manual")
                again = await take(events, 6)
                assert numbers_of(again) == [1, 2, 4, 5, 6, 8]
                assert [event.deliveries for event in again] == [2] * 6
                for event in again:
                    await event.ack()
                await publish(agent.address, 10)
                (fresh,) = await take(events, 1)
                assert (int(fresh.payload), fresh.deliveries) == (10, 1)
                await fresh.ack()
                await second.flush()
                assert agent.core.registry.clients["worker"].untaken_bytes == 0
                await second.close()

        asyncio.run(scenario())

    def test_what_was_prefetched_is_not_counted(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                first = await worker(agent.address)
                events = await first.subscribe(TOPIC, ack="manual")
                await publish(agent.address, *range(5))
                await take(events, 2)
                # What a process hands out in its last instant, nobody may have heard of.
                await first.flush()
                await die(first)
                second = await worker(agent.address)
                again = await take(await second.subscribe(TOPIC, ack="manual"), 5)
                assert [event.deliveries for event in again] == [2, 2, 1, 1, 1]
                await second.close()

        asyncio.run(scenario())

    def test_it_survives_the_broker(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with running(data_dir=str(tmp_path)) as agent:
                first = await worker(agent.address)
                events = await first.subscribe(TOPIC, ack="manual")
                for number in range(6):
                    await publish(agent.address, number)
                had = await take(events, 6)
                for number in (1, 2, 4):
                    await had[number].ack()
                await had[5].ack(wait=True)
                await die(first)
            async with running(data_dir=str(tmp_path)) as agent:
                second = await worker(agent.address)
                again = await take(await second.subscribe(TOPIC, ack="manual"), 2)
                assert [(int(e.payload), e.deliveries) for e in again] == [(0, 2), (3, 2)]
                await second.close()

        asyncio.run(scenario())

    def test_an_event_that_ends_its_workers_ends_in_the_dead_letter_topic(self) -> None:
        async def scenario() -> None:
            async with (
                running() as agent,
                dynatops.connect(agent.address) as looker,
                looker.subscribe(DEAD) as dead,
            ):
                options: Any = {"ack": "manual", "max_deliver": 3, "dead_letter": DEAD}
                client = await worker(agent.address)
                await client.subscribe(TOPIC, **options)
                await die(client)
                await publish(agent.address, 1, 2)
                for life in range(3):
                    client = await worker(agent.address)
                    (event,) = await take(await client.subscribe(TOPIC, **options), 1)
                    assert (int(event.payload), event.deliveries) == (1, life + 1)
                    await client.flush()
                    await die(client)
                client = await worker(agent.address)
                (event,) = await take(await client.subscribe(TOPIC, **options), 1)
                assert (int(event.payload), event.deliveries) == (2, 1)
                (buried,) = await take(dead, 1)
                assert buried.payload == b"1"
                assert buried.attributes["dead_topic"] == TOPIC
                assert buried.attributes["dead_deliveries"] == 3
                await event.ack()
                session = agent.core.registry.clients["worker"]
                await until(lambda: session.untaken_bytes == 0)
                await client.close()

        asyncio.run(scenario())


class TestOneProcess:
    def test_given_back_it_comes_again(self) -> None:
        async def scenario() -> None:
            async with running() as agent, dynatops.connect(agent.address) as client:
                events = await client.subscribe(TOPIC, ack="manual", ack_wait_s=0.2)
                await publish(agent.address, 1, 2)
                one, two = await take(events, 2)
                await one.nak()
                (again,) = await take(events, 1)
                assert (int(again.payload), again.deliveries) == (1, 2)
                await again.ack()
                # Nobody says anything of the other.
                (late,) = await take(events, 1)
                assert (int(late.payload), late.deliveries) == (2, 2)
                # Whoever worked slowly has done the work all the same.
                await two.ack()
                await late.ack()

        asyncio.run(scenario())

    def test_no_more_are_out_than_was_said(self) -> None:
        async def scenario() -> None:
            async with running() as agent, dynatops.connect(agent.address) as client:
                events = await client.subscribe(TOPIC, ack="manual", max_in_flight=2)
                await publish(agent.address, 1, 2, 3)
                had = await anext(events.batches())
                assert numbers_of(had) == [1, 2]
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await anext(events)
                await had[1].ack()
                assert numbers_of(await take(events, 1)) == [3]

        asyncio.run(scenario())

    def test_without_a_dead_letter_topic_it_is_a_gap(self) -> None:
        async def scenario() -> None:
            gaps: list[dynatops.Gap] = []
            async with running() as agent, dynatops.connect(agent.address) as client:
                events = await client.subscribe(
                    TOPIC, ack="manual", max_deliver=1, on_gap=gaps.append
                )
                await publish(agent.address, 1, 2)
                (event,) = await take(events, 1)
                await event.nak()
                assert numbers_of(await take(events, 1)) == [2]
                (gap,) = gaps
                assert gap.reason == "handed out once and never acknowledged"

        asyncio.run(scenario())

    def test_a_lost_connection_is_no_redelivery(self) -> None:
        async def scenario() -> None:
            async with running() as agent, Wire(agent.address) as wire:
                client = await worker(wire.address)
                events = await client.subscribe(TOPIC, ack="manual")
                await publish(agent.address, *range(4))
                had = await take(events, 2)
                wire.cut()
                await until(lambda: client.broker == "")
                await had[1].ack()
                wire.mend()
                assert numbers_of(await take(events, 2)) == [2, 3]
                await client.flush()
                await die(client)
                second = await worker(agent.address)
                again = await take(await second.subscribe(TOPIC, ack="manual"), 3)
                assert numbers_of(again) == [0, 2, 3]
                await second.close()

        asyncio.run(scenario())

    def test_a_subscription_nobody_reads_holds_up_no_other(self) -> None:
        """As long as what waits for it fits into the window."""

        async def scenario() -> None:
            core = {"session_window_bytes": 100_000}
            async with running(core=core) as agent:
                client = await worker(agent.address)
                await client.subscribe("idle")
                events = await client.subscribe(TOPIC)
                async with dynatops.connect(agent.address) as publisher:
                    await publisher.publish("idle", b"-1")
                    for first in range(0, 300, 50):
                        payloads = [b"%04d" % i + bytes(996) for i in range(first, first + 50)]
                        await publisher.publish_many(TOPIC, payloads)
                had = await take(events, 300)
                assert [int(event.payload[:4]) for event in had] == list(range(300))
                await client.close()

        asyncio.run(scenario())


class TestMistakes:
    def test_are_told(self) -> None:
        async def scenario() -> None:
            async with running() as agent, dynatops.connect(agent.address) as client:
                with pytest.raises(dynatops.ArgumentValueError, match='"auto" or "manual"'):
                    client.subscribe(TOPIC, ack="never")  # type: ignore[arg-type]
                with pytest.raises(dynatops.ArgumentValueError, match='need ack="manual"'):
                    client.subscribe(TOPIC, max_deliver=3)
                with pytest.raises(dynatops.ArgumentValueError, match="after how many times"):
                    client.subscribe(TOPIC, ack="manual", dead_letter=DEAD)
                with pytest.raises(dynatops.ArgumentValueError, match="topics subscribed to"):
                    client.subscribe("#", ack="manual", max_deliver=3, dead_letter=DEAD)
                with pytest.raises(dynatops.ArgumentValueError, match="max_in_flight"):
                    client.subscribe(TOPIC, ack="manual", max_in_flight=0)
                auto = await client.subscribe(TOPIC)
                manual = await client.subscribe(TOPIC, ack="manual")
                await publish(agent.address, 1, 2)
                (event,) = await take(auto, 1)
                assert event.deliveries == 1
                with pytest.raises(dynatops.AckError, match="taken when it was handed out"):
                    await event.ack()
                done, open_ = await take(manual, 2)
                await done.ack()
                await done.ack()
                await manual.close()
                await done.ack()
                with pytest.raises(dynatops.AckError, match="subscription is closed"):
                    await open_.ack()

        asyncio.run(scenario())

    def test_after_the_end_of_the_client_it_is_too_late(self) -> None:
        async def scenario() -> None:
            async with running() as agent:
                client = await dynatops.connect(agent.address)
                events = await client.subscribe(TOPIC, ack="manual")
                await publish(agent.address, 1)
                (event,) = await take(events, 1)
                await client.close()
                with pytest.raises(dynatops.AckError, match="the client is closed"):
                    await event.ack()

        asyncio.run(scenario())


def test_without_asyncio_and_in_other_threads() -> None:
    async def scenario() -> None:
        async with running() as agent:
            await asyncio.to_thread(work, agent.address)

    def work(address: str) -> None:
        with dynatops.connect_sync(address, client_id="w", keep_s=60) as client:
            events = client.subscribe(TOPIC, ack="manual", max_deliver=5)
            client.publish_many(TOPIC, [b"1", b"2", b"3"])
            had = [events.next(TIMEOUT_S) for _ in range(3)]
            had[1].nak()
            had[0].in_progress()
            threads = [threading.Thread(target=had[i].ack) for i in (0, 2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            again = events.next(TIMEOUT_S)
            assert (again.payload, again.deliveries) == (b"2", 2)
            again.ack(wait=True)
            auto = client.subscribe("other")
            client.publish("other", b"x")
            with pytest.raises(dynatops.AckError):
                auto.next(TIMEOUT_S).ack()

    asyncio.run(scenario())
