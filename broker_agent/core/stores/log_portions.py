"""What is read from a store's log for requests for the past: portions of all units of stamps that
have topics of a kept pattern, one unit after the other.

    ReadOrder --where to begin--> ReadUnit, ReadUnit, ... of the log --rows--> StorePortion
                 ^--------------------- place -------------------------------------'

A place says how far which unit is read. On a ring a unit of stamps is a topic, in a tree a stream,
which has events of many topics: there rows of other topics are left out. What a log cannot prove to
be all is told as expired, so that another store is asked; whoever takes it with losses is told that
something is missing. It runs where the log does, and waits for the disk.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_agent.core.stores.log.event_log import EventLog
from broker_agent.core.stores.log.log_requests import ReadUnit, UnitAnswer, UnitExtent
from broker_agent.core.stores.log.log_rows import NOWHERE, LogRow, Stamp
from broker_agent.core.stores.log.stored_runs import (
    StoredRunError,
    part_of_row,
    run_of,
    selected_events,
)
from broker_agent.core.stores.log.units import base_unit, is_side_unit
from broker_agent.core.stores.store_reader import ReadOrder, StorePortion
from dynatops.kit.filters import is_wildcard, pattern_matches
from dynatops.kit.run_events import events_of
from dynatops.v1.overlay_pb2 import PastError, Run

# Units looked at for one portion, however little there is in them.
_UNITS_AT_ONCE = 256
# Events that are asked for as the newest so many, at most.
LAST_MAX = 100_000


def read_portion(log: EventLog, order: ReadOrder, *, shares_numbers: bool) -> StorePortion:
    """`shares_numbers`: whether a unit of stamps has events of many topics. Raises LogFilesError
    if the disk does not work."""
    return _PortionReading(log, order, shares_numbers).portion()


@dataclass(slots=True)
class _LogPlace:
    """How far it has been read: units before this one are done."""

    unit: str = ""
    after: Stamp = NOWHERE
    segment: int = 0
    # Of the newest so many events: where each unit begins that has some of them.
    starts: dict[str, Stamp] | None = None

    @classmethod
    def decode(cls, raw: bytes) -> _LogPlace | None:
        """None: it is no place."""
        try:
            said: Any = json.loads(raw)
            starts = said["starts"]
            return cls(
                str(said["unit"]),
                _stamp(said["after"]),
                int(said["segment"]),
                None if starts is None else {u: _stamp(s) for u, s in starts.items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def encode(self) -> bytes:
        said = {
            "unit": self.unit,
            "after": self.after,
            "segment": self.segment,
            "starts": self.starts,
        }
        return json.dumps(said).encode()


def _stamp(said: Sequence[int]) -> Stamp:
    term, seq = said
    return int(term), int(seq)


@dataclass(slots=True)
class _GatheredRuns:
    runs: list[Run] = field(default_factory=list)
    nbytes: int = 0
    # Why something is missing; empty if nothing is.
    missing: str = ""


class _PortionReading:
    def __init__(self, log: EventLog, order: ReadOrder, shares_numbers: bool) -> None:
        self._log = log
        self._order = order
        self._shares_numbers = shares_numbers
        wanted = order.wanted
        self._seen = {p.topic: {s.term: s.seq for s in p.seen} for p in wanted.after}
        self._topics = None if is_wildcard(order.unit) else frozenset([order.unit])
        self._extents = log.extents()

    def portion(self) -> StorePortion:
        order, wanted = self._order, self._order.wanted
        is_first = not order.place
        place = _LogPlace() if is_first else _LogPlace.decode(order.place)
        if place is None:
            return _problem(PastError.PAST_ERROR_INVALID, "the place is none of this store's")
        gathered = _GatheredRuns()
        if is_first:
            gathered.missing = self._why_expired()
            if wanted.last:
                place.starts = self._newest(min(wanted.last, LAST_MAX))
        is_end = (gathered.missing != "" and not wanted.with_loss) or self._read(place, gathered)
        if gathered.missing and not wanted.with_loss:
            return _problem(PastError.PAST_ERROR_EXPIRED, gathered.missing)
        if is_first and is_end and not gathered.runs and (ahead := self._why_ahead()):
            return _problem(PastError.PAST_ERROR_FUTURE, ahead)
        return StorePortion(gathered.runs, place.encode(), is_end, bool(gathered.missing))

    # ---- which units -----------------------------------------------------------------------------

    def _units(self) -> list[str]:
        """That may have what is asked for, in the order in which they are read."""
        return sorted(unit for unit in self._extents if self._may_have(unit))

    def _may_have(self, unit: str) -> bool:
        return self._shares_numbers or pattern_matches(self._order.unit, base_unit(unit))

    def _start(self, unit: str, place: _LogPlace) -> Stamp | None:
        """Where reading of it begins; None: nothing of it is wanted any more."""
        if unit < place.unit:
            return None
        if unit == place.unit:
            return place.after
        if place.starts is not None:
            return place.starts.get(unit)
        return self._after(unit)

    def _after(self, unit: str) -> Stamp:
        """All that is asked for comes after this; on a ring the newest that was had of it."""
        seen = {} if self._shares_numbers or is_side_unit(unit) else self._seen.get(unit, {})
        return max(seen.items(), default=NOWHERE)

    # ---- reading ---------------------------------------------------------------------------------

    def _read(self, place: _LogPlace, gathered: _GatheredRuns) -> bool:
        """Whether that was all. The place is where to go on."""
        looked_at = 0
        for unit in self._units():
            start = self._start(unit, place)
            if start is None:
                continue
            looked_at += 1
            if unit != place.unit:
                place.unit, place.after, place.segment = unit, start, 0
            if not self._read_unit(place, gathered) or looked_at >= _UNITS_AT_ONCE:
                return False
        return True

    def _read_unit(self, place: _LogPlace, gathered: _GatheredRuns) -> bool:
        """Whether all of it has been read."""
        begins = place.after
        request: ReadUnit | None = self._request(place, self._order.bytes_max - gathered.nbytes)
        while request is not None:
            answer = self._log.read(request)
            assert isinstance(answer, UnitAnswer)
            self._gather(answer, gathered)
            for after, upto in answer.missing:
                # What was before all that is kept is expired, and that is told by `_why_expired`.
                if after != NOWHERE or begins != NOWHERE:
                    gathered.missing = f"events of {place.unit} after {after} up to {upto}"
            request = answer.following
            place.after = answer.upto
            place.segment = request.first_segment if request is not None else 0
            left = self._order.bytes_max - gathered.nbytes
            if left <= 0 and request is not None:
                return False
        return True

    def _request(self, place: _LogPlace, bytes_max: int) -> ReadUnit:
        since_us = self._order.wanted.since_us if place.after == NOWHERE else 0
        return ReadUnit(
            0, place.unit, place.after, self._topics, since_us, max(bytes_max, 1), place.segment
        )

    def _gather(self, answer: UnitAnswer, gathered: _GatheredRuns) -> None:
        for row in answer.rows:
            for run in self._wanted_of(row):
                gathered.runs.append(run)
                gathered.nbytes += len(row.data)

    def _wanted_of(self, row: LogRow) -> Iterator[Run]:
        since_us = self._order.wanted.since_us
        if not row.events or not pattern_matches(self._order.unit, row.topic):
            return
        if row.last_us < since_us:
            return
        had = self._seen.get(row.topic, {}).get(row.term, 0)
        if had >= row.last:
            return
        try:
            if had >= row.first:
                row = part_of_row(row, (row.term, had), row.upto)
            run = run_of(row)
        except StoredRunError:
            # Its reader cannot read it either, and says so.
            return
        if run is not None and row.first_us < since_us:
            run = _since(run, since_us)
        if run is not None:
            yield run

    # ---- the newest so many ----------------------------------------------------------------------

    def _newest(self, count: int) -> dict[str, Stamp]:
        """Where each unit begins that has some of the newest events: by when the store got them, or
        they were published, whichever is later."""
        newest: list[tuple[int, str, Stamp, int]] = []
        kept = 0
        for unit in self._units():
            for row in self._rows(unit):
                first = (row.term, row.first - 1)
                heapq.heappush(newest, (row.last_us, unit, first, row.events))
                kept += row.events
                while kept - newest[0][3] >= count:
                    kept -= heapq.heappop(newest)[3]
        starts: dict[str, Stamp] = {}
        if not newest:
            return starts
        # Of the oldest of these only the end is wanted.
        oldest = newest[0]
        excess = max(kept - count, 0)
        for entry in newest:
            _, unit, (term, before), _ = entry
            start = (term, before + excess) if entry is oldest else (term, before)
            starts[unit] = min(starts.get(unit, start), start)
        return starts

    def _rows(self, unit: str) -> Iterator[LogRow]:
        request: ReadUnit | None = self._request(_LogPlace(unit, self._after(unit)), 1 << 20)
        while request is not None:
            answer = self._log.read(request)
            assert isinstance(answer, UnitAnswer)
            for row in answer.rows:
                if any(True for _ in self._wanted_of(row)):
                    yield row
            request = answer.following

    # ---- what cannot be had ----------------------------------------------------------------------

    def _places(self) -> Iterator[tuple[str, Stamp, UnitExtent]]:
        """Topics with places that are asked for, and what there is of their units."""
        for topic, terms in self._seen.items():
            if not pattern_matches(self._order.unit, topic):
                continue
            stamps: Mapping[str, Stamp] = (
                {f"{term:016x}": (term, seq) for term, seq in terms.items()}
                if self._shares_numbers
                else {topic: max(terms.items(), default=NOWHERE)}
            )
            for unit, stamp in stamps.items():
                extent = self._extents.get(unit)
                if extent is not None:
                    yield topic, stamp, extent

    def _why_expired(self) -> str:
        """Empty if all that follows the places is kept."""
        for topic, stamp, extent in self._places():
            if stamp < extent.since:
                return f"{topic} is kept from {extent.since} on, not from {stamp}"
        return ""

    def _why_ahead(self) -> str:
        """Empty if no place is beyond what the store has."""
        for topic, stamp, extent in self._places():
            if stamp > extent.upto:
                return f"{topic} is kept up to {extent.upto}, and {stamp} is beyond"
        return ""


def _problem(error: PastError.ValueType, message: str) -> StorePortion:
    return StorePortion(error=error, message=message)


def _since(run: Run, since_us: int) -> Run | None:
    """Of a run that began before; None if all of it is older."""
    events = events_of(run)
    if events is None:
        return run
    places = [place for place, event in enumerate(events) if event.published_us >= since_us]
    if not places:
        return None
    return run if len(places) == len(events) else selected_events(run, places, events)
