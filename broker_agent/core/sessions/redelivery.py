"""Deliveries that are sent again: without the events taken, and with how often others were tried.

An application that acknowledges events one by one leaves deliveries half taken. What is known of
their events is written into the piece itself, and so is where the piece is: in the queue, on disk,
with the client.

    Redelivered  how often events of the next delivery have been handed to the application
    run          partial: the events that were not taken, at their offsets
    Skipped      in place of deliveries that were taken while older ones were not; it has the serial
                 of the last of them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from broker_agent.core.sessions.content import Content
from dynatops.v1.client_pb2 import EventMark, Redelivered, Skipped
from dynatops.v1.overlay_pb2 import Events, Run

# In place of a topic: no topic has such a name.
_SKIPPED = "\0"


class Piece(NamedTuple):
    """An entry of a session's queue."""

    content: Content
    events: int
    # Of a delivery; 0 for an answer in its place, which concerns one connection only.
    serial: int
    topic: str
    queued_s: float

    @property
    def stands_for_others(self) -> bool:
        """Whether it is there in place of deliveries that need not be sent."""
        return self.topic == _SKIPPED


def with_marks(piece: Piece, marks: Iterable[EventMark]) -> Piece | None:
    """The piece as its marks say; None if all of its events have been taken."""
    run = next((body for body in piece.content.bodies if isinstance(body, Run)), None)
    events = _events_of(run) if run is not None else None
    if run is None or events is None:
        # Nothing that a mark could be about, or nothing that can be read: it is sent as it is.
        return piece
    offsets = list(run.selected) if run.partial else list(range(run.count))
    handed: dict[int, int] = {}
    for body in piece.content.bodies:
        for mark in body.marks if isinstance(body, Redelivered) else ():
            handed.update(dict.fromkeys(range(mark.first, mark.last + 1), mark.deliveries))
    present = set(offsets)
    taken: set[int] = set()
    for mark in marks:
        # Whatever a client says, only events that are here are looked at.
        span = range(mark.first, mark.last + 1)
        concerned = (
            present.intersection(span)
            if len(span) < len(present)
            else {offset for offset in present if offset in span}
        )
        if not mark.deliveries:
            taken |= concerned
        else:
            handed.update(dict.fromkeys(concerned, mark.deliveries))
    left = present - taken
    if not left:
        return None
    again = [
        EventMark(first=offset, last=offset, deliveries=handed[offset])
        for offset in offsets
        if offset in left and offset in handed
    ]
    rest = _without(run, events, offsets, taken) if taken else run
    content = Content(Redelivered(marks=again), rest) if again else Content(rest)
    return piece._replace(content=content, events=len(left))


def _events_of(run: Run) -> Events | None:
    """None if they cannot be read, or are not as many as it says."""
    try:
        events = Events.FromString(run.events)
    except DecodeError:
        return None
    expected = len(run.selected) if run.partial else run.count
    return events if len(events.events) == expected else None


def _without(run: Run, events: Events, offsets: list[int], taken: set[int]) -> Run:
    rest = [(o, e) for o, e in zip(offsets, events.events, strict=True) if o not in taken]
    partial = Run()
    partial.CopyFrom(run)
    partial.partial = True
    partial.ClearField("selected")
    partial.selected.extend(offset for offset, _ in rest)
    partial.events = Events(
        events=[event for _, event in rest], attributed=events.attributed
    ).SerializeToString()
    return partial


def without_gaps(pieces: Iterable[Piece], after: int, upto: int, now_s: float) -> Iterator[Piece]:
    """Deliveries of which some are missing, with what stands for those: a client counts them."""
    expected = after + 1
    for piece in pieces:
        if piece.stands_for_others:
            continue
        if piece.serial > expected:
            yield _skipping(expected, piece.serial - 1, piece.queued_s)
        yield piece
        expected = piece.serial + 1
    if expected <= upto:
        yield _skipping(expected, upto, now_s)


def _skipping(first: int, last: int, queued_s: float) -> Piece:
    return Piece(Content(Skipped(count=last - first + 1)), 0, last, _SKIPPED, queued_s)
