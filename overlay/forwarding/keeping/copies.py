"""Copies of a broker's own streams at one of its neighbours, its keeper.

The origin sends its keeper every event, marked as a copy where it does not want it; the keeper says
how far it has them without a gap, and what is acknowledged as `replicated` waits for that. An
origin that begins a new life asks all its neighbours what copies of its former lives they have,
takes them back, and serves nobody before.

What if a keeper has lost its memory, too? A neighbour *vouches* for an origin if in its own life
the keeper, it or another one, has had all copies: it sees that itself, or the origin says so. If
all neighbours vouch, no copy is lost: of the keepers that they know of, the last one's life goes
on, or it would have been told later itself. If one does not, or is silent for long, there may be
events that nobody knows of: `is_doubtful`. Doubts about a stream go with its copies, from life to
life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from dynatops.kit.bounded import BoundedQueue
from dynatops.v1.overlay_pb2 import (
    CopiesHeld,
    CopiesReturned,
    CopiesWanted,
    KeepCopies,
    StreamLoss,
    StreamPlaces,
)
from overlay.forwarding.links.neighbours import TreeNeighbour
from overlay.forwarding.streams.portions import (
    Portion,
    first_of,
    is_gapless,
    newer_part,
    portions_of,
    put_portion,
    size_of,
    stream_of,
)
from overlay.forwarding.streams.stream_log import LogEntry, OwnedStreams
from overlay.forwarding.tree_context import TreeContext


class CopyKeeping:
    """The copies that this broker has of its neighbours' streams."""

    def __init__(self, context: TreeContext) -> None:
        self._context = context
        self._stores: dict[str, OwnedStreams] = {}
        # Whose copies have grown since that was said.
        self._grown: dict[str, set[int]] = {}
        # Where copies must have got to before they are all there are, by neighbour and stream.
        self._due: dict[str, dict[int, int]] = {}
        self._vouched: set[str] = set()

    def holders(self) -> list[str]:
        return list(self._stores)

    def topology_changed(self) -> None:
        """Who was told by keepers that are neighbours no more knows nothing of those that are."""
        self._due.clear()
        self._vouched.clear()

    def take_over(self, holder: str) -> OwnedStreams:
        """The copies are this broker's own from now on."""
        store = self._stores.pop(holder)
        if holder not in self._vouched:
            store.doubtful.update(store.highs)
        return store

    def say_held(self, neighbour: TreeNeighbour) -> None:
        message = CopiesHeld(vouched=neighbour.broker_id in self._vouched)
        store = self._stores.get(neighbour.broker_id)
        if store is not None:
            for stream, high in store.highs.items():
                message.ranges.add(
                    stream=stream,
                    floor=store.floors[stream],
                    high=high,
                    doubtful=stream in store.doubtful,
                )
        neighbour.link.message().copies_held.CopyFrom(message)

    def on_keep(self, neighbour: TreeNeighbour, message: KeepCopies) -> None:
        holder = neighbour.broker_id
        if not message.keep:
            self._stores.pop(holder, None)
            self._due.pop(holder, None)
            self._vouched.add(holder)
            return
        store = self._stores.get(holder)
        if store is None:
            settings = self._context.settings
            store = self._stores[holder] = OwnedStreams(
                settings.copies_entries_max, settings.copies_bytes_max, self._dropped
            )
        for place in message.streams:
            if store.highs.get(place.stream, -1) < place.number:
                store.begin(place.stream)
                store.highs[place.stream] = store.floors[place.stream] = place.number
            if place.doubtful:
                store.doubtful.add(place.stream)
        self._grown.setdefault(holder, set()).update(p.stream for p in message.streams)
        due = self._due.setdefault(holder, {})
        due.update((place.stream, place.end) for place in message.streams)
        self._review_due(holder, store)

    def _review_due(self, holder: str, store: OwnedStreams) -> None:
        due = self._due.get(holder)
        if due is not None and all(store.highs.get(s, 0) >= end for s, end in due.items()):
            del self._due[holder]
            self._vouched.add(holder)

    def _dropped(self, entry: LogEntry) -> None:
        self._context.counters.tree_log_trimmed += 1

    def keep(self, holder: str, portion: Portion, *, in_turn: bool = False) -> None:
        """An event run of the holder's own has come from it: keep what continues the copies.
        `in_turn`: as a copy, after all that was before it in the holder's log."""
        store = self._stores.get(holder)
        stream = stream_of(portion)
        if store is None or stream not in store.highs:
            return
        if not in_turn and self._is_early(holder, store, stream):
            return
        high = store.highs[stream]
        newer = newer_part(portion, high)
        if newer is not None and first_of(newer) == high + 1 and is_gapless(newer):
            store.append(newer)
            if self._due:
                self._review_due(holder, store)
        self._grown.setdefault(holder, set()).add(stream)

    def _is_early(self, holder: str, store: OwnedStreams, stream: int) -> bool:
        """Whether copies of former lives are still to come before those of this one, which comes
        again after them: copies are in the order of lives."""
        due = self._due.get(holder, {})
        lives = takewhile(lambda each: each != stream, store.highs)
        return any(store.highs[each] < due.get(each, 0) for each in lives)

    def reach(self, holder: str, stream: int, number: int) -> int:
        """Up to where the copies have everything after this place."""
        store = self._stores.get(holder)
        if store is None or store.floors.get(stream, number + 1) > number:
            return number
        return max(number, store.highs[stream])

    def entries(self, holder: str, stream: int, number: int) -> Iterator[LogEntry]:
        """What the copies have of the stream after this place."""
        store = self._stores.get(holder)
        if store is None or stream not in store.highs:
            return
        for place in range(store.place_after(stream, number), store.log.end_place):
            entry = store.log[place]
            if entry.stream != stream:
                return
            yield entry

    def continuing(self, holder: str, stream: int, number: int) -> Iterator[Portion]:
        """What the copies have after this place, if nothing is missing between."""
        if self.reach(holder, stream, number) <= number:
            return
        for entry in self.entries(holder, stream, number):
            newer = None if isinstance(entry.item, StreamLoss) else newer_part(entry.item, number)
            if newer is not None:
                yield newer

    def flush(self) -> None:
        """Tell origins how far their copies reach."""
        for holder, streams in self._grown.items():
            neighbour, store = self._context.neighbours.get(holder), self._stores.get(holder)
            if neighbour is None or not neighbour.is_open or store is None:
                continue
            places = neighbour.link.message().copies_kept.places
            for stream in sorted(streams & set(store.highs)):
                places.add(stream=stream, number=store.highs[stream])
        self._grown.clear()

    def on_wanted(self, neighbour: TreeNeighbour, message: CopiesWanted) -> None:
        """Its new life asks for the next part of what it had."""
        store = self._stores.get(neighbour.broker_id)
        answer = CopiesReturned(stream=message.stream, upto=message.after)
        if store is not None and message.stream in store.highs:
            nbytes, log = 0, store.log
            start = store.place_after(message.stream, message.after)
            answer.upto = max(message.after, store.floors[message.stream])
            for at in range(start, log.end_place):
                entry = log[at]
                if entry.stream != message.stream:
                    break
                if nbytes >= self._context.settings.fetch_part_bytes:
                    break
                newer = newer_part(entry.item, message.after)  # type: ignore[arg-type]
                if newer is not None:
                    nbytes += size_of(newer)
                    put_portion(answer.events.add(), newer)
                answer.upto = entry.last
        neighbour.link.message().copies_returned.CopyFrom(answer)


