"""Who waits for what a broker will say: confirmations of publications, of subscriptions, echoes."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from dynatops.client.core.publications import Rejected
from dynatops.client.errors import PublishError
from dynatops.v1.client_pb2 import Subscribed


class Together:
    """Events of many topics that one call waits for. They are added as they are published: the
    first may be confirmed, or refused, before the last is."""

    __slots__ = ("future", "is_whole", "open")

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Topic -> the last number on it, if it is not confirmed yet.
        self.open: dict[str, int] = {}
        # Nothing is added any more.
        self.is_whole = False

    def confirm(self, topic: str, number: int) -> None:
        if self.open.get(topic, 0) <= number:
            self.open.pop(topic, None)
            if not self.open and self.is_whole:
                _settle(self.future, None)


# What somebody waits for, of one topic or many; and a number on a topic that it takes.
_Awaited = asyncio.Future[None] | Together
_Entry = tuple[int, _Awaited]
_number_of = itemgetter(0)


class _Patience:
    """Publications that may wait equally long, and so run out of time in the order of their calls:
    one timer is enough for all of them."""

    __slots__ = ("_entries", "_loop", "_timeout_s", "_timer")

    def __init__(self, timeout_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timeout_s = timeout_s
        self._loop = loop
        # When each is over.
        self._entries: deque[tuple[float, str | Together, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, of: str | Together, future: asyncio.Future[None]) -> None:
        """`of` a topic, or of many."""
        entries = self._entries
        while entries and entries[0][2].done():
            entries.popleft()
        until_s = self._loop.time() + self._timeout_s
        entries.append((until_s, of, future))
        if self._timer is None:
            self._timer = self._loop.call_at(until_s, self._look)

    def _look(self) -> None:
        entries, now_s = self._entries, self._loop.time()
        while entries and (entries[0][2].done() or entries[0][0] <= now_s):
            _, of, future = entries.popleft()
            if not future.done():
                _fail(future, self._too_late(of))
        self._timer = self._loop.call_at(entries[0][0], self._look) if entries else None

    def _too_late(self, of: str | Together) -> PublishError:
        reason = f"not acknowledged within {self._timeout_s:g} s; it may yet arrive"
        if isinstance(of, str):
            return PublishError(of, reason, may_arrive=True)
        if len(of.open) > 1:
            reason += f"; nor are {len(of.open) - 1:,} other topics"
        return PublishError(next(iter(of.open)), reason, may_arrive=True)

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
        # By topic, ascending. Lists: on most topics few wait.
        self._published: dict[str, list[_Entry]] = {}
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
        self._add(topic, (number, future))
        self._patience_of(timeout_s, loop).add(topic, future)
        return future

    def add(self, together: Together, last: Mapping[str, int]) -> None:
        """It takes these, too: on each topic, all up to this number."""
        together.open.update(last)
        for topic, number in last.items():
            self._add(topic, (number, together))

    def published_together(self, together: Together, timeout_s: float) -> asyncio.Future[None]:
        """Nothing is added to it any more."""
        together.is_whole = True
        future = together.future
        if not together.open:
            _settle(future, None)
        if not future.done():
            self._patience_of(timeout_s, asyncio.get_running_loop()).add(together, future)
        return future

    def _add(self, topic: str, entry: _Entry) -> None:
        waiting = self._published.get(topic)
        if waiting is None:
            self._published[topic] = [entry]
        else:
            waiting.append(entry)

    def _patience_of(self, timeout_s: float, loop: asyncio.AbstractEventLoop) -> _Patience:
        patience = self._patience.get(timeout_s)
        if patience is None:
            self._patience = {t: p for t, p in self._patience.items() if not p.is_over}
            patience = self._patience[timeout_s] = _Patience(timeout_s, loop)
        return patience

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
        if waiting[-1][0] <= number:
            confirmed = self._published.pop(topic)
        else:
            count = bisect_right(waiting, number, key=_number_of)
            confirmed = waiting[:count]
            del waiting[:count]
        for _, awaited in confirmed:
            if isinstance(awaited, Together):
                awaited.confirm(topic, number)
            else:
                _settle(awaited, None)

    def on_rejected(self, item: Rejected) -> None:
        waiting = self._published.pop(item.topic, [])
        remaining: list[_Entry] = []
        for entry in waiting:
            number, awaited = entry
            if item.first_number <= number <= item.last_number:
                _fail(_future_of(awaited), PublishError(item.topic, item.message))
            else:
                remaining.append(entry)
        if remaining:
            self._published[item.topic] = remaining

    def on_failed(self, failure: Exception) -> None:
        """Nothing will come any more."""
        futures: list[asyncio.Future[Any]] = [*self._subscribed.values(), *self._echoes.values()]
        for waiting in self._published.values():
            futures += [_future_of(awaited) for _, awaited in waiting]
        for future in futures:
            _fail(future, failure)
        for patience in self._patience.values():
            patience.end()


def _future_of(awaited: _Awaited) -> asyncio.Future[None]:
    return awaited.future if isinstance(awaited, Together) else awaited


def _settle(future: asyncio.Future[Any] | None, result: Any) -> None:
    if future is not None and not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], failure: Exception) -> None:
    if not future.done():
        future.set_exception(failure)
        # Whoever stopped waiting need not be told, and nor need the log.
        future.exception()
