"""Repair: what meets some filters, of all streams on this side, from given places on.

    all is here (`stretches.py`) --read--> answered
       |
    not all: the neighbour is asked --its last part--> answered
       |     ^
    link down, link up
       v     |
    what is here is read --no link for long--> given up: the rest is told as lost

Whoever holds a stream answers for it from its log; a broker in between answers in place of those
neighbours that could have nothing more, asks all others, and passes on what comes, a part at a
time, asked for when the one before is out of its hands. An answer ends where the holder stands by
then, or, if it is not from the holder, where whoever answers stands; what is published later comes
live, because tables go before fetches on every link. It serves neighbours that begin a session,
neighbours that ask for others, and sessions of this broker. Of every stream that was asked for
there is an answer: what lies behind a link that stays down, is no longer retained, or what nobody
has a word of, is told as lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dynatops.kit.bounded import BoundedTable, Past
from dynatops.kit.filters import Filter
from dynatops.v1.overlay_pb2 import StreamLoss, StreamPlace, TreeFetch, TreeFetched
from overlay.forwarding.keeping.stretches import ENTRIES_AT_ONCE, Stretches, StretchReading
from overlay.forwarding.streams.filter_set import FilterSet
from overlay.forwarding.streams.known_streams import ALL_READ, is_stream_of, place_message
from overlay.forwarding.streams.portions import (
    Portion,
    newer_part,
    portions_of,
    put_portion,
    size_of,
)
from overlay.forwarding.streams.stream_log import LogEntry
from overlay.forwarding.tables.held_filters import HERE
from overlay.forwarding.tree_context import TreeContext


@dataclass(slots=True)
class _Sub:
    """What one neighbour is asked for. While its link is down nobody is."""

    fetch_id: int
    is_asked: bool
    since_s: float
    # Streams that it has said something of, since it was asked.
    answered: set[int] = field(default_factory=set)
    # What is read here in its place.
    reading: StretchReading | None = None


class OpenFetch:
    def __init__(
        self,
        asker: str,
        filters: Iterable[Filter],
        places: Mapping[int, tuple[int, str]],
        take: Callable[[TreeFetched], None],
        has_room: Callable[[], bool],
        *,
        unnamed: bool,
        also: Callable[[], Iterable[Filter]] = tuple,
        may_end: Callable[[], bool] = lambda: True,
    ) -> None:
        # The neighbour that it is for; `HERE` for this broker's sessions.
        self.asker = asker
        self.wanted = FilterSet(filters)
        # Stream -> what is had of it, and who holds it.
        self.places = dict(places)
        self.unnamed = unnamed
        # What the asker wants by the time when a neighbour is asked.
        self._also = also
        self.take = take
        self.has_room = has_room
        self.subs: dict[str, _Sub] = {}
        # Own streams still to be read, and whether they have been looked at.
        self.own_todo: deque[int] = deque()
        self.is_own_begun = False
        # Parts that came and wait for room, by the neighbour to ask for more.
        self.waiting: deque[tuple[str, TreeFetched]] = deque()
        self.is_done = False
        self.may_end = may_end
        # What is heard of first after this comes live, from its beginning.
        self.streams_before = 0
        # Streams of which all has been said.
        self.answered: set[int] = set()

    def renew_filters(self) -> None:
        more = set(self._also()) - set(self.wanted.filters)
        if more:
            self.wanted = FilterSet((*self.wanted.filters, *more))


class Fetches:
    def __init__(self, context: TreeContext, stretches: Stretches) -> None:
        self._context = context
        self._stretches = stretches
        self._open: BoundedTable[int, OpenFetch] = BoundedTable(
            context.settings.fetches_max,
            context.counters,
            "tree_fetches_refused",
            past=Past.NEWEST,
        )
        # Fetch of a sub -> the fetch that it is for.
        self._of_sub: dict[tuple[str, int], int] = {}
        self._next_id = 0
        # Whether this broker knows what it holds; and whether there may be more that nobody knows.
        self.may_read_own = False
        self.is_doubtful = False

    def __len__(self) -> int:
        return len(self._open)

    # ---- beginning and ending -------------------------------------------------------------------

    def begin(self, fetch: OpenFetch, now_s: float) -> int | None:
        """Its id here; None if there are too many."""
        context = self._context
        self._next_id += 1
        fetch_id = self._next_id
        if not self._open.put(fetch_id, fetch):
            return None
        context.counters.tree_fetches += 1
        fetch.streams_before = context.streams.ever_known
        for broker_id in context.neighbours:
            if broker_id != fetch.asker:
                fetch.subs[broker_id] = _Sub(0, False, now_s)
                self._ask(fetch_id, fetch, broker_id, now_s)
        return fetch_id

    def cancel(self, fetch_id: int) -> OpenFetch | None:
        fetch = self._open.pop(fetch_id, None)
        if fetch is None:
            return None
        for broker_id, sub in fetch.subs.items():
            if sub.is_asked:
                self._of_sub.pop((broker_id, sub.fetch_id), None)
                neighbour = self._context.neighbours.get(broker_id)
                if neighbour is not None and neighbour.is_open:
                    neighbour.link.message().tree_fetch_end.id = sub.fetch_id
        return fetch

    def cancel_of(self, asker: str) -> None:
        """The session of the neighbour that they were for has ended."""
        for fetch_id in [key for key, fetch in self._open.items() if fetch.asker == asker]:
            self.cancel(fetch_id)

    def closed(self, broker_id: str, now_s: float) -> None:
        """The link is down: what was asked there must be asked again."""
        for fetch in self._open.values():
            sub = fetch.subs.get(broker_id)
            if sub is not None and sub.is_asked:
                self._of_sub.pop((broker_id, sub.fetch_id), None)
                sub.is_asked, sub.since_s = False, now_s
                sub.answered, sub.reading = set(), None

    def opened(self, broker_id: str, now_s: float) -> None:
        for fetch_id, fetch in self._open.items():
            if broker_id in fetch.subs:
                self._ask(fetch_id, fetch, broker_id, now_s)

    def topology_changed(self, now_s: float) -> None:
        """Those of sessions here go on with the neighbours that there are now."""
        neighbours = self._context.neighbours
        for fetch in self._open.values():
            fetch.subs = {broker_id: _Sub(0, False, now_s) for broker_id in neighbours}
            fetch.waiting.clear()
        self._of_sub.clear()

    def _ask(self, fetch_id: int, fetch: OpenFetch, broker_id: str, now_s: float) -> None:
        context = self._context
        neighbour = context.neighbours[broker_id]
        sub = fetch.subs[broker_id]
        if not neighbour.has_positions or sub.is_asked:
            return
        if self._reading_of(fetch, broker_id).is_all:
            # That is done here, in its turn.
            return
        self._next_id += 1
        sub.fetch_id, sub.is_asked, sub.since_s = self._next_id, True, now_s
        sub.answered, sub.reading = set(), None
        self._of_sub[broker_id, sub.fetch_id] = fetch_id
        message = TreeFetch(id=sub.fetch_id, unnamed=fetch.unnamed)
        for each in fetch.wanted.filters:
            message.filters.add(pattern=each.pattern, where=each.where)
        for stream, (number, holder) in fetch.places.items():
            if context.is_beyond(broker_id, holder):
                message.places.add(stream=stream, number=number, holder=holder)
        neighbour.link.message().tree_fetch.CopyFrom(message)

    # ---- answers --------------------------------------------------------------------------------

    def on_part(self, broker_id: str, part: TreeFetched) -> None:
        fetch_id = self._of_sub.get((broker_id, part.id))
        fetch = self._open.get(fetch_id) if fetch_id is not None else None
        if fetch is None:
            return
        for place in (*part.streams, *part.ends):
            had, _ = fetch.places.get(place.stream, (0, ""))
            fetch.places[place.stream] = (max(had, place.number), place.holder)
        fetch.subs[broker_id].answered.update(streams_in(part))
        fetch.waiting.append((broker_id, part))

    def pump(self, now_s: float) -> None:
        """Pass on what there is room for."""
        for fetch_id, fetch in list(self._open.items()):
            self._pump(fetch_id, fetch, now_s)

    def _pump(self, fetch_id: int, fetch: OpenFetch, now_s: float) -> None:
        while fetch.has_room():
            if fetch.waiting:
                self._pass_on(fetch, *fetch.waiting.popleft())
            elif self.may_read_own and not fetch.is_own_begun:
                fetch.take(self._begin_own(fetch))
            elif fetch.own_todo:
                fetch.take(self._read_own(fetch))
            elif (read := self._read_stretch(fetch_id, fetch, now_s)) is not None:
                fetch.take(read)
            else:
                break
        is_complete = fetch.is_own_begun and not (fetch.own_todo or fetch.waiting or fetch.subs)
        if is_complete and fetch.may_end():
            self._open.pop(fetch_id, None)
            fetch.is_done = True
            last = self._unheard_of(fetch)
            last.done = True
            fetch.take(last)

    def _unheard_of(self, fetch: OpenFetch) -> TreeFetched:
        """Nobody knows anything of these. Brokers in between leave it to who began to ask."""
        part = TreeFetched()
        if fetch.asker == HERE:
            for stream, (number, _) in fetch.places.items():
                known = self._context.streams.get(stream)
                is_past = known is None or (
                    self._context.is_orphan(known.holder) and number < known.number
                )
                is_told = stream in fetch.answered or number >= ALL_READ
                if is_past and not is_told:
                    part.losses.add(stream=stream, after=number)
        return part

    def _reading_of(self, fetch: OpenFetch, broker_id: str) -> StretchReading:
        """What is to be had here of what lies there."""
        sub = fetch.subs[broker_id]
        if sub.reading is None:
            fetch.renew_filters()
            sub.reading = self._stretches.begin(
                broker_id, fetch.wanted, fetch.places, unnamed=fetch.unnamed
            )
            self._context.counters.tree_fetches_read_here += not sub.reading.is_over
        return sub.reading

    def _read_stretch(self, fetch_id: int, fetch: OpenFetch, now_s: float) -> TreeFetched | None:
        """In place of neighbours that could have nothing more, or whose links are down."""
        for broker_id, sub in list(fetch.subs.items()):
            is_open = self._context.neighbours[broker_id].is_open
            if sub.is_asked or (is_open and sub.reading is None):
                continue
            reading, part = self._reading_of(fetch, broker_id), None
            if not reading.is_over:
                part = self._stretches.read(reading, fetch.places, fetch.wanted)
            if reading.is_over:
                sub.answered |= reading.answered
            if reading.is_over and reading.is_all:
                fetch.answered |= fetch.subs.pop(broker_id).answered
            elif is_open and not reading.is_all:
                # The log has dropped what would have come next.
                self._ask(fetch_id, fetch, broker_id, now_s)
            if part is not None:
                return part
        return None

    def _pass_on(self, fetch: OpenFetch, broker_id: str, part: TreeFetched) -> None:
        sub = fetch.subs.get(broker_id)
        passed = TreeFetched()
        passed.CopyFrom(part)
        passed.id, passed.done = 0, False
        if sub is not None and sub.is_asked and sub.fetch_id == part.id:
            if part.done:
                self._of_sub.pop((broker_id, part.id), None)
                fetch.answered |= sub.answered
                self._give_up(fetch, broker_id, passed)
            else:
                more = self._context.neighbours[broker_id].link.message().tree_fetch_more
                more.id = part.id
        fetch.take(passed)

    # ---- own streams ----------------------------------------------------------------------------

    def _begin_own(self, fetch: OpenFetch) -> TreeFetched:
        """Which streams there are, and what is known to be lost."""
        context = self._context
        own, part = context.own, TreeFetched()
        fetch.is_own_begun = True
        fetch.renew_filters()
        for stream in own.highs:
            if stream not in fetch.places and not fetch.unnamed:
                continue
            number, _ = fetch.places.get(stream, (0, ""))
            fetch.places[stream] = (number, context.my_id)
            fetch.own_todo.append(stream)
            known = context.streams.get(stream)
            if known is not None:
                part.streams.append(place_message(known, number))
        for stream, (number, holder) in list(fetch.places.items()):
            is_mine = holder == context.my_id or is_stream_of(stream, context.my_id)
            if is_mine and stream not in own.highs:
                # A former life's. If all neighbours have been asked, no more of it was replicated.
                place = StreamPlace(stream=stream, number=number, holder=context.my_id)
                is_doubtful = self.is_doubtful or own.begins_after(stream)
                if is_doubtful and number < ALL_READ:
                    part.losses.add(stream=stream, after=number)
                else:
                    place.closed, place.end = True, number
                part.streams.append(place)
        fetch.answered |= streams_in(part)
        return part

    def _read_own(self, fetch: OpenFetch) -> TreeFetched:
        own, settings = self._context.own, self._context.settings
        part, nbytes = TreeFetched(), 0
        stream = fetch.own_todo[0]
        number, holder = fetch.places[stream]
        if number < own.floors[stream]:
            part.losses.add(stream=stream, after=number, upto=own.floors[stream])
            number = own.floors[stream]
        place = own.place_after(stream, number)
        for at in range(place, min(place + ENTRIES_AT_ONCE, own.log.end_place)):
            entry = own.log[at]
            if entry.stream != stream or nbytes >= settings.fetch_part_bytes:
                break
            wanted = self._wanted_of(fetch, entry, number)
            number = entry.last
            if wanted is not None:
                nbytes += size_of(wanted)
                put_portion(part.events.add(), wanted)
        if number >= own.highs[stream]:
            fetch.own_todo.popleft()
            if stream in own.doubtful and number < ALL_READ:
                part.losses.add(stream=stream, after=number)
        fetch.places[stream] = (number, holder)
        part.ends.add(stream=stream, number=number, holder=holder)
        return part

    def _wanted_of(self, fetch: OpenFetch, entry: LogEntry, after: int) -> Portion | None:
        if isinstance(entry.item, StreamLoss):
            return None
        newer = newer_part(entry.item, after)
        return fetch.wanted.part_of(newer) if newer is not None else None

    # ---- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """What lies behind links that stay down is given up, once all is read that is here."""
        patience_s = self._context.settings.fetch_patience_s
        for fetch in self._open.values():
            for broker_id, sub in list(fetch.subs.items()):
                is_away = not sub.is_asked and not self._context.neighbours[broker_id].is_open
                is_read = sub.reading is not None and sub.reading.is_over
                if is_away and is_read and now_s - sub.since_s >= patience_s:
                    part = TreeFetched()
                    fetch.answered |= sub.answered
                    self._give_up(fetch, broker_id, part)
                    fetch.waiting.append((broker_id, part))

    def _give_up(self, fetch: OpenFetch, broker_id: str, part: TreeFetched) -> None:
        """Nothing more comes from there. Of what it has said nothing of, as much as this broker
        itself has had is told as lost; where this broker has had less, the neighbour will say
        from where on it goes on."""
        context = self._context
        answered = fetch.subs.pop(broker_id).answered
        for known in context.streams:
            if context.direction(known.holder) != broker_id or known.stream in answered:
                continue
            is_past = fetch.unnamed and known.ordinal < fetch.streams_before
            if known.stream not in fetch.places and not is_past:
                continue
            number, _ = fetch.places.get(known.stream, (0, ""))
            fetch.answered.add(known.stream)
            if known.number > number:
                part.streams.append(place_message(known, number))
                part.losses.add(stream=known.stream, after=number, upto=known.number)


def streams_in(part: TreeFetched) -> set[int]:
    """Those that it says something of."""
    places = {place.stream for places in (part.streams, part.ends) for place in places}
    return places | {loss.stream for loss in part.losses}


def portions_in(part: TreeFetched) -> list[Portion]:
    return [portion for runs in part.events for portion in portions_of(runs)]
