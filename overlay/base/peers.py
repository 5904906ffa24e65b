"""Other nodes: what is known of them, and whether they are alive.

A `Peer` says where a node is hosted. The `Directory` keeps the newest reference to each, the only
place where a node id is turned into an address. `Liveness` watches the few peers this node relies
on: a watched peer that stays silent though it is pinged is condemned, and until its sentence is
over only a word of its own brings it back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from dynatops.kit.bounded import BoundedTable
from dynatops.v1.overlay_pb2 import NodeRef
from overlay.base.counters import OverlayCounters
from overlay.base.identifiers import RING_MASK, NodeId, TermOwner, show_node

# Of a peer of which only the address is known.
ANY_NODE = NodeId(-1)

_GOLDEN_RATIO = 0x9E3779B97F4A7C15
_SILVER_RATIO = 0x6A09E667F3BCC909
# Incarnations are milliseconds of the clock; a new generation of terms about every second still
# leaves room for terms opened one after the other (39 bits last for thousands of years).
_GENERATION_SHIFT = 10


@dataclass(frozen=True, slots=True)
class Peer:
    """A node and its host. Of two, the one with the higher (epoch, incarnation) is the newer."""

    node_id: NodeId
    broker_id: str
    address: str
    epoch: int = 0
    incarnation: int = 0
    ref: NodeRef = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reference = NodeRef(
            node_id=max(self.node_id, 0),
            broker_id=self.broker_id,
            address=self.address,
            epoch=self.epoch,
            incarnation=self.incarnation,
        )
        object.__setattr__(self, "ref", reference)

    @classmethod
    def from_ref(cls, ref: NodeRef) -> Peer:
        return cls(NodeId(ref.node_id), ref.broker_id, ref.address, ref.epoch, ref.incarnation)

    @classmethod
    def at(cls, address: str) -> Peer:
        """Whoever is hosted at this address."""
        return cls(ANY_NODE, "", address)

    @property
    def version(self) -> tuple[int, int]:
        return (self.epoch, self.incarnation)

    @property
    def term_owner(self) -> TermOwner:
        """Whose terms they are that this host opens: a former host of the node, out of reach of the
        news, may open others, and so did former lives of this one."""
        mark = self.node_id + self.epoch * _GOLDEN_RATIO + self.incarnation * _SILVER_RATIO
        return TermOwner(mark & RING_MASK, self.incarnation >> _GENERATION_SHIFT)

    def __str__(self) -> str:
        return f"{self.broker_id or '?'}@{show_node(self.node_id)}"


class Directory:
    """node_id -> the newest reference seen. Bounded: the longest unheard-of are forgotten first.

    A reference of a higher epoch tells of a node that was handed to another broker, all that it
    knew with it; one of the same epoch, of a broker that was restarted and knows nothing.
    """

    def __init__(self, me: Peer, known_max: int) -> None:
        self._me = me
        self._known_max = known_max
        self._peers: OrderedDict[NodeId, Peer] = OrderedDict()
        self._reborn: list[Peer] = []
        self._moved: list[Peer] = []
        self._heard_s: dict[NodeId, float] = {}

    def learn(self, ref: NodeRef) -> Peer:
        """The newest known peer of this id, which may be newer than `ref`."""
        node_id = NodeId(ref.node_id)
        known = self._peers.get(node_id)
        if known is not None:
            # First as it nearly always is: of the version that is known.
            if ref.incarnation == known.incarnation and ref.epoch == known.epoch:
                return known
            if (ref.epoch, ref.incarnation) < known.version:
                return known
            del self._peers[node_id]
        elif node_id == self._me.node_id:
            return self._me
        peer = self._peers[node_id] = Peer.from_ref(ref)
        if known is not None and ref.epoch > known.epoch:
            self._moved.append(peer)
        elif known is not None:
            self._reborn.append(known)
        if len(self._peers) > self._known_max:
            forgotten, _ = self._peers.popitem(last=False)
            self._heard_s.pop(forgotten, None)
        return peer

    @property
    def has_news(self) -> bool:
        """Whether any peer is reborn or moved since those were taken."""
        return bool(self._reborn or self._moved)

    def take_reborn(self) -> list[Peer]:
        """Former lives of peers of which a newer one has been learnt of since the last call."""
        reborn, self._reborn = self._reborn, []
        return reborn

    def take_moved(self) -> list[Peer]:
        """Peers that have been handed to another host since the last call."""
        moved, self._moved = self._moved, []
        return moved

    def hear(self, peer: Peer, now_s: float) -> float:
        """The peer spoke: it is the last to be forgotten. For how long it had been silent."""
        node_id, heard_s = peer.node_id, self._heard_s
        if node_id in self._peers:
            self._peers.move_to_end(node_id)
        silent_s = now_s - heard_s.get(node_id, now_s)
        heard_s[node_id] = now_s
        return silent_s

    def silent_for(self, silence_s: float, now_s: float) -> list[Peer]:
        """Peers that have not been heard of for this long, or never."""
        return [
            peer
            for node_id, peer in self._peers.items()
            if now_s - self._heard_s.get(node_id, 0.0) >= silence_s
        ]

    def get(self, node_id: NodeId) -> Peer | None:
        return self._peers.get(node_id)

    def at_address(self, address: str) -> list[Peer]:
        return [peer for peer in self._peers.values() if peer.address == address]

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def __len__(self) -> int:
        return len(self._peers)


@dataclass(slots=True)
class _Watch:
    peer: Peer
    heard_s: float
    asked_s: float | None = None
    # It is to be pinged although it is not silent.
    is_wanted: bool = False


class Liveness:
    """A failure detector by silence. It can be wrong; everything built on it heals when it was."""

    def __init__(
        self,
        *,
        ping_period_s: float,
        silence_s: float,
        condemned_s: float,
        condemned_max: int,
        counters: OverlayCounters,
    ) -> None:
        self._ping_period_s = ping_period_s
        self._silence_s = silence_s
        self._condemned_s = condemned_s
        self._watches: dict[NodeId, _Watch] = {}
        # Who is watched, as it was said last; None once that does not hold any more.
        self._watched: list[Peer] | None = None
        # Anybody may say of any node that it is not there.
        self._condemned: BoundedTable[NodeId, float] = BoundedTable(
            condemned_max, counters, "sentences_dropped"
        )

    def watch(self, peers: list[Peer], now_s: float) -> None:
        """Watch exactly these peers from now on. Mostly they are the same as before."""
        if peers == self._watched:
            return
        self._watched = peers
        wanted = {peer.node_id: peer for peer in peers}
        for node_id in [n for n in self._watches if n not in wanted]:
            del self._watches[node_id]
        for node_id, peer in wanted.items():
            if node_id in self._watches:
                self._watches[node_id].peer = peer
            else:
                self._watches[node_id] = _Watch(peer, heard_s=now_s)

    def hear(self, node_id: NodeId, now_s: float) -> None:
        if self._condemned:
            self._condemned.pop(node_id, None)
        watch = self._watches.get(node_id)
        if watch is not None:
            watch.heard_s = now_s
            watch.asked_s = None

    def want_pong(self, node_id: NodeId) -> None:
        """Ping this peer, if it is watched, however lately it was heard: for what its pong says."""
        watch = self._watches.get(node_id)
        if watch is not None:
            watch.is_wanted = True

    def due(self, now_s: float) -> tuple[list[Peer], list[Peer]]:
        """Whom to ping now, and who has just been silent for too long."""
        to_ping: list[Peer] = []
        dead: list[Peer] = []
        for watch in self._watches.values():
            silent_s = now_s - watch.heard_s
            if silent_s >= self._silence_s and watch.asked_s is not None:
                dead.append(watch.peer)
            elif watch.is_wanted or (
                silent_s >= self._ping_period_s
                and (watch.asked_s is None or now_s - watch.asked_s >= self._ping_period_s / 2)
            ):
                watch.asked_s = now_s
                watch.is_wanted = False
                to_ping.append(watch.peer)
        return to_ping, dead

    def condemn(self, node_id: NodeId, now_s: float) -> None:
        self._condemned[node_id] = now_s + self._condemned_s
        self._watches.pop(node_id, None)
        self._watched = None

    def is_condemned(self, node_id: NodeId) -> bool:
        return node_id in self._condemned

    def release(self, now_s: float) -> None:
        """Forget sentences that are over."""
        if self._condemned:
            for node_id in [n for n, until_s in self._condemned.items() if until_s <= now_s]:
                del self._condemned[node_id]

    @property
    def condemned(self) -> Collection[NodeId]:
        return self._condemned.keys()