@dataclass(frozen=True, slots=True)
class WaitingAck:
    """Said once the keeper has all of the own log before this place."""

    own_end: int
    say: Callable[[], None]


class CopySending:
    """The origin's side: which neighbour is the keeper, and how far it has copies."""

    def __init__(self, context: TreeContext) -> None:
        self._context = context
        self.keeper: str | None = None
        # Where the keeper must have got to so as to have all copies; None: it has. And who has been
        # told so.
        self._due: int | None = 0
        self._told_off: set[str] = set()
        # Where in the own log the next copy is, and up to where they are confirmed.
        self.place = 0
        self._confirmed = 0
        self._lost_since_s: float | None = None
        self._held: dict[str, dict[int, int]] = {}
        self._acks: BoundedQueue[WaitingAck] = BoundedQueue(
            context.settings.pending_acks_max, context.counters, "pending_acks_dropped"
        )

    @property
    def waits(self) -> bool:
        return bool(self._acks)

    def wait(self, say: Callable[[], None]) -> None:
        """Say it when all that is in the own log now has copies."""
        if not self._context.neighbours:
            say()
            return
        self._acks.put(WaitingAck(self._context.own.log.end_place, say))
        self.release()

    def are_there(self, own_end: int) -> bool:
        """Whether all of the own log before this place has copies."""
        if not self._context.neighbours:
            return True
        return self.keeper is not None and own_end <= self._confirmed

    def release(self) -> None:
        while self._acks and self.are_there(self._acks[0].own_end):
            self._acks.take().say()

    def on_held(self, neighbour: TreeNeighbour, message: CopiesHeld) -> None:
        self._held[neighbour.broker_id] = {each.stream: each.high for each in message.ranges}
        self._tell_others()

    def closed(self, broker_id: str, now_s: float) -> None:
        self._held.pop(broker_id, None)
        self._told_off.discard(broker_id)
        if broker_id == self.keeper:
            self._lost_since_s = now_s

    def topology_changed(self) -> None:
        self._held.clear()
        self._told_off.clear()
        if self.keeper not in self._context.neighbours:
            self.keeper = None
        self._lost_since_s = self._context.started_s

    def choose(self, now_s: float) -> None:
        """See to it that there is a keeper, if a neighbour is there."""
        context = self._context
        if self.keeper is not None and self.keeper in self._held:
            if self._lost_since_s is not None:
                self._appoint(self.keeper)
            return
        lost_since_s, patience_s = self._lost_since_s, context.settings.keeper_patience_s
        if self.keeper is not None and lost_since_s is not None:
            away_s = now_s - lost_since_s
        else:
            away_s = patience_s
        if away_s < patience_s:
            return
        parent = context.topology.parent(context.my_id)
        candidates = sorted(self._held, key=lambda broker_id: (broker_id != parent, broker_id))
        if candidates:
            self._appoint(candidates[0])

    def _appoint(self, broker_id: str) -> None:
        context = self._context
        own, held = context.own, self._held[broker_id]
        self.keeper, self._lost_since_s = broker_id, None
        message = KeepCopies(keep=True)
        self.place = self._confirmed = own.log.first_place
        is_behind = False
        for stream, high in own.highs.items():
            have = held.get(stream, -1)
            number = max(have, own.floors[stream])
            if not is_behind:
                self.place = self._confirmed = own.place_after(stream, number)
                is_behind = number < high
            is_doubtful = stream in own.doubtful
            message.streams.add(stream=stream, number=number, end=high, doubtful=is_doubtful)
        self._due = own.log.end_place
        self._told_off.discard(broker_id)
        context.neighbours[broker_id].link.message().keep_copies.CopyFrom(message)

    def add_stream(self, stream: int) -> None:
        """The own log has a stream more."""
        if self.keeper in self._held:
            message = KeepCopies(keep=True)
            message.streams.add(stream=stream)
            self._context.neighbours[self.keeper].link.message().keep_copies.CopyFrom(message)

    def on_kept(self, neighbour: TreeNeighbour, message: StreamPlaces) -> None:
        if neighbour.broker_id != self.keeper:
            return
        own = self._context.own
        for place in message.places:
            if place.stream in own.highs and place.number <= own.highs[place.stream]:
                confirmed = own.place_after(place.stream, place.number)
                if confirmed <= self.place:
                    self._confirmed = max(self._confirmed, confirmed)
        self.release()
        if self._due is not None and self._confirmed >= self._due:
            self._due = None
            self._tell_others()

    def _tell_others(self) -> None:
        """The keeper has all copies: nobody else need have any."""
        if self._due is not None or self.keeper not in self._held:
            return
        for broker_id in self._held:
            if broker_id != self.keeper and broker_id not in self._told_off:
                self._told_off.add(broker_id)
                self._held[broker_id] = {}
                neighbour = self._context.neighbours[broker_id]
                neighbour.link.message().keep_copies.keep = False

    def pump(self, until: int | None = None) -> None:
        """Send the keeper what it was not sent along with other events."""
        if self.keeper is None or self.keeper not in self._held:
            return
        neighbour = self._context.neighbours[self.keeper]
        own = self._context.own.log
        self.place = max(self.place, own.first_place)
        end = own.end_place if until is None else until
        while self.place < end and neighbour.link.has_room:
            entry = own[self.place]
            self.place += 1
            self._context.counters.tree_events_copied += 1
            copied = neighbour.link.message(entry.nbytes).copied
            put_portion(copied, entry.item)  # type: ignore[arg-type]


