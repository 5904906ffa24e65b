"""Recognising repeats: which numbers of each publisher have been seen on one topic.

A publisher numbers its events on a topic 1, 2, 3, … Two readers of these numbers exist. The
rendezvous point takes publications strictly in order (`admit_next`), so a retry is a repeat and an
overtaken one waits. Whoever reads logs, that is a broker delivering to sessions and a rendezvous
point joining two histories, takes numbers in any order but each once (`admit`): after a partition
the earlier may come from the other side later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NewType

from google.protobuf.message import DecodeError

from dynatops.v1.overlay_pb2 import Events, PublisherState, Run

PublisherId = NewType("PublisherId", int)

HOLES_MAX = 8


@dataclass(frozen=True, slots=True)
class Hole:
    """Numbers that were skipped and may yet come."""

    low: int
    high: int
    # The reader's count of runs when the hole opened: what fills it is older than that.
    opened: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """New numbers. Those that fill a hole come late."""

    first: int
    count: int
    opened: int | None = None


class PublisherWindow:
    """Numbers seen: all up to `high` but for a few holes, ascending."""

    __slots__ = ("gap_since_s", "high", "holes", "low")

    def __init__(self, high: int = 0, holes: Iterable[Hole] = ()) -> None:
        self.high = high
        # The first that was looked for: of those before it nothing is known.
        self.low = 1
        # A tuple, because nearly all windows have none, and the catalogue has a million windows.
        self.holes = tuple(holes)
        # Since when publications are held up because earlier ones are in a history not known here.
        self.gap_since_s: float | None = None

    def admit(self, first: int, count: int, missing: int = 0, clock: int = 0) -> list[Range]:
        """Mark numbers as seen; which of them are new, ascending.

        Numbers skipped on the way up never come, but for the last `missing` of them.
        """
        last = first + count - 1
        if first == self.high + 1:
            self.high = last
            return [Range(first, count)]
        if not self.high:
            self.low = max(first - missing, 1)
        new = self._fill(first, last) if self.holes and first <= self.high else []
        if last > self.high:
            start = max(first, self.high + 1)
            self._open_hole(max(self.high + 1, first - missing), first - 1, clock)
            self.high = last
            new.append(Range(start, last - start + 1))
        return new

    def admit_next(self, first: int, count: int, settled: int) -> tuple[int, int] | None:
        """Mark numbers as seen in order: how many of them are repeats, and how many before them are
        missing. None if they must wait for those: only numbers up to `settled` never come, which
        were acknowledged elsewhere or given up."""
        last = first + count - 1
        if last <= self.high:
            return count, 0
        missing = max(0, first - self.high - 1)
        if missing and settled < first - 1:
            return None
        self._open_hole(first - missing, first - 1, 0)
        repeats = max(0, self.high + 1 - first)
        self.high = last
        return repeats, missing

    @property
    def since(self) -> int:
        """From where on all that was taken in order is here; 0: from the first."""
        return self.holes[-1].high + 1 if self.holes else 0

    def begin_elsewhere(self) -> None:
        """What was taken in order before is not here."""
        if self.high:
            self.holes = (Hole(1, self.high),)

    def expect_before(self, since: int) -> None:
        """Numbers before this one may yet come, if they have not been seen."""
        if since > self.high + 1:
            self._open_hole(self.high + 1, since - 1, 0)
            self.high = since - 1

    def cover(self, high: int) -> None:
        """Numbers up to `high` exist, though they were not seen here."""
        self.high = max(high, self.high)

    def learn(self, other: PublisherWindow) -> None:
        """What was seen before and beyond these numbers elsewhere, before anybody joined here: what
        is missing there may come late only for those who come from there."""
        beyond = self.high + 1
        for hole in other.holes:
            self._open_hole(hole.low, min(hole.high, self.low - 1), 0)
            self._open_hole(max(hole.low, beyond), hole.high, 0)
        self.low = 1
        self.cover(other.high)

    def _open_hole(self, low: int, high: int, clock: int) -> None:
        if low <= high:
            self.holes = (*self.holes, Hole(low, high, clock))[-HOLES_MAX:]

    def _fill(self, first: int, last: int) -> list[Range]:
        filled: list[Range] = []
        remaining: list[Hole] = []
        for hole in self.holes:
            start, end = max(hole.low, first), min(hole.high, last)
            if start > end:
                remaining.append(hole)
                continue
            filled.append(Range(start, end - start + 1, hole.opened))
            for low, high in ((hole.low, start - 1), (end + 1, hole.high)):
                if low <= high:
                    remaining.append(Hole(low, high, hole.opened))
        self.holes = tuple(remaining[-HOLES_MAX:])
        return filled


# In place of one that is not there.
_NO_WINDOW = PublisherWindow()


@dataclass(frozen=True, slots=True)
class RunPart:
    """New events of a run. If late, only for who was there when the reader's count was `opened`."""

    run: Run
    opened: int | None = None


