"""What is heard and told of streams, beside their events: that they are there, who holds them, how
far they are, that they have ended, and what of them is lost.
"""

from __future__ import annotations

from dynatops.v1.overlay_pb2 import StreamLoss, StreamPlace, StreamPlaces
from overlay.base.identifiers import NUMBER_MAX
from overlay.forwarding.forwarding_effects import LossRange, StreamLost
from overlay.forwarding.links.neighbours import ServingState, TreeNeighbour
from overlay.forwarding.streams.known_streams import KnownStream, place_message
from overlay.forwarding.tree_context import TreeContext


class StreamNews:
    def __init__(self, context: TreeContext) -> None:
        self._context = context

    def on_streams(self, neighbour: TreeNeighbour, message: StreamPlaces, now_s: float) -> None:
        for place in message.places:
            self.learn_stream(neighbour, place)

    def learn_stream(self, neighbour: TreeNeighbour, place: StreamPlace) -> None:
        context = self._context
        if place.holder == context.my_id or max(place.number, place.end) > NUMBER_MAX:
            return
        if not context.is_beyond(neighbour.broker_id, place.holder):
            return
        known = self._context.streams.get(place.stream)
        is_news = known is None
        if known is None:
            is_begun = neighbour.is_new_here and not neighbour.is_late
            begin = place.number if is_begun else 0
            known = self._context.streams.add(place.stream, place.holder, begin)
        if place.number > known.number:
            # What lies between is not to be had from there, and was not told before.
            self.lose(
                neighbour, StreamLoss(stream=place.stream, after=known.number, upto=place.number)
            )
        if known.holder != place.holder and place.holder in context.topology:
            known.holder, known.orphan_since_s, is_news = place.holder, None, True
        if place.closed and known.end is None:
            known.end, is_news = place.end, True
        if is_news:
            self.announce(known, neighbour)

    def announce(self, known: KnownStream, source: TreeNeighbour | None) -> None:
        for other in self._context.neighbours.values():
            if other is source or other.state is not ServingState.LIVE:
                continue
            if self._context.direction(known.holder) == other.broker_id:
                continue
            number = other.sent.setdefault(known.stream, known.begin)
            other.link.message().streams.places.append(place_message(known, number))

    def advance(self, known: KnownStream, number: int, source: TreeNeighbour | None) -> None:
        known.number = number
        for other in self._context.neighbours.values():
            if other is not source:
                other.moved.add(known.stream)

    def on_progress(self, neighbour: TreeNeighbour, message: StreamPlaces, now_s: float) -> None:
        for place in message.places:
            known = self._context.streams.get(place.stream)
            if known is None or not self.comes_from(neighbour, known):
                continue
            if known.number < place.number <= NUMBER_MAX:
                self.advance(known, place.number, neighbour)

    def comes_from(self, neighbour: TreeNeighbour, known: KnownStream) -> bool:
        return self._context.is_beyond(neighbour.broker_id, known.holder)

    def on_loss(self, neighbour: TreeNeighbour, message: StreamLoss, now_s: float) -> None:
        self.lose(neighbour, message)

    def lose(self, source: TreeNeighbour | None, loss: StreamLoss) -> None:
        known = self._context.streams.get(loss.stream)
        if known is None or (source is not None and not self.comes_from(source, known)):
            return
        if loss.upto and loss.upto <= known.number:
            return
        if not loss.upto and known.end is not None:
            return
        told = StreamLoss(stream=loss.stream, after=max(known.number, loss.after), upto=loss.upto)
        self._context.counters.tree_losses += 1
        self._context.effects.append(
            StreamLost(LossRange(told.stream, told.after, told.upto or None))
        )
        entry = self._context.log.append_loss(told)
        entry.targets = frozenset(
            n.broker_id for n in self._context.neighbours.values() if n is not source
        )
        if told.upto:
            self.advance(known, told.upto, source)
        else:
            known.end, known.is_doubtful = known.number, True

    def review_streams(self, now_s: float) -> None:
        """What nobody holds any more is lost, and in the end forgotten."""
        context, settings = self._context, self._context.settings
        for known in self._context.streams:
            if known.holder == context.my_id:
                continue
            if not context.is_orphan(known.holder):
                known.orphan_since_s = None
            elif known.orphan_since_s is None:
                known.orphan_since_s = now_s
            elif now_s - known.orphan_since_s >= settings.recovery_patience_s:
                self.lose(None, StreamLoss(stream=known.stream, after=known.number))
            since_s = known.orphan_since_s
            if since_s is not None and now_s - since_s >= settings.stream_forget_s:
                # Nobody can send it any more: it need not be known as a repeat.
                self._context.streams.forget(known.stream)
                for neighbour in context.neighbours.values():
                    neighbour.sent.pop(known.stream, None)
                    neighbour.moved.discard(known.stream)