class Recovery:
    """A life that begins: what did the former ones publish?"""

    def __init__(self, context: TreeContext) -> None:
        self._context = context
        self.is_done = False
        self.is_doubtful = False
        # What neighbours have said: stream -> (floor, high).
        self._answers: dict[str, dict[int, tuple[int, int]]] = {}
        self._vouched: dict[str, bool] = {}
        # Streams that former lives had doubts of.
        self.doubtful: set[int] = set()
        self._asked: tuple[str, int] | None = None
        self._todo: list[int] | None = None

    def on_held(self, neighbour: TreeNeighbour, message: CopiesHeld) -> None:
        if self.is_done:
            return
        self._answers[neighbour.broker_id] = {
            each.stream: (each.floor, each.high) for each in message.ranges
        }
        self._vouched[neighbour.broker_id] = message.vouched
        self.doubtful.update(each.stream for each in message.ranges if each.doubtful)

    def closed(self, broker_id: str) -> None:
        self._answers.pop(broker_id, None)
        if self._asked is not None and self._asked[0] == broker_id:
            self._asked = None

    def topology_changed(self) -> None:
        self._answers.clear()
        self._asked = None

    def proceed(self, now_s: float) -> bool:
        """Go on asking; whether it has come to an end just now."""
        context = self._context
        if self.is_done:
            return False
        is_late = now_s - context.started_s >= context.settings.recovery_patience_s
        if not (set(context.neighbours) <= set(self._answers) or is_late):
            return False
        if self._asked is not None:
            return False
        if self._todo is None:
            self._todo = sorted({stream for each in self._answers.values() for stream in each})
        own = context.own
        while self._todo:
            stream = self._todo[0]
            best = self._best(stream)
            if best is None or own.highs.get(stream, -1) >= best[1][1]:
                self._todo.pop(0)
                continue
            broker_id, (floor, high) = best
            own.begin(stream, floor)
            if own.highs[stream] >= high:
                continue
            self._asked = (broker_id, stream)
            wanted = CopiesWanted(stream=stream, after=own.highs[stream])
            context.neighbours[broker_id].link.message().copies_wanted.CopyFrom(wanted)
            return False
        self.is_done = True
        self.is_doubtful = not all(
            self._vouched.get(broker_id, False) and broker_id in self._answers
            for broker_id in context.neighbours
        )
        return True

    def _best(self, stream: int) -> tuple[str, tuple[int, int]] | None:
        """The neighbour with most of the stream: that reaches farthest, and then back farthest."""
        found = [
            (ranges[stream][1], -ranges[stream][0], broker_id)
            for broker_id, ranges in self._answers.items()
            if stream in ranges
        ]
        if not found:
            return None
        high, floor, broker_id = max(found)
        return broker_id, (-floor, high)

    def on_returned(self, neighbour: TreeNeighbour, message: CopiesReturned) -> None:
        if self._asked != (neighbour.broker_id, message.stream):
            return
        self._asked = None
        own = self._context.own
        for portion in _all_portions(message):
            newer = newer_part(portion, own.highs[message.stream])
            if newer is not None:
                own.append(newer)
        if message.upto > own.highs[message.stream]:
            # Trimmed there meanwhile.
            own.highs[message.stream] = own.floors[message.stream] = message.upto
        elif message.upto < own.highs[message.stream] or not message.events:
            self._answers[neighbour.broker_id].pop(message.stream, None)


def _all_portions(message: CopiesReturned) -> Iterable[Portion]:
    return (portion for runs in message.events for portion in portions_of(runs))
