"""What a subscriber holds: events and gaps of some topics, in order for each topic."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Self

from dynatops.client.callbacks import report_failing
from dynatops.client.errors import SubscribeError
from dynatops.client.events import Batch, Event, EventColumns, Part
from dynatops.kit.filters import Filter

# Events that a subscription holds before the client stops reading from its broker.
QUEUE_EVENTS_MAX = 50_000
# Of a subscription's filters, where it is shown.
_SHOWN_FILTERS = 3


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that a subscription did not get."""

    topic: str
    # 0 where the number cannot be known.
    count: int
    reason: str


OnGap = Callable[[Gap], None]


class EventQueue:
    """Between the client, which puts, and one subscription, which gets."""

    # Whether the application acknowledges its events; if not, they are taken when handed out.
    is_work = False
    # Whether what comes live is joined with what stores have.
    is_joined = False

    def __init__(
        self, filters: Sequence[Filter], on_gap: OnGap | None, on_empty: Callable[[], None]
    ) -> None:
        self.filters = list(filters)
        # Events known to have been missed; a gap of unknown size counts as one.
        self.missed = 0
        self._on_gap = on_gap
        self._on_empty = on_empty
        # Events put, and events given out (or dropped with the subscription), ever.
        self.put_events = 0
        self._given_events = 0
        # What has come: events that are next, and what comes after them as it arrived.
        self._events: deque[Event] = deque()
        self._later: list[Part] = []
        # Of tasks that wait for events: one, mostly.
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False
        self._failure: Exception | None = None

    @property
    def filter_keys(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((f.pattern, f.where) for f in self.filters))

    @property
    def is_closed(self) -> bool:
        return self._closed

    def __len__(self) -> int:
        return self.put_events - self._given_events

    @property
    def is_full(self) -> bool:
        return self.put_events - self._given_events >= QUEUE_EVENTS_MAX

    # ---- the client's side ----------------------------------------------------------------------

    def put(self, events: Sequence[Event]) -> None:
        if self._closed or not events:
            return
        if not self._later:
            self._events.extend(events)
        elif isinstance(last := self._later[-1], list):
            last.extend(events)
        else:
            self._later.append(list(events))
        self.put_events += len(events)
        self._wake()

    def put_columns(self, columns: EventColumns) -> None:
        """Events that are made when they are looked at."""
        if not self._closed:
            self._later.append(columns)
            self.put_events += len(columns)
            self._wake()

    def has_given(self, events: int) -> bool:
        """Whether so many have been given out ever."""
        return self._given_events >= events

    def tell_gap(self, gap: Gap) -> None:
        self.missed += max(1, gap.count)
        if self._on_gap is not None:
            report_failing(self._on_gap, "on_gap", gap)

    def fail(self, failure: Exception) -> None:
        """Nothing more will come; said once what is here has been read."""
        self._failure = failure
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ---- the subscription's side ----------------------------------------------------------------

    async def get(self) -> Event | None:
        """The next event; None once closed."""
        if not await self._ready():
            return None
        event = self._events.popleft()
        self._given_events += 1
        if not self._events and not self._later:
            self._on_empty()
        return event

    async def _ready(self) -> bool:
        """Until there is a next event; False once closed."""
        while not self._events:
            if self._later:
                self._events.extend(self._later.pop(0))
            elif not await self._more():
                return False
        return True

    async def get_all(self) -> Batch:
        """Every event that is there, at least one; none once closed."""
        while not self._events and not self._later:
            if not await self._more():
                return Batch(())
        parts, self._later = self._later, []
        if self._events:
            parts.insert(0, list(self._events))
            self._events.clear()
        batch = Batch(parts)
        self._given_events += len(batch)
        self._on_empty()
        return batch

    async def _more(self) -> bool:
        if self._closed:
            return False
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
        return True

    def close(self) -> bool:
        """Drop what is here; False if it was closed before."""
        was_open, self._closed = not self._closed, True
        self._events.clear()
        self._later.clear()
        self._given_events = self.put_events
        self._wake()
        return was_open


class _State(Enum):
    NEW = auto()
    OPEN = auto()
    CLOSED = auto()


_NOT_ENTERED = (
    "this subscription was not entered yet: write `async with client.subscribe(…) as events`, or "
    "`events = await client.subscribe(…)`, and then `async for event in events`"
)


class Subscription:
    """An async iterator of events, and an async context manager.

    Made by `Client.subscribe`. Once entered or awaited, every event published from then on comes.
    """

    def __init__(
        self,
        queue: EventQueue,
        start: Callable[[EventQueue], Awaitable[None]],
        end: Callable[[EventQueue], None],
        change: Callable[[EventQueue, Sequence[str], Sequence[str]], Awaitable[None]],
    ) -> None:
        self._queue = queue
        self._start = start
        self._end = end
        self._change = change
        self._state = _State.NEW

    @property
    def topics(self) -> list[str]:
        """The topics and patterns subscribed to."""
        return list(dict.fromkeys(f.pattern for f in self._queue.filters))

    @property
    def missed(self) -> int:
        """Events known to have been missed; a gap of unknown size counts as one."""
        return self._queue.missed

    def __await__(self) -> Generator[Any, None, Self]:
        return self._started().__await__()

    async def _started(self) -> Self:
        if self._state is _State.CLOSED:
            raise SubscribeError(self.topics, "this subscription is closed; subscribe again")
        if self._state is _State.NEW:
            await self._start(self._queue)
            self._state = _State.OPEN
        return self

    def _check_entered(self) -> None:
        if self._state is _State.NEW:
            raise SubscribeError(self.topics, _NOT_ENTERED)

    async def __aenter__(self) -> Self:
        return await self._started()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def change(self, *, add: Sequence[str] = (), drop: Sequence[str] = ()) -> None:
        """Take up patterns and give others up, as one change of mind."""
        self._check_entered()
        await self._change(self._queue, add, drop)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        self._check_entered()
        event = await self._queue.get()
        if event is None:
            raise StopAsyncIteration
        return event

    async def batches(self) -> AsyncIterator[Batch]:
        """All events that are there, as often as there are any: for consumers that must be fast.

        What of a batch is not looked at is never made: see `Batch`.
        """
        self._check_entered()
        while batch := await self._queue.get_all():
            yield batch

    def __repr__(self) -> str:
        filters = ", ".join(str(f) for f in self._queue.filters[:_SHOWN_FILTERS])
        if len(self._queue.filters) > _SHOWN_FILTERS:
            filters += f", … ({len(self._queue.filters):,} filters)"
        state = "not entered" if self._state is _State.NEW else self._state.name.lower()
        missed = f", {self.missed:,} missed" if self.missed else ""
        return f"<Subscription {filters}: {state}, {len(self._queue):,} waiting{missed}>"

    async def close(self) -> None:
        """End the subscription. What is queued is dropped."""
        was_open, self._state = self._state is _State.OPEN, _State.CLOSED
        if self._queue.close() and was_open:
            self._end(self._queue)
