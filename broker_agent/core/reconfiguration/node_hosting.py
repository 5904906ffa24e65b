"""The node that this broker hosts, and how it comes to host another one.

Placement moves nodes between brokers; what belongs to the broker, what it wants to be a member of,
goes with the broker. A node that is not handed over in time, or turns out to be hosted elsewhere,
is given up for one of this broker's own: the histories that it knew travel along the overlay to
whoever is responsible for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from random import Random

from broker_agent.core.counters import BrokerCounters
from broker_agent.core.identity import Identity
from broker_agent.core.reconfiguration.tallies import Tallies
from broker_agent.core.reconfiguration.transfer import comes_to, goes_to
from dynatops.v1.overlay_pb2 import NodeRef, NodeState, PeerFrame, TopicState
from overlay.effects import Effect
from overlay.handover import restore
from overlay.history.reigns import TopicTally
from overlay.identifiers import NodeId, first_node_id
from overlay.node import Node
from overlay.overlay_settings import OverlaySettings
from overlay.peers import Peer

_FORWARDS_MAX = 1_024
_SEEDS_MAX = 8


class NodeHosting:
    def __init__(
        self,
        identity: Identity,
        overlay: OverlaySettings,
        counters: BrokerCounters,
        rng: Random,
    ) -> None:
        self.broker_id = identity.broker_id
        self.node = Node(identity.first_node, overlay, rng)
        # What nodes want done, in order; the broker takes it.
        self.effects: list[Effect] = []
        self._identity = identity
        self._counters = counters
        self._rng = rng
        # Nodes that were hosted here, and where they went.
        self._forwards: OrderedDict[NodeId, NodeRef] = OrderedDict()
        # A broker of this one's name that counts as newer: another, or a former life of this one in
        # which the clock was ahead of where it is now.
        self.pushed_aside_by: Peer | None = None
        # How often another node id had to be chosen.
        self._renamed = 0
        # What was counted at all nodes that were hosted here, and is not taken yet.
        self._tallies = Tallies(overlay.tallied_topics_max, self.node.counters)

    def begin_tally(self, taker: str) -> None:
        """Count for this one, too, from now on."""
        self._collect_tally()
        self._tallies.open(taker)
        self.node.reigns.keeps_tally = True

    def take_tally(self, taker: str) -> dict[str, TopicTally]:
        """What was stamped here and asked for by sessions here since the last call, by topic."""
        self._collect_tally()
        return self._tallies.take(taker)

    def count_request(self, topic: str) -> None:
        """A session here asks for the topic's past."""
        self._tallies.add({topic: TopicTally(requests=1)})

    def _collect_tally(self) -> None:
        self._tallies.add(self.node.reigns.take_tally())

    def alternatives(self, most: int) -> list[str]:
        """Addresses of other brokers, nearest first."""
        others = [*self.node.ring.successors, *self.node.ring.fingers.routes.targets]
        addresses = dict.fromkeys(peer.address for peer in others)
        addresses.pop(self._identity.address, None)
        return list(addresses)[:most]

    def condemned_addresses(self) -> list[str]:
        """Where brokers were that the hosted node takes for dead."""
        return [peer.address for peer in self.node.condemned_peers()]

    def namesakes(self, broker_id: str) -> list[str]:
        """Addresses where a broker of this name was seen."""
        return [peer.address for peer in self.node.directory if peer.broker_id == broker_id]

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def unseal(self, now_s: float, *, certain: bool) -> None:
        self.effects += self.node.unseal(now_s, certain=certain)

    def forward_to(self, frame: PeerFrame) -> str | None:
        """Where a frame for a node that was hosted here belongs now."""
        host = self._forwards.get(NodeId(frame.to))
        if host is None or host.address == self._identity.address:
            return None
        self.node.counters.frames_forwarded += 1
        return host.address

    def move(
        self,
        moved: list[NodeRef],
        epoch: int,
        state: NodeState | None,
        now_s: float,
        *,
        trees_later: bool,
    ) -> None:
        """Host the node that the placement gives to this broker, if it is another. `state` is what
        came of it; `trees_later`: leaving and joining trees is a step of its own."""
        former = self.node
        to = goes_to(former.me.node_id, moved)
        for ref in moved:
            self._forwards.pop(NodeId(ref.node_id), None)
        if to is None or to.broker_id == self.broker_id:
            self.effects += former.learn_hosts(moved, now_s)
            return
        self._forwards[former.me.node_id] = to
        if len(self._forwards) > _FORWARDS_MAX:
            self._forwards.popitem(last=False)
        self._counters.moves += 1
        coming = comes_to(self.broker_id, moved)
        if coming is None or state is None:
            self._counters.moves_missed += 1
            self._rejoin(self._another_id(), 0, moved, now_s)
            return
        me = _peer(self._identity, NodeId(coming.node_id), epoch)
        hosts = [*(peer.ref for peer in former.directory), *state.known, *moved]
        node = restore(state, me, hosts, former.settings, self._new_rng(), former.counters, now_s)
        if trees_later:
            node.interests.postpone()
        self._settle_in(node, now_s)
        # Sealed, it had nothing that its next host does not have.
        histories = [] if former.sealed else _histories(former)
        self.effects += node.adopt_histories(histories, now_s)

    def give_way(self, by: Peer, now_s: float) -> None:
        """Somebody else hosts this node, or a former life of this broker did in a later epoch."""
        mine = by.broker_id == self.broker_id
        if mine and by.incarnation > self._identity.incarnation:
            self.pushed_aside_by = by
        if mine and by.incarnation < self._identity.incarnation:
            self._rejoin(by.node_id, by.epoch, [by.ref], now_s)
        else:
            self._counters.moves_missed += 1
            self._rejoin(self._another_id(), 0, [by.ref], now_s)

    def _rejoin(self, node_id: NodeId, epoch: int, hosts: Iterable[NodeRef], now_s: float) -> None:
        """Join the ring anew, with the histories that were here."""
        former = self.node
        me = _peer(self._identity, node_id, epoch)
        node = Node(me, former.settings, self._new_rng(), former.counters)
        known = [ref.address for ref in hosts] + [peer.address for peer in former.directory]
        seeds = [address for address in dict.fromkeys(known) if address != me.address]
        self._settle_in(node, now_s)
        self.effects += node.start(seeds[-_SEEDS_MAX:] or former.ring.seeds, now_s)
        self.effects += node.adopt_histories(_histories(former), now_s)

    def _settle_in(self, node: Node, now_s: float) -> None:
        """This is the broker's node from now on; the broker's wishes are the same."""
        self._collect_tally()
        former, self.node = self.node, node
        node.reigns.keeps_tally = former.reigns.keeps_tally
        node.round_trips.take_over(former.round_trips)
        for topic, known_term in former.interests.terms().items():
            node.interests.want(topic, now_s, known_term)

    def _another_id(self) -> NodeId:
        self._renamed += 1
        return first_node_id(f"{self.broker_id}#{self._renamed}")

    def _new_rng(self) -> Random:
        return Random(self._rng.getrandbits(64))


def _peer(identity: Identity, node_id: NodeId, epoch: int) -> Peer:
    return Peer(node_id, identity.broker_id, identity.address, epoch, identity.incarnation)


def _histories(node: Node) -> list[TopicState]:
    """Everything that a node knows of topics' pasts."""
    return [
        *(reign.state for reign in node.reigns.states()),
        *(copy.state for copy in node.replication.states()),
        *node.succession.states(),
    ]
