"""A watch ends when it is told to, also if the client for Redis takes that for something else."""

from __future__ import annotations

import asyncio
import contextlib

from redis.asyncio import Redis

from dynatops.kit.advice.reader import RedisWatch


class Deaf(RedisWatch):
    """Hears nothing while it looks."""

    def __init__(self) -> None:
        super().__init__(Redis(), 0.0)
        self.looks = asyncio.Event()

    async def read_once(self) -> None:
        self.looks.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


def test_a_swallowed_cancellation_is_one() -> None:
    async def scenario() -> None:
        watch = Deaf()
        task = asyncio.create_task(watch.run())
        await watch.looks.wait()
        task.cancel()
        async with asyncio.timeout(10.0):
            await asyncio.wait((task,))
        assert task.cancelled()

    asyncio.run(scenario())
