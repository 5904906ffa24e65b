"""Waiting for something to become true in real time, without sleeping longer than it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


async def until(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]],
    timeout_s: float = 10.0,
    what: str = "",
) -> float:
    """Seconds until the condition held. Fails after the timeout."""
    started_s = time.monotonic()
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return time.monotonic() - started_s
        if time.monotonic() - started_s > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        await asyncio.sleep(0.02)


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """The same where there is no event loop: a thread has no other way to say that it is so far."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come true"
        time.sleep(0.002)
