"""The node that this broker hosts, and how it comes to host another one.

Placement moves nodes between brokers; what belongs to the broker, what it wants to be a member of,
goes with the broker. A node that is not handed over in time, or turns out to be hosted elsewhere,
is given up for one of this broker's own: the histories that it knew travel along the overlay to
the nodes that are responsible for them.

Parts of the broker ask the node here; what it wants done in return goes to the outbox.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from broker_agent.core.base.identity import Identity
from broker_agent.core.base.notices import PushedAside
from broker_agent.core.routing.rendezvous.hosting.rendezvous_points import RendezvousPoints
from broker_agent.core.routing.rendezvous.hosting.transfer import comes_to, goes_to
from broker_agent.core.routing.rendezvous.ring_context import RingContext
from broker_agent.core.routing.tallies import Tallies
from dynatops.kit.bundles import Bundle
from dynatops.v1.overlay_pb2 import (
    NodeRef,
    NodeState,
    PeerFrame,
    Publication,
    StoreMark,
    TermSeq,
    TopicState,
)
from overlay.base.catalogue import Entered, is_system
from overlay.base.identifiers import NodeId, first_node_id
from overlay.base.membership import Status
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Peer
from overlay.handover import restore
from overlay.history.reigns import BundleStamping, TopicTally
from overlay.node import Node

_FORWARDS_MAX = 1_024
_SEEDS_MAX = 8


class NodeHosting:
    def __init__(self, context: RingContext, overlay: OverlaySettings) -> None:
        self.broker_id = context.identity.broker_id
        self.node = Node(_first_node(context.identity), overlay, context.rng)
        self.rendezvous = RendezvousPoints(context)
        self._identity = context.identity
        self._counters = context.counters
        self._rng = context.rng
        self._outbox = context.outbox
        self._ring = context.ring
        # Nodes that were hosted here, and where they went.
        self._forwards: OrderedDict[NodeId, NodeRef] = OrderedDict()
        # How often another node id had to be chosen.
        self._renamed = 0
        # What was counted at all nodes that were hosted here, and is not taken yet.
        self._tallies = Tallies(overlay.tallied_topics_max, self.node.counters, "tallies_dropped")

    def begin_tally(self, taker: str) -> None:
        """Count for this one, too, from now on."""
        self._collect_tally()
        self._tallies.open(taker)
        self.node.reigns.keeps_tally = True

    def take_tally(self, taker: str) -> dict[str, TopicTally]:
        """What was stamped here and asked for by sessions here since the last call, by topic."""
        self._collect_tally()
        return self._tallies.take_tally(taker)

    def requested(self, topics: Iterable[str]) -> None:
        """A session here asks for the past of these."""
        for topic in topics:
            self._tallies.add({topic: TopicTally(requests=1)})

    def _collect_tally(self) -> None:
        self._tallies.add(self.node.reigns.take_tally())

    def wanted(self) -> set[str]:
        """Topics whose trees this broker is in; without the system's own."""
        return {topic for topic in self.node.interests.wanted if not is_system(topic)}

    def counters(self) -> dict[str, int]:
        return self.node.counters.as_dict()

    def begin_round_trips(self) -> None:
        """Measure them from now on."""
        self.node.round_trips.measuring = True

    def take_round_trips(self, *, everything: bool) -> Mapping[str, float]:
        """To other brokers, in seconds: what has changed since the last call, or all of them."""
        return self.node.round_trips.take_measured(everything=everything)

    def is_all_here(self, topic: str) -> bool:
        """Whether no other broker hears of the topic's events."""
        return self.node.trees.is_all_here(topic)

    # ---- other brokers --------------------------------------------------------------------------

    @property
    def me(self) -> NodeRef:
        return self.node.me.ref

    def alternatives(self, most: int) -> list[str]:
        """Addresses of other brokers, nearest first."""
        others = [*self.node.ring.successors, *self.node.ring.fingers.routes.targets]
        addresses = dict.fromkeys(peer.address for peer in others)
        addresses.pop(self._identity.address, None)
        return list(addresses)[:most]

    def condemned_addresses(self) -> list[str]:
        """Where brokers were that the hosted node takes for dead."""
        return [peer.address for peer in self.node.condemned_peers()]

    def has_broker_at(self, address: str) -> bool:
        """Whether a broker of this ring is known there."""
        return bool(self.node.directory.at_address(address))

    def address_of(self, broker_id: str) -> str:
        """Where a broker of this ring was seen last; empty if it is not known."""
        seen = [peer for peer in self.node.directory if peer.broker_id == broker_id]
        return max(seen, key=lambda peer: peer.incarnation).address if seen else ""

    def namesakes(self, broker_id: str) -> list[str]:
        """Addresses where a broker of this name was seen."""
        return [peer.address for peer in self.node.directory if peer.broker_id == broker_id]

    def neighbours(self) -> dict[str, str]:
        """The links of the overlay: to the nodes before and behind this one, and along fingers, by
        the brokers that host them. A finger leads one way; from each broker these links lead to
        every other one, in about log2 of their number."""
        node = self.node
        if node.ring.status is not Status.MEMBER:
            return {}
        before = [node.ring.predecessor] if node.ring.predecessor is not None else []
        linked = [*before, *node.ring.successors[:1], *node.ring.fingers.routes.targets]
        newest = [node.directory.get(peer.node_id) or peer for peer in linked]
        addresses = {peer.broker_id: peer.address for peer in newest if peer.broker_id}
        addresses.pop(self.broker_id, None)
        return addresses

    def is_gone(self, broker_id: str) -> bool:
        """All nodes that it is known to host are taken for dead."""
        node = self.node
        condemned = {p.node_id for p in node.condemned_peers() if p.broker_id == broker_id}
        if not condemned:
            return False
        nodes = {peer.node_id for peer in node.directory if peer.broker_id == broker_id}
        return nodes <= condemned

    # ---- asking the node ------------------------------------------------------------------------

    def start(self, seeds: Sequence[str], now_s: float, *, founding: bool) -> None:
        self._ring.from_node(self.node.start(seeds, now_s, founding=founding))

    def tick(self, now_s: float) -> None:
        self._ring.from_node(self.node.tick(now_s))

    def unreachable(self, address: str, now_s: float) -> None:
        """Nobody listens at this address."""
        self.rendezvous.forget_address(address)
        self._ring.from_node(self.node.unreachable(address, now_s))

    def leave(self, now_s: float) -> None:
        self._ring.from_node(self.node.leave(now_s))

    def wish(self, topic: str, now_s: float, *, wanted: bool) -> None:
        """Join the topic's tree, or leave it."""
        change = self.node.want if wanted else self.node.unwant
        self._ring.from_node(change(topic, now_s))

    def publish(self, publications: Iterable[Publication], now_s: float) -> None:
        """To each rendezvous point that is known directly, the rest along the overlay."""
        by_destination: dict[Peer | None, list[Publication]] = {}
        for publication in publications:
            via = self.rendezvous.get(publication.topic)
            by_destination.setdefault(via, []).append(publication)
        for via, together in by_destination.items():
            self._ring.from_node(self.node.publish(together, via, now_s))

    def publish_bundle(self, bundle: Bundle, via: Peer, now_s: float) -> BundleStamping:
        """To the rendezvous point of its topics."""
        effects, stamping = self.node.publish_bundle(bundle, via, now_s)
        self._ring.from_node(effects)
        return stamping

    def fetch(
        self,
        topic: str,
        seen: Sequence[TermSeq],
        reader: int,
        now_s: float,
        *,
        wants_holes: bool = False,
    ) -> None:
        """Ask the rendezvous point for what a reader misses. Should there be no answer, the next
        request looks for it anew."""
        via = self.rendezvous.get(topic)
        self.rendezvous.forget_topic(topic)
        self._ring.from_node(
            self.node.fetch(topic, seen, via, now_s, reader, wants_holes=wants_holes)
        )

    def tell_stamper(self, marks: Iterable[StoreMark], asked: Iterable[str], now_s: float) -> None:
        """To each rendezvous point that is known directly, the rest along the overlay."""
        known = self.rendezvous.get
        by_destination: dict[Peer | None, tuple[list[StoreMark], list[str]]] = {}
        for mark in marks:
            by_destination.setdefault(known(mark.topic), ([], []))[0].append(mark)
        for topic in asked:
            by_destination.setdefault(known(topic), ([], []))[1].append(topic)
        for via, (marks_there, asked_there) in by_destination.items():
            self._ring.from_node(self.node.tell_stamper(marks_there, asked_there, via, now_s))

    def insist(self, topic: str, newest_term: int, now_s: float) -> None:
        """Tell the rendezvous point of a newer term than it uses."""
        self._ring.from_node(self.node.insist(topic, newest_term, now_s))

    def announced(self, entries: Iterable[Entered], now_s: float) -> None:
        """These topics are in the catalogue."""
        self._ring.from_node(self.node.announced(entries, now_s))

    def unseal(self, now_s: float, *, certain: bool) -> None:
        self._ring.from_node(self.node.unseal(now_s, certain=certain))

    # ---- changing nodes -------------------------------------------------------------------------

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
            self._ring.from_node(former.learn_hosts(moved, now_s))
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
        self._ring.from_node(node.adopt_histories(histories, now_s))

    def give_way(self, by: Peer, now_s: float) -> None:
        """Somebody else hosts this node, or a former life of this broker did in a later epoch."""
        mine = by.broker_id == self.broker_id
        if mine and by.incarnation > self._identity.incarnation:
            self._outbox.do(PushedAside(by))
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
        self._ring.from_node(node.start(seeds[-_SEEDS_MAX:] or former.ring.seeds, now_s))
        self._ring.from_node(node.adopt_histories(_histories(former), now_s))

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


def _first_node(identity: Identity) -> Peer:
    """The node that a broker begins with, as others know it."""
    return _peer(identity, first_node_id(identity.broker_id))


def _peer(identity: Identity, node_id: NodeId, epoch: int = 0) -> Peer:
    return Peer(node_id, identity.broker_id, identity.address, epoch, identity.incarnation)


def _histories(node: Node) -> list[TopicState]:
    """Everything that a node knows of topics' pasts."""
    return [
        *(reign.state for reign in node.reigns.states()),
        *(copy.state for copy in node.replication.states()),
        *node.succession.states(),
    ]
