"""The past, out of a log: portions of what is asked for, and clear words where it is not there.

    order --first--> what does the log have of it? --> where to begin, or why not
          --place--> go on there                   --> StorePortion, with the next place

Topics come in the order in which the store got them, all together, from one frame of the log to the
next. Of units that were filled in later that is not the order of their stamps: they are left out of
this, and read at the end, one after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from broker_agent.core.base.store_units import is_side_unit, stream_of_unit
from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_requests import (
    ReadTopics,
    ReadUnit,
    TopicsAnswer,
    UnitAnswer,
)
from broker_agent.core.stores.log.log_rows import NOWHERE, LogRow, Stamp
from broker_agent.core.stores.log.stored_runs import StoredRunError, run_of
from broker_agent.core.stores.log_peers import is_about_logs, read_for_store
from broker_agent.core.stores.store_reader import ReadOrder, StorePortion
from dynatops.kit.filters import is_wildcard, pattern_matches
from dynatops.kit.repeats import part_of_run
from dynatops.kit.run_events import events_of
from dynatops.kit.topics import STREAMS
from dynatops.v1.overlay_pb2 import PastError, PastRange, Run

# Where reading goes on: behind a frame; or, with a unit named, in that one behind a stamp.
_PLACE = struct.Struct("<QQQ")
_LAST_FRAME = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class _LogPlace:
    frame: int = 0
    unit: str = ""
    stamp: Stamp = NOWHERE

    def to_wire(self) -> bytes:
        return _PLACE.pack(self.frame, *self.stamp) + self.unit.encode()

    @classmethod
    def from_wire(cls, raw: bytes) -> _LogPlace:
        """Raises ValueError."""
        if len(raw) < _PLACE.size:
            raise ValueError("too short")
        frame, term, seq = _PLACE.unpack_from(raw)
        return cls(frame, raw[_PLACE.size :].decode(), (term, seq))


# All has been read, and what is left to be said is that a place is beyond it.
_END = _LogPlace(_LAST_FRAME)


class _PastRefusedError(Exception):
    def __init__(self, error: PastError.ValueType, message: str) -> None:
        super().__init__(message)
        self.error = error


def read_past(log: EventLog, order: ReadOrder) -> StorePortion:
    """Raises LogFilesError, if the disk does not work."""
    if is_about_logs(order):
        return read_for_store(log, order)
    reading = _PastReading(log, order)
    try:
        return reading.portion()
    except _PastRefusedError as refused:
        return StorePortion(error=refused.error, message=str(refused))


@dataclass(slots=True)
class _WantedPast:
    """What of the topics is asked for."""

    since_us: int
    # By topic and term, up to where it is there already.
    seen: dict[str, dict[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, wanted: PastRange) -> _WantedPast:
        seen = {place.topic: {s.term: s.seq for s in place.seen} for place in wanted.after}
        return cls(wanted.since_us, seen)

    def part(self, row: LogRow, run: Run) -> Run | None:
        """None: nothing of it."""
        skip = 0
        if (streams := self.seen.get(STREAMS)) is not None:
            # Of all topics together.
            skip = min(max(streams.get(row.term, 0) - run.first_seq + 1, 0), run.count)
        if (seen := self.seen.get(row.topic)) is not None:
            reached = seen.get(row.term, 0)
            if not reached and row.unit == row.topic and row.term < min(seen, default=0):
                # On a ring whoever has a later term has had those before it, or was told.
                return None
            skip = max(skip, min(max(reached - run.first_seq + 1, 0), run.count))
        if self.since_us and row.first_us < self.since_us:
            events = events_of(run) or ()
            times = (at for at, e in enumerate(events) if e.published_us >= self.since_us)
            skip = max(skip, next(times, run.count))
        if skip >= run.count:
            return None
        return part_of_run(run, skip, run.count - skip) if skip and not run.partial else run


class _PastReading:
    def __init__(self, log: EventLog, order: ReadOrder) -> None:
        self._log = log
        self._order = order
        self._wanted = _WantedPast.of(order.wanted)
        self._events: list[Run] = []
        self._nbytes = 0

    def portion(self) -> StorePortion:
        order = self._order
        is_lossy = False
        if order.place:
            try:
                place = _LogPlace.from_wire(order.place)
            except ValueError as error:
                message = "the place to go on from is none of this store's"
                raise _PastRefusedError(PastError.PAST_ERROR_INVALID, message) from error
        else:
            is_lossy = self._check_what_is_left()
            place = self._beginning()
        following: _LogPlace | None = place if place != _END else None
        while following is not None and self._nbytes < order.bytes_max:
            place = following
            following = self._read(place)
        if following is None and (beyond := self._why_future()):
            if not self._events:
                raise _PastRefusedError(PastError.PAST_ERROR_FUTURE, beyond)
            # What there is comes first.
            following = _END
        said = following if following is not None else place
        return StorePortion(self._events, said.to_wire(), following is None, is_lossy)

    # ---- before the first portion ---------------------------------------------------------------

    def _units(self) -> list[str]:
        """Units that what is asked for may be in."""
        unit = self._order.unit
        streams = self._streams()
        return [u for u in self._log.units() if u in streams or pattern_matches(unit, u)]

    def _streams(self) -> dict[str, int]:
        """Those of a tree, by their units."""
        found = ((unit, stream_of_unit(unit)) for unit in self._log.units())
        return {unit: stream for unit, stream in found if stream is not None}

    def _check_what_is_left(self) -> bool:
        """Whether something is not here any more; a refusal, unless that is accepted."""
        lost = next(self._losses(), None)
        if lost is None:
            return False
        if self._order.wanted.with_loss:
            return True
        raise _PastRefusedError(PastError.PAST_ERROR_EXPIRED, lost)

    def _losses(self) -> Iterator[str]:
        """What should follow on what is there already, and does not, in sentences."""
        for topic, seen in self._wanted.seen.items():
            for unit, stamp in self._stands(topic, seen):
                extent = self._log.extent(unit)
                if extent is None:
                    continue
                if extent.since > stamp:
                    oldest = f"{extent.since[0]}/{extent.since[1]}"
                    yield f"of {topic} only what comes after {oldest} is kept here"
                elif any(after >= stamp or upto > stamp for after, upto in extent.holes):
                    yield f"a part of {topic} is missing here, or damaged"

    def _stands(self, topic: str, seen: dict[int, int]) -> Iterator[tuple[str, Stamp]]:
        """In which units, and where, whoever has seen so much stands."""
        if self._log.extent(topic) is not None:
            yield topic, max(seen.items(), default=NOWHERE)
            return
        for unit, stream in self._streams().items():
            if (reached := seen.get(stream)) is not None:
                yield unit, (stream, reached)

    def _why_future(self) -> str:
        """A place that is beyond all that is here, in a sentence; empty if none is."""
        for topic, seen in self._wanted.seen.items():
            for unit, stamp in self._stands(topic, seen):
                extent = self._log.extent(unit)
                if extent is not None and extent.upto < stamp:
                    newest = f"{extent.upto[0]}/{extent.upto[1]}"
                    place = f"the place {stamp[0]}/{stamp[1]} of {topic}"
                    return f"{place} is beyond {newest}, the newest here"
        return ""

    def _beginning(self) -> _LogPlace:
        return _LogPlace(self._frame_before_news())

    def _frame_before_news(self) -> int:
        """Behind which frame all is that is not there already. Of topics that are not named all is
        wanted, from the beginning."""
        seen, log, streams = self._wanted.seen, self._log, self._streams()
        units = [u for u in self._units() if not is_side_unit(u)]
        frames: list[int] = []
        for unit in units:
            stream = streams.get(unit)
            if stream is not None:
                reached = 0 if is_wildcard(self._order.unit) else _reached(seen, stream)
                frames.append(log.frame_before(unit, (stream, reached)))
            else:
                reached_stamp = max(seen.get(unit, {}).items(), default=NOWHERE)
                frames.append(log.frame_before(unit, reached_stamp))
        return min(frames, default=0)

    # ---- portions -------------------------------------------------------------------------------

    def _read(self, place: _LogPlace) -> _LogPlace | None:
        """Read on from there; where it goes on after that."""
        if place.unit:
            return self._read_unit(place)
        room = max(self._order.bytes_max - self._nbytes, 1)
        request = ReadTopics(
            0, self._order.unit, self._wanted.since_us, room, place.frame, self._order.wanted.last
        )
        answer = self._log.read(request)
        assert isinstance(answer, TopicsAnswer)
        apart = set(self._apart())
        for number, row in enumerate(answer.rows):
            if row.unit not in apart:
                self._take(row, answer.skipped.get(number, 0))
        if answer.following is not None:
            return _LogPlace(answer.following.after_frame)
        return next((self._place_in(unit) for unit in sorted(apart)), None)

    def _apart(self) -> list[str]:
        """Units that are read by themselves."""
        units = [u for u in self._units() if not (self._log.is_ordered(u) or is_side_unit(u))]
        if self._order.wanted.last:
            # A stream's stamps do not say how many events of a topic there are.
            return [u for u in units if stream_of_unit(u) is None]
        return units

    def _place_in(self, unit: str) -> _LogPlace:
        """Where reading a unit by itself begins."""
        last, extent = self._order.wanted.last, self._log.extent(unit)
        if not last or extent is None or extent.upto[1] <= last:
            return _LogPlace(unit=unit)
        return _LogPlace(unit=unit, stamp=(extent.upto[0], extent.upto[1] - last))

    def _read_unit(self, place: _LogPlace) -> _LogPlace | None:
        room = max(self._order.bytes_max - self._nbytes, 1)
        pattern = self._order.unit if stream_of_unit(place.unit) is not None else ""
        request = ReadUnit(0, place.unit, place.stamp, pattern, self._wanted.since_us, room)
        answer = self._log.read(request)
        assert isinstance(answer, UnitAnswer)
        for row in answer.rows:
            self._take(row)
        if answer.following is not None:
            return _LogPlace(unit=place.unit, stamp=answer.upto)
        further = (unit for unit in sorted(self._apart()) if unit > place.unit)
        return next((self._place_in(unit) for unit in further), None)

    def _take(self, row: LogRow, skip: int = 0) -> None:
        """Its events, but for so many."""
        if not row.events:
            return
        try:
            run = run_of(row)
        except StoredRunError:
            # It is told by the log when it is found to be damaged.
            return
        if run is None:
            return
        if skip and not run.partial:
            run = part_of_run(run, skip, run.count - skip)
        part = self._wanted.part(row, run)
        if part is not None:
            self._events.append(part)
            self._nbytes += len(part.events)


def _reached(seen: dict[str, dict[int, int]], stream: int) -> int:
    """How far all topics that are named have come in it."""
    return min((terms.get(stream, 0) for terms in seen.values()), default=0)
