"""A subscription whose events the application acknowledges: what `work` decides, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from dynatops.client.arguments import check_delay
from dynatops.client.core.taking import Taking
from dynatops.client.core.work import Work, WorkItem, WorkLimits
from dynatops.client.errors import AckError
from dynatops.client.events import Batch, Event
from dynatops.client.subscription import EventQueue, Gap, OnGap
from dynatops.kit.filters import Filter, Value
from dynatops.kit.filters.attributes import ATTRIBUTES_MAX
from dynatops.kit.filters.grammar import WHOLE_MAX

# Of an event in the dead letter topic: where it comes from, and why it is there.
DEAD_LETTER_ATTRIBUTES = ("dead_topic", "dead_term", "dead_seq", "dead_deliveries", "dead_reason")


@dataclass(frozen=True, slots=True)
class WorkLinks:
    """What a subscription needs of its client."""

    taking: Taking
    # The broker is to hear what has become of events.
    tell: Callable[[], None]
    # Until what is to be told has been handed to the network, if there is a connection.
    told: Callable[[], Awaitable[None]]
    # Until a broker has handled it.
    confirmed: Callable[[], Awaitable[None]]
    # Deal with an event that was handed out too often.
    bury: Callable[[WorkQueue, WorkItem], None]


class WorkQueue(EventQueue):
    is_work = True

    def __init__(
        self,
        filters: Sequence[Filter],
        on_gap: OnGap | None,
        on_empty: Callable[[], None],
        limits: WorkLimits,
        dead_letter: str,
        links: WorkLinks,
    ) -> None:
        super().__init__(filters, on_gap, on_empty)
        self.work = Work(limits)
        self.dead_letter = dead_letter
        self._links = links
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self.work)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ---- the client's side ----------------------------------------------------------------------

    def put_work(self, items: Sequence[WorkItem]) -> None:
        """Events that come, each held for this subscription already, where somebody keeps count."""
        if self._closed:
            self._let_go(items)
            return
        for item in items:
            self.work.put(item)
        self._wake()

    def _let_go(self, items: Sequence[WorkItem]) -> None:
        for item in items:
            if item.delivery is not None:
                self._links.taking.release(item.delivery, item.offset)

    def _wake(self) -> None:
        self._changed.set()

    def close(self) -> bool:
        """Drop what is here: nobody will acknowledge it any more."""
        was_open, self._closed = not self._closed, True
        self._let_go(self.work.clear())
        self._wake()
        self._links.tell()
        return was_open

    # ---- the subscription's side ----------------------------------------------------------------

    async def get(self) -> Event | None:
        while not self._closed:
            item = self._next()
            if item is not None:
                return (await self._hand_out([item]))[0]
            await self._wait()
        return None

    async def get_all(self) -> Batch:
        """As many as may be out."""
        while not self._closed:
            items: list[WorkItem] = []
            while (item := self._next()) is not None:
                items.append(item)
            if items:
                return Batch([await self._hand_out(items)])
            await self._wait()
        return Batch(())

    def _next(self) -> WorkItem | None:
        """What the application is to have; what it has had too often is dealt with."""
        while (item := self.work.next(self._now())) is not None:
            if not self.work.is_exhausted(item):
                if not self.work:
                    self._on_empty()
                return item
            self._links.bury(self, item)
        return None

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._changed.clear()
        due_s = self.work.next_due_s()
        try:
            async with asyncio.timeout_at(due_s):
                await self._changed.wait()
        except TimeoutError:
            # Something is due again.
            return

    async def _hand_out(self, items: list[WorkItem]) -> list[Event]:
        """The broker hears of it first: an event that ends its worker must not go uncounted."""
        events: list[Event] = [HeldEvent.of(self, item) for item in items]
        held = [item for item in items if item.delivery is not None]
        for item in held:
            if item.delivery is not None:
                self._links.taking.hand_out(item.delivery, item.offset, item.deliveries)
        if held:
            self._links.tell()
            try:
                await self._links.told()
            except asyncio.CancelledError:
                for item in items:
                    self.work.was_not_handed_out(item, self._now())
                raise
        return events

    # ---- what the application says --------------------------------------------------------------

    def finish(self, item: WorkItem) -> None:
        """It is done: acknowledged, or in the dead letter topic."""
        if item.is_done:
            return
        self._check_open(item)
        self.work.finish(item)
        self._let_go([item])
        self._links.tell()
        self._wake()

    def give_back(self, item: WorkItem, delay_s: float) -> None:
        if not item.is_done:
            self._check_open(item)
            self.work.give_back(item, delay_s, self._now())
            self._wake()

    def is_at_work(self, item: WorkItem) -> None:
        if not item.is_done:
            self._check_open(item)
            self.work.is_at_work(item, self._now())

    async def confirmed(self) -> None:
        await self._links.confirmed()

    def drop(self, item: WorkItem, reason: str) -> None:
        """It is given up, and that is told."""
        self.finish(item)
        self.tell_gap(Gap(item.event.topic, 1, reason))

    def _check_open(self, item: WorkItem) -> None:
        if self._failure is not None:
            self._refuse(item, f"{self._failure}; it comes again if the session is kept")
        if self._closed:
            self._refuse(item, "its subscription is closed")

    def _refuse(self, item: WorkItem, reason: str) -> NoReturn:
        event = item.event
        raise AckError(event.topic, event.term, event.seq, reason)


class HeldEvent(Event):
    """An event of a subscription with `ack="manual"`."""

    _queue: WorkQueue
    _item: WorkItem
    _deliveries: int

    @classmethod
    def of(cls, queue: WorkQueue, item: WorkItem) -> HeldEvent:
        event = cls(*item.event)
        event._queue, event._item = queue, item
        event._deliveries = item.deliveries
        return event

    @property
    def deliveries(self) -> int:
        return self._deliveries

    async def ack(self, *, wait: bool = False) -> None:
        self._queue.finish(self._item)
        if wait:
            await self._queue.confirmed()

    async def nak(self, delay_s: float = 0.0) -> None:
        check_delay(delay_s)
        # Once it has been handed out again, what is said of an earlier time is of no interest.
        if self._deliveries == self._item.deliveries:
            self._queue.give_back(self._item, delay_s)

    async def in_progress(self) -> None:
        if self._deliveries == self._item.deliveries:
            self._queue.is_at_work(self._item)


def dead_letter_attributes(item: WorkItem, reason: str) -> dict[str, Value]:
    """Those of the event itself stay as far as there is room."""
    event = item.event
    term = event.term if event.term <= WHOLE_MAX else str(event.term)
    values: tuple[Value, ...] = (event.topic, term, event.seq, item.deliveries, reason)
    said = dict(zip(DEAD_LETTER_ATTRIBUTES, values, strict=True))
    own = [entry for entry in event.attributes.items() if entry[0] not in said]
    return dict(own[: ATTRIBUTES_MAX - len(said)]) | said
