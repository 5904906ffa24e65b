"""What the log of a store keeps: rows, each of consecutive events of one topic.

    unit    what stamps are counted in: on a ring the topic itself, in a tree a stream
    stamp   (term, seq), growing within a unit
    covers  everything of the unit after `after` and up to `upto` that the store keeps is in
            this row, or in those before it

On a ring a row covers its own stamps. In a tree one stream has events of many topics, and a store
wants some of them: a row may cover more stamps than it has events, and a row without events says
that there was nothing. What is missing between two rows follows from what they cover, and needs no
record of its own.

The log never looks into `data`; `stored_runs.py` knows what is in it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

# A place in a unit: a term, and a number in it.
Stamp = tuple[int, int]
# After the first, up to the second.
StampRange = tuple[Stamp, Stamp]

NOWHERE: Stamp = (0, 0)


class RowKind(IntEnum):
    # `data` is a serialised `Run`.
    RUN = 0
    # `data` is the payload of one event without attributes, as bundles have them.
    PLAIN = 1
    # No events: there are none, or only later ones of the same key were kept.
    NOTHING = 2
    # No events: they were older, or more, than is retained.
    EXPIRED = 3


class LogRow(NamedTuple):
    unit: str
    topic: str
    kind: int
    after_term: int
    after_seq: int
    term: int
    first: int
    last: int
    events: int
    publisher: int
    # The publisher's number of the first event.
    number: int
    # The earliest and the latest time that is known of its events: when they were published, as
    # the publisher says, and when the store got them. Microseconds since 1970.
    first_us: int
    last_us: int
    data: bytes
    # Whether there was something later of its unit in the log when it came: it does not say that
    # what is before it in the log is older.
    is_late: int = 0

    @property
    def after(self) -> Stamp:
        return self.after_term, self.after_seq

    @property
    def upto(self) -> Stamp:
        return self.term, self.last
