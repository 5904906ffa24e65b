"""Events out of what has arrived, as applications get them."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from dynatops.client.core.reading import Arrived
from dynatops.client.events import NO_ATTRIBUTES, Event, RunEvents
from dynatops.kit.filters import attributes_of
from dynatops.v1.overlay_pb2 import Event as WireEvent
from dynatops.v1.overlay_pb2 import Events

_new = tuple.__new__
# Fewer events are made at once: to keep what they came in costs more.
COLUMNS_MIN = 8


def events_of(arrived: Arrived) -> list[Event] | RunEvents | None:
    """None if they cannot be read: the broker did not look into them, or is broken."""
    run = arrived.run
    topic, term, first = run.topic, run.term, run.first_seq
    try:
        events = Events.FromString(run.events)
    except DecodeError:
        return None
    messages = events.events
    if len(messages) != (len(run.selected) if run.partial else run.count):
        return None
    if run.partial or events.attributed:
        return [
            Event(
                topic, messages[i].payload, messages[i].published_us, term, first + offset,
                attributes_of(messages[i].attributes),
            )
            for i, offset in arrived.places
        ]  # fmt: skip
    chosen: Iterable[WireEvent] = messages
    if arrived.stop - arrived.start < run.count:
        chosen = messages[arrived.start : arrived.stop]
    elif run.count >= COLUMNS_MIN:
        return RunEvents(run, messages)
    # As `Event(…)` makes them, without its call in between.
    return [
        _new(Event, (topic, event.payload, event.published_us, term, seq, NO_ATTRIBUTES))
        for seq, event in enumerate(chosen, first + arrived.start)
    ]
