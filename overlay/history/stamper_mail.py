"""What stores and publishers' brokers say to whoever stamps a topic: it travels along the overlay,
parting on the way, until each topic's part is at its rendezvous point.

What it says is the business of that node's host.
"""

from __future__ import annotations

from collections.abc import Callable

from dynatops.v1.overlay_pb2 import PeerFrame, ToStamper
from overlay.base.context import Context
from overlay.base.effects import ForStamper
from overlay.base.identifiers import Key, NodeId, key_of
from overlay.base.peers import Peer

# Makes the frame in which a message about this key travels on: key, sender, hops so far.
Onward = Callable[[Key, NodeId, int], PeerFrame | None]


class StamperMail:
    def __init__(self, context: Context, is_mine: Callable[[str], bool], onward: Onward) -> None:
        self._effects = context.effects
        self._directory = context.directory
        self._is_mine = is_mine
        self._onward = onward

    def on_to_stamper(self, sender: Peer, message: ToStamper, now_s: float) -> None:
        self._directory.learn(message.origin)
        mine: ToStamper | None = None
        onward: dict[int, ToStamper] = {}
        rows = [(mark.topic, mark) for mark in message.marks]
        for topic, mark in [*rows, *((topic, None) for topic in message.asked)]:
            if self._is_mine(topic):
                part = mine = mine or ToStamper(origin=message.origin, hops=message.hops)
            else:
                frame = self._onward(key_of(topic), sender.node_id, message.hops)
                if frame is None:
                    continue
                further = onward.get(id(frame))
                if further is None:
                    further = onward[id(frame)] = frame.messages.add().to_stamper
                    further.origin.CopyFrom(message.origin)
                    further.hops = message.hops + 1
                part = further
            if mark is not None:
                part.marks.append(mark)
            else:
                part.asked.append(topic)
        if mine is not None:
            self._effects.append(ForStamper(mine))
