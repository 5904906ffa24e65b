"""Leaving: whom to tell, until they have heard it.

Both neighbours must know, or the departure is a crash to them; they are told again until they
confirm: the predecessor when its next successor has the copies that are here. Everyone who lately
asked after this node relies on it in some way, and is told once.
"""

from __future__ import annotations

from collections.abc import Iterable

from dynatops.v1.overlay_pb2 import Leave
from overlay.base.context import Context
from overlay.base.identifiers import NodeId
from overlay.base.peers import Peer

_ASKERS_MAX = 256


class Farewell:
    def __init__(self, context: Context) -> None:
        self._settings = context.settings
        self._outbox = context.outbox
        self._askers: dict[NodeId, Peer] = {}
        self._unconfirmed: dict[NodeId, Peer] = {}
        self._message = Leave()
        self._due_s = 0.0
        self._deadline_s = 0.0

    def asked_after(self, peer: Peer) -> None:
        """The peer relies on this node."""
        self._askers.pop(peer.node_id, None)
        self._askers[peer.node_id] = peer
        if len(self._askers) > _ASKERS_MAX:
            del self._askers[next(iter(self._askers))]

    def begin(self, message: Leave, neighbours: Iterable[Peer], now_s: float) -> None:
        self._message = message
        self._unconfirmed = {peer.node_id: peer for peer in neighbours}
        self._due_s = now_s
        self._deadline_s = now_s + self._settings.leave_patience_s
        for peer in self._askers.values():
            self._outbox.to(peer).messages.add(leave=message)

    @property
    def unconfirmed(self) -> Iterable[Peer]:
        """Neighbours that have not said that this node may go."""
        return self._unconfirmed.values()

    def heard_by(self, node_id: NodeId) -> None:
        """It knows, and needs nothing from here, or is dead."""
        self._unconfirmed.pop(node_id, None)

    def lost(self, node_id: NodeId) -> None:
        self._askers.pop(node_id, None)
        self.heard_by(node_id)

    def tick(self, now_s: float) -> bool:
        """Say it again where needed; whether all is said."""
        if not self._unconfirmed or now_s >= self._deadline_s:
            return True
        if now_s >= self._due_s:
            self._due_s = now_s + self._settings.leave_retry_s
            for peer in self._unconfirmed.values():
                self._outbox.to(peer).messages.add(leave=self._message)
        return False
