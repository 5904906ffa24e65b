"""Questions to the store's server, bounded in time, that can be given up.

The client library may turn the cancellation of the task that asks into an error of the connection,
or into nothing at all; a task that is to end would then go on. Here it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from redis.exceptions import RedisError

# Whatever says that there is no answer.
NoAnswer = (RedisError, OSError, TimeoutError)


async def ask(question: Awaitable[Any], timeout_s: float) -> Any:
    """The answer; raises one of NoAnswer."""
    try:
        async with asyncio.timeout(timeout_s):
            answer = await question
    except NoAnswer as error:
        _end_if_cancelled(error)
        raise
    _end_if_cancelled(None)
    return answer


def _end_if_cancelled(error: Exception | None) -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from error
