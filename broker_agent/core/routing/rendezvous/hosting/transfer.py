"""A node on its way from this broker to its next host, and another on its way here.

Parts may be lost: each is sent again until it is seen. Nothing of what has come is used before the
plan is committed.
"""

from __future__ import annotations

from dynatops.v1.overlay_pb2 import (
    NodeRef,
    NodeState,
    NodeStatePart,
    NodeStateSeen,
    PeerFrame,
    PeerMessage,
)
from overlay.base.identifiers import NodeId
from overlay.handover import parts_of, put_together
from overlay.node import Node

# Parts on their way at once: what a link may queue is bounded.
_WINDOW_PARTS = 8
_PARTS_MAX = 10_000


class Transfer:
    def __init__(self, plan: str, epoch: int, resend_s: float) -> None:
        self.messages = 0
        self._plan = plan
        self._epoch = epoch
        self._resend_s = resend_s
        self._sender: NodeRef | None = None
        self._to = ""
        # What is not known to have arrived, and when to send it (again).
        self._outgoing: dict[int, NodeState] = {}
        self._parts = 0
        self._due_s: dict[int, float] = {}
        self._incoming: dict[int, NodeState] = {}
        self._expected: int | None = None

    # ---- the node that goes ---------------------------------------------------------------------

    @property
    def is_giving(self) -> bool:
        return self._sender is not None

    @property
    def given(self) -> bool:
        return self._sender is not None and not self._outgoing

    def give(self, node: Node, to: str) -> None:
        """Send the node's state to the broker at this address."""
        self._sender, self._to = node.me.ref, to
        self._outgoing = dict(enumerate(parts_of(node)))
        self._parts = len(self._outgoing)

    def due(self, now_s: float) -> list[tuple[str, PeerFrame]]:
        """What to send now, and to whom."""
        frames: list[tuple[str, PeerFrame]] = []
        for number in list(self._outgoing)[:_WINDOW_PARTS]:
            if now_s < self._due_s.get(number, 0.0):
                continue
            self._due_s[number] = now_s + self._resend_s
            assert self._sender is not None
            part = NodeStatePart(
                plan=self._plan,
                epoch=self._epoch,
                node_id=self._sender.node_id,
                part=number,
                parts=self._parts,
                state=self._outgoing[number],
            )
            message = PeerMessage(node_state_part=part)
            frames.append((self._to, PeerFrame(sender=self._sender, messages=[message])))
        self.messages += len(frames)
        return frames

    def on_seen(self, message: NodeStateSeen) -> None:
        self._outgoing.pop(message.part, None)

    # ---- the node that comes --------------------------------------------------------------------

    @property
    def received(self) -> bool:
        return self._expected is not None and len(self._incoming) == self._expected

    def on_part(self, part: NodeStatePart) -> PeerMessage | None:
        """Take a part in: the answer to its sender."""
        if not part.part < part.parts <= _PARTS_MAX:
            return None
        self._expected = part.parts
        self._incoming[part.part] = part.state
        self.messages += 1
        return PeerMessage(
            node_state_seen=NodeStateSeen(plan=self._plan, node_id=part.node_id, part=part.part)
        )

    def state(self) -> NodeState:
        return put_together(self._incoming[number] for number in sorted(self._incoming))


def goes_to(node_id: NodeId, moved: list[NodeRef]) -> NodeRef | None:
    """The next host of a node, if it changes hands."""
    return next((ref for ref in moved if ref.node_id == node_id), None)


def comes_to(broker_id: str, moved: list[NodeRef]) -> NodeRef | None:
    """The node that a broker is to host, if another than now."""
    return next((ref for ref in moved if ref.broker_id == broker_id), None)
