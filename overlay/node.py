"""The overlay node: one position of the ring, as a pure state machine.

    effects = node.handle(frame, now_s)        # something arrived
    effects = node.tick(now_s)                 # time passed
    effects = node.want("quake/ca", now_s)     # this node's broker subscribes to a topic

Each input returns what is to be done about it. The node knows no socket, clock, thread or log; its
only randomness is the generator it is given. It is put together from parts with one subject each:

    ring         who is next to whom, and which keys are this node's
    trees        what passes through this node, and where it goes next
    interests    what this node's broker wants, until the trees agree
    reigns       the topics whose rendezvous point this node is
    replication  copying them to the successor
    succession   handing them on when the ring changes
    copy_search  looking for copies where they may still be

After every input `_settle` brings the parts in line with each other. Driving it takes four things:
frames delivered or lost, `tick` every few tens of milliseconds, effects performed, and a word
(`unreachable`) when an address refuses connections.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from random import Random
from typing import Any

from dynatops.kit.bundles import Bundle
from dynatops.v1.inspection_pb2 import NodeReport, TopicsReport, TreeReport
from dynatops.v1.overlay_pb2 import (
    Fetch,
    Fetched,
    LeaveSeen,
    NodeRef,
    NodeState,
    NotHere,
    PeerFrame,
    PeerMessage,
    Ping,
    Pong,
    Publication,
    PublishAck,
    StoreMark,
    TermSeq,
    TopicState,
)
from overlay.base.beats import Beats
from overlay.base.catalogue import Entered
from overlay.base.context import Context
from overlay.base.counters import OverlayCounters
from overlay.base.effects import Accepted, Departed, Effect, InTree, PeerLost, Repaired
from overlay.base.identifiers import Key, NodeId, key_of
from overlay.base.membership import Status
from overlay.base.node_counts import NodeCounts
from overlay.base.overlay_settings import OverlaySettings
from overlay.base.peers import Peer
from overlay.chord.hosting import Hosting
from overlay.chord.ring import Ring
from overlay.chord.round_trips import RoundTrips
from overlay.dispatch import (
    AFTER_MEMBERSHIP,
    BEFORE_MEMBERSHIP,
    ROUTED,
    WHILE_SEALED,
    handlers_of,
)
from overlay.history.copy_search import CopySearch
from overlay.history.reign import Reign
from overlay.history.reigns import BundleStamping, Reigns
from overlay.history.replication import Replication
from overlay.history.stamper_mail import StamperMail
from overlay.history.succession import Succession
from overlay.soundness import is_sound
from overlay.status.node_reports import NodeReports
from overlay.status.node_status import NodeStatus
from overlay.tree.interests import Interests
from overlay.tree.trees import Trees

_LOCAL_FRAMES_MAX = 100


class Node:
    def __init__(
        self,
        me: Peer,
        settings: OverlaySettings,
        rng: Random,
        counters: OverlayCounters | None = None,
    ) -> None:
        self.me = me
        self.settings = settings
        self.counters = counters if counters is not None else OverlayCounters()
        self._context = context = Context.of(me, settings, rng, self.counters)
        self.directory = context.directory
        self._liveness = context.liveness
        self._outbox = context.outbox
        self._effects = context.effects
        reigns: dict[str, Reign] = {}
        self.hosting = Hosting(context)
        self.ring = Ring(context, self.hosting)
        self.trees = Trees(context, self.ring.fingers.routes, self._towards_root)
        self.interests = Interests(context, self.trees.is_member, self._towards_root)
        self.replication = Replication(
            context, self.ring, self.trees, reigns, self._hand_over_unknown
        )
        self.copy_search = CopySearch(context, self.ring)
        self.reigns = Reigns(
            context, self.ring, self.trees, self.replication, self.copy_search, reigns, self._onward
        )
        self.succession = Succession(
            context, self.ring, self.reigns, self.replication, self.copy_search
        )
        self.stamper_mail = StamperMail(context, self.reigns.is_mine, self._onward)
        self.round_trips = RoundTrips(context)
        self._reports = NodeReports(context, self.ring, self.trees, self.reigns, self.replication)
        self._handlers = handlers_of(self)
        self._routes_seen = -1
        self._range_seen: tuple[Status, NodeId] | None = None
        self._successor_seen: Peer | None = None
        self._departed = False
        # Its state is on its way to another host: nothing may change it.
        self.sealed = False

    # ---- inputs ---------------------------------------------------------------------------------

    def start(self, seeds: Sequence[str], now_s: float, *, founding: bool = False) -> list[Effect]:
        """Found a ring (no seeds) or join the one that a seed address belongs to."""
        self.ring.start(seeds, now_s, founding=founding)
        return self._settle(now_s)

    def handle(self, frame: PeerFrame, now_s: float) -> list[Effect]:
        """Take in a frame."""
        self._take(frame, now_s)
        return self._settle(now_s)

    def tick(self, now_s: float) -> list[Effect]:
        if self.sealed:
            self.trees.tell_digests(now_s)
            return self._settle(now_s)
        to_ping, dead = self._liveness.due(now_s)
        for peer in (*to_ping, *self.round_trips.due(now_s)):
            nonce = self.round_trips.begin(peer, now_s)
            self._outbox.to(peer).messages.add(ping=Ping(nonce=nonce))
        for peer in dead:
            self._lose(peer.node_id, now_s)
        self._liveness.release(now_s)
        self.ring.tick(now_s)
        if self.ring.status is not Status.JOINING:
            self.trees.tick(now_s)
            self.reigns.tick(now_s)
            self.replication.tick(now_s)
            self.succession.tick(now_s)
            self.interests.tick(now_s)
        effects = self._settle(now_s)
        relied_on = [
            *self.ring.relied_on(),
            *self.trees.relied_on(),
            *self.succession.relied_on(),
        ]
        self._liveness.watch(relied_on, now_s)
        self.counters.log_trimmed_events = self._context.budget.trimmed_events
        self.counters.catalogue_names_dropped = self._context.budget.trimmed_names
        return effects

    def want(self, topic: str, now_s: float) -> list[Effect]:
        """The host subscribes: join the tree, and stay in it."""
        self.interests.want(topic, now_s)
        if self.trees.is_member(topic):
            position = self.trees.topics[topic].position_message()
            self._effects.append(InTree(topic, position))
        return self._settle(now_s)

    def unwant(self, topic: str, now_s: float) -> list[Effect]:
        self.interests.unwant(topic, now_s)
        return self._settle(now_s)

    def insist(self, topic: str, known_term: int, now_s: float) -> list[Effect]:
        """The host has seen a newer term than the rendezvous point uses."""
        self.interests.insist(topic, known_term, now_s)
        return self._settle(now_s)

    def publish(
        self, publications: Sequence[Publication], via: Peer | None, now_s: float
    ) -> list[Effect]:
        """Send publications to the rendezvous point: `via` if the host knows who that is."""
        frame = self._outbox.to(via if via is not None else self.me)
        # Filled in where it is: what is in it is copied once.
        publish = frame.messages.add().publish
        publish.origin.CopyFrom(self.me.ref)
        publish.publications.extend(publications)
        return self._settle(now_s)

    def publish_bundle(
        self, bundle: Bundle, via: Peer, now_s: float
    ) -> tuple[list[Effect], BundleStamping]:
        """Send events to `via`, the rendezvous point of their topics; or stamp them, if that is
        this node."""
        if via.node_id != self.me.node_id:
            publish = self._outbox.to(via).messages.add().publish
            publish.origin.CopyFrom(self.me.ref)
            bundle.fill(publish.bundles.add())
            return self._settle(now_s), BundleStamping(None, bundle, ())
        if self.sealed or self.ring.status is not Status.MEMBER:
            return [], BundleStamping(None, None, range(len(bundle)))
        stamping = self.reigns.stamp_bundle(bundle, self.me, now_s)
        return self._settle(now_s), stamping

    def fetch(
        self,
        topic: str,
        seen: Sequence[TermSeq],
        via: Peer | None,
        now_s: float,
        reader: int = 0,
        *,
        wants_holes: bool = False,
    ) -> list[Effect]:
        """Ask the rendezvous point for what a reader misses."""
        frame = self._outbox.to(via if via is not None else self.me)
        fetch = Fetch(
            topic=topic, seen=seen, origin=self.me.ref, reader=reader, wants_holes=wants_holes
        )
        frame.messages.add(fetch=fetch)
        return self._settle(now_s)

    def tell_stamper(
        self,
        marks: Sequence[StoreMark],
        asked: Sequence[str],
        via: Peer | None,
        now_s: float,
    ) -> list[Effect]:
        """Say this to the rendezvous points of these topics: `via` if the host knows who that
        is."""
        message = self._outbox.to(via if via is not None else self.me).messages.add().to_stamper
        message.origin.CopyFrom(self.me.ref)
        message.marks.extend(marks)
        message.asked.extend(asked)
        return self._settle(now_s)

    def announced(self, entries: Iterable[Entered], now_s: float) -> list[Effect]:
        """The host has entered these topics in the catalogue: what `Announce` asked for is done."""
        for entry in entries:
            self.reigns.announced(entry, now_s)
        return self._settle(now_s)

    def condemned_peers(self) -> list[Peer]:
        """Peers that are taken for dead, until they say a word themselves or it is forgotten."""
        known = [self.directory.get(node_id) for node_id in self._liveness.condemned]
        return [peer for peer in known if peer is not None]

    def unreachable(self, address: str, now_s: float) -> list[Effect]:
        """Nobody listens at this address: whoever was there is dead, silent for long or not."""
        if self.sealed:
            return self._settle(now_s)
        for peer in self.directory.at_address(address):
            self._lose(peer.node_id, now_s)
        return self._settle(now_s)

    def leave(self, now_s: float) -> list[Effect]:
        """Depart gracefully; done when `Departed` comes out."""
        self.ring.leave(now_s)
        if self.ring.status is Status.LEAVING:
            self.succession.hand_over_all(now_s)
        return self._settle(now_s)

    # ---- changing hands -------------------------------------------------------------------------

    def seal(self) -> None:
        """From now on nothing changes: the state is being given to another host."""
        self.sealed = True

    def unseal(self, now_s: float, *, certain: bool) -> list[Effect]:
        """Go on as if nothing had been. Unless it is `certain` that nobody else hosts this node,
        with terms of its own."""
        self.sealed = False
        if not certain:
            self.reigns.renew_all(now_s)
        return self._settle(now_s)

    def resume(self, state: NodeState, now_s: float) -> None:
        """Go on where the former host sealed it; the ring is loaded already."""
        ring = self.ring
        self._routes_seen = ring.fingers.version
        self._successor_seen = ring.successor
        self._range_seen = (ring.status, ring.range_low)
        ring.calm_since_s = now_s
        self.trees.load(state.trees, now_s)
        self.reigns.load(state.reigns, now_s)
        self.replication.load(state.copies, now_s)
        self.succession.load(state.handing, now_s)

    def adopt_histories(self, states: Iterable[TopicState], now_s: float) -> list[Effect]:
        """Histories that a node had which was hosted here: whoever is responsible should know."""
        for state in states:
            self.succession.former_history(state, now_s)
        return self._settle(now_s)

    def learn_hosts(self, hosts: Iterable[NodeRef], now_s: float) -> list[Effect]:
        """Where nodes are hosted from now on."""
        for ref in hosts:
            self.directory.learn(ref)
        return self._settle(now_s)

    # ---- what others may know -------------------------------------------------------------------

    def status(self) -> NodeStatus:
        """What it is and has now, but for what there may be too much of to look at."""
        ring = self.ring
        return NodeStatus(
            me=self.me,
            ring=ring.status,
            is_ready=self.reigns.ready,
            is_sealed=self.sealed,
            range_low=ring.range_low,
            predecessor=ring.predecessor,
            successors=tuple(ring.successors),
            fingers=ring.fingers.routes.targets,
            condemned=tuple(self.condemned_peers()),
            tree_children=self.trees.child_nodes,
            unsettled_interests=self.interests.unsettled,
            unsent_topics=self.replication.unsent_topics,
            unconfirmed_topics=self.replication.unconfirmed_topics,
            retained_bytes=self._context.budget.used,
            counters=self.counters,
        )

    def count_in_steps(self, at_once: int) -> Generator[None, None, NodeCounts]:
        """Count all that it has; after so many things it waits until it is to go on."""
        counts = NodeCounts()
        yield from self.trees.count_in_steps(counts, at_once)
        yield from self.reigns.count_in_steps(counts, at_once)
        yield from self.replication.count_in_steps(counts, at_once)
        return counts

    def describe(self) -> NodeReport:
        """For operators."""
        return self._reports.describe(self.status())

    def list_topics(self, after: str, limit: int) -> TopicsReport:
        """A page of the topics whose rendezvous point it is, those after this name."""
        return self._reports.page(after, limit)

    def describe_tree(self, topic: str) -> TreeReport:
        """Its part of the topic's tree."""
        return self._reports.tree(topic)

    # ---- messages -------------------------------------------------------------------------------

    def _take(self, frame: PeerFrame, now_s: float) -> None:
        self.counters.frames_received += 1
        sender = self.hosting.newest(frame.sender)
        if sender is None:
            return
        self._liveness.hear(sender.node_id, now_s)
        silent_s = self.directory.hear(sender, now_s)
        self.ring.heard(sender, silent_s, now_s)
        for message in frame.messages:
            self._dispatch(sender, message, now_s)

    def _dispatch(self, sender: Peer, message: PeerMessage, now_s: float) -> None:
        kind = message.WhichOneof("body")
        handler = self._handlers.get(kind) if kind is not None else None
        if handler is None:
            self.counters.messages_unknown += 1
            return
        if self.sealed and kind not in WHILE_SEALED:
            self.counters.messages_sealed += 1
            return
        if self.ring.status is not Status.MEMBER and not self._takes_part(sender, kind or ""):
            return
        body = getattr(message, kind or "")
        if not is_sound(body):
            self.counters.messages_malformed += 1
            return
        if kind in ROUTED and not self.reigns.is_mine(body.topic):
            self._forward(sender, message, kind, body)
        else:
            handler(sender, body, now_s)

    def _takes_part(self, sender: Peer, kind: str) -> bool:
        """Whether a node that is not (any more, or yet) a member heeds such a message."""
        joining = self.ring.status is Status.JOINING
        if kind in (BEFORE_MEMBERSHIP if joining else AFTER_MEMBERSHIP):
            return True
        if sender.node_id != self.me.node_id:
            self.ring.refuse(sender)
        return False

    def _forward(self, sender: Peer, message: PeerMessage, kind: str, body: Any) -> None:
        frame = self._onward(key_of(body.topic), sender.node_id, body.hops)
        if frame is not None:
            if kind in ("join_tree", "leave_tree"):
                self.counters.tree_control_sent += 1
            onward = frame.messages.add()
            onward.CopyFrom(message)
            getattr(onward, kind).hops += 1

    def _onward(self, key: Key, sender: NodeId, hops: int) -> PeerFrame | None:
        """The frame in which a message about this key travels on."""
        hop = self.ring.next_hop(key, sender)
        if hop is None:
            return None
        if hops >= self.settings.hops_max:
            self.counters.hops_exceeded += 1
            return None
        return self._outbox.to(hop)

    def _towards_root(self, key: Key) -> PeerFrame:
        """The frame for a message about a tree that this node asks of its root, perhaps itself."""
        hop = self.ring.next_hop(key)
        if hop is None:
            return self._outbox.to(self.me)
        self.counters.tree_control_sent += 1
        return self._outbox.to(hop)

    def on_ping(self, sender: Peer, message: Ping, now_s: float) -> None:
        self.ring.farewell.asked_after(sender)
        self._outbox.to(sender).messages.add(pong=Pong(nonce=message.nonce, low=self.ring.told_low))

    def on_pong(self, sender: Peer, message: Pong, now_s: float) -> None:
        self.round_trips.on_pong(sender, message, now_s)
        if message.HasField("low"):
            self.ring.fingers.range_told(sender.node_id, NodeId(message.low))

    def on_runs(self, sender: Peer, message: Any, now_s: float) -> None:
        way_us = self.round_trips.way_us(sender.broker_id)
        for run in message.runs:
            self.trees.on_run(run, now_s, way_us)
        for wire in message.bundles:
            self.trees.on_bundle(Bundle.from_wire(wire), now_s, way_us)
        for beats in message.beats:
            self.trees.on_beats(Beats.from_wire(beats), now_s)

    def on_publish_ack(self, sender: Peer, message: PublishAck, now_s: float) -> None:
        self._effects.append(Accepted(sender, message))

    def on_fetched(self, sender: Peer, message: Fetched, now_s: float) -> None:
        self._effects.append(Repaired(sender, message))

    def on_stabilise(self, sender: Peer, message: Any, now_s: float) -> None:
        self.ring.on_stabilise(sender, message)
        self.succession.told_range(sender, NodeId(message.low), now_s)

    def on_claim_range(self, sender: Peer, message: Any, now_s: float) -> None:
        self.ring.on_notify(sender)
        self.succession.on_claim_range(sender, message, now_s)

    def on_not_here(self, sender: Peer, message: NotHere, now_s: float) -> None:
        self._lose(NodeId(message.node_id), now_s)

    def on_leave(self, sender: Peer, message: Any, now_s: float) -> None:
        """It may go once nobody needs the copies that it has."""
        self.ring.on_leave(sender, message, now_s)
        self.trees.drop_parent(sender.node_id)
        self._note_successor()
        if self.replication.is_complete:
            self._outbox.to(sender).messages.add(leave_seen=LeaveSeen())

    def _hand_over_unknown(self, state: TopicState, now_s: float) -> None:
        self.succession.unknown_history(state, now_s)

    # ---- peers come back and go -----------------------------------------------------------------

    def _lose(self, node_id: NodeId, now_s: float) -> None:
        if node_id == self.me.node_id:
            return
        self.counters.peers_condemned += 1
        peer = self.directory.get(node_id)
        if peer is not None and not self._liveness.is_condemned(node_id):
            self._effects.append(PeerLost(peer))
        self._liveness.condemn(node_id, now_s)
        self.ring.lost(node_id, now_s)
        self.trees.drop_parent(node_id)
        self.succession.lost(node_id, now_s)

    # ---- after each input -----------------------------------------------------------------------

    def _moved(self, peer: Peer) -> None:
        """Another broker hosts this node now, with all that it knew: only its address is new."""
        self.counters.peers_moved += 1
        self.ring.moved(peer)
        self.trees.moved(peer)
        if self._successor_seen is not None and self._successor_seen.node_id == peer.node_id:
            self._successor_seen = peer

    def _settle(self, now_s: float) -> list[Effect]:
        for _ in range(_LOCAL_FRAMES_MAX):
            self._align(now_s)
            frame = self._outbox.take_local()
            if frame is None:
                break
            for message in frame.messages:
                self._dispatch(self.me, message, now_s)
        self._effects += self._outbox.drain()
        if not self._departed and self.ring.status is Status.LEFT and not self.succession.handing:
            self._departed = True
            self._effects.append(Departed())
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _note_successor(self) -> None:
        successor = self.ring.successor
        # Whether it is the same is asked after each input, whether it is alike is dear.
        if successor is not self._successor_seen and successor != self._successor_seen:
            self._successor_seen = successor
            self.replication.successor_changed()

    def _align(self, now_s: float) -> None:
        """Bring the parts in line with what the ring has become."""
        ring = self.ring
        if self.directory.has_news:
            self._align_with_directory(now_s)
        if ring.fingers.version != self._routes_seen:
            self._routes_seen = ring.fingers.version
            ring.calm_since_s = now_s
            self.trees.reroute(now_s)
        seen = (ring.status, ring.range_low)
        if seen != self._range_seen:
            self._range_seen = seen
            ring.calm_since_s = now_s
            self.succession.range_changed(now_s)
        self._note_successor()
        if self.trees.has_own_changes:
            for topic in self.trees.take_own_changes():
                self.interests.review(topic, now_s)
        self.replication.flush()
        self.trees.flush()

    def _align_with_directory(self, now_s: float) -> None:
        for peer in self.directory.take_moved():
            self._moved(peer)
        for former in self.directory.take_reborn():
            # What its former life knew and promised is void.
            self.ring.lost(former.node_id, now_s)
            self.trees.drop_parent(former.node_id)
            self.succession.lost(former.node_id, now_s)
