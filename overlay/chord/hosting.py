"""Who hosts a node: what is said when two brokers differ about it.

A node is handed from broker to broker, and the higher epoch is right. Whoever still speaks for a
node that another broker hosts by now is told so; whoever is told so of its own node has been
superseded, which its broker deals with.
"""

from __future__ import annotations

from collections.abc import Iterable

from dynatops.v1.overlay_pb2 import Hosted, NodeRef, PeerFrame, PeerMessage
from overlay.base.context import Context
from overlay.base.effects import Send, Superseded
from overlay.base.peers import Peer


class Hosting:
    def __init__(self, context: Context) -> None:
        self._me = context.me
        self._directory = context.directory
        self._effects = context.effects
        self._counters = context.counters

    def newest(self, sender: NodeRef) -> Peer | None:
        """The sender of a frame; None if it is no host, or not any more, and need not be heard."""
        if sender.node_id == self._me.node_id:
            self._meet_other_host(sender)
            return None
        peer = self._directory.learn(sender)
        if peer.incarnation == sender.incarnation and peer.epoch == sender.epoch:
            return peer
        if peer.version > (sender.epoch, sender.incarnation):
            self._counters.frames_stale += 1
            self._tell(sender, peer)
            return None
        return peer

    def on_hosted(self, message: Hosted) -> None:
        if message.node.node_id == self._me.node_id:
            self._meet_other_host(message.node)
        else:
            self._directory.learn(message.node)

    def check_place(self, found: Iterable[NodeRef]) -> bool:
        """Before joining: whether nobody else is at this node's place, or was in a later epoch."""
        for ref in found:
            if ref.node_id != self._me.node_id:
                continue
            if ref.broker_id != self._me.broker_id or ref.epoch > self._me.epoch:
                self._effects.append(Superseded(Peer.from_ref(ref)))
                return False
        return True

    def _meet_other_host(self, other: NodeRef) -> None:
        """Somebody says that this node is theirs."""
        theirs = (other.epoch, other.incarnation)
        if theirs > self._me.version:
            self._effects.append(Superseded(Peer.from_ref(other)))
        elif other.broker_id != self._me.broker_id:
            self._tell(other, self._me)

    def _tell(self, former: NodeRef, host: Peer) -> None:
        if former.address:
            hosted = PeerMessage(hosted=Hosted(node=host.ref))
            frame = PeerFrame(sender=self._me.ref, to=former.node_id, messages=[hosted])
            self._effects.append(Send(Peer.from_ref(former), frame))