class Publishers:
    """The windows of one topic's publishers. Bounded: the longest silent are forgotten."""

    __slots__ = ("_latest", "_latest_window", "_max", "_windows")

    def __init__(self, publishers_max: int) -> None:
        self._max = publishers_max
        # Whose window was asked for last: mostly it is the same again.
        self._latest = -1
        self._latest_window = _NO_WINDOW
        # None while there are no publishers, as on most topics that anyone subscribes to.
        self._windows: OrderedDict[PublisherId, PublisherWindow] | None = None

    def window(self, publisher: int) -> PublisherWindow:
        key = PublisherId(publisher)
        windows = self._windows
        if windows is None:
            windows = self._windows = OrderedDict()
        window = windows.get(key)
        if window is None:
            window = windows[key] = PublisherWindow()
            if len(windows) > self._max:
                windows.popitem(last=False)
        else:
            windows.move_to_end(key)
        self._latest, self._latest_window = publisher, window
        return window

    def admit_following(self, publisher: int, number: int) -> bool:
        """Mark a number as seen that follows all the publisher's others; False, and nothing is
        done, if it is not such a one."""
        if publisher == self._latest:
            window = self._latest_window
        elif number == 1 or publisher in (self._windows or ()):
            window = self.window(publisher)
        else:
            return False
        if number != window.high + 1:
            return False
        window.high = number
        window.gap_since_s = None
        return True

    def begin_elsewhere(self) -> Iterator[PublisherId]:
        """What all have published before is not here; whose that is."""
        for publisher, window in (self._windows or {}).items():
            window.begin_elsewhere()
            yield publisher

    def forget_publisher(self, publisher: int) -> None:
        if self._windows is not None:
            self._windows.pop(PublisherId(publisher), None)
        self._latest = -1

    def __len__(self) -> int:
        return len(self._windows or ())

    def admit(self, run: Run, *, only_newer: bool = False, clock: int = 0) -> list[RunPart]:
        """The parts of a stamped run whose events have not been seen yet; of these only those that
        follow all seen, or are known to be missing, if `only_newer`."""
        if run.count == 0:
            return []
        window = self.window(run.publisher)
        high = window.high
        ranges = window.admit(run.first_number, run.count, run.missing, clock)
        if only_newer:
            ranges = [new for new in ranges if new.first > high or new.opened is not None]
        return [
            RunPart(part_of_run(run, new.first - run.first_number, new.count), new.opened)
            for new in ranges
        ]

    def to_states(self) -> list[PublisherState]:
        return [_state_of(publisher, window) for publisher, window in (self._windows or {}).items()]

    def load(self, states: Iterable[PublisherState]) -> None:
        for state in states:
            loaded, window = _window_of(state), self.window(state.publisher)
            window.high, window.holes = loaded.high, loaded.holes

    def with_holes(self, most: int) -> list[PublisherState]:
        """Publishers of whom events are missing."""
        holed = ((p, w) for p, w in (self._windows or {}).items() if w.holes)
        return [_state_of(publisher, window) for publisher, window in islice(holed, most)]

    def learn_holes(self, states: Iterable[PublisherState]) -> None:
        """What is missing in the history that is read here: it may come late, for those who have
        read before elsewhere."""
        for state in states:
            self.window(state.publisher).learn(_window_of(state))

    def learn(self, other: Publishers) -> None:
        """Know what another reader has seen, too, of this history."""
        for publisher, window in (other._windows or {}).items():
            self.window(publisher).learn(window)

    def cover(self, other: Publishers) -> None:
        for publisher, window in (other._windows or {}).items():
            self.window(publisher).cover(window.high)


def _window_of(state: PublisherState) -> PublisherWindow:
    bounds = zip(state.holes[0::2], state.holes[1::2], strict=False)
    return PublisherWindow(state.high, (Hole(low, high) for low, high in bounds))


def _state_of(publisher: PublisherId, window: PublisherWindow) -> PublisherState:
    bounds = [bound for hole in window.holes for bound in (hole.low, hole.high)]
    return PublisherState(publisher=publisher, high=window.high, holes=bounds)


def part_of_events(events: bytes, skip: int, take: int) -> bytes:
    """Serialised events skip … skip+take-1 of a serialised list; none of what is no such list."""
    try:
        whole = Events.FromString(events)
    except DecodeError:
        return b""
    del whole.events[skip + take :]
    del whole.events[:skip]
    return whole.SerializeToString()


def part_of_run(run: Run, skip: int, take: int) -> Run:
    """The events skip … skip+take-1 of a run, still under their own numbers."""
    if take == run.count:
        return run
    part = Run(
        topic=run.topic,
        term=run.term,
        first_seq=run.first_seq + skip,
        count=take,
        publisher=run.publisher,
        first_number=run.first_number + skip,
        events=part_of_events(run.events, skip, take),
        since_number=run.since_number,
    )
    if skip == 0:
        part.prev_term, part.prev_seq = run.prev_term, run.prev_seq
        part.missing = run.missing
    return part
