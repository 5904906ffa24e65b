"""Topic trees: who is below whom, and where an event goes next.

A tree is the union of the routes from its rendezvous point to its members. It grows top-down: a
node is entrusted by its parent with a set of members, keeps the part that is itself, and entrusts
each of the rest to the next node on its own route there. So what a node does for a topic follows
from two things only, the members entrusted to it and its routing table; when either changes, the
difference is passed on. The rendezvous point entrusts all members to itself and begins.

All of it is soft state. The two ends of an edge compare digests of the (topic, member) pairs on it;
a parent that falls silent is no parent; a member that finds itself outside its tree asks to join
again.

An event is forwarded when it advances the topic's position at this node and ignored otherwise, so
it passes any node once however the tree is being rebuilt. Gaps are not this module's business:
whoever needs every event notices them from the numbers and asks the rendezvous point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from dynatops.kit.bundles import Bundle
from dynatops.v1.overlay_pb2 import (
    PeerFrame,
    Run,
    TreeChange,
    TreeContent,
    TreeDigest,
    TreeMismatch,
    TreeState,
    TreeUpdate,
)
from overlay.base.beats import Beats
from overlay.base.catalogue import is_system
from overlay.base.context import Context
from overlay.base.effects import Deliver, DeliverBeats, DeliverBundle, InTree
from overlay.base.identifiers import Key, NodeId, key_of
from overlay.base.node_counts import NodeCounts
from overlay.base.peers import Peer
from overlay.chord.routing import RoutingTable
from overlay.tree.tree_requests import TreeRequests
from overlay.tree.tree_state import BUCKET_SHIFT, BUCKETS, Edge, TopicTree

_CHANGES_PER_MESSAGE = 500


class Trees:
    def __init__(
        self,
        context: Context,
        routes: RoutingTable,
        towards_root: Callable[[Key], PeerFrame],
    ) -> None:
        self._me = me = context.me
        self._settings = context.settings
        self._outbox = context.outbox
        self._effects = context.effects
        self._counters = context.counters
        self._routes = routes
        self._requests = TreeRequests(context, towards_root)
        self.topics: dict[str, TopicTree] = {}
        # Who entrusted what to this node; at the root, the node itself is among them.
        self._parents: dict[NodeId, Edge] = {me.node_id: Edge()}
        self._parents[me.node_id].heard_s = math.inf
        self._children: dict[NodeId, tuple[Peer, Edge]] = {}
        # child -> topic -> member -> whether it was added (or removed) since the last flush.
        self._changes: dict[Peer, dict[str, dict[NodeId, bool]]] = {}
        self._refreshes: set[tuple[NodeId, str]] = set()
        # Topics in which this node's own membership may have changed since it was last asked.
        self._own_changes: dict[str, None] = {}
        self._digests_due_s = 0.0

    # ---- what the rest of the node asks ----------------------------------------------------------

    def is_member(self, topic: str) -> bool:
        tree = self.topics.get(topic)
        return tree is not None and self._me.node_id in tree.entrusted

    def is_all_here(self, topic: str) -> bool:
        """Whether the topic's tree begins and ends at this node: nobody else hears of it."""
        tree = self.topics.get(topic)
        return tree is not None and tree.is_root and not self._children_of(tree)

    def known_term(self, topic: str) -> int:
        """The newest term of the topic that has come by here."""
        tree = self.topics.get(topic)
        return tree.position[0] if tree is not None else 0

    @property
    def has_own_changes(self) -> bool:
        return bool(self._own_changes)

    def take_own_changes(self) -> Iterable[str]:
        changed, self._own_changes = self._own_changes, {}
        return changed

    def relied_on(self) -> Iterable[Peer]:
        return (peer for peer, _ in self._children.values())

    @property
    def child_nodes(self) -> int:
        """Nodes that something was entrusted to."""
        return len(self._children)

    def count_in_steps(self, counts: NodeCounts, at_once: int) -> Iterator[None]:
        """Add trees and branches to these; a few thousand at a time, as they are many."""
        me = self._me.node_id
        for number, tree in enumerate(list(self.topics.values()), 1):
            if not tree.is_system:
                counts.trees += 1
                if me in tree.entrusted:
                    counts.member_trees += 1
                elif tree.entrusted and not tree.is_root:
                    counts.relay_trees += 1
                counts.branches += len(tree.children or ())
            if not number % at_once:
                yield

    # ---- the rendezvous point's side ------------------------------------------------------------

    def become_root(
        self, topic: str, position: tuple[int, int], origin: tuple[int, int]
    ) -> TopicTree:
        """The tree stays the same for as long as this node is its root."""
        tree = self._tree(topic)
        tree.is_root = True
        tree.position = max(tree.position, (*position, 0))
        tree.origin = origin
        return tree

    def resign_root(self, topic: str) -> None:
        """Another node is the root now: what this node entrusted to itself goes."""
        tree = self.topics.get(topic)
        if tree is None or not tree.is_root:
            return
        tree.is_root = False
        for member in self.members(topic):
            self._release(self._me.node_id, tree, member)
        self._forget_if_empty(tree)

    def add_member(
        self, topic: str, member: NodeId, now_s: float, *, refresh: bool = False
    ) -> bool:
        """At the root: whether the member is new. With `refresh` the whole branch is told again."""
        tree = self._tree(topic)
        return self._entrust(self._me.node_id, tree, member, now_s, refresh=refresh)

    def remove_member(self, topic: str, member: NodeId) -> bool:
        tree = self.topics.get(topic)
        return tree is not None and self._release(self._me.node_id, tree, member)

    def members(self, topic: str) -> list[NodeId]:
        """At the root: every member of the topic."""
        return sorted(self._parents[self._me.node_id].members(topic))

    # ---- what parents say -----------------------------------------------------------------------

    def on_update(self, sender: Peer, message: TreeUpdate, now_s: float) -> None:
        edge = self._parent_edge(sender.node_id, now_s)
        for change in message.changes:
            self._apply(sender.node_id, change, now_s)
        if not edge.topics:
            self._parents.pop(sender.node_id, None)

    def _apply(self, parent: NodeId, change: TreeChange, now_s: float) -> None:
        if change.topic not in self.topics and len(self.topics) >= self._settings.topics_held_max:
            # The digests will differ, and it comes again.
            self._counters.topics_refused += 1
            return
        tree = self._tree(change.topic)
        tree.note_position(change.position)
        for member in change.remove:
            self._release(parent, tree, NodeId(member))
        for member in change.add:
            self._entrust(parent, tree, NodeId(member), now_s, refresh=change.refresh)
        self._forget_if_empty(tree)

    def on_digest(self, sender: Peer, message: TreeDigest, now_s: float) -> None:
        edge = self._parents.get(sender.node_id) or Edge()
        edge.heard_s = now_s
        if (edge.digest, edge.pairs) != (message.digest, message.pairs):
            self._counters.tree_resyncs += 1
            mismatch = TreeMismatch(digests=edge.digests)
            self._outbox.to(sender).messages.add(tree_mismatch=mismatch)

    def on_content(self, sender: Peer, message: TreeContent, now_s: float) -> None:
        edge = self._parent_edge(sender.node_id, now_s)
        told = {change.topic: set(map(NodeId, change.add)) for change in message.topics}
        for topic in [t for t in edge.topics if key_of(t) >> BUCKET_SHIFT == message.bucket]:
            tree = self._tree(topic)
            for member in sorted(set(edge.members(topic)) - told.get(topic, set())):
                self._release(sender.node_id, tree, member)
            self._forget_if_empty(tree)
        for change in message.topics:
            self._apply(sender.node_id, change, now_s)
        if not edge.topics:
            self._parents.pop(sender.node_id, None)

    def drop_parent(self, node_id: NodeId) -> None:
        """The parent is dead or silent: nothing is entrusted by it any more."""
        edge = self._parents.get(node_id)
        if edge is None or node_id == self._me.node_id:
            return
        for topic in list(edge.topics):
            tree = self._tree(topic)
            for member in sorted(edge.members(topic)):
                self._release(node_id, tree, member)
            self._forget_if_empty(tree)
        del self._parents[node_id]

    # ---- what children say ----------------------------------------------------------------------

    def on_mismatch(self, sender: Peer, message: TreeMismatch) -> None:
        _, edge = self._children.get(sender.node_id, (sender, Edge()))
        if len(message.digests) != BUCKETS:
            return
        for bucket in range(BUCKETS):
            if edge.digests[bucket] != message.digests[bucket]:
                self._outbox.to(sender).messages.add(tree_content=self._content(edge, bucket))

    def _content(self, edge: Edge, bucket: int) -> TreeContent:
        content = TreeContent(bucket=bucket)
        for topic in edge.topics:
            tree = self.topics[topic]
            if tree.key >> BUCKET_SHIFT == bucket:
                members = sorted(edge.members(topic))
                content.topics.add(topic=topic, add=members, position=tree.position_message())
        return content

    # ---- entrusting and delegating --------------------------------------------------------------

    def _entrust(
        self, parent: NodeId, tree: TopicTree, member: NodeId, now_s: float, *, refresh: bool
    ) -> bool:
        edge = self._parents.setdefault(parent, Edge())
        is_new = edge.add(tree.topic, tree.key, member)
        if is_new:
            tree.entrusted[member] = tree.entrusted.get(member, 0) + 1
        if is_new and tree.entrusted[member] == 1:
            self._delegate(tree, member, now_s)
        elif refresh and (child := tree.delegates.get(member)) is not None:
            self._say(child, tree.topic, member, added=True)
            self._refreshes.add((child.node_id, tree.topic))
        if member == self._me.node_id:
            self._own_changes[tree.topic] = None
            self._effects.append(InTree(tree.topic, tree.position_message()))
        return is_new

    def _release(self, parent: NodeId, tree: TopicTree, member: NodeId) -> bool:
        edge = self._parents.get(parent)
        if edge is None or not edge.remove(tree.topic, tree.key, member):
            return False
        tree.entrusted[member] -= 1
        if tree.entrusted[member] == 0:
            del tree.entrusted[member]
            self._withdraw(tree, member)
            if member == self._me.node_id:
                self._own_changes[tree.topic] = None
        return True

    def _delegate(self, tree: TopicTree, member: NodeId, now_s: float) -> None:
        if member == self._me.node_id:
            return
        child = self._routes.towards(member)
        tree.delegates[member] = child
        tree.children = None
        if child is None:
            self._requests.no_route(tree.topic, member, now_s)
            return
        _, edge = self._children.setdefault(child.node_id, (child, Edge()))
        edge.add(tree.topic, tree.key, member)
        self._say(child, tree.topic, member, added=True)

    def _withdraw(self, tree: TopicTree, member: NodeId) -> None:
        self._requests.withdrawn(tree.topic, member)
        child = tree.delegates.pop(member, None)
        tree.children = None
        if child is None:
            return
        _, edge = self._children[child.node_id]
        edge.remove(tree.topic, tree.key, member)
        self._say(child, tree.topic, member, added=False)
        if not edge.topics:
            del self._children[child.node_id]

    def reroute(self, now_s: float) -> None:
        """The routing table changed: entrust each member to whoever is now next towards it."""
        for tree in self.topics.values():
            for member, child in list(tree.delegates.items()):
                hop = self._routes.towards(member)
                if hop != child:
                    self._withdraw(tree, member)
                    self._delegate(tree, member, now_s)

    def moved(self, peer: Peer) -> None:
        """Another broker hosts this child now, and knows all that it knew."""
        former, edge = self._children.get(peer.node_id, (peer, None))
        if edge is None:
            return
        self._children[peer.node_id] = (peer, edge)
        if former in self._changes:
            self._changes[peer] = self._changes.pop(former)
        for topic in edge.topics:
            tree = self.topics[topic]
            for member in edge.members(topic):
                tree.delegates[member] = peer
            tree.children = None

    # ---- changing hands -------------------------------------------------------------------------

    def states(self) -> Iterator[TreeState]:
        """What the next host of this node needs to know; the rest follows from its routes."""
        for topic, tree in self.topics.items():
            state = TreeState(topic=topic, position=tree.position_message(), beat=tree.position[2])
            for parent, edge in self._parents.items():
                if members := edge.members(topic):
                    state.entrusted.add(parent=parent, members=sorted(members))
            yield state

    def load(self, states: Iterable[TreeState], now_s: float) -> None:
        """Go on where the former host stopped. Children know already what they are entrusted."""
        for state in states:
            tree = self._tree(state.topic)
            position = state.position
            tree.position = (position.term, position.seq, state.beat)
            tree.origin = (position.prev_term, position.prev_seq)
            for entrusted in state.entrusted:
                parent = NodeId(entrusted.parent)
                if parent != self._me.node_id:
                    self._parent_edge(parent, now_s)
                for member in entrusted.members:
                    self._entrust(parent, tree, NodeId(member), now_s, refresh=False)
            self._forget_if_empty(tree)
        self._changes.clear()

    def _say(self, child: Peer, topic: str, member: NodeId, *, added: bool) -> None:
        self._changes.setdefault(child, {}).setdefault(topic, {})[member] = added

    def flush(self) -> None:
        """Tell children what has changed while the last input was handled."""
        if not self._changes:
            self._refreshes.clear()
            return
        for child, topics in self._changes.items():
            messages = self._outbox.to(child).messages
            for start, (topic, members) in enumerate(topics.items()):
                if start % _CHANGES_PER_MESSAGE == 0:
                    self._counters.tree_control_sent += 1
                    update = messages.add().tree_update
                tree = self.topics.get(topic)
                update.changes.add(
                    topic=topic,
                    add=[member for member, added in members.items() if added],
                    remove=[member for member, added in members.items() if not added],
                    position=tree.position_message() if tree is not None else None,
                    refresh=(child.node_id, topic) in self._refreshes,
                )
        self._changes.clear()
        self._refreshes.clear()

    # ---- time -----------------------------------------------------------------------------------

    def tell_digests(self, now_s: float) -> None:
        """Children that hear nothing take their parent for gone."""
        if now_s >= self._digests_due_s:
            self._digests_due_s = now_s + self._settings.digest_period_s
            for peer, edge in self._children.values():
                digest = TreeDigest(digest=edge.digest, pairs=edge.pairs)
                self._outbox.to(peer).messages.add(tree_digest=digest)

    def tick(self, now_s: float) -> None:
        self.tell_digests(now_s)
        silent_since_s = now_s - self._settings.lease_s
        for node_id in [n for n, edge in self._parents.items() if edge.heard_s < silent_since_s]:
            self.drop_parent(node_id)
        self._requests.tick(now_s)

    # ---- bookkeeping ----------------------------------------------------------------------------

    def _tree(self, topic: str) -> TopicTree:
        tree = self.topics.get(topic)
        if tree is None:
            tree = self.topics[topic] = TopicTree(topic, key_of(topic), is_system=is_system(topic))
        return tree

    def _parent_edge(self, node_id: NodeId, now_s: float) -> Edge:
        edge = self._parents.setdefault(node_id, Edge())
        edge.heard_s = now_s
        return edge

    def _forget_if_empty(self, tree: TopicTree) -> None:
        if not tree.entrusted and not tree.is_root:
            self.topics.pop(tree.topic, None)
            self._requests.forget_topic(tree.topic)

    # ---- events ---------------------------------------------------------------------------------

    def disseminate(self, run: Run) -> None:
        """At the root: send a stamped run (or a heartbeat) down the tree."""
        tree = self._tree(run.topic)
        tree.advance(run)
        self._pass_on(tree, run)

    def disseminate_bundle(self, bundle: Bundle, trees: Iterable[TopicTree]) -> None:
        """The same, of all that has been stamped in a bundle; the trees are those of its topics."""
        self._pass_on_bundle(bundle, enumerate(trees))

    def disseminate_beats(self, beats: Beats) -> None:
        """The same of topics that stand still."""
        self._pass_on_beats(beats, ((p, self._tree(t)) for p, t in enumerate(beats.topics)))

    def on_run(self, run: Run, now_s: float, way_us: int = 0) -> None:
        """`way_us` is the round trip between the sender and this node, if it is known."""
        tree = self.topics.get(run.topic)
        if tree is None or not tree.entrusted:
            if not is_system(run.topic):
                self._counters.tree_strays += run.count
            return
        position = (run.term, run.first_seq + run.count - 1, run.beat)
        if tree.is_system:
            self._counters.system_events += run.count
        else:
            self._counters.tree_events += run.count
        if position <= tree.position:
            self._counters.tree_repeats += 1
            if run.term < tree.position[0]:
                self._requests.root_is_outdated(tree, now_s)
            return
        if tree.is_root:
            self._requests.tell_term(tree, run.term)
            return
        run.hops += 1
        if way_us:
            run.way_us += way_us
        tree.advance(run)
        if self._me.node_id not in tree.entrusted and not tree.is_system:
            self._counters.relayed_events += run.count
        self._pass_on(tree, run)

    def on_bundle(self, bundle: Bundle, now_s: float, way_us: int = 0) -> None:
        """As `on_run` for each of its events."""
        bundle.hops += 1
        bundle.way_us += way_us
        self._pass_on_bundle(bundle, self._newer_in(bundle, now_s))

    def _newer_in(self, bundle: Bundle, now_s: float) -> Iterator[tuple[int, TopicTree]]:
        """Those of its events that have not come by here: their places, and their trees."""
        counters, me = self._counters, self._me.node_id
        for place, topic in enumerate(bundle.topics):
            tree = self.topics.get(topic)
            if tree is None or not tree.entrusted:
                counters.tree_strays += 1
                continue
            counters.tree_events += 1
            term = bundle.terms[place]
            if (term, bundle.seqs[place], 0) <= tree.position:
                counters.tree_repeats += 1
                if term < tree.position[0]:
                    self._requests.root_is_outdated(tree, now_s)
            elif tree.is_root:
                self._requests.tell_term(tree, term)
            else:
                counters.relayed_events += me not in tree.entrusted
                yield place, tree

    def _pass_on_bundle(self, bundle: Bundle, newer: Iterable[tuple[int, TopicTree]]) -> None:
        terms, seqs, me = bundle.terms, bundle.seqs, self._me.node_id
        mine: list[int] = []
        # By node: what a peer is hashed by is dear.
        by_child: dict[NodeId, tuple[Peer, list[int]]] = {}
        for place, tree in newer:
            term = terms[place]
            if tree.position[0] != term:
                # Where that began has not been heard of here.
                tree.origin = (0, 0)
            tree.position = (term, seqs[place], 0)
            for child in tree.children if tree.children is not None else self._children_of(tree):
                theirs = by_child.get(child.node_id)
                if theirs is None:
                    theirs = by_child[child.node_id] = (child, [])
                theirs[1].append(place)
            if me in tree.entrusted:
                mine.append(place)
        for child, places in by_child.values():
            self._outbox.bundle(child, bundle.pick(places))
        if mine:
            counters, count = self._counters, len(mine)
            counters.tree_delivered_events += count
            counters.tree_delivered_hops += count * bundle.hops
            counters.tree_delivered_way_us += count * bundle.way_us
            self._effects.append(DeliverBundle(bundle.pick(mine)))

    def on_beats(self, beats: Beats, now_s: float) -> None:
        """As `on_run` for each of them."""
        self._pass_on_beats(beats, self._newer_of(beats, now_s))

    def _newer_of(self, beats: Beats, now_s: float) -> Iterator[tuple[int, TopicTree]]:
        """Those that have not come by here: their places, and their trees."""
        for place, topic in enumerate(beats.topics):
            tree = self.topics.get(topic)
            if tree is None or not tree.entrusted:
                continue
            term = beats.terms[place]
            if (term, beats.seqs[place], beats.counts[place]) <= tree.position:
                self._counters.tree_repeats += 1
                if term < tree.position[0]:
                    self._requests.root_is_outdated(tree, now_s)
            elif tree.is_root:
                self._requests.tell_term(tree, term)
            else:
                yield place, tree

    def _pass_on_beats(self, beats: Beats, newer: Iterable[tuple[int, TopicTree]]) -> None:
        mine: list[int] = []
        by_child: dict[NodeId, tuple[Peer, list[int]]] = {}
        for place, tree in newer:
            term, origin = beats.terms[place], beats.origins[place]
            if tree.position[0] != term or origin[0]:
                tree.origin = origin
            tree.position = (term, beats.seqs[place], beats.counts[place])
            for child in self._children_of(tree):
                by_child.setdefault(child.node_id, (child, []))[1].append(place)
            if self._me.node_id in tree.entrusted:
                mine.append(place)
        for child, places in by_child.values():
            self._outbox.beats(child, beats.pick(places))
        if mine:
            self._effects.append(DeliverBeats(beats.pick(mine)))

    def _children_of(self, tree: TopicTree) -> tuple[Peer, ...]:
        if tree.children is None:
            distinct = {
                child.node_id: child for child in tree.delegates.values() if child is not None
            }
            tree.children = tuple(distinct[node_id] for node_id in sorted(distinct))
        return tree.children

    def _pass_on(self, tree: TopicTree, run: Run) -> None:
        for child in self._children_of(tree):
            self._outbox.run(child, run)
        if self._me.node_id in tree.entrusted:
            if not tree.is_system:
                self._counters.tree_delivered_events += run.count
                self._counters.tree_delivered_hops += run.count * run.hops
                self._counters.tree_delivered_way_us += run.count * run.way_us
            self._effects.append(Deliver(run))
