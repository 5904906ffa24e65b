"""Membership of the ring: Chord with Zave's corrections ("How to Make Chord Correct").

A node keeps an ordered list of successors and one predecessor. It joins by copying the list of its
future predecessor; it stabilises by taking over its successor's list, and the
successor's predecessor where that lies between; a node told of a possible predecessor rectifies: it
takes it if it is closer or the old one is dead. Three things go beyond the published protocol: a
successor whose predecessor changed nudges the former one, so that news does not wait for a timer;
every node asks now and then where it belongs, which joins rings that a partition split; and a
leaving node says so.

    JOINING --(found its predecessor)--> MEMBER --(leave)--> LEAVING --(neighbours know)--> LEFT

Not here: fingers (`fingers`), lookups (`lookups`), whom to ask for one's place (`place`), how a
departure is told (`farewell`), failure detection (`peers.Liveness`; its verdicts come in through
`lost`), and anything about topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dynatops.v1.overlay_pb2 import (
    Found,
    Leave,
    Lookup,
    Neighbours,
    NodeRef,
    NotHere,
    Notify,
    Nudge,
    Ping,
    Stabilise,
)
from overlay.base.context import Context
from overlay.base.identifiers import Key, NodeId, distance, strictly_between, within
from overlay.base.membership import Status
from overlay.base.peers import Peer
from overlay.chord.farewell import Farewell
from overlay.chord.fingers import Fingers
from overlay.chord.hosting import Hosting
from overlay.chord.lookups import Lookups
from overlay.chord.place import PlaceChecks

_NUDGED_PAUSE_S = 0.05
# Of those that asked this node something before it had joined. The others believe it dead a while.
_REFUSED_MAX = 256


def _is(peer: Peer | None, node_id: NodeId) -> bool:
    return peer is not None and peer.node_id == node_id


class Ring:
    def __init__(self, context: Context, hosting: Hosting) -> None:
        self.me = context.me
        self.status = Status.JOINING
        self.predecessor: Peer | None = None
        self.successors: list[Peer] = []
        self.fingers = Fingers(context)
        self.farewell = Farewell(context)
        # Since when neither routes nor neighbours have changed.
        self.calm_since_s = 0.0
        self._predecessor_lost = False
        self._settings = context.settings
        self._outbox = context.outbox
        self._directory = context.directory
        self._liveness = context.liveness
        self._rng = context.rng
        self._lookups = Lookups(context)
        self._place = PlaceChecks(context)
        self._hosting = hosting
        self.seeds: Sequence[str] = ()
        # Those that were told that this node is no member, before it was one.
        self._refused: dict[NodeId, Peer] = {}
        self._nonce = context.rng.getrandbits(32)
        self._successor_query: tuple[int, NodeId] | None = None
        self._candidate_query: tuple[int, NodeId] | None = None
        self._join_due_s = 0.0
        self._stabilised_s = 0.0
        self._stabilise_due_s = 0.0

    # ---- what others ask ------------------------------------------------------------------------

    @property
    def successor(self) -> Peer | None:
        return self.successors[0] if self.successors else None

    @property
    def alone(self) -> bool:
        return not self.successors

    @property
    def range_low(self) -> NodeId:
        """This node is responsible for the keys in (range_low, me]."""
        return self.predecessor.node_id if self.predecessor is not None else self.me.node_id

    @property
    def told_low(self) -> NodeId | None:
        """Where its range begins, as far as others may rely on that: somebody who lives says so."""
        if self.predecessor is None or self._predecessor_lost:
            return None
        return self.predecessor.node_id

    def is_responsible(self, key: int) -> bool:
        return self.status is Status.MEMBER and within(key, self.range_low, self.me.node_id)

    def next_hop(self, key: int, sender: NodeId | None = None) -> Peer | None:
        """Where a message about this key goes next; None if this node is its end.

        A message that a sender before the key sent past it belongs to a node that the sender does
        not know yet, which is further back; or to one that has just died, whose heir is not known
        yet.
        """
        if self.is_responsible(key):
            return None
        if self.status is not Status.MEMBER:
            return self.successor
        if sender is not None and self._overshot(key, sender):
            return None if self._predecessor_lost else self.predecessor
        return self.fingers.routes.towards(key) or self.successor

    def _overshot(self, key: int, sender: NodeId) -> bool:
        predecessor = self.predecessor
        if predecessor is None or sender in (self.me.node_id, predecessor.node_id):
            return False
        return within(key, sender, predecessor.node_id)

    def relied_on(self) -> Iterable[Peer]:
        """The peers whose death this node must notice."""
        if self.status is Status.MEMBER:
            yield from self.fingers.routes.targets
            if self.predecessor is not None and not self._predecessor_lost:
                yield self.predecessor
        elif self.status is Status.LEAVING:
            yield from self.farewell.unconfirmed

    # ---- coming and going -----------------------------------------------------------------------

    def start(self, seeds: Sequence[str], now_s: float, *, founding: bool = False) -> None:
        """Join the ring of the seeds, or found one: which others of the seeds may turn up in."""
        self.seeds = [seed for seed in seeds if seed != self.me.address]
        self._join_due_s = now_s
        self._place.start(self.seeds, now_s)
        if founding or not self.seeds:
            self._become_member(now_s)

    def _become_member(self, now_s: float) -> None:
        self.status = Status.MEMBER
        self._stabilise_due_s = now_s
        self.fingers.set_successor(self.successor)
        # They take it for dead, and hearsay does not help: they could not be its neighbours.
        for peer in self._refused.values():
            self._nudge(peer)
        self._refused.clear()

    def leave(self, now_s: float) -> None:
        if self.status in (Status.LEAVING, Status.LEFT):
            return
        if self.status is Status.JOINING or self.alone:
            self.status = Status.LEFT
            return
        self.status = Status.LEAVING
        neighbours = self.successors[:1]
        if self.predecessor is not None and not self._predecessor_lost:
            neighbours.append(self.predecessor)
        message = Leave(
            predecessor=self.predecessor.ref if self.predecessor else None,
            successors=[peer.ref for peer in self.successors],
        )
        self.farewell.begin(message, neighbours, now_s)

    # ---- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        if self.status is Status.JOINING:
            self._tick_joining(now_s)
        elif self.status is Status.MEMBER:
            self._tick_member(now_s)
        elif self.status is Status.LEAVING and self.farewell.tick(now_s):
            self.status = Status.LEFT

    def _tick_joining(self, now_s: float) -> None:
        if now_s < self._join_due_s:
            return
        self._join_due_s = now_s + self._settings.join_retry_s
        self._ask_where_i_belong(Peer.at(self._rng.choice(list(self.seeds))), now_s)

    def _tick_member(self, now_s: float) -> None:
        if now_s >= self._stabilise_due_s:
            self._stabilise(now_s)
        for exponent, key in self.fingers.due(now_s):
            self.on_lookup(self._lookups.start(key, exponent, now_s))
        knowing = self._place.due(now_s)
        if knowing is not None:
            self._ask_where_i_belong(knowing, now_s)
        self._lookups.tick(now_s)

    # ---- stabilise and rectify ------------------------------------------------------------------

    def _stabilise(self, now_s: float) -> None:
        self._stabilised_s = now_s
        self._stabilise_due_s = now_s + self._settings.stabilise_period_s
        if self.successors:
            self._successor_query = self._ask_neighbours(self.successors[0])

    def _ask_neighbours(self, peer: Peer) -> tuple[int, NodeId]:
        self._nonce += 1
        stabilise = Stabilise(nonce=self._nonce, low=self.range_low)
        self._outbox.to(peer).messages.add(stabilise=stabilise)
        return (self._nonce, peer.node_id)

    def on_stabilise(self, sender: Peer, message: Stabilise) -> None:
        self.farewell.asked_after(sender)
        known = self.predecessor is not None and not self._predecessor_lost
        answer = Neighbours(
            nonce=message.nonce,
            predecessor=self.predecessor.ref if self.predecessor and known else None,
            successors=[peer.ref for peer in self.successors],
        )
        self._outbox.to(sender).messages.add(neighbours=answer)

    def on_neighbours(self, sender: Peer, message: Neighbours) -> None:
        query = (message.nonce, sender.node_id)
        if query == self._successor_query:
            self._successor_query = None
            if not _is(self.successor, sender.node_id):
                return
        elif query == self._candidate_query:
            self._candidate_query = None
            if not self._improves(sender):
                return
        else:
            return
        self._adopt(sender, message.successors)
        between = self._better_successor(message)
        if between is not None:
            self._candidate_query = self._ask_neighbours(between)
        knows_me = message.HasField("predecessor")
        if not knows_me or message.predecessor.node_id != self.me.node_id:
            self._notify(sender)

    def _better_successor(self, message: Neighbours) -> Peer | None:
        if not message.HasField("predecessor"):
            return None
        candidate = self._directory.learn(message.predecessor)
        return candidate if self._improves(candidate) else None

    def _improves(self, candidate: Peer) -> bool:
        """Whether the candidate lies between this node and its successor, and may be alive."""
        end = self.successors[0].node_id if self.successors else self.me.node_id
        return strictly_between(
            candidate.node_id, self.me.node_id, end
        ) and not self._liveness.is_condemned(candidate.node_id)

    def _adopt(self, successor: Peer, its_successors: Iterable[NodeRef]) -> None:
        chain = self._chain([successor, *map(self._directory.learn, its_successors)])
        if chain != self.successors:
            if chain[:1] != self.successors[:1]:
                self._place.neighbours_changed()
            self.successors = chain
            self.fingers.set_successor(self.successor)
            self._nudge(self.predecessor)

    def _chain(self, peers: Iterable[Peer]) -> list[Peer]:
        """The longest ordered successor list that these peers, nearest first, make."""
        chain: list[Peer] = []
        reached = 0
        for peer in peers:
            if peer.node_id == self.me.node_id:
                break
            away = distance(self.me.node_id, peer.node_id)
            if away > reached and not self._liveness.is_condemned(peer.node_id):
                chain.append(peer)
                reached = away
                if len(chain) == self._settings.successors_max:
                    break
        return chain

    def _notify(self, successor: Peer) -> None:
        self._outbox.to(successor).messages.add(notify=Notify())

    def on_notify(self, sender: Peer) -> None:
        former = self.predecessor
        if sender.node_id == self.me.node_id:
            return
        if (
            former is None
            or self._predecessor_lost
            or former.node_id == sender.node_id
            or strictly_between(sender.node_id, former.node_id, self.me.node_id)
        ):
            lost, self._predecessor_lost = self._predecessor_lost, False
            self.predecessor = sender
            if not lost and not _is(former, sender.node_id):
                self._nudge(former)
        if self.alone:
            self._fall_back()

    def _nudge(self, predecessor: Peer | None) -> None:
        """What the predecessor would learn at its next stabilisation has changed."""
        if predecessor is not None:
            self._outbox.to(predecessor).messages.add(nudge=Nudge())

    def heard(self, sender: Peer, silent_s: float, now_s: float) -> None:
        """Whoever speaks is not lost; and who comes back may come from another ring."""
        if self._predecessor_lost and _is(self.predecessor, sender.node_id):
            self._predecessor_lost = False
        if silent_s >= self._settings.silence_s and self._is_worth_asking(silent_s, now_s):
            self._ask_where_i_belong(sender, now_s)

    def _is_worth_asking(self, silent_s: float, now_s: float) -> bool:
        return self.status is Status.MEMBER and self._place.is_worth_asking(silent_s, now_s)

    def on_nudge(self, now_s: float) -> None:
        soonest_s = self._stabilised_s + _NUDGED_PAUSE_S
        if now_s >= soonest_s:
            self._stabilise(now_s)
        else:
            self._stabilise_due_s = min(self._stabilise_due_s, soonest_s)

    # ---- lookups --------------------------------------------------------------------------------

    def on_lookup(self, message: Lookup) -> None:
        self._directory.learn(message.origin)
        self._lookups.serve(message, self.successors, self.fingers.routes)

    def _ask_where_i_belong(self, peer: Peer, now_s: float) -> None:
        lookup = self._lookups.start(Key(self.me.node_id), None, now_s)
        self._outbox.to(peer).messages.add(lookup=lookup)

    def on_found(self, sender: Peer, message: Found, now_s: float) -> None:
        pending = self._lookups.answered(message)
        if pending is None or not message.successors:
            return
        successors = [self._directory.learn(ref) for ref in message.successors]
        if self.status is Status.JOINING:
            if self._hosting.check_place(message.successors):
                self._join_behind(sender, successors, now_s)
        elif self.status is not Status.MEMBER:
            return
        elif pending.exponent is not None:
            self._ask_if_alive(successors[0])
            self.fingers.found(pending.exponent, successors[0])
        else:
            self._check_place(sender, successors[0])

    def _ask_if_alive(self, peer: Peer) -> None:
        """Somebody vouches for a peer that was no member when it was asked, or seemed dead: a word
        of its own suffices, so that it is a finger in the next round."""
        if self._liveness.is_condemned(peer.node_id):
            self._outbox.to(peer).messages.add(ping=Ping())

    def _join_behind(self, predecessor: Peer, its_successors: list[Peer], now_s: float) -> None:
        """Zave's join: the predecessor's list becomes mine, though it does not know me yet."""
        others = [peer for peer in its_successors if peer.node_id != self.me.node_id]
        self.successors = self._chain(others or [predecessor])
        if not self.successors:
            return
        self.predecessor = predecessor
        self._become_member(now_s)
        self._notify(self.successors[0])

    def _check_place(self, supposed_predecessor: Peer, supposed_successor: Peer) -> None:
        """Some node looked up my id: is there a closer successor than the one I have?"""
        for peer in (supposed_successor, supposed_predecessor):
            if self._improves(peer):
                self._candidate_query = self._ask_neighbours(peer)
                return

    # ---- losing peers ---------------------------------------------------------------------------

    def lost(self, node_id: NodeId, now_s: float) -> None:
        """The peer is taken for dead."""
        was_successor = _is(self.successor, node_id)
        self.successors = [peer for peer in self.successors if peer.node_id != node_id]
        self.fingers.lost(node_id)
        self.farewell.lost(node_id)
        if _is(self.predecessor, node_id):
            self._predecessor_lost = True
        self._fall_back()
        if self.status is Status.MEMBER and was_successor:
            self._stabilise(now_s)

    def _fall_back(self) -> None:
        """Without a successor: the predecessor is one, as long as there is any ring at all."""
        if not self.successors:
            if self.predecessor is not None and not self._predecessor_lost:
                self.successors = [self.predecessor]
            else:
                self.predecessor = None
                self._predecessor_lost = False
        self.fingers.set_successor(self.successor)

    def on_leave(self, sender: Peer, message: Leave, now_s: float) -> None:
        self._liveness.condemn(sender.node_id, now_s)
        if _is(self.predecessor, sender.node_id) and message.HasField("predecessor"):
            heir = self._directory.learn(message.predecessor)
            if heir.node_id != self.me.node_id:
                self.predecessor = heir
                self._predecessor_lost = self._liveness.is_condemned(heir.node_id)
        if _is(self.successor, sender.node_id):
            heirs = [self._directory.learn(ref) for ref in message.successors]
            self.successors = self._chain(heirs) or self.successors
        self.lost(sender.node_id, now_s)

    def moved(self, peer: Peer) -> None:
        """Another broker hosts this node now, which is as much a neighbour as before."""
        self.successors = [peer if _is(p, peer.node_id) else p for p in self.successors]
        if _is(self.predecessor, peer.node_id):
            self.predecessor = peer
        self.fingers.moved(peer)

    def load(
        self, predecessor: Peer | None, successors: Iterable[Peer], fingers: list[tuple[int, Peer]]
    ) -> None:
        """Be the member that the former host of this node was."""
        self.status = Status.MEMBER
        self.predecessor = predecessor
        self.successors = list(successors)
        self.fingers.load(fingers, self.successor)

    def on_leave_seen(self, sender: Peer) -> None:
        self.farewell.heard_by(sender.node_id)

    def refuse(self, sender: Peer) -> None:
        """This node is no member: whoever asks it things must look elsewhere."""
        self._outbox.to(sender).messages.add(not_here=NotHere(node_id=self.me.node_id))
        if self.status is Status.JOINING and len(self._refused) < _REFUSED_MAX:
            self._refused[sender.node_id] = sender
