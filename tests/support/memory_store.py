"""A store in memory, which answers as a log on a disk would, one call later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from broker_agent.core.stores.store_reader import ReadOrder, StorePortion
from dynatops.kit.filters import pattern_matches
from dynatops.v1.overlay_pb2 import (
    Attribute,
    Event,
    Events,
    PastError,
    Run,
)

TERM = 7


def event_run(
    topic: str, seq: int, payload: bytes, published_us: int, attributes: Iterable[Attribute] = ()
) -> Run:
    event = Event(payload=payload, published_us=published_us, attributes=attributes)
    events = Events(events=[event], attributed=bool(event.attributes))
    return Run(
        topic=topic,
        term=TERM,
        first_seq=seq,
        count=1,
        publisher=2,
        first_number=seq,
        events=events.SerializeToString(),
    )


def time_of(run: Run) -> int:
    return Events.FromString(run.events).events[0].published_us


class MemoryStore:
    """Runs of one event each, in the order in which they were stored."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.is_damaged = False
        self.is_silent = False
        self._expired: dict[str, int] = {}
        self._gone = 0
        self._orders: deque[ReadOrder] = deque()

    def store(self, run: Run) -> None:
        self.runs.append(run)

    def expire(self, events: int) -> None:
        """The oldest go."""
        for run in self.runs[:events]:
            self._expired[run.topic] = run.first_seq
        del self.runs[:events]
        self._gone += events

    # ---- reading ---------------------------------------------------------------------------------

    def begin_read(self, order: ReadOrder) -> None:
        if not self.is_silent:
            self._orders.append(order)

    def take_answers(self) -> list[tuple[ReadOrder, StorePortion]]:
        answers = [(order, self._read(order)) for order in self._orders]
        self._orders.clear()
        return answers

    def _read(self, order: ReadOrder) -> StorePortion:
        if self.is_damaged:
            error = PastError.PAST_ERROR_DAMAGED
            return StorePortion(error=error, message="its disk is damaged")
        first, is_lossy = 0, False
        if order.place:
            first = max(int(order.place) - self._gone, 0)
        else:
            wanted = self._wanted(order, 0)
            if error := self._why_not(order, [self.runs[at] for at in wanted]):
                return StorePortion(error=error, message=f"of {order.unit}")
            is_lossy = self._is_expired(order)
        chosen: list[Run] = []
        size = 0
        place = len(self.runs)
        for at in self._wanted(order, first):
            if size >= order.bytes_max:
                place = at
                break
            chosen.append(self.runs[at])
            size += len(self.runs[at].events)
        said = str(self._gone + place).encode()
        return StorePortion(chosen, said, place == len(self.runs), is_lossy)

    def _wanted(self, order: ReadOrder, first: int) -> list[int]:
        """Where runs are that are asked for."""
        wanted = order.wanted
        seen = {p.topic: {s.term: s.seq for s in p.seen} for p in wanted.after}
        return [
            at
            for at, run in enumerate(self.runs[first:], first)
            if pattern_matches(order.unit, run.topic)
            and time_of(run) >= wanted.since_us
            and run.first_seq > seen.get(run.topic, {}).get(run.term, 0)
            and (not wanted.last or self._rank(at) <= wanted.last)
        ]

    def _rank(self, at: int) -> int:
        """Of how many of its topic's it is the oldest, up to the newest."""
        topic = self.runs[at].topic
        return sum(run.topic == topic for run in self.runs[at:])

    def _why_not(self, order: ReadOrder, runs: list[Run]) -> PastError.ValueType:
        for place in order.wanted.after:
            known = [run.first_seq for run in self.runs if run.topic == place.topic]
            newest = max([self._expired.get(place.topic, 0), *known])
            if not runs and any(seen.seq > newest for seen in place.seen):
                return PastError.PAST_ERROR_FUTURE
        if self._is_expired(order) and not order.wanted.with_loss:
            return PastError.PAST_ERROR_EXPIRED
        return PastError.PAST_ERROR_UNSPECIFIED

    def _is_expired(self, order: ReadOrder) -> bool:
        return any(
            seen.seq < self._expired.get(place.topic, 0)
            for place in order.wanted.after
            for seen in place.seen
        )
