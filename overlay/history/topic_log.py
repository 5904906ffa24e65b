"""The history of one topic as its rendezvous point keeps it: recent events, in stamped order.

A history is a sequence of terms, each the reign of one rendezvous point, each a sequence of events
(term, 1), (term, 2), … Terms only grow. `lineage` remembers how former terms ended, even where
their events are no longer retained, so a reader who was last seen in one can be told what it
missed.

The same class serves a rendezvous point (`stamp`), its replica (`append`), repairs (`since`) and
the joining of two histories that grew apart in a partition (`merge`): the events of the other side
that are new here are stamped again, under a new term.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from dynatops.kit.bundles import EVENT_BYTES, events_with
from dynatops.kit.repeats import Publishers, PublisherWindow, part_of_events
from dynatops.v1.overlay_pb2 import Fetched, Position, Publication, Run, TermSeq, TopicState
from overlay.base.catalogue import is_system
from overlay.base.identifiers import TERM_CLAIM_MAX, NodeId, Term, TermOwner, next_term
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.retention import LogBudget, Retention

LINEAGE_MAX = 32
FORKS_MAX = 32
_ENTRY_OVERHEAD_BYTES = 200
# Publishers of whom a reader is told that events are missing.
_HOLED_MAX = 256


class Stamping(Enum):
    NEW = "new"
    REPEAT = "repeat"
    TOO_EARLY = "too early"


class Appending(Enum):
    DONE = "done"
    OLD = "old"
    GAP = "gap"


class Merging(Enum):
    NOTHING = "nothing in it was new"
    REPLACED = "it contained all of this one and more: it took its place"
    JOINED = "both had events of their own: the other's were stamped again, under a new term"


@dataclass(frozen=True, slots=True)
class Fork:
    """A term of the other side of a healed partition: where it began, and its last event."""

    origin: tuple[int, int]
    end: int


_NO_FORKS: Mapping[int, Fork] = MappingProxyType({})
# Python makes a new empty one, of 216 bytes, whenever it is asked to.
_NO_TERMS: frozenset[int] = frozenset()


class LoneEvent:
    """An event that came in a bundle, as the topic's history keeps it: a run of one, without a
    message for itself."""

    __slots__ = ("first_number", "first_seq", "payload", "published_us", "publisher", "term")

    count = 1

    def __init__(
        self, term: int, seq: int, publisher: int, number: int, published_us: int, payload: bytes
    ) -> None:
        self.term = term
        self.first_seq = seq
        self.publisher = publisher
        self.first_number = number
        self.published_us = published_us
        self.payload = payload

    def as_run(self, topic: str) -> Run:
        return Run(
            topic=topic,
            term=self.term,
            first_seq=self.first_seq,
            count=1,
            publisher=self.publisher,
            first_number=self.first_number,
            events=events_with(self.payload, self.published_us),
        )


# Events as they came: together, or alone in a bundle.
Entry = Run | LoneEvent


def _end_of(entry: Entry) -> tuple[int, int]:
    return (entry.term, entry.first_seq + entry.count - 1)


def _size_of(entry: Entry) -> int:
    # Of messages' classes it is dear to ask.
    if isinstance(entry, LoneEvent):
        return len(entry.payload) + EVENT_BYTES
    return len(entry.events)


class TopicLog:
    # Most topics are quiet and have one term: what they do not have takes no memory.
    __slots__ = (
        "_budget", "_settings", "announced", "charged_in", "entries", "events", "forks", "lineage",
        "nbytes", "newest_term", "origin", "publishers", "retention", "seq", "term", "topic",
        "uncertain",
    )  # fmt: skip

    def __init__(self, topic: str, settings: OverlaySettings, budget: LogBudget) -> None:
        self.topic = topic
        self.term = Term(0)
        self.seq = 0
        # The newest term heard of, even if nothing of it is kept: it must not be used again.
        self.newest_term = 0
        self.origin = (0, 0)
        self.lineage: tuple[tuple[int, int], ...] = ()
        # Terms whose events were stamped again here.
        self.forks: Mapping[int, Fork] = _NO_FORKS
        # Terms that began with what may have been an outdated copy.
        self.uncertain: frozenset[int] = _NO_TERMS
        self.entries: deque[Entry] | tuple[()] = ()
        # When it grew last, as its budget counts.
        self.charged_in = 0
        self.events = 0
        self.nbytes = 0
        self.retention = Retention.of(topic, settings)
        self.publishers = Publishers(self.retention.publishers_max)
        # Whether the catalogue has the topic's name. Once so, always; system topics need no entry.
        self.announced = is_system(topic)
        self._settings = settings
        self._budget = budget

    @property
    def position(self) -> tuple[int, int]:
        return (self.term, self.seq)

    def position_message(self) -> Position:
        return Position(
            term=self.term, seq=self.seq, prev_term=self.origin[0], prev_seq=self.origin[1]
        )

    @property
    def began(self) -> Term:
        """The oldest term that is remembered: all events are of it, or newer."""
        return Term(self.lineage[0][0]) if self.lineage else self.term

    @property
    def is_unannounced(self) -> bool:
        """Whether the topic has events, but is not known to be in the catalogue."""
        return not self.announced and not self.is_blank

    @property
    def is_blank(self) -> bool:
        """Whether the log knows of no event, retained or not."""
        return self.seq == 0 and not any(end for _, end in self.lineage)

    # ---- writing --------------------------------------------------------------------------------

    def open_term(self, term: Term, *, certain: bool = True) -> None:
        if term <= self.term:
            raise ValueError(f"term {term} of {self.topic!r} does not follow {self.term}")
        if self.term:
            self.lineage = (*self.lineage, (self.term, self.seq))
            self._forget_terms()
        self.origin = (self.term, self.seq) if certain else (0, 0)
        if not certain:
            self.uncertain |= {term}
        self.term, self.seq = term, 0
        self.newest_term = max(self.newest_term, term)

    def _forget_terms(self) -> None:
        """The oldest terms go, except those that retained events belong to: who reads from the
        beginning needs them."""
        first_retained = self.entries[0].term if self.entries else self.term
        old = self.lineage[:-LINEAGE_MAX]
        kept = tuple((term, end) for term, end in old if end and term >= first_retained)
        if len(kept) < len(old):
            self.lineage = kept + self.lineage[-LINEAGE_MAX:]
            self.uncertain = self.uncertain.intersection(term for term, _ in self.lineage)

    def open_next_term(
        self, owner: TermOwner, newer_than: int = 0, *, certain: bool = True
    ) -> None:
        """Begin a reign of this node: its term is newer than any heard of that can be."""
        known = max(self.newest_term, newer_than if newer_than <= TERM_CLAIM_MAX else 0)
        self.open_term(next_term(known, owner), certain=certain)

    def stamp(
        self, publication: Publication, now_s: float, calm_since_s: float = 0.0
    ) -> tuple[Stamping, Run | None]:
        """Give a publication its place in the topic's order, unless it has one or must wait.

        The ring has been what it is since `calm_since_s`.
        """
        window = self.publishers.window(publication.publisher)
        if self._awaits_history(window, publication, now_s, calm_since_s):
            return Stamping.TOO_EARLY, None
        admitted = window.admit_next(
            publication.first_number, publication.count, publication.settled
        )
        if admitted is None:
            return Stamping.TOO_EARLY, None
        repeats, missing = admitted
        fresh = publication.count - repeats
        if fresh == 0 or publication.void:
            return Stamping.REPEAT, None
        events = publication.events
        if repeats:
            events = part_of_events(events, repeats, fresh)
        run = self._stamped(
            publication.publisher, publication.first_number + repeats, fresh, events
        )
        run.missing = missing
        self._keep(run)
        return Stamping.NEW, run

    def stamp_next(self, publisher: int, number: int, published_us: int, payload: bytes) -> bool:
        """Give an event its place if it is plainly the next: of its publisher, and not the first of
        a term. False, and nothing is done, if it must be looked at as a publication."""
        if not self.seq or not self.publishers.admit_following(publisher, number):
            return False
        self.seq += 1
        self._keep(LoneEvent(self.term, self.seq, publisher, number, published_us, payload))
        return True

    def _awaits_history(
        self, window: PublisherWindow, publication: Publication, now_s: float, calm_since_s: float
    ) -> bool:
        """Whether earlier events of this publisher were stamped in a history not known here.

        After a partition it is on its way; to stamp this event first would be the wrong order.
        """
        is_next = publication.first_number <= window.high + 1
        if is_next or self.knows(publication.known_term, publication.known_seq):
            window.gap_since_s = None
            return False
        if window.gap_since_s is None:
            window.gap_since_s = now_s
        since_s = max(window.gap_since_s, calm_since_s)
        return now_s - since_s < self._settings.history_grace_s

    def place_before(self, publisher: int, number: int) -> tuple[int, int]:
        """The position just before this event of the publisher's; (0, 0) if it is not retained."""
        for entry in reversed(self.entries):
            if entry.publisher == publisher:
                offset = number - entry.first_number
                if 0 <= offset < entry.count:
                    return entry.term, entry.first_seq + offset - 1
        return 0, 0

    def knows(self, term: int, seq: int) -> bool:
        """Whether this position is in this history."""
        if term in self.forks:
            return seq <= self.forks[term].end
        return term == 0 or seq <= self.ends().get(term, -1)

    def _stamped(self, publisher: int, first_number: int, count: int, events: bytes) -> Run:
        run = Run(
            topic=self.topic,
            term=self.term,
            first_seq=self.seq + 1,
            count=count,
            publisher=publisher,
            first_number=first_number,
            events=events,
        )
        if self.seq == 0:
            run.prev_term, run.prev_seq = self.origin
        self.seq += count
        return run

    def append(self, run: Run) -> Appending:
        """On a replica: take over what the rendezvous point stamped."""
        if run.term > self.term:
            if run.first_seq != 1 or (run.prev_term, run.prev_seq) != self.position:
                return Appending.GAP
            self.open_term(Term(run.term))
        last_seq = run.first_seq + run.count - 1
        if run.term == self.term and last_seq <= self.seq:
            return Appending.OLD
        if run.term < self.term or run.first_seq != self.seq + 1:
            return Appending.GAP
        copy = Run()
        copy.CopyFrom(run)
        self.seq = last_seq
        self.publishers.admit(run)
        self._keep(copy)
        return Appending.DONE

    def append_next(self, event: LoneEvent) -> Appending:
        """The same of an event that was stamped in a bundle: it is not the first of its term."""
        if event.term != self.term:
            return Appending.GAP
        if event.first_seq != self.seq + 1:
            return Appending.OLD if event.first_seq <= self.seq else Appending.GAP
        self.seq += 1
        self.publishers.window(event.publisher).admit(event.first_number, 1)
        self._keep(event)
        return Appending.DONE

    def _keep(self, run: Entry) -> None:
        nbytes = _size_of(run) + _ENTRY_OVERHEAD_BYTES
        if not self.entries:
            self.entries = deque()
        self.entries.append(run)
        self.events += run.count
        self.nbytes += nbytes
        self._budget.charge(self, nbytes)
        bounds = self.retention
        while len(self.entries) > 1 and (
            self.events > bounds.events_max or self.nbytes > bounds.bytes_max
        ):
            self.drop_oldest(1)

    def drop_oldest(self, runs: int) -> None:
        entries = self.entries
        while entries and runs > 0:
            runs -= 1
            run = entries.popleft()
            nbytes = _size_of(run) + _ENTRY_OVERHEAD_BYTES
            self.events -= run.count
            self.nbytes -= nbytes
            self._budget.trimmed(self, nbytes, run.count)
            if self.retention.is_catalogue:
                # Should the name be announced again it is a new one.
                self.publishers.forget_publisher(run.publisher)
        if not entries:
            self.entries = ()

    def discard(self) -> None:
        """The log is given up: its bytes are free."""
        self._budget.release(self)
        self.entries = ()
        self.events = self.nbytes = 0

    # ---- reading --------------------------------------------------------------------------------

    def ends(self) -> dict[int, int]:
        """term -> its last event, in order; the current term last."""
        return dict([*self.lineage, (self.term, self.seq)])

    def since(self, seen: Mapping[int, int], *, holes: bool = False) -> Fetched:
        """What a reader who saw `seen` (term -> last event) misses, as far as it is retained; with
        `holes`, also what the history itself lacks."""
        answer = Fetched(topic=self.topic, position=self.position_message())
        ends = self.ends()
        answer.unknown_terms.extend(t for t, seq in seen.items() if seq and not self.knows(t, seq))
        seen = self._in_own_terms(seen)
        terms = list(ends)
        known = [terms.index(term) for term in seen if term in ends]
        if 0 in seen:
            # It is in a term of the other side that began when nothing had been stamped.
            known.append(0)
        owed = terms[min(known) :] if known else terms
        answer.anchor_term = owed[0] if known else 0
        nbytes = 0
        for term in owed:
            reached = seen.get(term, 0)
            for run in self._retained(term, reached):
                if nbytes >= self._settings.fetch_bytes_max:
                    answer.more = True
                    break
                answer.runs.append(self._as_run(run))
                nbytes += _size_of(run)
            # Where the retained events of the term begin.
            first = next(self._retained(term, 0), None)
            gone = first.first_seq - 1 if first is not None else ends[term]
            if gone > reached:
                answer.gone.add(term=term, seq=gone)
                answer.lost += gone - reached
        # A place in a term that is not in this history, or behind one whose end is not known, is
        # lost, whether anything of it had been read by then or not.
        crossed = self.uncertain.intersection(owed).difference(seen)
        if seen and (crossed or not known):
            answer.unknown_loss = True
            answer.lost = 0
        if holes and not answer.more and not self.retention.is_catalogue:
            answer.holes.extend(self.publishers.with_holes(_HOLED_MAX))
        return answer

    def runs(self) -> Iterator[Run]:
        """What is retained, the oldest first."""
        return map(self._as_run, self.entries)

    def _as_run(self, entry: Entry) -> Run:
        return entry.as_run(self.topic) if isinstance(entry, LoneEvent) else entry

    def _retained(self, term: int, reached: int) -> Iterator[Entry]:
        """The runs of the term that end behind this number. Found by halving: of a long log readers
        mostly lack the end."""
        entries = self.entries
        start = bisect_right(entries, (term, reached), key=_end_of)
        for index in range(start, len(entries)):
            run = entries[index]
            if run.term != term:
                break
            yield run

    def _in_own_terms(self, seen: Mapping[int, int]) -> dict[int, int]:
        """What a reader saw, who may have followed the other side of a partition since healed."""
        own = dict(seen)
        for term in seen:
            reached = term
            while reached in self.forks:
                reached, seq = self.forks[reached].origin
                own[reached] = max(seq, own.get(reached, 0))
        return own

    def after(self, position: tuple[int, int]) -> list[Run] | None:
        """The runs of the current term behind this position; None if that is not all there is."""
        term, seq = position
        if term != self.term or seq > self.seq:
            return None
        behind = [e for e in self.entries if e.term == term and e.first_seq > seq]
        if sum(entry.count for entry in behind) != self.seq - seq:
            return None
        return [self._as_run(entry) for entry in behind]

    def to_state(self, members: list[NodeId]) -> TopicState:
        return TopicState(
            topic=self.topic,
            position=self.position_message(),
            lineage=[TermSeq(term=term, seq=seq) for term, seq in self.lineage],
            log=self.runs(),
            members=members,
            publishers=self.publishers.to_states(),
            forks=[
                Position(term=term, seq=fork.end, prev_term=fork.origin[0], prev_seq=fork.origin[1])
                for term, fork in self.forks.items()
            ],
            uncertain_terms=sorted(self.uncertain),
            announced=self.announced,
        )

    def load(self, state: TopicState) -> None:
        """Become a copy of another node's log."""
        self.discard()
        self.term, self.seq = Term(state.position.term), state.position.seq
        self.newest_term = max(self.newest_term, self.term)
        self.origin = (state.position.prev_term, state.position.prev_seq)
        self.lineage = tuple((entry.term, entry.seq) for entry in state.lineage)
        # Each began in an older term: following them comes to an end.
        forks = {
            f.term: Fork((f.prev_term, f.prev_seq), f.seq)
            for f in state.forks
            if f.prev_term < f.term
        }
        self.forks = forks or _NO_FORKS
        self.uncertain = frozenset(state.uncertain_terms) or _NO_TERMS
        self.publishers = Publishers(self.retention.publishers_max)
        self.publishers.load(state.publishers)
        self.announced |= state.announced
        for run in state.log:
            copy = Run()
            copy.CopyFrom(run)
            self._keep(copy)

    # ---- joining two histories ------------------------------------------------------------------

    def covers(self, other: TopicLog) -> bool:
        """Whether every event of the other history is in this one, perhaps under another stamp."""
        return all(self.knows(term, end) or end == 0 for term, end in other.ends().items())

    def merge(self, other: TopicLog, owner: TermOwner) -> tuple[Merging, list[Run]]:
        """Take in another history of the topic: what happened, and the runs stamped again.

        Afterwards this one contains both.
        """
        self.newest_term = max(self.newest_term, other.newest_term)
        self.announced |= other.announced
        if self.covers(other):
            return Merging.NOTHING, []
        if other.covers(self):
            self.load(other.to_state([]))
            return Merging.REPLACED, []
        ends = self.ends()
        self._note_forks(other, ends)
        self.open_next_term(owner)
        restamped: list[Run] = []
        for run in other.entries:
            if run.first_seq + run.count - 1 <= ends.get(run.term, 0):
                continue
            for part in self.publishers.admit(self._as_run(run)):
                new = part.run
                again = self._stamped(new.publisher, new.first_number, new.count, new.events)
                again.missing = new.missing
                self._keep(again)
                restamped.append(again)
        self.publishers.cover(other.publishers)
        # What this log lacked was in the other, if anywhere.
        self.uncertain = _NO_TERMS
        return Merging.JOINED, restamped

    def _note_forks(self, other: TopicLog, ends: Mapping[int, int]) -> None:
        before = (0, 0)
        forks = dict(self.forks)
        for term, end in other.ends().items():
            # Here, too, only in an older one, whatever order the other names its terms in.
            if term not in ends and before[0] < term:
                forks[term] = Fork(before, end)
            before = (term, end)
        forks.update(other.forks)
        self.forks = dict(list(forks.items())[-FORKS_MAX:]) or _NO_FORKS
