"""The events of a run, for whoever must look into it.

Publishers' events are looked at when they come in, and again by nobody until a condition, a
catalogue or a client wants to know what is in them. What comes from another broker may be anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from dynatops.v1.overlay_pb2 import Event, Events, Run


def count_of(run: Run) -> int:
    """How many are here: of a partial run, those that its way was told to bring."""
    return len(run.selected) if run.partial else run.count


def events_of(run: Run) -> Sequence[Event] | None:
    """As many as it says; None if they cannot be read."""
    try:
        events = Events.FromString(run.events).events
    except DecodeError:
        return None
    return events if len(events) == count_of(run) else None
