"""Events of many topics that travel, are stamped and are copied together.

On most topics an event comes alone. What is said of a run of many events would be said of each such
event in messages of their own, and cost the same; in a bundle it stands in columns. Everything else
beside (conditions, histories that grew apart, what is missing before an event) is said in runs and
publications: what is not plain never comes in a bundle, and each node takes out of one what it
cannot deal with so simply.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from dynatops.v1 import overlay_pb2
from dynatops.v1.overlay_pb2 import AckLevel, Event, Events, Publication, Run

_Item = TypeVar("_Item")

# What an event alone in its list is encoded with, beside its payload: about as much.
EVENT_BYTES = 13


class Bundle:
    """The columns of a bundle; an event is a place in all of them.

    `terms` and `seqs` are empty until it is stamped, `pending` afterwards; `since_numbers` if all
    are 0 (`Run.since_number`)."""

    __slots__ = (
        "_joined", "_payloads", "ack", "hops", "numbers", "pending", "published_us", "publisher",
        "seqs", "since_numbers", "sizes", "terms", "topics", "way_us",
    )  # fmt: skip

    def __init__(
        self,
        publisher: int,
        topics: Sequence[str],
        numbers: Sequence[int],
        published_us: Sequence[int],
        payloads: Sequence[bytes] | None,
        *,
        sizes: Sequence[int] | None = None,
        joined: bytes | None = None,
    ) -> None:
        """Either the payloads or, `joined`, what they come to end to end, and their sizes."""
        self.publisher = publisher
        self.topics = topics
        self.numbers = numbers
        self.published_us = published_us
        self._payloads = payloads
        self._joined = joined
        self.sizes = sizes if sizes is not None else list(map(len, payloads or ()))
        self.ack: AckLevel.ValueType = AckLevel.ACK_LEVEL_NONE
        self.pending: Sequence[int] = ()
        self.terms: Sequence[int] = ()
        self.seqs: Sequence[int] = ()
        self.since_numbers: Sequence[int] = ()
        self.hops = 0
        self.way_us = 0

    def __len__(self) -> int:
        return len(self.topics)

    @property
    def payloads(self) -> Sequence[bytes]:
        if self._payloads is None:
            joined, ends = self._joined or b"", accumulate(self.sizes)
            self._payloads = [
                joined[end - size : end] for size, end in zip(self.sizes, ends, strict=True)
            ]
        return self._payloads

    @property
    def joined(self) -> bytes:
        """The payloads, end to end."""
        if self._joined is None:
            self._joined = b"".join(self._payloads or ())
        return self._joined

    @property
    def nbytes(self) -> int:
        """Of the payloads."""
        return sum(self.sizes)

    def pick(self, places: Sequence[int]) -> Bundle:
        """Those events alone; itself, if these are all."""
        if len(places) == len(self.topics):
            return self
        picked = Bundle(
            self.publisher,
            _pick(self.topics, places),
            _pick(self.numbers, places),
            _pick(self.published_us, places),
            _pick(self.payloads, places),
            sizes=_pick(self.sizes, places),
        )
        picked.ack, picked.hops, picked.way_us = self.ack, self.hops, self.way_us
        picked.pending = _pick(self.pending, places) if self.pending else ()
        if self.terms:
            picked.terms, picked.seqs = _pick(self.terms, places), _pick(self.seqs, places)
        if self.since_numbers:
            picked.since_numbers = _pick(self.since_numbers, places)
        return picked

    # ---- as messages ----------------------------------------------------------------------------

    @classmethod
    def from_wire(cls, wire: overlay_pb2.Bundle) -> Bundle:
        """One that is whole: see `is_whole`."""
        bundle = cls(
            wire.publisher,
            list(wire.topics),
            list(wire.numbers),
            list(wire.published_us),
            None,
            sizes=list(wire.sizes),
            joined=wire.payloads,
        )
        bundle.ack, bundle.hops, bundle.way_us = wire.ack, wire.hops, wire.way_us
        bundle.pending = list(wire.pending)
        bundle.terms, bundle.seqs = list(wire.terms), list(wire.seqs)
        bundle.since_numbers = list(wire.since_numbers)
        return bundle

    def fill(self, wire: overlay_pb2.Bundle) -> None:
        """Say it in this message, which is empty."""
        wire.publisher = self.publisher
        wire.topics.extend(self.topics)
        wire.numbers.extend(self.numbers)
        wire.published_us.extend(self.published_us)
        wire.sizes.extend(self.sizes)
        wire.payloads = self.joined
        if self.terms:
            wire.terms.extend(self.terms)
            wire.seqs.extend(self.seqs)
            wire.hops, wire.way_us = self.hops, self.way_us
            if self.since_numbers:
                wire.since_numbers.extend(self.since_numbers)
        else:
            wire.ack = self.ack
            wire.pending.extend(self.pending)

    def to_wire(self) -> overlay_pb2.Bundle:
        wire = overlay_pb2.Bundle()
        self.fill(wire)
        return wire

    def run_at(self, place: int) -> Run:
        """The event there, stamped, as a run of its own."""
        run = Run(
            topic=self.topics[place],
            term=self.terms[place],
            first_seq=self.seqs[place],
            count=1,
            publisher=self.publisher,
            first_number=self.numbers[place],
            events=events_with(self.payloads[place], self.published_us[place]),
        )
        if self.hops:
            run.hops = self.hops
        if self.way_us:
            run.way_us = self.way_us
        if self.since_numbers:
            run.since_number = self.since_numbers[place]
        return run

    def publication_at(self, place: int) -> Publication:
        """The event there, to be published by itself."""
        number = self.numbers[place]
        return Publication(
            topic=self.topics[place],
            publisher=self.publisher,
            first_number=number,
            count=1,
            settled=number - 1 - self.pending[place],
            ack=self.ack,
            events=events_with(self.payloads[place], self.published_us[place]),
        )


def is_whole(wire: overlay_pb2.Bundle) -> bool:
    """Whether it has events, its columns are equally long, and its payloads as long as they say."""
    count = len(wire.topics)
    if not count or not count == len(wire.numbers) == len(wire.published_us) == len(wire.sizes):
        return False
    stamps = (len(wire.terms), len(wire.seqs), len(wire.pending))
    if stamps not in ((0, 0, count), (count, count, 0)):
        return False
    if wire.since_numbers and len(wire.since_numbers) != len(wire.terms):
        return False
    return sum(wire.sizes) == len(wire.payloads)


def events_with(payload: bytes, published_us: int) -> bytes:
    """One event without attributes, as publications and runs carry it."""
    events = Events(events=[Event(payload=payload, published_us=published_us)])
    return events.SerializeToString()


def _pick(column: Sequence[_Item], places: Sequence[int]) -> list[_Item]:
    return [column[place] for place in places]
