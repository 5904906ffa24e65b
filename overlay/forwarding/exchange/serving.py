"""Giving each neighbour what it wants, from where it is: after it was away from a repair, or from
the log, and live from the log while its link has room. What is said of streams that had nothing
for it comes in the same order, and so does the word that its table is in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from dynatops.kit.bundles import Bundle
from dynatops.v1.overlay_pb2 import LinkPositions, StreamLoss, StreamPlace, TreeFetched
from overlay.forwarding.exchange.table_exchange import TableExchange
from overlay.forwarding.keeping.copies import CopySending, Recovery
from overlay.forwarding.keeping.fetches import Fetches, OpenFetch, portions_in
from overlay.forwarding.links.neighbours import OwedConfirmation, ServingState, TreeNeighbour
from overlay.forwarding.streams.filter_set import FilterSet
from overlay.forwarding.streams.known_streams import place_message
from overlay.forwarding.streams.portions import (
    Portion,
    events_in,
    last_of,
    newer_part,
    size_of,
    stream_of,
)
from overlay.forwarding.streams.stream_log import LogEntry
from overlay.forwarding.tree_context import TreeContext


class NeighbourServing:
    def __init__(
        self,
        context: TreeContext,
        exchange: TableExchange,
        fetches: Fetches,
        sending: CopySending,
        recovery: Recovery,
    ) -> None:
        self._context = context
        self._exchange = exchange
        self._fetches = fetches
        self._sending = sending
        self._recovery = recovery
        # Whether this broker's streams may be sent: what is on them is advertised, and wanted.
        self.may_serve = False
        # Neighbours that resume, and the fetch that does it.
        self._resuming: dict[str, int] = {}

    def forget(self, broker_id: str) -> None:
        """Its session has ended."""
        self._resuming.pop(broker_id, None)

    def tick(self, now_s: float) -> None:
        for neighbour in self._context.neighbours.values():
            if neighbour.is_outdated and neighbour.broker_id in self._resuming:
                self.resume_again(neighbour, now_s)

    def on_positions(self, neighbour: TreeNeighbour, message: LinkPositions, now_s: float) -> None:
        neighbour.positions = message

    def serve_opened(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """Its table and its positions are known: let it have what it misses."""
        message = neighbour.positions
        if message is None or not self.may_serve:
            return
        neighbour.positions = None
        log, sent = self._context.log, neighbour.sent
        named = {place.stream: place.number for place in message.places}
        neighbour.moved.clear()
        sent.clear()
        self._close_unknown(neighbour, message.places)
        if message.is_new:
            sent.update(self._context.streams.positions())
        sent.update(named)
        if message.is_new and not named:
            neighbour.dropped.clear()
            neighbour.cursor = log.end_place
            self._go_live(neighbour)
            return
        begins = {s.stream: s.begin for s in self._context.streams_for(neighbour.broker_id)}
        is_complete = (
            neighbour.is_kept
            and not message.is_new
            and all(
                neighbour.dropped.get(stream, 0) <= named.get(stream, begin)
                for stream, begin in begins.items()
            )
        )
        if is_complete:
            for stream, begin in begins.items():
                sent.setdefault(stream, begin)
            neighbour.cursor = log.first_place
            self._go_live(neighbour)
            return
        places = {p.stream: (p.number, p.holder) for p in message.places}
        self._resume(neighbour, places, now_s, unnamed=not message.is_new)

    def _close_unknown(self, neighbour: TreeNeighbour, places: Iterable[StreamPlace]) -> None:
        """Streams of this broker's former lives that nobody has given back."""
        for place in places:
            if place.holder != self._context.my_id or place.stream in self._context.own.highs:
                continue
            if self._recovery.is_doubtful or self._context.own.begins_after(place.stream):
                loss = StreamLoss(stream=place.stream, after=place.number)
                neighbour.link.message().loss.CopyFrom(loss)
                continue
            closed = neighbour.link.message().streams.places.add()
            closed.CopyFrom(place)
            closed.closed, closed.end = True, place.number

    def _resume(
        self,
        neighbour: TreeNeighbour,
        places: dict[int, tuple[int, str]],
        now_s: float,
        *,
        unnamed: bool = True,
    ) -> None:
        neighbour.state, neighbour.is_kept = ServingState.RESUMING, False
        neighbour.is_outdated = False
        neighbour.cursor = self._context.log.end_place
        neighbour.dropped.clear()
        self._exchange.tell_tables()
        fetch = OpenFetch(
            neighbour.broker_id,
            self._context.tables.sent_to(neighbour.broker_id),
            places,
            partial(self._take_for_link, neighbour),
            lambda: neighbour.link.has_room and not neighbour.is_outdated,
            unnamed=unnamed,
            also=lambda: self._context.tables.sent_to(neighbour.broker_id),
            may_end=lambda: not neighbour.is_outdated,
        )
        fetch_id = self._fetches.begin(fetch, now_s)
        if fetch_id is None:
            neighbour.is_kept = False
            neighbour.link.set_topology(
                self._context.topology.version, self._context.topology.digest, now_s
            )
            return
        self._resuming[neighbour.broker_id] = fetch_id

    def resume_again(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """It wants more than is being fetched for it: from where it is now on, it gets that, too.
        What it wants of before, it fetches itself."""
        fetch = self._fetches.cancel(self._resuming.pop(neighbour.broker_id))
        if fetch is None:
            return
        sent = neighbour.sent
        places = {
            stream: (sent[stream], holder)
            for stream, (_, holder) in fetch.places.items()
            if stream in sent
        }
        self._resume(neighbour, places, now_s, unnamed=fetch.unnamed)

    def _take_for_link(self, neighbour: TreeNeighbour, part: TreeFetched) -> None:
        """What a neighbour that resumes has missed goes to it like what is new."""
        link, sent = neighbour.link, neighbour.sent
        if part.streams:
            link.message().streams.places.extend(part.streams)
            for place in part.streams:
                sent.setdefault(place.stream, place.number)
        for loss in part.losses:
            self._send_loss(neighbour, loss)
        wanted = None
        if self._context.topology.advertisements:
            # Those who were asked know only what was told by all on the way.
            wanted = FilterSet(self._context.tables.sent_to(neighbour.broker_id))
        for portion in portions_in(part):
            newer = newer_part(portion, sent.get(stream_of(portion), 0))
            if newer is not None and wanted is not None:
                newer = wanted.part_of(newer)
            if newer is not None:
                self._send_portion(neighbour, newer)
        if part.ends:
            link.message().progress.places.extend(part.ends)
            for place in part.ends:
                sent[place.stream] = max(sent.get(place.stream, 0), place.number)
        if part.done:
            self._resuming.pop(neighbour.broker_id, None)
            self._go_live(neighbour)

    def _go_live(self, neighbour: TreeNeighbour) -> None:
        neighbour.state = ServingState.LIVE
        neighbour.resumed_number = neighbour.link.sent_number
        places = [
            place_message(known, neighbour.sent.setdefault(known.stream, known.begin))
            for known in self._context.streams_for(neighbour.broker_id)
        ]
        if places:
            neighbour.link.message().streams.places.extend(places)
        neighbour.moved.update(p.stream for p in places)
        for stream in sorted(self._context.own.doubtful):
            # Of former lives there may have been more.
            loss = StreamLoss(stream=stream, after=self._context.own.highs[stream])
            neighbour.link.message().loss.CopyFrom(loss)

    def _send_portion(self, neighbour: TreeNeighbour, portion: Portion) -> None:
        neighbour.sent[stream_of(portion)] = last_of(portion)
        self._context.counters.tree_events_forwarded += events_in(portion)
        if isinstance(portion, Bundle):
            portion.fill(neighbour.link.message(size_of(portion)).forwarded.bundles.add())
        else:
            neighbour.link.add_run(portion, size_of(portion))

    def _send_loss(self, neighbour: TreeNeighbour, loss: StreamLoss) -> None:
        if loss.upto and loss.upto <= neighbour.sent.get(loss.stream, 0):
            return
        neighbour.link.message().loss.CopyFrom(loss)
        if loss.upto:
            neighbour.sent[loss.stream] = loss.upto

    def serve(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """Send what the log has for it, while there is room."""
        if neighbour.link.confirmed_number >= neighbour.resumed_number:
            neighbour.is_kept = True
        log = self._context.log
        if neighbour.cursor < log.first_place:
            if self._has_missed(neighbour):
                self._begin_again(neighbour, now_s)
                return
            neighbour.cursor = log.first_place
        link, broker_id, end = neighbour.link, neighbour.broker_id, log.end_place
        while neighbour.cursor < end and link.has_room:
            entry = log[neighbour.cursor]
            neighbour.cursor += 1
            if broker_id in entry.targets:
                self._send_entry(neighbour, entry)
        self._say_confirmed(neighbour)

    def _send_entry(self, neighbour: TreeNeighbour, entry: LogEntry) -> None:
        sent = neighbour.sent.get(entry.stream, 0)
        if isinstance(entry.item, StreamLoss):
            self._send_loss(neighbour, entry.item)
            return
        if entry.last <= sent:
            return
        sending = self._sending
        if entry.own_place > sending.place and sending.keeper == neighbour.broker_id:
            sending.pump(entry.own_place)
        if (
            entry.own_place >= 0
            and entry.own_place == sending.place
            and (sending.keeper == neighbour.broker_id)
        ):
            # What it wants of it, and the copy, in one.
            sending.place += 1
            portion: Portion | None = newer_part(entry.item, sent)
        else:
            portion = newer_part(entry.parts.get(neighbour.broker_id, entry.item), sent)
        if portion is not None:
            self._send_portion(neighbour, portion)

    def _has_missed(self, neighbour: TreeNeighbour) -> bool:
        """Whether the log has dropped what it was to be sent."""
        sent = neighbour.sent
        return any(last > sent.get(stream, 0) for stream, last in neighbour.dropped.items())

    def _begin_again(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """The log was too small for it: what it has missed is fetched."""
        places = {
            known.stream: (neighbour.sent.get(known.stream, known.begin), known.holder)
            for known in self._context.streams_for(neighbour.broker_id)
        }
        self._resume(neighbour, places, now_s)

    def _say_confirmed(self, neighbour: TreeNeighbour) -> None:
        log = self._context.log
        if neighbour.owed is None and neighbour.ready_version > neighbour.said_version:
            positions = {
                stream: known.number
                for stream in neighbour.moved
                if (known := self._context.streams.get(stream)) is not None
            }
            neighbour.moved.clear()
            neighbour.owed = OwedConfirmation(neighbour.ready_version, log.end_place, positions)
        owed = neighbour.owed
        if owed is not None and neighbour.cursor >= owed.place:
            neighbour.owed = None
            self._say_progress(neighbour, owed.positions)
            neighbour.said_version = owed.version
            neighbour.link.message().table_confirmed.version = owed.version

    def _say_progress(self, neighbour: TreeNeighbour, positions: Mapping[int, int]) -> None:
        places = []
        for stream, number in positions.items():
            known = self._context.streams.get(stream)
            if known is None or number <= neighbour.sent.get(stream, 0):
                continue
            if self._context.direction(known.holder) == neighbour.broker_id:
                continue
            neighbour.sent[stream] = number
            places.append(StreamPlace(stream=stream, number=number, holder=known.holder))
        if places:
            neighbour.link.message().progress.places.extend(places)

    def tell_progress(self) -> None:
        """How far streams are that had nothing for a neighbour."""
        for neighbour in self._context.neighbours.values():
            if neighbour.state is not ServingState.LIVE or neighbour.owed is not None:
                continue
            if neighbour.cursor < self._context.log.end_place:
                continue
            moved = {
                stream: known.number
                for stream in neighbour.moved
                if (known := self._context.streams.get(stream)) is not None
            }
            neighbour.moved.clear()
            self._say_progress(neighbour, moved)
