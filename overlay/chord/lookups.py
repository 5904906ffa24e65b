"""Lookups: who is responsible for a key? Asked of the ring, hop by hop; answered directly.

A lookup travels to the key's predecessor, which answers its origin with its own list of successors;
the first of them is responsible. That one answer serves joining, fingers and finding one's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynatops.v1.overlay_pb2 import Found, Lookup
from overlay.base.context import Context
from overlay.base.identifiers import Key, within
from overlay.base.peers import Peer
from overlay.chord.routing import RoutingTable


@dataclass(frozen=True, slots=True)
class PendingLookup:
    """A lookup under way: for finger `exponent`, or (None) to find where this node belongs."""

    exponent: int | None
    deadline_s: float


class Lookups:
    def __init__(self, context: Context) -> None:
        self._me = context.me
        self._settings = context.settings
        self._outbox = context.outbox
        self._directory = context.directory
        self._counters = context.counters
        self._nonce = context.rng.getrandbits(32)
        self._pending: dict[int, PendingLookup] = {}

    def start(self, key: Key, exponent: int | None, now_s: float) -> Lookup:
        self._nonce += 1
        deadline_s = now_s + self._settings.lookup_timeout_s
        self._pending[self._nonce] = PendingLookup(exponent, deadline_s)
        return Lookup(key=key, nonce=self._nonce, origin=self._me.ref)

    def answered(self, message: Found) -> PendingLookup | None:
        """What was asked; None if nothing was, or too long ago."""
        return self._pending.pop(message.nonce, None)

    def tick(self, now_s: float) -> None:
        for nonce in [n for n, p in self._pending.items() if p.deadline_s <= now_s]:
            del self._pending[nonce]

    def serve(self, message: Lookup, successors: Sequence[Peer], routes: RoutingTable) -> None:
        """Answer a lookup that ends here, or pass it on."""
        if not successors or within(message.key, self._me.node_id, successors[0].node_id):
            origin = self._directory.learn(message.origin)
            known = [peer.ref for peer in successors] or [self._me.ref]
            found = Found(key=message.key, nonce=message.nonce, successors=known, hops=message.hops)
            self._outbox.to(origin).messages.add(found=found)
        elif message.hops >= self._settings.hops_max:
            self._counters.hops_exceeded += 1
        else:
            hop = routes.before(message.key) or successors[0]
            onward = Lookup(
                key=message.key, nonce=message.nonce, origin=message.origin, hops=message.hops + 1
            )
            self._outbox.to(hop).messages.add(lookup=onward)
