"""Work of one subscription: events that the application acknowledges one by one.

    ready --handed out--> in hand --ack--------------------------> done
      ^                     |  `--nak(delay), or ack_wait passed--> waits --due--.
      `--------------------------------------------------------------------------'

A pure state machine; time comes in. New events are handed out in order, those that come again when
they are due. No more are out at a time than the application said: in hand, or waiting to come
again. An event that was handed out as often as it may be is not handed out any more: whoever asks
gets it as exhausted, and says what becomes of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dynatops.client.core.taking import Delivery
    from dynatops.client.events import Event


# Who says when an event is taken: that it is handed out, or the application.
AckMode = Literal["auto", "manual"]


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """What an application asks of a subscription whose events it acknowledges."""

    # Events handed out, and not acknowledged.
    max_in_flight: int = 1_000
    # One that is neither acknowledged nor given back for so long comes again; 0: never.
    ack_wait_s: float = 60.0
    # How often one is handed out; 0: as often as it takes.
    max_deliver: int = 0


class WorkItem:
    """An event on its way to being done."""

    __slots__ = ("deadline_s", "deliveries", "delivery", "event", "is_done", "is_out", "offset")

    def __init__(
        self, event: Event, delivery: Delivery | None, offset: int, deliveries: int
    ) -> None:
        self.event = event
        # Where it is held, if the broker is to know of it.
        self.delivery = delivery
        self.offset = offset
        # How often it has been handed out: to this process, and to those before.
        self.deliveries = deliveries
        # In hand, or waiting to come again.
        self.is_out = False
        self.is_done = False
        # While it is in hand: when it comes again.
        self.deadline_s = 0.0


class Work:
    def __init__(self, limits: WorkLimits) -> None:
        self.limits = limits
        # Not handed out yet.
        self._ready: deque[WorkItem] = deque()
        # In hand, the one that comes again first at the head; and (due, which, item) that wait.
        self._in_hand: dict[WorkItem, None] = {}
        self._waiting: list[tuple[float, int, WorkItem]] = []
        self._waits = 0
        # Handed out too often: to be dealt with, and then finished.
        self._exhausted: dict[WorkItem, None] = {}
        self._out = 0

    def __len__(self) -> int:
        """Events that are here and not out."""
        return len(self._ready)

    @property
    def in_flight(self) -> int:
        return self._out

    def items(self) -> list[WorkItem]:
        """All that is not done."""
        waiting = [item for _, _, item in self._waiting if not item.is_done]
        return [*self._in_hand, *self._exhausted, *waiting, *self._ready]

    def put(self, item: WorkItem) -> None:
        self._ready.append(item)

    def next(self, now_s: float) -> WorkItem | None:
        """What to hand out now, if anything; it is out from now on. One that `is_exhausted` is not
        handed out: say `finish` when it has been dealt with."""
        self._expire(now_s)
        while self._waiting and self._waiting[0][0] <= now_s:
            item = heappop(self._waiting)[2]
            if not item.is_done:
                return self._hand_out(item, now_s)
        if not self._ready or self._out >= self.limits.max_in_flight:
            return None
        self._out += 1
        item = self._ready.popleft()
        item.is_out = True
        return self._hand_out(item, now_s)

    def _hand_out(self, item: WorkItem, now_s: float) -> WorkItem:
        if 0 < self.limits.max_deliver <= item.deliveries:
            self._exhausted[item] = None
            return item
        item.deliveries += 1
        self._set_deadline(item, now_s)
        return item

    def is_exhausted(self, item: WorkItem) -> bool:
        """Whether it was handed out as often as it may be."""
        return item in self._exhausted

    def _set_deadline(self, item: WorkItem, now_s: float) -> None:
        self._in_hand.pop(item, None)
        self._in_hand[item] = None
        item.deadline_s = now_s + self.limits.ack_wait_s

    def _expire(self, now_s: float) -> None:
        """What has been in hand for too long is due again."""
        if not self.limits.ack_wait_s:
            return
        while self._in_hand:
            item = next(iter(self._in_hand))
            if item.deadline_s > now_s:
                break
            self._wait(item, item.deadline_s)

    def _wait(self, item: WorkItem, due_s: float) -> None:
        self._in_hand.pop(item, None)
        self._waits += 1
        heappush(self._waiting, (due_s, self._waits, item))

    def next_due_s(self) -> float | None:
        """When something is to be handed out again, if nothing else happens."""
        due_s = [self._waiting[0][0]] if self._waiting else []
        if self._in_hand and self.limits.ack_wait_s:
            due_s.append(next(iter(self._in_hand)).deadline_s)
        return min(due_s, default=None)

    # ---- what the application says --------------------------------------------------------------

    def finish(self, item: WorkItem) -> bool:
        """It is done; False if it was before."""
        if item.is_done:
            return False
        item.is_done = True
        self._in_hand.pop(item, None)
        self._exhausted.pop(item, None)
        self._out -= item.is_out
        if len(self._waiting) > 2 * self.limits.max_in_flight:
            self._waiting = [entry for entry in self._waiting if not entry[2].is_done]
            heapify(self._waiting)
        return True

    def give_back(self, item: WorkItem, delay_s: float, now_s: float) -> bool:
        """It is to come again after this time; False if it is not in hand."""
        if item not in self._in_hand:
            return False
        self._wait(item, now_s + delay_s)
        return True

    def is_at_work(self, item: WorkItem, now_s: float) -> bool:
        """It is being worked on: its time begins anew. False if it is not in hand."""
        if item not in self._in_hand:
            return False
        self._set_deadline(item, now_s)
        return True

    def was_not_handed_out(self, item: WorkItem, now_s: float) -> None:
        """Nobody took it after all."""
        if item in self._in_hand:
            item.deliveries -= 1
            self._wait(item, now_s)

    def clear(self) -> list[WorkItem]:
        """Nothing is to be handed out any more: all that was not done."""
        items = self.items()
        self._ready.clear()
        self._in_hand.clear()
        self._exhausted.clear()
        self._waiting.clear()
        self._out = 0
        return items


def oldest_held(items: Iterable[WorkItem]) -> dict[str, dict[int, int]]:
    """The oldest of these events, by topic and term."""
    oldest: dict[str, dict[int, int]] = {}
    for item in items:
        event = item.event
        seqs = oldest.setdefault(event.topic, {})
        seqs[event.term] = min(event.seq, seqs.get(event.term, event.seq))
    return oldest
