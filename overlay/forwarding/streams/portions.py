"""Parts of runs and bundles: what is newer than a place, and what some filters want of it.

A part of a run that is not consecutive says which events it has in `Run.partial` and `selected`, as
runs on the way to clients do. Events in a bundle each say their number. Numbers of a stream grow
within a run, a bundle, and from one to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynatops.kit.bundles import EVENT_BYTES, Bundle, is_whole
from dynatops.kit.filters import Filter, Value, attributes_of
from dynatops.kit.repeats import part_of_run
from dynatops.kit.run_events import count_of, events_of
from dynatops.v1.overlay_pb2 import Event, Events, Run, Runs
from overlay.base.identifiers import NUMBER_MAX

Portion = Run | Bundle

_NO_ATTRIBUTES: Mapping[str, Value] = {}


def stream_of(portion: Portion) -> int:
    return portion.terms[0] if isinstance(portion, Bundle) else portion.term


def first_of(portion: Portion) -> int:
    return portion.seqs[0] if isinstance(portion, Bundle) else portion.first_seq


def last_of(portion: Portion) -> int:
    """Up to here the stream has nothing that the portion could have had."""
    if isinstance(portion, Bundle):
        return portion.seqs[-1]
    return portion.first_seq + portion.count - 1


def events_in(portion: Portion) -> int:
    if isinstance(portion, Bundle):
        return len(portion)
    return count_of(portion)


def size_of(portion: Portion) -> int:
    if isinstance(portion, Bundle):
        return portion.nbytes + EVENT_BYTES * len(portion)
    return len(portion.events)


def is_gapless(portion: Portion) -> bool:
    """Whether it has every event from its first to its last."""
    if isinstance(portion, Bundle):
        return portion.seqs[-1] - portion.seqs[0] + 1 == len(portion)
    return not portion.partial


def newer_part(portion: Portion, after: int) -> Portion | None:
    """The events with higher numbers; None if there are none."""
    if first_of(portion) > after:
        return portion
    if last_of(portion) <= after:
        return None
    if isinstance(portion, Bundle):
        return portion.pick([place for place, seq in enumerate(portion.seqs) if seq > after])
    if not portion.partial:
        skip = after + 1 - portion.first_seq
        return part_of_run(portion, skip, portion.count - skip)
    later = [place for place, o in enumerate(portion.selected) if portion.first_seq + o > after]
    events = events_of(portion)
    if not later or events is None:
        return None
    return selected_part(portion, events, later)


def selected_part(run: Run, events: Sequence[Event], places: Sequence[int]) -> Run:
    offsets = run.selected if run.partial else range(run.count)
    part = Run()
    part.CopyFrom(run)
    part.partial = True
    del part.selected[:]
    part.selected.extend(offsets[place] for place in places)
    chosen = Events(events=[events[place] for place in places], attributed=True)
    part.events = chosen.SerializeToString()
    return part


class RunSelection:
    """One run that conditions ask about; looked into once, whoever asks."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._events = events_of(run)
        self._attributes = [attributes_of(each.attributes) for each in self._events or ()]
        self._made: dict[tuple[Filter, ...], Run | None] = {}

    @property
    def is_readable(self) -> bool:
        return self._events is not None

    def of(self, conditions: tuple[Filter, ...]) -> Run | None:
        """What meets one of them; None if nothing does. What cannot be read meets all."""
        if self._events is None:
            return self.run
        if conditions not in self._made:
            self._made[conditions] = self._select(self._events, conditions)
        return self._made[conditions]

    def _select(self, events: Sequence[Event], conditions: tuple[Filter, ...]) -> Run | None:
        places = [
            place
            for place, attributes in enumerate(self._attributes)
            if any(f.predicate is None or f.predicate.holds(attributes) for f in conditions)
        ]
        if not places:
            return None
        return self.run if len(places) == len(events) else selected_part(self.run, events, places)


def plain_event_meets(conditions: tuple[Filter, ...]) -> bool:
    """Whether an event without attributes, as in bundles, meets one of them."""
    return any(f.predicate is None or f.predicate.holds(_NO_ATTRIBUTES) for f in conditions)


def is_sound_portion(portion: Portion) -> bool:
    """Whether an honest broker may have sent it: of one stream, with numbers that grow."""
    if last_of(portion) > NUMBER_MAX or first_of(portion) < 1 or not stream_of(portion):
        return False
    if isinstance(portion, Bundle):
        seqs = portion.seqs
        return all(map(int.__lt__, seqs, seqs[1:])) and len(set(portion.terms)) == 1
    if not portion.partial:
        return portion.count > 0
    selected = portion.selected
    grows = all(map(int.__lt__, selected, selected[1:]))
    return bool(selected) and grows and selected[-1] < portion.count


def put_portion(runs: Runs, portion: Portion) -> None:
    if isinstance(portion, Bundle):
        portion.fill(runs.bundles.add())
    else:
        runs.runs.append(portion)


def portions_of(message: Runs) -> list[Portion]:
    """One message has runs, or bundles, in order; never both. What cannot be is left out."""
    stamped = (wire for wire in message.bundles if wire.terms and is_whole(wire))
    portions: list[Portion] = [*message.runs, *map(Bundle.from_wire, stamped)]
    return [portion for portion in portions if is_sound_portion(portion)]
