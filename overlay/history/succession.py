"""Who is the rendezvous point when the ring changes.

A node serves the topics of its key range. The range follows from the ring; the topics follow the
range:

- it grew, because the predecessor died or left: copies of its topics become reigns (take-over);
- it shrank, because a node came between: reigns outside it end, and are handed to the node that is
  responsible now, again and again until it confirms (hand-over);
- this node is new: it serves nothing until its successor, whose range it shares, has handed
  everything over and says so (claim); what is adopted before goes on to whoever comes between;
- it grew, and not all that the dead had was copied here: others are asked (`copy_search`);
- a history arrives for a topic that is served here already, because a partition gave it two
  rendezvous points: the two are joined (adoption).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dynatops.kit.bounded import BoundedTable
from dynatops.v1.overlay_pb2 import (
    Adopt,
    Adopted,
    AskCopies,
    ClaimRange,
    CopiesGiven,
    RangeGranted,
    TopicState,
)
from overlay.base.context import Context
from overlay.base.effects import HistoriesJoined, RangeAssumed, Ready, TookOver
from overlay.base.identifiers import Key, NodeId, key_of, strictly_between, within
from overlay.base.membership import Status
from overlay.base.peers import Peer
from overlay.chord.ring import Ring
from overlay.history.copy_search import CopySearch
from overlay.history.reign import Copy
from overlay.history.reigns import Reigns
from overlay.history.replication import Replication
from overlay.history.topic_log import Merging, TopicLog

_CLAIMS_MAX = 64
_SWEEP_PERIOD_S = 5.0
_PREDECESSORS_MAX = 16
_QUICKLY_ADOPTED_BYTES = 256 << 10
_PATIENCE_MAX = 10.0
# A copy is taken over this soon after its owner stopped being the predecessor, or is outdated.
_RECENT_S = 15.0


@dataclass(slots=True)
class _HandOver:
    """A topic on its way to the node that is responsible for it."""

    state: TopicState
    key: Key
    due_s: float
    # Whether it may be anybody's, not just a neighbour's.
    routed: bool = False
    # Who has asked for it, if somebody has.
    asker: Peer | None = None
    # Whether it may lack the latest events that were acknowledged.
    uncertain: bool = False


class Succession:
    def __init__(
        self,
        context: Context,
        ring: Ring,
        reigns: Reigns,
        replication: Replication,
        copy_search: CopySearch,
    ) -> None:
        self._ring = ring
        self._reigns = reigns
        self._replication = replication
        self._copy_search = copy_search
        self._settings = context.settings
        self._outbox = context.outbox
        self._effects = context.effects
        self._directory = context.directory
        self._liveness = context.liveness
        self._budget = context.budget
        self._counters = context.counters
        # By topic and position: of one topic there may be two histories.
        self._handing: BoundedTable[tuple[str, int, int], _HandOver] = BoundedTable(
            context.settings.topics_held_max, context.counters, "histories_dropped"
        )
        # Who has claimed its range from this node, by incarnation.
        self._claims: dict[NodeId, int] = {}
        # A claim that came before this node was ready itself.
        self._early_claim: tuple[Peer, ClaimRange] | None = None
        # Where the predecessor's range begins that it has claimed, and is still to be granted.
        self._claimed: tuple[Peer, NodeId] | None = None
        # Topics that were handed to each node, of which nothing has come back since.
        self._handed: dict[NodeId, dict[str, None]] = {}
        # The last search for copies of each node that has been answered here.
        self._searches: dict[NodeId, tuple[int, int]] = {}
        # Where this node's range began when it was last looked at; and the node that came between
        # since, whose topics were this node's.
        self._low_seen: NodeId | None = None
        self._came_between: NodeId | None = None
        # Lately predecessors: since when, and until when.
        self._predecessors: dict[NodeId, tuple[float, float]] = {}
        self._last_predecessor: NodeId | None = None
        # Where the range of the last one began that said so, and when that is looked at again.
        self._range_told: tuple[NodeId, NodeId] | None = None
        self._outdate_due_s = 0.0
        self._claim_due_s = 0.0
        self._claim_deadline_s: float | None = None
        self._sweep_due_s = 0.0

    @property
    def handing(self) -> int:
        """Topics not yet confirmed by the node they go to."""
        return len(self._handing)

    def relied_on(self) -> Iterable[Peer]:
        """Owners of copies in this node's range: should they be dead, these are taken over. And
        whoever is to adopt all that is here, before this node departs."""
        heir = self._heir()
        if self._ring.status is not Status.MEMBER and self._handing and heir is not None:
            yield heir
        owners = (copy.owner for copy in self._copies_in_range())
        for owner in dict.fromkeys((*owners, *self._handed)):
            peer = self._directory.get(owner)
            if peer is not None:
                yield peer
        yield from self._copy_search.relied_on()

    # ---- readiness ------------------------------------------------------------------------------

    def _set_ready(self, now_s: float) -> None:
        self._reigns.ready = True
        self._effects.append(Ready())
        self.range_changed(now_s)
        if self._early_claim is not None:
            self.on_claim_range(*self._early_claim, now_s)

    def _claim(self, now_s: float) -> None:
        """Ask for the range until it is granted, or until nobody is left to grant it."""
        successor = self._ring.successor
        if successor is None:
            self._set_ready(now_s)
            return
        if self._claim_deadline_s is None:
            self._claim_deadline_s = now_s + self._settings.claim_patience_s
        if now_s >= self._claim_deadline_s:
            self._counters.ranges_assumed += 1
            self._effects.append(RangeAssumed())
            self._set_ready(now_s)
        elif now_s >= self._claim_due_s:
            self._claim_due_s = now_s + self._settings.claim_retry_s
            claim = ClaimRange(low=self._ring.range_low)
            self._outbox.to(successor).messages.add(claim_range=claim)

    def on_claim_range(self, sender: Peer, message: ClaimRange, now_s: float) -> None:
        predecessor = self._ring.predecessor
        if predecessor is None or predecessor.node_id != sender.node_id:
            return
        if not self._reigns.ready:
            self._early_claim = (sender, message)
            return
        self.range_changed(now_s)
        low, high = NodeId(message.low), sender.node_id
        if self._claims.get(high) != sender.incarnation:
            self._claims[high] = sender.incarnation
            if len(self._claims) > _CLAIMS_MAX:
                del self._claims[next(iter(self._claims))]
            for copy in self._replication.copies.values():
                if within(copy.key, low, high):
                    self._hand_over(
                        copy.log.to_state(list(copy.members)),
                        now_s,
                        uncertain=not self._is_current(copy, now_s),
                    )
            if high not in (self._came_between, self._replication.complete_of):
                # It is back from the dead, and had not copied everything here.
                self._copy_search.begin(low, high, now_s)
        self._claimed = (sender, low)
        self._grant()

    def _grant(self) -> None:
        """Tell the predecessor that it has all of the range that it claimed, as soon as that is so:
        those behind it may wait for it to be ready in turn."""
        if self._claimed is None or self._copy_search.range is not None:
            return
        sender, low = self._claimed
        if any(within(h.key, low, sender.node_id) for h in self._handing.values()):
            return
        self._claimed = None
        predecessor = self._ring.predecessor
        if predecessor is not None and predecessor.node_id == sender.node_id:
            self._outbox.to(sender).messages.add(range_granted=RangeGranted())

    def on_copies_given(self, sender: Peer, message: CopiesGiven) -> None:
        self._copy_search.on_copies_given(sender, message)
        self._grant()

    def on_ask_copies(self, sender: Peer, message: AskCopies, now_s: float) -> None:
        """Somebody looks for what I may have copies of."""
        asked = (message.low, message.end)
        search = (sender.incarnation, message.nonce)
        if self._searches.get(sender.node_id) != search:
            self._searches.pop(sender.node_id, None)
            self._searches[sender.node_id] = search
            if len(self._searches) > _CLAIMS_MAX:
                del self._searches[next(iter(self._searches))]
            for copy in self._replication.copies.values():
                if within(copy.key, *asked) and copy.owner != sender.node_id and copy.log.term:
                    self._hand_over(
                        copy.log.to_state(list(copy.members)),
                        now_s,
                        asker=sender,
                        uncertain=not self._is_current(copy, now_s),
                    )
        if not any(
            h.asker is not None and h.asker.node_id == sender.node_id and within(h.key, *asked)
            for h in self._handing.values()
        ):
            given = CopiesGiven(nonce=message.nonce)
            self._outbox.to(sender).messages.add(copies_given=given)

    def on_range_granted(self, sender: Peer, now_s: float) -> None:
        successor = self._ring.successor
        granted = successor is not None and sender.node_id == successor.node_id
        if granted and not self._reigns.ready:
            self._set_ready(now_s)

    # ---- the range changes ----------------------------------------------------------------------

    def range_changed(self, now_s: float) -> None:
        self._replication.range_changed()
        if self._ring.status is not Status.MEMBER:
            return
        self._look_for_copies(now_s)
        self._pass_on_adopted(now_s)
        if not self._reigns.ready:
            if self._ring.alone:
                self._set_ready(now_s)
            return
        for topic, reign in list(self._reigns.by_topic.items()):
            if not self._ring.is_responsible(reign.key):
                self._abdicate(topic, now_s)
        self._take_over(now_s)

    def _look_for_copies(self, now_s: float) -> None:
        """The range grew if somebody died or left, and it shrank if somebody came between."""
        self._note_predecessor(now_s)
        former, low = self._low_seen, self._ring.range_low
        self._low_seen = low
        if former is None or former == low:
            return
        has_all = self._replication.complete_of == former
        self._replication.complete_of = None
        grew = strictly_between(former, low, self._ring.me.node_id)
        self._came_between = low if not grew and self._reigns.ready else None
        if grew and not has_all:
            self._copy_search.begin(low, former, now_s)

    def _abdicate(self, topic: str, now_s: float) -> None:
        self._counters.handovers += 1
        log, members = self._reigns.end(topic)
        heir = self._heir()
        owner = heir.node_id if heir is not None else self._ring.me.node_id
        self._replication.keep(log, members, owner, now_s)
        self._hand_over(log.to_state(members), now_s)

    def _pass_on_adopted(self, now_s: float) -> None:
        """Histories that were adopted before this node was ready, and are another's business by
        now: whoever handed them over relies on this node, and nobody else will claim them here.
        While this node leaves, so is what its predecessor had, if that one dies before it has
        copied it to its next successor."""
        leaves = self._ring.status is not Status.MEMBER
        me, heir, predecessor = self._ring.me.node_id, self._heir(), self._ring.predecessor
        if heir is None:
            return
        owners = {me}
        if leaves and predecessor and self._liveness.is_condemned(predecessor.node_id):
            owners.add(predecessor.node_id)
        for copy in self._replication.copies.values():
            if copy.owner in owners and (leaves or not self._ring.is_responsible(copy.key)):
                copy.owner = heir.node_id
                self._hand_over(
                    copy.log.to_state(list(copy.members)), now_s, uncertain=copy.is_outdated
                )

    def _take_over(self, now_s: float) -> None:
        for copy in self._copies_in_range():
            topic = copy.log.topic
            if self._is_gone(copy.owner):
                certain = self._is_current(copy, now_s)
                if not certain and self._copy_search.concerns(copy.key):
                    continue
                self._handing.pop((topic, *copy.log.position), None)
                if not copy.log.term:
                    # It was to be copied here, and nothing has come.
                    self._replication.drop(topic)
                    continue
                self._replication.take_copy(topic)
                self._counters.takeovers += 1
                from_dead = self._liveness.is_condemned(copy.owner)
                self._effects.append(TookOver(topic, from_dead=from_dead))
                self._reigns.begin(copy.log, copy.members, now_s, certain=certain)

    def _copies_in_range(self) -> list[Copy]:
        return self._replication.copies_in_range() if self._reigns.ready else []

    def _is_gone(self, owner: NodeId) -> bool:
        return (
            self._ring.alone
            or owner == self._ring.me.node_id
            or self._liveness.is_condemned(owner)
            or self._directory.get(owner) is None
        )

    def _is_current(self, copy: Copy, now_s: float) -> bool:
        """Whether the copy was kept up to date until its owner went: a predecessor does that."""
        if copy.is_outdated or copy.owner == self._ring.me.node_id:
            return not copy.is_outdated
        since_s, until_s = self._predecessors.get(copy.owner, (0.0, -_RECENT_S))
        return now_s - until_s < _RECENT_S and copy.heard_s >= since_s

    def told_range(self, sender: Peer, low: NodeId, now_s: float) -> None:
        """The sender's range begins there. If it is the predecessor, and another node has come
        before it, copies of what that one has now are kept up to date no more."""
        predecessor = self._ring.predecessor
        if predecessor is None or predecessor.node_id != sender.node_id:
            return
        told = (sender.node_id, low)
        # One that was on its way when the range changed is found later.
        if told == self._range_told and now_s < self._outdate_due_s:
            return
        self._range_told, self._outdate_due_s = told, now_s + _SWEEP_PERIOD_S
        for copy in self._replication.copies.values():
            if copy.owner == sender.node_id and not within(copy.key, low, sender.node_id):
                copy.is_outdated = True

    def _note_predecessor(self, now_s: float) -> None:
        predecessor = self._ring.predecessor
        if predecessor is None:
            return
        since_s, _ = self._predecessors.pop(predecessor.node_id, (now_s, now_s))
        if predecessor.node_id != self._last_predecessor:
            since_s = now_s
        self._last_predecessor = predecessor.node_id
        self._predecessors[predecessor.node_id] = (since_s, now_s)
        if len(self._predecessors) > _PREDECESSORS_MAX:
            del self._predecessors[next(iter(self._predecessors))]

    def lost(self, node_id: NodeId, now_s: float) -> None:
        """The node is dead, or was, and has forgotten. What it was handed from here may have been
        copied nowhere else yet, as it had to be ready first; others have come between since."""
        for copy in self._handed_to(node_id, self._handed.pop(node_id, {})):
            copy.is_handed = False
            if not self._ring.is_responsible(copy.key):
                state = copy.log.to_state(list(copy.members))
                self._hand_over(state, now_s, routed=True, uncertain=True)

    def _handed_to(self, owner: NodeId, topics: Iterable[str]) -> list[Copy]:
        """Those of these topics that the owner has said nothing of since it was handed them."""
        copies = (self._replication.copies.get(topic) for topic in topics)
        return [copy for copy in copies if copy and copy.is_handed and copy.owner == owner]

    # ---- handing over ---------------------------------------------------------------------------

    def hand_over_all(self, now_s: float) -> None:
        """Before leaving: the successor will be responsible for everything here."""
        for topic in list(self._reigns.by_topic):
            self._abdicate(topic, now_s)
        self._pass_on_adopted(now_s)
        self._reigns.ready = False

    def states(self) -> Iterator[TopicState]:
        return (hand_over.state for hand_over in self._handing.values())

    def load(self, handing: Iterable[TopicState], now_s: float) -> None:
        """Go on as the former host of this node would have."""
        for state in handing:
            self._hand_over(state, now_s)
        self._note_predecessor(now_s)

    def unknown_history(self, state: TopicState, now_s: float) -> None:
        """A copy here has events that the topic's rendezvous point lacks: tell it."""
        self._hand_over(state, now_s)

    def former_history(self, state: TopicState, now_s: float) -> None:
        """Of another node that was hosted here: its rendezvous point may be anywhere."""
        self._hand_over(state, now_s, routed=True)

    def _hand_over(
        self,
        state: TopicState,
        now_s: float,
        *,
        routed: bool = False,
        asker: Peer | None = None,
        uncertain: bool = False,
    ) -> None:
        position = state.position
        key = (state.topic, position.term, position.seq)
        topic_key = key_of(state.topic)
        self._handing[key] = _HandOver(state, topic_key, now_s, routed, asker, uncertain)

    def _heir(self) -> Peer | None:
        if self._ring.status is Status.MEMBER:
            return self._ring.predecessor
        return self._ring.successor

    def tick(self, now_s: float) -> None:
        self._note_predecessor(now_s)
        if self._ring.status is Status.MEMBER and not self._reigns.ready:
            self._claim(now_s)
        self._copy_search.tick(now_s)
        self._grant()
        if self._reigns.ready:
            self._replication.tell_complete()
            self._take_over(now_s)
        heir = self._heir()
        if self._ring.status is not Status.MEMBER:
            self._pass_on_adopted(now_s)
        if heir is None and self._ring.status is not Status.MEMBER:
            # Nobody is left to hand anything to.
            self._handing.clear()
        if heir is not None:
            self._hand_to(heir, now_s)
        if now_s >= self._sweep_due_s:
            self._sweep_due_s = now_s + _SWEEP_PERIOD_S
            self._sweep(now_s)

    def _hand_to(self, heir: Peer, now_s: float) -> None:
        """Send what is due, no more at once than a message can carry, the longest waiting first."""
        due = [key for key, hand_over in self._handing.items() if now_s >= hand_over.due_s]
        budget = self._settings.sync_bytes_per_tick
        for key in due:
            if budget <= 0:
                break
            hand_over = self._handing[key] = self._handing.pop(key)
            routed = hand_over.routed
            adopt = Adopt(
                state=hand_over.state,
                origin=self._ring.me.ref,
                routed=routed,
                uncertain=hand_over.uncertain,
                asked=hand_over.asker is not None,
            )
            nbytes = adopt.ByteSize()
            # A long history takes its time to be taken in, too.
            patience = min(max(1.0, nbytes / _QUICKLY_ADOPTED_BYTES), _PATIENCE_MAX)
            hand_over.due_s = now_s + patience * self._settings.adopt_retry_s
            hop = self._ring.next_hop(hand_over.key) or self._ring.me if routed else heir
            asker = hand_over.asker
            if asker is not None and not self._liveness.is_condemned(asker.node_id):
                hop = asker
            self._outbox.to(hop).messages.add(adopt=adopt)
            budget -= nbytes

    def _sweep(self, now_s: float) -> None:
        """Forget copies of ranges that are no neighbour's any more."""
        predecessor = self._ring.predecessor
        for topic, copy in list(self._replication.copies.items()):
            if (
                predecessor is not None
                and copy.owner == predecessor.node_id
                and not copy.is_outdated
            ):
                copy.needed_s = now_s
            elif now_s - copy.needed_s > self._settings.replica_keep_s:
                self._replication.drop(topic)
        for owner, topics in list(self._handed.items()):
            left = self._handed_to(owner, topics)
            self._handed[owner] = {copy.log.topic: None for copy in left}
            if not left:
                del self._handed[owner]

    # ---- adopting -------------------------------------------------------------------------------

    def on_adopt(self, sender: Peer, message: Adopt, now_s: float) -> None:
        topic = message.state.topic
        if not self._ring.is_responsible(key_of(topic)):
            self._pass_on(sender, message)
            return
        if topic not in self._reigns.by_topic and not self._reigns.has_room():
            return
        history = TopicLog(topic, self._settings, self._budget)
        history.load(message.state)
        members = [NodeId(member) for member in message.state.members]
        if topic in self._reigns.by_topic:
            self._join_histories(history, members, now_s)
        else:
            self._inherit(history, members, now_s, certain=not message.uncertain)
        origin = self._directory.learn(message.origin)
        position = message.state.position
        adopted = Adopted(topic=topic, term=position.term, seq=position.seq)
        reign = self._reigns.by_topic.get(topic)
        if reign is not None and not message.asked:
            self._replication.answer_when_copied(reign, origin, adopted)
        else:
            # Whoever was asked for it, or grants this node its range, has the history, too.
            self._outbox.to(origin).messages.add(adopted=adopted)

    def _pass_on(self, sender: Peer, message: Adopt) -> None:
        """The responsible node is elsewhere: a few steps further back, where the sender has not
        heard of it yet; or anywhere, where it was not sent to a neighbour or was no neighbour's.

        On foot a large ring is too long: a node that joined while many did may have been given what
        belongs to its other side.
        """
        routed = message.routed or message.hops >= self._settings.successors_max
        hop = self._ring.predecessor
        if routed:
            # Whoever brought it here on foot knows nothing of where it belongs.
            came_from = sender.node_id if message.routed else None
            hop = self._ring.next_hop(key_of(message.state.topic), came_from)
        if self._ring.status is not Status.MEMBER or hop is None:
            return
        if message.hops >= self._settings.hops_max:
            self._counters.hops_exceeded += 1
            return
        onward = self._outbox.to(hop).messages.add().adopt
        onward.CopyFrom(message)
        onward.routed = routed
        onward.hops += 1

    def _join_histories(self, history: TopicLog, members: list[NodeId], now_s: float) -> None:
        reign = self._reigns.by_topic[history.topic]
        outcome, restamped = reign.log.merge(history, self._ring.me.term_owner)
        if outcome is Merging.REPLACED:
            self._reigns.renew(reign, now_s)
        elif outcome is Merging.JOINED:
            self._counters.merges += 1
            self._effects.append(HistoriesJoined(history.topic))
            self._counters.restamped_events += sum(run.count for run in restamped)
            self._reigns.retell(reign, now_s, restamped)
        elif history.term > reign.log.term:
            self._reigns.renew(reign, now_s)
        self._reigns.enter_in_catalogue(reign, now_s)
        history.discard()
        self._reigns.add_members(reign, members, now_s)

    def _inherit(
        self, history: TopicLog, members: list[NodeId], now_s: float, *, certain: bool
    ) -> None:
        topic = history.topic
        copy = self._replication.take_copy(topic)
        if copy is not None:
            certain |= self._is_current(copy, now_s)
            history.merge(copy.log, self._ring.me.term_owner)
            members = list(dict.fromkeys([*members, *copy.members]))
            copy.log.discard()
        is_best = certain or not self._copy_search.concerns(key_of(topic))
        if self._reigns.ready and is_best:
            self._reigns.begin(history, members, now_s, certain=certain)
        else:
            kept = self._replication.keep(history, members, self._ring.me.node_id, now_s)
            kept.is_outdated = not certain

    def on_adopted(self, sender: Peer, message: Adopted, now_s: float) -> None:
        self._handing.pop((message.topic, message.term, message.seq), None)
        copy = self._replication.copies.get(message.topic)
        if copy is not None and copy.log.position == (message.term, message.seq):
            copy.owner, copy.heard_s, copy.is_outdated = sender.node_id, now_s, False
            copy.is_handed = True
            self._handed.setdefault(sender.node_id, {})[message.topic] = None
        if not self._handing:
            self._grant()
