"""Events for watchers, each with a queue of its own, bounded.

A watcher that is too slow loses its stream, not single events: it is told `overflow`, and comes
back. One that comes back names the last event it has seen, and goes on there if that is still kept;
otherwise its stream begins with `reset`: read the present state again. All of one event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from dynatops.kit.strict_json import write_json
from reconfig_manager.model.refusals import RefusalError

OVERFLOW = "overflow"
RESET = "reset"
# The manager stops, or leads no longer: look elsewhere.
ENDED = "ended"


class TooManyWatchersError(RefusalError):
    def __init__(self, watchers_max: int) -> None:
        super().__init__(f"{watchers_max} streams of events are open already; try again later")


class CallerWatchesTooMuchError(RefusalError):
    def __init__(self, caller: str, watchers_max: int) -> None:
        super().__init__(
            f"{caller} has {watchers_max} streams of events open already, as many as one may: "
            "end one of them (rest.caller_watchers_max)"
        )


@dataclass(frozen=True, slots=True)
class WatchedEvent:
    kind: str
    data: str
    # Empty for those that are about the stream itself.
    id: str = ""


class Watcher:
    """One stream. A context manager: leaving it makes room for another."""

    def __init__(
        self, home: Broadcast, caller: str, backlog: deque[WatchedEvent], events_max: int
    ) -> None:
        self.caller = caller
        self._home = home
        self._events = backlog
        self._events_max = events_max
        self._stirred = asyncio.Event()
        self._last: WatchedEvent | None = None
        if backlog:
            self._stirred.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._home.leave(self)

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self._last is not None and not self._events

    async def next(self, timeout_s: float) -> WatchedEvent | None:
        """None if nothing happened for so long, or it is over."""
        if not self._events and self._last is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._stirred.wait()
            except TimeoutError:
                return None
        self._stirred.clear()
        return self._events.popleft() if self._events else None

    def offer(self, event: WatchedEvent) -> bool:
        """False if it does not keep up, which ends it."""
        if self._last is not None:
            return True
        if len(self._events) >= self._events_max:
            self._events.clear()
            self.end(OVERFLOW, "events came faster than they were taken; watch again")
            return False
        self._events.append(event)
        self._stirred.set()
        return True

    def end(self, kind: str, message: str) -> None:
        if self._last is None:
            self._last = WatchedEvent(kind, json.dumps({"type": kind, "message": message}))
            self._events.append(self._last)
            self._stirred.set()


class Broadcast:
    def __init__(
        self,
        instance: str,
        *,
        watchers_max: int,
        caller_watchers_max: int,
        watcher_events_max: int,
        kept: int,
    ) -> None:
        """`instance` tells this process's numbers from those of others and of former lives."""
        self._instance = instance
        self._watchers_max = watchers_max
        self._caller_watchers_max = caller_watchers_max
        self._watcher_events_max = watcher_events_max
        self._kept: deque[WatchedEvent] = deque(maxlen=kept)
        self._watchers: set[Watcher] = set()
        # Streams of each.
        self._callers: Counter[str] = Counter()
        self._closed = ""
        self.published = 0
        self.overflows = 0
        self.turned_away = 0

    def __len__(self) -> int:
        return len(self._watchers)

    def publish(self, event: Mapping[str, Any]) -> None:
        """`type` is the kind of event."""
        self.published += 1
        text = write_json(event)
        told = WatchedEvent(str(event["type"]), text, f"{self._instance}-{self.published}")
        self._kept.append(told)
        for watcher in self._watchers:
            self.overflows += not watcher.offer(told)

    def watch(self, last_id: str = "", caller: str = "") -> Watcher:
        """Raises CallerWatchesTooMuchError and TooManyWatchersError."""
        if self._callers[caller] >= self._caller_watchers_max:
            self.turned_away += 1
            raise CallerWatchesTooMuchError(caller, self._caller_watchers_max)
        if len(self._watchers) >= self._watchers_max:
            self.turned_away += 1
            raise TooManyWatchersError(self._watchers_max)
        watcher = Watcher(self, caller, self._backlog(last_id), self._watcher_events_max)
        if self._closed:
            watcher.end(ENDED, self._closed)
        self._watchers.add(watcher)
        self._callers[caller] += 1
        return watcher

    def leave(self, watcher: Watcher) -> None:
        if watcher not in self._watchers:
            return
        self._watchers.remove(watcher)
        self._callers[watcher.caller] -= 1
        if not self._callers[watcher.caller]:
            del self._callers[watcher.caller]

    def end(self, message: str) -> None:
        """For those that watch now."""
        for watcher in self._watchers:
            watcher.end(ENDED, message)

    def close(self) -> None:
        """For good."""
        self._closed = "this manager stops"
        self.end(self._closed)

    def _backlog(self, last_id: str) -> deque[WatchedEvent]:
        if not last_id:
            return deque()
        missed = self._after(last_id)
        if missed is None or len(missed) > self._watcher_events_max:
            message = "events were missed; read the present state again"
            return deque([WatchedEvent(RESET, json.dumps({"type": RESET, "message": message}))])
        return missed

    def _after(self, last_id: str) -> deque[WatchedEvent] | None:
        instance, _, number = last_id.rpartition("-")
        if instance != self._instance or not (number.isascii() and number.isdigit()):
            return None
        missed = self.published - int(number) if len(number) < 20 else -1
        if not 0 <= missed <= len(self._kept):
            return None
        return deque(list(self._kept)[len(self._kept) - missed :])
