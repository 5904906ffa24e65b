"""Reading a topic: runs arrive late, doubled, in any order or not at all; out comes each event
once.

Within a term events come out in the order of their numbers. A term follows another when the stamp
says that it began where this reader stands; otherwise, and whenever numbers are missing, the reader
is behind and its owner asks the rendezvous point for what lies between (`seen` says where it
stands). Events that the other side of a healed partition stamped come out when they are learnt of.
Numbers of the publishers decide what is a repeat, so an event that was stamped twice comes out
once.

What a history lacks comes out late, should it be learnt of: also what is from before this reader
began. Whoever is read for knows since when it is.

Reading begins where the topic stands when it is first observed, or (`begin_at_start`) with the
oldest event that is retained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dynatops.v1.overlay_pb2 import Fetched, Position, Run, TermSeq
from overlay.publishers import Part, Publishers, part_of_run

TERMS_MAX = 8
PARKED_RUNS_MAX = 2_000
PARKED_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """What can be handed on now, and what never will be."""

    parts: list[Part] = field(default_factory=list)
    lost: int = 0
    unknown_loss: bool = False


class TopicReader:
    def __init__(self, topic: str, publishers_max: int) -> None:
        self.topic = topic
        # term -> last event seen, ascending; empty until the topic's position is known.
        self._terms: dict[int, int] = {}
        self._from_start = False
        # Whether a newer term has been seen than the rendezvous point uses: its events would be
        # taken for old ones.
        self.is_ahead = False
        # Counts runs taken; tells what was read before something else.
        self.clock = 0
        # Clock when the topic's history broke off, and the terms read until then: the rendezvous
        # point has none of them. Nothing once it has.
        self._broken_at = 0
        self._lost_terms: frozenset[int] = frozenset()
        # The newest position known to exist.
        self._known = (0, 0)
        self._parked: dict[tuple[int, int], Run] = {}
        self._parked_bytes = 0
        self._publishers = Publishers(publishers_max)

    # ---- state ----------------------------------------------------------------------------------

    def resume(self, seen: Iterable[TermSeq]) -> None:
        """Go on where another reader stood. To be said before anything has come."""
        for entry in seen:
            self._mark(entry.term, entry.seq)
        self._known = self.position

    def begin_at_start(self) -> None:
        """Read all that is retained. To be said before anything has come."""
        self._from_start = True

    @property
    def started(self) -> bool:
        """Whether it is known where reading begins: whatever is stamped later will come."""
        return bool(self._terms) or (self._from_start and self._known != (0, 0))

    @property
    def position(self) -> tuple[int, int]:
        if not self._terms:
            return (0, 0)
        term = next(reversed(self._terms))
        return (term, self._terms[term])

    @property
    def is_behind(self) -> bool:
        return self.started and self._known > self.position

    @property
    def newest_term(self) -> int:
        return max(self.position[0], self._known[0])

    def seen(self) -> list[TermSeq]:
        return [TermSeq(term=term, seq=seq) for term, seq in self._terms.items()]

    def covers(self, other: TopicReader) -> bool:
        """Whether this has read whatever the other has."""
        return all(self._terms.get(term, 0) >= seq for term, seq in other._terms.items())

    # ---- input ----------------------------------------------------------------------------------

    def observe(self, position: Position) -> None:
        """The topic stands here, says its rendezvous point."""
        reached = (position.term, position.seq)
        if not self._terms and not self._from_start:
            self._mark(*reached)
            self._known = reached
        self.is_ahead = position.term < self.newest_term
        self._enter(position.term, (position.prev_term, position.prev_seq))
        self._known = max(self._known, reached)

    def offer(self, run: Run) -> list[Part]:
        """A run has come by; what may be handed on because of it."""
        if not self._terms and not self._from_start:
            return []
        last_seq = run.first_seq + run.count - 1
        self.is_ahead = run.term < self.newest_term
        if run.first_seq == 1 or run.prev_term:
            self._enter(run.term, (run.prev_term, run.prev_seq))
        self._known = max(self._known, (run.term, last_seq))
        term, seq = self.position
        if run.count == 0 or (run.term, last_seq) <= (term, seq):
            return []
        if run.term != term or run.first_seq > seq + 1:
            self._park(run)
            return []
        ready = self._take(run, seq)
        return ready + self._unpark() if self._parked else ready

    def fetched(self, answer: Fetched) -> Reading:
        """The rendezvous point's answer to `seen`."""
        ready: list[Part] = []
        if answer.unknown_loss and not self._lost_terms:
            self._broken_at, self._lost_terms = self.clock, frozenset(self._terms)
        elif answer.anchor_term in self._lost_terms:
            self._lost_terms = frozenset()
        for entry in answer.gone:
            self._mark(entry.term, entry.seq)
        for run in answer.runs:
            seq = self._terms.get(run.term, 0)
            if run.first_seq + run.count - 1 > seq:
                # Of a log that has nothing in common with what was read, only what is newer than
                # anything heard of its publisher: the rest is from before this reader began.
                ready += self._take(run, seq, only_newer=answer.unknown_loss)
        reached = (answer.position.term, answer.position.seq)
        self.is_ahead = answer.position.term < self.newest_term
        if not answer.more:
            self._mark(*reached)
        self._known = max(self._known, reached)
        ready += self._unpark()
        return Reading(ready, answer.lost, answer.unknown_loss)

    # ---- inside ---------------------------------------------------------------------------------

    def _enter(self, term: int, origin: tuple[int, int]) -> None:
        """A newer term that began exactly where this reader stands is simply the next."""
        if self._terms and term > self.position[0] and origin == self.position:
            self._mark(term, 0)

    def _mark(self, term: int, seq: int) -> None:
        if term == 0:
            return
        is_new = term not in self._terms
        self._terms[term] = max(seq, self._terms.get(term, 0))
        if is_new:
            self._terms = dict(sorted(self._terms.items())[-TERMS_MAX:])

    def _take(self, run: Run, seen_seq: int, *, only_newer: bool = False) -> list[Part]:
        repeats = max(0, seen_seq + 1 - run.first_seq)
        part = part_of_run(run, repeats, run.count - repeats) if repeats else run
        self._mark(run.term, run.first_seq + run.count - 1)
        self.clock += 1
        # What a broken history misses is from before it broke.
        missing_since = self._broken_at if self._lost_terms else self.clock
        return self._publishers.admit(part, only_newer=only_newer, clock=missing_since)

    def _park(self, run: Run) -> None:
        key = (run.term, run.first_seq)
        if key in self._parked or len(self._parked) >= PARKED_RUNS_MAX:
            return
        if self._parked_bytes + len(run.events) > PARKED_BYTES_MAX:
            return
        copy = Run()
        copy.CopyFrom(run)
        self._parked[key] = copy
        self._parked_bytes += len(run.events)

    def _unpark(self) -> list[Part]:
        ready: list[Part] = []
        for key in sorted(self._parked):
            run = self._parked[key]
            last_seq = run.first_seq + run.count - 1
            if run.first_seq == 1 or run.prev_term:
                self._enter(run.term, (run.prev_term, run.prev_seq))
            term, seq = self.position
            if (run.term, last_seq) <= (term, seq):
                self._drop_parked([key])
            elif run.term == term and run.first_seq <= seq + 1:
                ready += self._take(run, seq)
                self._drop_parked([key])
        return ready

    def _drop_parked(self, keys: Iterable[tuple[int, int]]) -> None:
        for key in keys:
            self._parked_bytes -= len(self._parked.pop(key).events)
