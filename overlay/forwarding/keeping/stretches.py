"""What this broker itself can answer of streams that come by a neighbour.

    stretch of a stream:   asked from ----- copies -----> high ----- log -----> V
                                       all of it            what filters let by

A repair is answered here up to V, the place up to which all that was wanted here has come, and no
farther. What is newer comes along the link: while that is up, if all that is asked for has stood
with the neighbour (`standing.py`); when it is up again, from V on, with whatever is wanted then. So
what only the holder has comes afterwards, in order. It is answered here only if nothing can be
missing:

- from copies, which have every event, as far as they go without a gap;
- from the log, if it has dropped nothing since, and if all that is asked for has stood since. What
  the neighbour itself has told as lost is told again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from dynatops.v1.overlay_pb2 import StreamLoss, TreeFetched
from overlay.forwarding.keeping.copies import CopyKeeping
from overlay.forwarding.streams.filter_set import FilterSet
from overlay.forwarding.streams.known_streams import ALL_READ, KnownStream, place_message
from overlay.forwarding.streams.portions import Portion, newer_part, put_portion, size_of
from overlay.forwarding.streams.stream_log import LogEntry
from overlay.forwarding.tree_context import TreeContext

# Entries looked at for one part, however little of them is wanted.
ENTRIES_AT_ONCE = 5_000

Places = dict[int, tuple[int, str]]


@dataclass(slots=True)
class StretchReading:
    """What is read here for one repair, in place of one neighbour. What comes meanwhile is not a
    part of it."""

    # Of the log.
    place: int
    end_place: int
    # Streams whose copies are to be read; and those to be read in the log, up to their V.
    copied: deque[int] = field(default_factory=deque)
    logged: dict[int, int] = field(default_factory=dict)
    # Of which all has been said.
    answered: set[int] = field(default_factory=set)
    # Whether the asker has been told which streams these are.
    is_announced: bool = False
    # Whether nothing else can lie in that direction.
    is_all: bool = False

    @property
    def is_over(self) -> bool:
        return not self.copied and not self.logged


class Stretches:
    def __init__(self, context: TreeContext, keeping: CopyKeeping) -> None:
        self._context = context
        self._keeping = keeping

    def begin(
        self, broker_id: str, wanted: FilterSet, places: Places, *, unnamed: bool
    ) -> StretchReading:
        """What can be answered in place of this neighbour."""
        context = self._context
        reading = StretchReading(context.log.first_place, context.log.end_place)
        there = [
            known
            for known in context.streams
            if context.direction(known.holder) == broker_id and (unnamed or known.stream in places)
        ]
        neighbour = context.neighbours[broker_id]
        since = neighbour.standing.since(wanted.filters)
        if since is None and neighbour.is_open:
            return reading
        for known in there:
            number, _ = places.get(known.stream, (0, ""))
            reach = self._keeping.reach(known.holder, known.stream, number)
            if reach < known.number and not _has_logged(known, reach, since):
                continue
            if number < reach:
                reading.copied.append(known.stream)
            reading.logged[known.stream] = known.number
        is_named = all(
            context.streams.get(stream) is not None or not context.is_beyond(broker_id, holder)
            for stream, (_, holder) in places.items()
        )
        is_met = neighbour.standing.is_begun
        reading.is_all = is_met and is_named and len(reading.logged) == len(there)
        return reading

    def read(self, reading: StretchReading, places: Places, wanted: FilterSet) -> TreeFetched:
        """The next part."""
        part = TreeFetched()
        if not reading.is_announced:
            reading.is_announced = True
            for known in self._known(reading.logged):
                number, _ = places.get(known.stream, (0, ""))
                part.streams.append(place_message(known, number))
        if reading.copied:
            self._read_copies(part, reading, places, wanted)
        else:
            self._read_log(part, reading, places, wanted)
        return part

    def _known(self, streams: Iterable[int]) -> Iterator[KnownStream]:
        for stream in sorted(streams):
            known = self._context.streams.get(stream)
            if known is not None:
                yield known

    def _read_copies(
        self, part: TreeFetched, reading: StretchReading, places: Places, wanted: FilterSet
    ) -> None:
        stream = reading.copied[0]
        known, nbytes = self._context.streams.get(stream), 0
        if known is None:
            reading.copied.popleft()
            return
        number, _ = places.get(stream, (0, ""))
        entries = self._keeping.entries(known.holder, stream, number)
        for entry in islice(entries, ENTRIES_AT_ONCE):
            if nbytes >= self._context.settings.fetch_part_bytes:
                break
            nbytes += _put_wanted(part, entry, number, wanted)
            number = entry.last
        if number >= self._keeping.reach(known.holder, stream, number):
            reading.copied.popleft()
        _say_end(part, known, number, places)

    def _read_log(
        self, part: TreeFetched, reading: StretchReading, places: Places, wanted: FilterSet
    ) -> None:
        log, nbytes = self._context.log, 0
        if reading.place < log.first_place:
            self._leave_dropped(reading, places)
            reading.place = min(log.first_place, reading.end_place)
        reached: dict[int, int] = {}
        end = min(reading.place + ENTRIES_AT_ONCE, reading.end_place)
        while reading.place < end and nbytes < self._context.settings.fetch_part_bytes:
            entry = log[reading.place]
            reading.place += 1
            number = reached.get(entry.stream, places.get(entry.stream, (0, ""))[0])
            if entry.stream in reading.logged and entry.last > number:
                nbytes += _put_wanted(part, entry, number, wanted)
                reached[entry.stream] = entry.last
        for known in self._known(reached):
            _say_end(part, known, reached[known.stream], places)
        if reading.place == reading.end_place:
            self._end(part, reading, places)

    def _end(self, part: TreeFetched, reading: StretchReading, places: Places) -> None:
        for known in self._known(reading.logged):
            before, _ = places.get(known.stream, (0, ""))
            _say_end(part, known, max(before, reading.logged[known.stream]), places)
            if known.is_doubtful and before < ALL_READ:
                part.losses.add(stream=known.stream, after=known.number)
            reading.answered.add(known.stream)
        reading.logged.clear()

    def _leave_dropped(self, reading: StretchReading, places: Places) -> None:
        """The log went on without the reading: of some streams it has dropped what comes next."""
        for stream in sorted(reading.logged):
            known = self._context.streams.get(stream)
            if known is None or known.log_floor > places.get(stream, (0, ""))[0]:
                del reading.logged[stream]
                reading.is_all = False


def _has_logged(known: KnownStream, number: int, since: Mapping[int, int] | None) -> bool:
    """Whether all that is asked for of the stream after this place is in the log."""
    if since is None or known.log_floor > number:
        return False
    return max(since.get(known.stream, 0), known.begin) <= number


def _put_wanted(part: TreeFetched, entry: LogEntry, after: int, wanted: FilterSet) -> int:
    """How many bytes it is."""
    if isinstance(entry.item, StreamLoss):
        loss = entry.item
        part.losses.add(stream=loss.stream, after=max(loss.after, after), upto=loss.upto)
        return 0
    newer = newer_part(entry.item, after)
    found: Portion | None = wanted.part_of(newer) if newer is not None else None
    if found is None:
        return 0
    put_portion(part.events.add(), found)
    return size_of(found)


def _say_end(part: TreeFetched, known: KnownStream, number: int, places: Places) -> None:
    places[known.stream] = (number, known.holder)
    part.ends.add(stream=known.stream, number=number, holder=known.holder)
