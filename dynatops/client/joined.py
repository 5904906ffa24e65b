"""A subscription with a past: what `joining` decides, in real time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from dynatops.client.core.histories import PastPart, PastWish
from dynatops.client.core.joining import Joining, LiveItem
from dynatops.client.core.past_reading import PastReading
from dynatops.client.errors import ClosedError, HistoryError
from dynatops.client.events import Event, Part
from dynatops.client.history import NOT_KEPT, Pacing, parts_of
from dynatops.client.past_source import PastSource
from dynatops.client.past_wishes import Pace
from dynatops.client.subscription import EventQueue, Gap, OnGap
from dynatops.kit.filters import Filter
from dynatops.v1.client_pb2 import Cursor

log = logging.getLogger(__name__)

# Stores that do not come as far as what is published live, or do not answer, are given so long.
_PATIENCE_S = 10.0
_FUTURE_PATIENCE_S = 2.0
_AGAIN_MIN_S = 0.02
_AGAIN_MAX_S = 0.5
# After these a store may be found, or have room, in a moment.
_PASSING = ("not_stored", "overloaded", "unavailable")
_NOT_THERE = "no store has them"
# Nothing was published then.
_NEVER_US = 1 << 62
_UNKNOWN = "the past could not be had: "


class PastOpening(Protocol):
    """What reading the past needs of the client."""

    def open_past(
        self, wish: PastWish, reading: PastReading | None = None, upto: Sequence[Cursor] = ()
    ) -> PastSource: ...

    def close_past(self, source: PastSource) -> None: ...


class JoinedQueue(EventQueue):
    is_joined = True

    def __init__(
        self,
        filters: Sequence[Filter],
        on_gap: OnGap | None,
        on_empty: Callable[[], None],
        wishes: Sequence[PastWish],
        pace: Pace,
    ) -> None:
        super().__init__(filters, on_gap, self._emptied)
        self._tell_empty = on_empty
        self._pacing = Pacing() if pace == "original" else None
        self._reading: asyncio.Task[None] | None = None
        self.joining = Joining(filters, wishes[0].after)
        # What of live deliveries was held counts as taken once this has been given out.
        self.held = HeldEvents(self)
        self._wishes = list(wishes)
        # Parts of the past whose events are in the queue.
        self._parts: deque[tuple[int, PastSource, PastPart]] = deque()

    # ---- what comes live ------------------------------------------------------------------------

    def put_live(self, item: LiveItem) -> None:
        for part in self.joining.live(item):
            self._put_item(part)

    def _put_item(self, item: LiveItem) -> None:
        has_condition = any(each.predicate is not None for each in self.filters)
        for part in parts_of([item], self.tell_gap):
            if has_condition:
                self.put([e for e in part if self._is_wanted(e)])
            else:
                self._put_part(part)

    def _is_wanted(self, event: Event) -> bool:
        return any(each.matches(event.topic, event.attributes) for each in self.filters)

    def _put_part(self, part: Part) -> None:
        if isinstance(part, list):
            self.put(part)
        else:
            self.put_columns(part)

    # ---- the subscription's side ----------------------------------------------------------------

    async def get(self) -> Event | None:
        while self._pacing is not None and await self._ready():
            if self.held.end is not None and self.has_given(self.held.end):
                self._pacing = None
            elif self._events and await self._pacing.is_due(self._events[0]):
                break
        return await super().get()

    def _emptied(self) -> None:
        self._take_parts()
        self._tell_empty()

    def close(self) -> bool:
        if self._reading is not None:
            self._reading.cancel()
        return super().close()

    # ---- the past -------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Its session was kept with it, and goes on where it stood: there is no past."""
        self._join()

    async def begin(self, opening: PastOpening, live_places: Callable[[str], list[Cursor]]) -> None:
        """Until there is an answer. Raises HistoryError if it is that there is no past."""
        begun = asyncio.Event()
        reading = self._read_past(opening, live_places, begun)
        task = self._reading = asyncio.get_running_loop().create_task(reading)
        waiting = asyncio.ensure_future(begun.wait())
        try:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if task.done():
            task.result()
        else:
            task.add_done_callback(_look_at)

    async def _read_past(
        self, opening: PastOpening, live_places: Callable[[str], list[Cursor]], begun: asyncio.Event
    ) -> None:
        """Until it is joined with what comes live. `begun` is set once there is an answer; an error
        before that is raised, and told as a gap after it."""
        try:
            for wish in self._wishes:
                await self._read(wish, opening, live_places, begun)
        except HistoryError as error:
            if not begun.is_set():
                raise
            for wish in self._wishes:
                self.tell_gap(Gap(wish.pattern, 0, f"{_UNKNOWN}{error.reason}"))
        self._join()
        begun.set()

    def _join(self) -> None:
        for item in self.joining.join():
            self._put_item(item)
        self.held.end = self.put_events
        for topic in self.joining.missing():
            self.tell_gap(Gap(topic, 0, _NOT_THERE))

    async def _read(
        self,
        wish: PastWish,
        opening: PastOpening,
        live_places: Callable[[str], list[Cursor]],
        begun: asyncio.Event,
    ) -> None:
        joining = self.joining

        def upto() -> list[Cursor]:
            return joining.ask_up_to(wish.pattern, live_places(wish.pattern))

        places = upto()
        if wish.last:
            # The newest are those of a store that has come so far, or there would be a gap behind.
            probe = replace(wish, since_us=_NEVER_US, after={}, last=0)
            source = opening.open_past(probe, PastReading(), places)
            await self._read_source(source, opening, lambda: places, begun, is_probe=True)
        source = opening.open_past(wish, joining.reading, places)
        await self._read_source(source, opening, upto, begun)

    async def _read_source(
        self,
        source: PastSource,
        opening: PastOpening,
        upto: Callable[[], list[Cursor]],
        begun: asyncio.Event,
        *,
        is_probe: bool = False,
    ) -> None:
        joining, patience = self.joining, _StorePatience()
        try:
            while not self._closed:
                try:
                    part = await source.next_part()
                except HistoryError as error:
                    if error.code == "not_yet":
                        begun.set()
                    elif error.code == "future":
                        # What the application has had may be on its way to the disk.
                        patience.shorten(_FUTURE_PATIENCE_S)
                    elif not begun.is_set() or error.code not in _PASSING:
                        raise
                    await patience.wait(error)
                    source.ask_again(upto(), whole=True)
                    continue
                if part is not None:
                    begun.set()
                    patience = _StorePatience()
                    self._put_past(source, part)
                elif joining.must_ask_again and not is_probe:
                    beyond = joining.asked
                    source.ask_again(upto(), beyond)
                else:
                    return
        finally:
            self._take_parts(all_of=source)
            opening.close_past(source)

    def _put_past(self, source: PastSource, part: PastPart) -> None:
        if part.is_lossy:
            self.tell_gap(Gap(source.pattern, 0, NOT_KEPT))
        for events in parts_of(part.events, self.tell_gap):
            self._put_part(events)
        self._parts.append((self.put_events, source, part))
        self._take_parts()

    def _take_parts(self, all_of: PastSource | None = None) -> None:
        """Stores may send as much as has been given out."""
        while self._parts and (all_of is not None or self.has_given(self._parts[0][0])):
            _, source, part = self._parts.popleft()
            source.taken(part)


class _StorePatience:
    """Growing pauses, since something came."""

    def __init__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()
        self._until_s = self._began_s + _PATIENCE_S
        self._again_s = _AGAIN_MIN_S

    def shorten(self, patience_s: float) -> None:
        self._until_s = min(self._until_s, self._began_s + patience_s)

    async def wait(self, error: HistoryError) -> None:
        """Raises it if that was long enough."""
        if asyncio.get_running_loop().time() > self._until_s:
            raise error
        await asyncio.sleep(self._again_s)
        self._again_s = min(2 * self._again_s, _AGAIN_MAX_S)


class HeldEvents:
    """What was held of live deliveries, as who counts what is taken sees it."""

    def __init__(self, queue: JoinedQueue) -> None:
        self._queue = queue
        # Events of the queue with which they end; None while they are held.
        self.end: int | None = None
        self.put_events = 1

    def has_given(self, events: int) -> bool:
        del events
        return self._queue.is_closed or (self.end is not None and self._queue.has_given(self.end))


def _look_at(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None and not isinstance(error, ClosedError):
        log.error("reading the past of a subscription has failed", exc_info=error)
