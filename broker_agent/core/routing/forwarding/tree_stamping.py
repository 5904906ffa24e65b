"""Who stamps events in a tree: the broker whose publishers they are of, which a stream's number
tells.

Publishers' brokers stamp themselves, so that marks asked for are this broker's own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from broker_agent.core.base.store_units import stream_unit
from broker_agent.core.routing.forwarding.forwarding_context import ForwardingContext
from dynatops.kit.topics import STREAMS
from dynatops.v1.client_pb2 import Cursor
from dynatops.v1.overlay_pb2 import (
    NodeRef,
    PeerFrame,
    PeerMessage,
    StoreMark,
    TermSeq,
    ToStamper,
)
from overlay.forwarding.streams.known_streams import is_stream_of


class TreeStamping:
    def __init__(self, context: ForwardingContext) -> None:
        self._forwarder = context.forwarder
        self._outbox = context.outbox
        self._board: Callable[[ToStamper, float], None] | None = None

    @property
    def shares_numbers(self) -> bool:
        return True

    def unit_of(self, topic: str, term: int) -> str:
        return stream_unit(term)

    def stream_place(self, term: int) -> int:
        return self._forwarder.positions().get(term, 0)

    def cursors_of(self, reached: Mapping[str, tuple[int, int]]) -> list[Cursor]:
        seen = [TermSeq(term=stream, seq=number) for stream, number in reached.values()]
        return [Cursor(topic=STREAMS, seen=seen)]

    def heed(self, board: Callable[[ToStamper, float], None]) -> None:
        self._board = board

    def on_to_stamper(self, sender: NodeRef, message: ToStamper, now_s: float) -> None:
        if self._board is not None:
            self._board(message, now_s)

    def send(self, marks: Sequence[StoreMark], asked: Sequence[str], now_s: float) -> None:
        me = self._forwarder.me
        messages: dict[str, ToStamper] = {}
        if asked:
            messages[me.broker_id] = ToStamper(origin=me.ref, asked=asked)
        origins: dict[int, str] = {}
        for mark in marks:
            origin = origins.get(mark.term)
            if origin is None:
                origin = origins[mark.term] = self._origin_of(mark.term)
            message = messages.get(origin)
            if message is None:
                message = messages[origin] = ToStamper(origin=me.ref)
            message.marks.append(mark)
        addresses = self._forwarder.topology.addresses
        for broker_id, message in messages.items():
            if broker_id == me.broker_id:
                self.on_to_stamper(me.ref, message, now_s)
            elif broker_id in addresses:
                frame = PeerFrame(sender=me.ref, messages=[PeerMessage(to_stamper=message)])
                self._outbox.send(addresses[broker_id], frame)

    def _origin_of(self, stream: int) -> str:
        """Empty if that broker is in the topology no more: nobody waits there."""
        return next((b for b in self._forwarder.topology.addresses if is_stream_of(stream, b)), "")

    def found(self, topics: Iterable[str], by: NodeRef) -> None:
        """Names of brokers are in the topology; nothing had to be looked for."""
