"""Who waits for what a broker will say: confirmations of publications, of subscriptions, echoes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from dynatops.client.core.publications import Rejected
from dynatops.client.errors import PublishError
from dynatops.v1.client_pb2 import Subscribed


class Waiting:
    def __init__(self) -> None:
        self._subscribed: dict[int, asyncio.Future[Subscribed]] = {}
        self._echoes: dict[int, asyncio.Future[None]] = {}
        # topic -> (number, future), ascending.
        self._published: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    # ---- to wait for ----------------------------------------------------------------------------

    def subscribed(self, request: int) -> asyncio.Future[Subscribed]:
        future = self._subscribed[request] = asyncio.get_running_loop().create_future()
        return future

    def echo(self, request: int) -> asyncio.Future[None]:
        future = self._echoes[request] = asyncio.get_running_loop().create_future()
        return future

    def published(self, topic: str, number: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._published.setdefault(topic, deque()).append((number, future))
        return future

    # ---- what has come --------------------------------------------------------------------------

    def on_subscribed(self, answer: Subscribed) -> bool:
        """Whether this is the answer to a request of the application's."""
        future = self._subscribed.pop(answer.request, None)
        _settle(future, answer)
        return future is not None

    def on_echo(self, request: int) -> None:
        _settle(self._echoes.pop(request, None), None)

    def on_confirmed(self, topic: str, number: int) -> None:
        """Everything on this topic up to this number is where it was to be."""
        waiting = self._published.get(topic)
        if waiting is None:
            return
        while waiting and waiting[0][0] <= number:
            _settle(waiting.popleft()[1], None)
        if not waiting:
            del self._published[topic]

    def on_rejected(self, item: Rejected) -> None:
        waiting = self._published.get(item.topic, deque())
        for entry in list(waiting):
            number, future = entry
            if item.first_number <= number <= item.last_number:
                waiting.remove(entry)
                _fail(future, PublishError(item.topic, item.message))

    def on_failed(self, failure: Exception) -> None:
        """Nothing will come any more."""
        futures: list[asyncio.Future[Any]] = [*self._subscribed.values(), *self._echoes.values()]
        for waiting in self._published.values():
            futures += [future for _, future in waiting]
        for future in futures:
            _fail(future, failure)


def _settle(future: asyncio.Future[Any] | None, result: Any) -> None:
    if future is not None and not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], failure: Exception) -> None:
    if not future.done():
        future.set_exception(failure)
        # Whoever stopped waiting need not be told, and nor need the log.
        future.exception()
