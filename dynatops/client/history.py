"""What stores have of some topics, as an application reads it: events in order, until the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from copy import copy
from typing import Self

from dynatops.client.arrivals import events_of
from dynatops.client.callbacks import report_failing
from dynatops.client.core.histories import PastPart
from dynatops.client.core.reading import Arrived, ArrivedBundle
from dynatops.client.cursors import Cursor
from dynatops.client.errors import ClosedError
from dynatops.client.events import Batch, BundleEvents, Event, Part
from dynatops.client.past_source import PastSource
from dynatops.client.past_wishes import Pace
from dynatops.client.subscription import Gap, OnGap

NOT_KEPT = "the events are not kept any more"
_UNREADABLE = "the events cannot be read"


class Pacing:
    """When events are due that are to come as far apart as they were published."""

    def __init__(self) -> None:
        self._first_us: int | None = None
        self._began_s = 0.0

    async def wait_for(self, event: Event) -> None:
        while not await self.is_due(event):
            pass

    async def is_due(self, event: Event) -> bool:
        """Waited for if it is not; then it is to be asked again."""
        now_s = asyncio.get_running_loop().time()
        if self._first_us is None:
            self._first_us, self._began_s = event.published_us, now_s
        due_s = self._began_s + (event.published_us - self._first_us) / 1e6
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)
            return False
        return True


class History:
    """An async iterator of events that ends with the newest that is stored, and an async context
    manager. Made by `Client.history`.

    It is asked for when the first event is, and is to be read to its end, or closed.
    """

    def __init__(
        self,
        pattern: str,
        open_source: Callable[[], PastSource],
        close_source: Callable[[PastSource], None],
        pace: Pace,
        on_gap: OnGap | None,
    ) -> None:
        self._pattern = pattern
        self._open_source = open_source
        self._close_source = close_source
        self._pacing = Pacing() if pace == "original" else None
        self._on_gap = on_gap
        self._source: PastSource | None = None
        self._is_closed = False
        self._events: deque[Event] = deque()
        # The part that they are of.
        self._part: PastPart | None = None
        self._cursor = Cursor()
        self._missed = 0

    @property
    def cursor(self) -> Cursor:
        """How far it has been read; `since=cursor` is what is beyond."""
        return copy(self._cursor)

    @property
    def missed(self) -> int:
        """How often events were missing that are not kept any more, or cannot be read."""
        return self._missed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            parts = await self._next_parts()
            if parts is None:
                raise StopAsyncIteration
            self._events.extend(event for part in parts for event in part)
        if self._pacing is not None:
            await self._pacing.wait_for(self._events[0])
        event = self._events.popleft()
        self._cursor.note(event)
        return event

    async def batches(self) -> AsyncIterator[Batch]:
        """All events that are there, as often as there are any; at once, whatever the pace."""
        while (parts := await self._next_parts()) is not None:
            if self._events:
                parts.insert(0, list(self._events))
                self._events.clear()
            batch = Batch(parts)
            if not batch:
                continue
            for event in batch:
                self._cursor.note(event)
            yield batch

    async def _next_parts(self) -> list[Part] | None:
        """Of the next part that came, and the one before is taken; None at the end."""
        if self._is_closed:
            return None
        if self._source is None:
            self._source = self._open_source()
        if self._part is not None:
            self._source.taken(self._part)
            self._part = None
        try:
            part = self._part = await self._source.next_part()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._close()
            raise
        if part is None:
            self._close()
            return None
        if part.is_lossy:
            self._tell_gap(Gap(self._pattern, 0, NOT_KEPT))
        return parts_of(part.events, self._tell_gap)

    def _tell_gap(self, gap: Gap) -> None:
        self._missed += max(1, gap.count)
        if self._on_gap is not None:
            report_failing(self._on_gap, "on_gap", gap)

    # ---- closing --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._is_closed:
            raise ClosedError("this history is closed; ask for it again")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Nothing more of it is wanted."""
        self._events.clear()
        self._close()

    def _close(self) -> None:
        self._is_closed = True
        if self._source is not None:
            self._close_source(self._source)
            self._source = None

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._source else "not asked for yet"
        return f"<History of {self._pattern}: {state}>"


def parts_of(
    arrived: Sequence[Arrived | ArrivedBundle], tell_gap: Callable[[Gap], None]
) -> list[Part]:
    parts: list[Part] = []
    for each in arrived:
        if isinstance(each, ArrivedBundle):
            parts.append(BundleEvents(each.bundle.pick(each.places)))
        elif (events := events_of(each)) is None:
            tell_gap(Gap(each.run.topic, each.run.count, _UNREADABLE))
        else:
            parts.append(events)
    return parts
