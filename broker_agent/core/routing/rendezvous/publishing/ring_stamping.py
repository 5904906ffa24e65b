"""Who stamps topics along a ring: their rendezvous points, found as for publications."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from broker_agent.core.routing.rendezvous.hosting.node_hosting import NodeHosting
from broker_agent.core.routing.rendezvous.ring_context import RingContext
from dynatops.v1.client_pb2 import Cursor
from dynatops.v1.overlay_pb2 import NodeRef, StoreMark, TermSeq, ToStamper
from overlay.base.effects import ForStamper
from overlay.base.peers import Peer


class RingStamping:
    def __init__(self, context: RingContext, hosting: NodeHosting) -> None:
        self._counters = context.counters
        self._hosting = hosting
        self._board: Callable[[ToStamper, float], None] | None = None

    @property
    def shares_numbers(self) -> bool:
        return False

    def unit_of(self, topic: str, term: int) -> str:
        return topic

    def stream_place(self, term: int) -> int:
        return 0

    def cursors_of(self, reached: Mapping[str, tuple[int, int]]) -> list[Cursor]:
        return [
            Cursor(topic=unit, seen=[TermSeq(term=term, seq=seq)])
            for unit, (term, seq) in reached.items()
        ]

    def heed(self, board: Callable[[ToStamper, float], None]) -> None:
        self._board = board

    def on_for_stamper(self, effect: ForStamper, now_s: float) -> None:
        if self._board is not None:
            self._board(effect.message, now_s)

    def send(self, marks: Sequence[StoreMark], asked: Sequence[str], now_s: float) -> None:
        self._hosting.tell_stamper(marks, asked, now_s)

    def found(self, topics: Iterable[str], by: NodeRef) -> None:
        peer = Peer.from_ref(by)
        for topic in topics:
            self._hosting.rendezvous.found(topic, peer)
