"""Looking for copies where they may still be, after the node that copied them has died.

Whoever becomes the neighbour behind a rendezvous point is sent copies of its topics, which takes a
while. Should the rendezvous point die before it says that this is done, its topics are this node's,
but who has them is whoever was the neighbour before: one of the next successors. So this node asks
these, and does nothing with topics of that range that it knows nothing of until all have answered:
to begin them anew would cut them off from their past.
"""

from __future__ import annotations

from collections.abc import Iterable

from dynatops.v1.overlay_pb2 import AskCopies, CopiesGiven
from overlay.base.context import Context
from overlay.base.identifiers import Key, NodeId, within
from overlay.base.peers import Peer
from overlay.chord.ring import Ring

# As many may have come between at one time.
_ASKED_MAX = 4


class CopySearch:
    def __init__(self, context: Context, ring: Ring) -> None:
        self._ring = ring
        self._settings = context.settings
        self._outbox = context.outbox
        self._liveness = context.liveness
        self._counters = context.counters
        # The range that copies are looked for of: (low, high]. None if all have been found.
        self.range: tuple[NodeId, NodeId] | None = None
        self._nonce = 0
        self._unanswered: dict[NodeId, Peer] = {}
        self._due_s = 0.0
        self._deadline_s = 0.0

    def concerns(self, key: Key) -> bool:
        """Whether more may yet be found of a topic with this key."""
        return self.range is not None and within(key, *self.range)

    def relied_on(self) -> Iterable[Peer]:
        """Those that are waited for."""
        return self._unanswered.values()

    def begin(self, low: NodeId, high: NodeId, now_s: float) -> None:
        """Look for copies of (low, high], and of what is being looked for already."""
        if self.range is not None:
            high = self.range[1]
        asked = [p for p in self._ring.successors if p.node_id not in (low, high)][:_ASKED_MAX]
        if not asked:
            self.range = None
            return
        self._counters.copy_searches += 1
        self.range = (low, high)
        self._nonce += 1
        self._unanswered = {peer.node_id: peer for peer in asked}
        self._deadline_s = now_s + self._settings.copy_search_patience_s
        self._ask(low, high, now_s)

    def on_copies_given(self, sender: Peer, message: CopiesGiven) -> None:
        if message.nonce == self._nonce:
            self._unanswered.pop(sender.node_id, None)
            self._end_if_answered()

    def tick(self, now_s: float) -> None:
        if self.range is None:
            return
        for node_id in [n for n in self._unanswered if self._liveness.is_condemned(n)]:
            del self._unanswered[node_id]
        if now_s >= self._deadline_s:
            self._counters.copy_searches_abandoned += 1
            self._unanswered.clear()
        self._end_if_answered()
        if self.range is not None and now_s >= self._due_s:
            self._ask(*self.range, now_s)

    def _ask(self, low: NodeId, high: NodeId, now_s: float) -> None:
        """At once, and again where no answer comes: others may wait for what is found."""
        self._due_s = now_s + self._settings.claim_retry_s
        ask = AskCopies(low=low, end=high, nonce=self._nonce)
        for peer in self._unanswered.values():
            self._outbox.to(peer).messages.add(ask_copies=ask)

    def _end_if_answered(self) -> None:
        if not self._unanswered:
            self.range = None
