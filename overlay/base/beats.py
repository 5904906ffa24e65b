"""Where topics stand that have been quiet, said together: heartbeats in columns.

Topics with an event a second or less beat about as often as they have events. One by one that would
cost more than the events, which travel in bundles; nearly all of them tell nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynatops.v1 import overlay_pb2
from dynatops.v1.overlay_pb2 import Run


class Beats:
    """The columns; a topic is a place in all of them. `origins` is where its term began: the
    position in the term before, (0, 0) for the first."""

    __slots__ = ("counts", "origins", "seqs", "terms", "topics")

    def __init__(
        self,
        topics: Sequence[str],
        terms: Sequence[int],
        seqs: Sequence[int],
        counts: Sequence[int],
        origins: Sequence[tuple[int, int]],
    ) -> None:
        self.topics = topics
        self.terms = terms
        self.seqs = seqs
        # How often each has beaten since its last event.
        self.counts = counts
        self.origins = origins

    def __len__(self) -> int:
        return len(self.topics)

    def pick(self, places: Sequence[int]) -> Beats:
        """Those topics alone; itself, if these are all."""
        if len(places) == len(self.topics):
            return self
        return Beats(
            [self.topics[place] for place in places],
            [self.terms[place] for place in places],
            [self.seqs[place] for place in places],
            [self.counts[place] for place in places],
            [self.origins[place] for place in places],
        )

    def run_at(self, place: int) -> Run:
        """The heartbeat there, as it would be said by itself."""
        prev_term, prev_seq = self.origins[place]
        return Run(
            topic=self.topics[place],
            term=self.terms[place],
            first_seq=self.seqs[place] + 1,
            beat=self.counts[place],
            prev_term=prev_term,
            prev_seq=prev_seq,
        )

    # ---- as messages ----------------------------------------------------------------------------

    @classmethod
    def from_wire(cls, wire: overlay_pb2.Beats) -> Beats:
        """One that is whole: see `are_whole`."""
        origins = list(zip(wire.prev_terms, wire.prev_seqs, strict=True))
        return cls(list(wire.topics), list(wire.terms), list(wire.seqs), list(wire.counts), origins)

    def fill(self, wire: overlay_pb2.Beats) -> None:
        """Say it in this message, which is empty."""
        wire.topics.extend(self.topics)
        wire.terms.extend(self.terms)
        wire.seqs.extend(self.seqs)
        wire.counts.extend(self.counts)
        wire.prev_terms.extend([term for term, _ in self.origins])
        wire.prev_seqs.extend([seq for _, seq in self.origins])


def are_whole(wire: overlay_pb2.Beats) -> bool:
    """Whether there are any, and their columns are equally long."""
    columns = (wire.terms, wire.seqs, wire.counts, wire.prev_terms, wire.prev_seqs)
    return bool(wire.topics) and all(len(column) == len(wire.topics) for column in columns)
