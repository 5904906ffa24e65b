"""What the overlay node wants done: the output side of its state machine.

A driver performs effects in order. `Outbox` gathers what is said while one input is handled, so
that each neighbour gets one frame for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynatops.kit.bundles import Bundle
from dynatops.v1.overlay_pb2 import (
    Fetched,
    PeerFrame,
    Position,
    PublishAck,
    Run,
    ToStamper,
)
from overlay.base.beats import Beats
from overlay.base.identifiers import NodeId
from overlay.base.peers import ANY_NODE, Directory, Peer


@dataclass(frozen=True, slots=True)
class Send:
    """Give this frame to the network. It may be lost."""

    to: Peer
    frame: PeerFrame


@dataclass(frozen=True, slots=True)
class Deliver:
    """A run of a topic that this node's broker subscribes to has come by. It may be a repeat."""

    run: Run


@dataclass(frozen=True, slots=True)
class DeliverBundle:
    """The same of a stamped bundle: all its topics are subscribed to."""

    bundle: Bundle


@dataclass(frozen=True, slots=True)
class DeliverBeats:
    """Topics that this node's broker subscribes to stand here."""

    beats: Beats


@dataclass(frozen=True, slots=True)
class InTree:
    """This node is a member of the topic's tree; the topic stands at `position`."""

    topic: str
    position: Position


@dataclass(frozen=True, slots=True)
class Accepted:
    """Publications of this node's host have reached their level, says the rendezvous point."""

    by: Peer
    ack: PublishAck


@dataclass(frozen=True, slots=True)
class ForStamper:
    """Said to this node's host because it stamps these topics, by a store or a publisher's
    broker."""

    message: ToStamper


@dataclass(frozen=True, slots=True)
class Repaired:
    """The answer to a `fetch`."""

    by: Peer
    answer: Fetched


@dataclass(frozen=True, slots=True)
class Announce:
    """A topic whose rendezvous point this node is has events, and belongs in the catalogue: publish
    its `announcement_of` until that is acknowledged, then call `announced`.
    """

    topic: str
    # What the announcement is to claim: where its part of the catalogue is known to have stood.
    known: tuple[int, int] = (0, 0)
    # Whether it has been announced before, and may be there.
    again: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """The node has the state of its whole key range, and serves it."""


@dataclass(frozen=True, slots=True)
class Departed:
    """The node has left the ring; its host may stop."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another host has this node by now, or a former life of this host was in a later placement."""

    by: Peer


# Notices: what those who watch should hear of. They ask for nothing.


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer that this node relied on is taken for dead."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class TookOver:
    """This node is the rendezvous point of a topic that another was."""

    topic: str
    # Whether that one is taken for dead; if not, it has left.
    from_dead: bool


@dataclass(frozen=True, slots=True)
class RangeAssumed:
    """Nobody granted this node its range in time: it serves that all the same."""


@dataclass(frozen=True, slots=True)
class HistoriesJoined:
    """A topic had two histories, grown apart, which are one now."""

    topic: str


Notice = PeerLost | TookOver | RangeAssumed | HistoriesJoined
Effect = (
    Send
    | Deliver
    | DeliverBundle
    | DeliverBeats
    | InTree
    | Accepted
    | ForStamper
    | Repaired
    | Announce
    | Ready
    | Departed
    | Superseded
    | Notice
)


class Outbox:
    """Frames under construction, one for each destination, in the order of first use.

    They go to where the directory says that the node is, whatever reference the sender had kept.
    """

    def __init__(self, me: Peer, directory: Directory) -> None:
        self._me = me
        self._directory = directory
        self._frames: dict[NodeId | str, tuple[Peer, PeerFrame]] = {}

    def to(self, peer: Peer) -> PeerFrame:
        """The frame for this peer: append messages to it."""
        key = peer.address if peer.node_id == ANY_NODE else peer.node_id
        entry = self._frames.get(key)
        if entry is None:
            to = None if peer.node_id == ANY_NODE else peer.node_id
            frame = PeerFrame(sender=self._me.ref, to=to)
            entry = self._frames[key] = (peer, frame)
        return entry[1]

    def run(self, peer: Peer, run: Run) -> None:
        """Append an event run; runs in a row share one message."""
        messages = self.to(peer).messages
        last = messages[-1] if messages else None
        # What follows a bundle, or heartbeats, is to come after them.
        if last is None or not last.HasField("runs") or last.runs.bundles or last.runs.beats:
            last = messages.add()
        last.runs.runs.append(run)

    def bundle(self, peer: Peer, bundle: Bundle) -> None:
        bundle.fill(self.to(peer).messages.add().runs.bundles.add())

    def beats(self, peer: Peer, beats: Beats) -> None:
        beats.fill(self.to(peer).messages.add().runs.beats.add())

    def replicate(self, peer: Peer, run: Run) -> None:
        messages = self.to(peer).messages
        last = messages[-1] if messages else None
        if last is None or not last.HasField("replicate") or last.replicate.bundles:
            last = messages.add()
        last.replicate.runs.append(run)

    def replicate_bundle(self, peer: Peer, bundle: Bundle) -> None:
        bundle.fill(self.to(peer).messages.add().replicate.bundles.add())

    def take_local(self) -> PeerFrame | None:
        """What this node said to itself, if anything."""
        entry = self._frames.pop(self._me.node_id, None)
        return entry[1] if entry is not None else None

    def drain(self) -> list[Send]:
        if not self._frames:
            return []
        newest = self._directory.get
        sends = [Send(newest(peer.node_id) or peer, frame) for peer, frame in self._frames.values()]
        self._frames.clear()
        return sends
