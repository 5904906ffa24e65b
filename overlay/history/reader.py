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

A stamp belongs to one event for ever: what has been read of a term remains read, also when the
reader goes back to an older one because the topic's history is another than it was (`go_back`).

Reading begins where the topic stands when it is first observed, or (`begin_at_start`) with the
oldest event that is retained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dynatops.kit.repeats import Publishers, RunPart, part_of_run
from dynatops.v1.overlay_pb2 import Fetched, Position, Run, TermSeq

TERMS_MAX = 8
PARKED_RUNS_MAX = 2_000
PARKED_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What can be handed on now, and what never will be."""

    parts: list[RunPart] = field(default_factory=list)
    lost: int = 0
    unknown_loss: bool = False


# Where a reader stands in each term it has seen: (term, last event seen), oldest term first.
Cursor = tuple[tuple[int, int], ...]
# Python makes a new empty one, of 216 bytes, whenever it is asked to.
_NO_TERMS: frozenset[int] = frozenset()


class TopicReader:
    # A broker has one for each topic: what a quiet one does not have takes no memory.
    __slots__ = (
        "_broken_at", "_former", "_from_start", "_known", "_lost_terms", "_parked", "_parked_bytes",
        "_publishers", "_read_terms", "_unknown_terms", "clock", "is_ahead", "position", "topic",
        "wants_holes",
    )  # fmt: skip

    def __init__(self, topic: str, publishers_max: int) -> None:
        self.topic = topic
        # The newest term seen of this history, and the last event seen of it; (0, 0) until the
        # topic's position is known.
        self.position: tuple[int, int] = (0, 0)
        # The same of other terms: those before it, and those that it has gone back from.
        self._former: Cursor = ()
        self._from_start = False
        # Whether a newer term has been seen than the rendezvous point uses: its events would be
        # taken for old ones.
        self.is_ahead = False
        # Counts runs taken, and breaks of the history; tells what was read before something else.
        self.clock = 0
        # Clock when the topic's history broke off, and the terms read until then: the rendezvous
        # point has none of them. Nothing once it has.
        self._broken_at = 0
        self._lost_terms: frozenset[int] = _NO_TERMS
        # Terms seen that the rendezvous point asked last does not know: if there are any, the terms
        # are not those of one history.
        self._unknown_terms: frozenset[int] = _NO_TERMS
        # Terms that it has read events of itself, not another reader before it.
        self._read_terms: tuple[int, ...] = ()
        # The newest position known to exist.
        self._known: tuple[int, int] = (0, 0)
        self._parked: dict[tuple[int, int], Run] | None = None
        self._parked_bytes = 0
        self._publishers = Publishers(publishers_max)
        # Whether it begins in the middle of a history: what that lacks, others have been told of.
        self.wants_holes = False

    # ---- state ----------------------------------------------------------------------------------

    def resume(self, seen: Iterable[TermSeq]) -> None:
        """Go on where another reader stood. To be said before anything has come."""
        for entry in seen:
            self._mark(entry.term, entry.seq)
        self._known = self.position
        self.wants_holes = True

    def begin_at_start(self) -> None:
        """Read all that is retained. To be said before anything has come."""
        self._from_start = True

    @property
    def started(self) -> bool:
        """Whether it is known where reading begins: whatever is stamped later will come."""
        return bool(self.position[0]) or (self._from_start and self._known != (0, 0))

    @property
    def cursor(self) -> Cursor:
        """Where it stands; with this, another reader can go on (`resume`)."""
        if not self.position[0]:
            return ()
        former = self._former
        if former and former[-1] > self.position:
            return tuple(sorted((*former, self.position)))
        return (*former, self.position)

    def stands_at(self, cursor: Cursor) -> bool:
        """Whether it has read just what this cursor says."""
        return self.cursor == cursor and (bool(cursor) or not self._former)

    @property
    def is_behind(self) -> bool:
        return self.started and self._known > self.position

    def has_followed(self, term: int) -> bool:
        """Whether this term is of the one history that it has read without a break."""
        return not self._broken_at and any(term == each for each, _ in self.cursor)

    @property
    def newest_term(self) -> int:
        return max(self.position[0], self._known[0])

    def seen(self) -> list[TermSeq]:
        """The same, for the wire."""
        return [TermSeq(term=term, seq=seq) for term, seq in self.cursor]

    def agrees_with(self, other: TopicReader) -> bool:
        """Whether both stand at one position, and this has read what the other has since it began;
        and the other whatever this has read of a history that the rendezvous point does not know.
        It may turn up again, and is news then to those who are read for by the other, and no one
        else.

        After a partition two readers may have come to one position over different histories. A
        term of the other's that is older than all of mine is from before this began only if the
        other's terms are of one history: those of another need not be as old as they look.
        """
        if self.position != other.position:
            return False
        if self._former == other._former:
            return True
        mine, others = dict(self.cursor), dict(other.cursor)
        if any(term not in others for term in self._unknown_terms.intersection(self._read_terms)):
            return False
        counts_all = self._from_start or bool(other._unknown_terms)
        oldest = 0 if counts_all else min(mine, default=0)
        return all(mine.get(term, 0) == seq for term, seq in others.items() if term >= oldest)

    def learn_from(self, other: TopicReader) -> None:
        """Whoever was read for by the other, at the same place, is read for by this one from now
        on: what the other has read is not to come again, should it be stamped again."""
        self._publishers.learn(other._publishers)

    # ---- input ----------------------------------------------------------------------------------

    def observe(self, position: Position) -> None:
        """The topic stands here, says its rendezvous point."""
        reached = (position.term, position.seq)
        if not self.position[0] and not self._from_start:
            self._mark(*reached)
            self._known = self.position
        self.is_ahead = position.term < self.newest_term
        self._enter(position.term, (position.prev_term, position.prev_seq))
        if reached > self._known:
            self._known = reached

    def offer(self, run: Run) -> list[RunPart]:
        """A run has come by; what may be handed on because of it."""
        if not self.position[0] and not self._from_start:
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

    def offer_next(self, term: int, seq: int, publisher: int, number: int) -> bool:
        """An event has come by that was stamped in a bundle: whether it is plainly the next, and is
        read with that. If not, nothing is done: it is to be offered as a run."""
        at = self.position
        if (
            at[0] != term
            or at[1] != seq - 1
            or at != self._known
            or self.is_ahead
            or self._parked is not None
            or not self._publishers.admit_following(publisher, number)
        ):
            return False
        self.position = self._known = (term, seq)
        if term not in self._read_terms:
            self._read_terms = (*self._read_terms, term)[-TERMS_MAX:]
        self.clock += 1
        return True

    def has_just_read(self, term: int, seq: int) -> bool:
        """Whether it has read that far and knows of no more: to be told so again is no news."""
        at = self.position
        return at == (term, seq) and at == self._known and not self.is_ahead and not self._parked

    def fetched(self, answer: Fetched) -> ReadResult:
        """The rendezvous point's answer to `seen`."""
        ready: list[RunPart] = []
        self._note_unknown(answer)
        if answer.unknown_loss and not self._lost_terms:
            # Whoever joined before this was known is owed what is missing.
            self.clock += 1
            self._broken_at, self._lost_terms = self.clock, frozenset(t for t, _ in self.cursor)
        elif answer.anchor_term in self._lost_terms:
            self._lost_terms = _NO_TERMS
        for entry in answer.gone:
            self._mark(entry.term, entry.seq)
        for run in answer.runs:
            seq = self._seen_of(run.term)
            if run.first_seq + run.count - 1 <= seq:
                # Read before it went back: that far it has come again.
                self._mark(run.term, seq)
            else:
                # Of a log that has nothing in common with what was read, only what is newer than
                # anything heard of its publisher: the rest is from before this reader began.
                ready += self._take(run, seq, only_newer=answer.unknown_loss)
        reached = (answer.position.term, answer.position.seq)
        self.is_ahead = answer.position.term < self.newest_term
        if not answer.more:
            self._mark(*reached)
            if self.wants_holes:
                self.wants_holes = False
                self._publishers.learn_holes(answer.holes)
        self._known = max(self._known, reached)
        ready += self._unpark()
        return ReadResult(ready, answer.lost, answer.unknown_loss)

    def go_back(self, answer: Fetched) -> None:
        """The rendezvous point is in an older term, of this history or another: read on from the
        last place that both know, or from the start. What has been read remains read."""
        self._note_unknown(answer)
        seen = self.cursor or self._former
        common = [(term, seq) for term, seq in seen if term <= answer.position.term]
        self.position = common[-1] if common and answer.anchor_term else (0, 0)
        self._remember({term: seq for term, seq in seen if term != self.position[0]})
        self._from_start = not self.position[0]
        self._broken_at, self._lost_terms = 0, _NO_TERMS
        self._parked, self._parked_bytes = None, 0
        self._known = self.position
        self.observe(answer.position)

    # ---- inside ---------------------------------------------------------------------------------

    def _note_unknown(self, answer: Fetched) -> None:
        # Whoever begins at the start, perhaps once more, has asked about no term.
        if self.position[0]:
            self._unknown_terms = frozenset(answer.unknown_terms[:TERMS_MAX]) or _NO_TERMS

    def _enter(self, term: int, origin: tuple[int, int]) -> None:
        """A newer term that began exactly where this reader stands is simply the next."""
        if self.position[0] and term > self.position[0] and origin == self.position:
            self._mark(term, 0)

    def _seen_of(self, term: int) -> int:
        """The last event seen of a term; 0 if none was, or the term is forgotten."""
        if term == self.position[0]:
            return self.position[1]
        return next((seq for former, seq in self._former if former == term), 0)

    def _mark(self, term: int, seq: int) -> None:
        if term == 0:
            return
        newest_term, newest_seq = self.position
        if term == newest_term:
            if seq > newest_seq:
                self.position = (term, seq)
        elif term > newest_term:
            seen = dict(self._former)
            if newest_term:
                seen[newest_term] = newest_seq
            self.position = (term, max(seq, seen.pop(term, 0)))
            self._remember(seen)
        else:
            seen = dict(self._former)
            seen[term] = max(seq, seen.get(term, 0))
            self._remember(seen)

    def _remember(self, seen: dict[int, int]) -> None:
        self._former = tuple(sorted(seen.items())[1 - TERMS_MAX :])

    def _take(self, run: Run, seen_seq: int, *, only_newer: bool = False) -> list[RunPart]:
        repeats = max(0, seen_seq + 1 - run.first_seq)
        part = part_of_run(run, repeats, run.count - repeats) if repeats else run
        self._mark(run.term, run.first_seq + run.count - 1)
        if run.term not in self._read_terms:
            self._read_terms = (*self._read_terms, run.term)[-TERMS_MAX:]
        self.clock += 1
        # What a broken history misses is from before it broke.
        missing_since = self._broken_at if self._lost_terms else self.clock
        return self._publishers.admit(part, only_newer=only_newer, clock=missing_since)

    def _park(self, run: Run) -> None:
        key = (run.term, run.first_seq)
        if self._parked is None:
            self._parked = {}
        if key in self._parked or len(self._parked) >= PARKED_RUNS_MAX:
            return
        if self._parked_bytes + len(run.events) > PARKED_BYTES_MAX:
            return
        copy = Run()
        copy.CopyFrom(run)
        self._parked[key] = copy
        self._parked_bytes += len(run.events)

    def _unpark(self) -> list[RunPart]:
        ready: list[RunPart] = []
        parked = self._parked or {}
        for key in sorted(parked):
            run = parked[key]
            last_seq = run.first_seq + run.count - 1
            if run.first_seq == 1 or run.prev_term:
                self._enter(run.term, (run.prev_term, run.prev_seq))
            term, seq = self.position
            if (run.term, last_seq) <= (term, seq):
                self._drop_parked(parked, key)
            elif run.term == term and run.first_seq <= seq + 1:
                ready += self._take(run, seq)
                self._drop_parked(parked, key)
        if not parked:
            self._parked = None
        return ready

    def _drop_parked(self, parked: dict[tuple[int, int], Run], key: tuple[int, int]) -> None:
        self._parked_bytes -= len(parked.pop(key).events)
