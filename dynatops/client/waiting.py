"""Who waits for what a broker will say: confirmations of publications, of subscriptions, echoes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from dynatops.client.core.publications import Rejected
from dynatops.client.errors import PublishError
from dynatops.v1.client_pb2 import Subscribed


class _Patience:
    """Publications that may wait equally long, and so run out of time in the order of their calls:
    one timer is enough for all of them."""

    __slots__ = ("_entries", "_loop", "_timeout_s", "_timer")

    def __init__(self, timeout_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timeout_s = timeout_s
        self._loop = loop
        # When each is over.
        self._entries: deque[tuple[float, str, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, topic: str, future: asyncio.Future[None]) -> None:
        entries = self._entries
        while entries and entries[0][2].done():
            entries.popleft()
        until_s = self._loop.time() + self._timeout_s
        entries.append((until_s, topic, future))
        if self._timer is None:
            self._timer = self._loop.call_at(until_s, self._look)

    def _look(self) -> None:
        entries, now_s = self._entries, self._loop.time()
        while entries and (entries[0][2].done() or entries[0][0] <= now_s):
            _, topic, future = entries.popleft()
            reason = f"not acknowledged within {self._timeout_s:g} s; it may yet arrive"
            _fail(future, PublishError(topic, reason, may_arrive=True))
        self._timer = self._loop.call_at(entries[0][0], self._look) if entries else None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it waits any more."""
        return self._timer is None

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Waiting:
    def __init__(self) -> None:
        self._subscribed: dict[int, asyncio.Future[Subscribed]] = {}
        self._echoes: dict[int, asyncio.Future[None]] = {}
        # topic -> (number, future), ascending.
        self._published: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        # By how long they may wait.
        self._patience: dict[float, _Patience] = {}

    # ---- to wait for ----------------------------------------------------------------------------

    def subscribed(self, request: int) -> asyncio.Future[Subscribed]:
        future = self._subscribed[request] = asyncio.get_running_loop().create_future()
        return future

    def echo(self, request: int) -> asyncio.Future[None]:
        future = self._echoes[request] = asyncio.get_running_loop().create_future()
        return future

    def published(self, topic: str, number: int, timeout_s: float) -> asyncio.Future[None]:
        """Raises PublishError if that does not come within so many seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = self._published.get(topic)
        if waiting is None:
            waiting = self._published[topic] = deque()
        waiting.append((number, future))
        patience = self._patience.get(timeout_s)
        if patience is None:
            self._patience = {t: p for t, p in self._patience.items() if not p.is_over}
            patience = self._patience[timeout_s] = _Patience(timeout_s, loop)
        patience.add(topic, future)
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
        for patience in self._patience.values():
            patience.end()


def _settle(future: asyncio.Future[Any] | None, result: Any) -> None:
    if future is not None and not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], failure: Exception) -> None:
    if not future.done():
        future.set_exception(failure)
        # Whoever stopped waiting need not be told, and nor need the log.
        future.exception()
