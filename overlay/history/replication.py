"""Copying reigns to the successor, which takes over when this node dies.

The rendezvous point sends its successor every stamped run; the successor confirms how far it has
each topic, and only then are publications acknowledged at the level `replicated`. A new successor
is sent whole states first, a little at a time. What a copy is used for is `succession`'s business.

A ring of one has no successor: there, stamped is as replicated as it gets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from dynatops.kit.bundles import Bundle
from dynatops.v1.overlay_pb2 import (
    AckLevel,
    Acknowledged,
    Acknowledgements,
    Adopted,
    CopyState,
    MemberChange,
    PublishAck,
    ReplicaAck,
    ReplicaPull,
    Replicate,
    Returned,
    Run,
    TopicPosition,
    TopicState,
)
from overlay.base.catalogue import is_system
from overlay.base.context import Context
from overlay.base.effects import Accepted
from overlay.base.identifiers import NodeId, key_of
from overlay.base.node_counts import NodeCounts
from overlay.base.peers import Peer
from overlay.chord.ring import Ring
from overlay.history.reign import Copy, LoneAck, Reign
from overlay.history.topic_log import Appending, LoneEvent, TopicLog
from overlay.tree.trees import Trees

_PULL_PAUSE_S = 0.2
# Of one topic. Nodes hand it over again that have not been answered.
_ADOPTED_WAITING_MAX = 16


class Replication:
    def __init__(
        self,
        context: Context,
        ring: Ring,
        trees: Trees,
        reigns: dict[str, Reign],
        unknown_history: Callable[[TopicState, float], None],
    ) -> None:
        self._ring = ring
        self._trees = trees
        self._settings = context.settings
        self._outbox = context.outbox
        self._budget = context.budget
        self._counters = context.counters
        # Called with a copy that holds events which the topic's rendezvous point does not know.
        self._unknown_history = unknown_history
        self._reigns = reigns
        self.copies: dict[str, Copy] = {}
        # Topics of those in this node's own range: every tick asks for them, and copies are many.
        self._in_range: dict[str, None] = {}
        # In order; each is a reign's.
        self._unsent: dict[str, None] = {}
        # Those taken up since, of which the successor has not confirmed anything.
        self._uncopied: dict[str, None] = {}
        # Whether the successor knows that it has been sent everything.
        self._known_complete = False
        # The predecessor that said so to this node.
        self.complete_of: NodeId | None = None
        self._unconfirmed: dict[str, None] = {}
        self._effects = context.effects
        self._me = context.me
        self._answers: dict[Peer, _Answer] = {}
        self._confirmations: dict[Peer, dict[str, Copy]] = {}

    @property
    def unsent_topics(self) -> int:
        """Topics whose state the successor is still to be sent."""
        return len(self._unsent)

    @property
    def unconfirmed_topics(self) -> int:
        """Topics of which the successor has not confirmed everything."""
        return len(self._unconfirmed)

    def count_in_steps(self, counts: NodeCounts, at_once: int) -> Iterator[None]:
        """Add copies to these; a few thousand at a time, as they are many."""
        for number, topic in enumerate(list(self.copies), 1):
            counts.copies += not is_system(topic)
            if not number % at_once:
                yield

    # ---- the rendezvous point's side ------------------------------------------------------------

    def took_up(self, reign: Reign) -> None:
        """A new reign, or one with another history than before: the successor needs its state."""
        reign.state_sent, reign.confirmed = False, (0, 0)
        if self._ring.successor is not None:
            self._unsent[reign.log.topic] = None
            self._uncopied[reign.log.topic] = None

    def must_confirm(self, reign: Reign) -> None:
        """The successor has it, but not all of it is confirmed."""
        self._unconfirmed[reign.log.topic] = None

    def states(self) -> Iterator[CopyState]:
        for copy in self.copies.values():
            state = copy.log.to_state(list(copy.members))
            yield CopyState(state=state, owner=copy.owner)

    def load(self, states: Iterable[CopyState], now_s: float) -> None:
        for state in states:
            log = TopicLog(state.state.topic, self._settings, self._budget)
            log.load(state.state)
            self.keep(log, map(NodeId, state.state.members), NodeId(state.owner), now_s)

    def gave_up(self, topic: str) -> None:
        """Publications that were not confirmed are not acknowledged; their brokers try again."""
        self._unconfirmed.pop(topic, None)
        self._uncopied.pop(topic, None)

    def forgotten(self, topic: str) -> None:
        if self._ring.successor is not None:
            replicate = Replicate(forgotten=[topic])
            self._outbox.to(self._ring.successor).messages.add(replicate=replicate)

    def stamped(self, reign: Reign, run: Run, now_s: float) -> None:
        successor = self._ring.successor
        if successor is not None and reign.state_sent:
            self._outbox.replicate(successor, run)
            reign.sent_s = now_s
            self._unconfirmed[reign.log.topic] = None

    def stamped_bundle(self, reigns: Sequence[Reign], bundle: Bundle, now_s: float) -> None:
        """The same of events that were stamped together, each of one of these reigns."""
        successor = self._ring.successor
        if successor is None:
            return
        places: list[int] = []
        for place, reign in enumerate(reigns):
            if reign.state_sent:
                places.append(place)
                reign.sent_s = now_s
                self._unconfirmed[reign.log.topic] = None
        if places:
            self._outbox.replicate_bundle(successor, bundle.pick(places))

    def waits_for_copies(self, bundle: Bundle, reigns: Sequence[Reign], origin: Peer) -> bool:
        """Whether these events, just stamped, are to be acknowledged once there are copies; they
        will be, then. Their topics are in the catalogue."""
        at_once = bundle.ack in (AckLevel.ACK_LEVEL_NONE, AckLevel.ACK_LEVEL_RP)
        if at_once or self._ring.successor is None:
            return False
        publisher, numbers = bundle.publisher, bundle.numbers
        for place, reign in enumerate(reigns):
            position = (bundle.terms[place], bundle.seqs[place])
            self._wait_for(position, reign, origin, LoneAck(publisher, numbers[place]))
        return True

    def acknowledge_bundle(self, bundle: Bundle, origin: Peer) -> None:
        """Tell the other broker that all of its events have reached their level."""
        answer = self._answers.setdefault(origin, _Answer())
        columns = zip(bundle.topics, bundle.numbers, bundle.terms, bundle.seqs, strict=True)
        for topic, number, term, seq in columns:
            answer.add(bundle.publisher, topic, number, term, seq)

    def returned(self, origin: Peer, publisher: int, topics: Iterable[str]) -> None:
        """Events on these topics, which came in a bundle, are to come as publications."""
        returned = Returned(publisher=publisher, topics=topics)
        self._answers.setdefault(origin, _Answer()).returned.append(returned)

    def member_changed(self, reign: Reign, member: NodeId, *, joined: bool) -> None:
        """Told once: a lost change is repaired by the member itself, should it come to matter."""
        successor = self._ring.successor
        if successor is not None and reign.state_sent:
            change = MemberChange(topic=reign.log.topic, member=member, joined=joined)
            self._outbox.to(successor).messages.add(replicate=Replicate(members=[change]))

    def announced(self, reign: Reign) -> None:
        """Told once: should it be lost, a replica that takes over announces the topic again."""
        successor = self._ring.successor
        if successor is not None and reign.state_sent:
            replicate = Replicate(announced=[reign.log.topic])
            self._outbox.to(successor).messages.add(replicate=replicate)

    def acknowledge(
        self,
        reign: Reign,
        origin: Peer,
        acknowledged: Acknowledged,
        level: AckLevel.ValueType,
    ) -> None:
        """Acknowledge once the level is reached: the successor has the topic as far as it stands,
        unless less is asked for, and the topic is in the catalogue, unless nothing is.
        """
        at_once = level in (AckLevel.ACK_LEVEL_NONE, AckLevel.ACK_LEVEL_RP)
        position = (0, 0) if at_once else reign.log.position
        if reign.log.is_unannounced and self._hold(reign, position, origin, acknowledged, level):
            return
        self._acknowledge_at(position, reign, origin, acknowledged)

    def _acknowledge_at(
        self, position: tuple[int, int], reign: Reign, origin: Peer, acknowledged: Acknowledged
    ) -> None:
        if self._ring.successor is None or reign.confirmed >= position:
            self._answers.setdefault(origin, _Answer()).acknowledged.append(acknowledged)
        else:
            self._wait_for(position, reign, origin, acknowledged)

    def _wait_for(
        self,
        position: tuple[int, int],
        reign: Reign,
        origin: Peer,
        acknowledged: Acknowledged | LoneAck,
    ) -> None:
        if reign.waiting is None:
            reign.waiting = deque()
        reign.waiting.append((position, origin, acknowledged))
        if len(reign.waiting) > self._settings.acknowledgements_waiting_max:
            reign.waiting.popleft()
            self._counters.acknowledgements_dropped += 1

    def _hold(
        self,
        reign: Reign,
        position: tuple[int, int],
        origin: Peer,
        acknowledged: Acknowledged,
        level: AckLevel.ValueType,
    ) -> bool:
        """Keep the acknowledgement back until the topic is announced; whether that was needed.

        One acknowledges all before it, so of each publisher the last is kept. For the same reason
        one of a publication that needs none waits too, behind others of that publisher.
        """
        key = (origin.node_id, acknowledged.publisher)
        held = reign.held if reign.held is not None else {}
        before = held.pop(key, None)
        if before is None and level == AckLevel.ACK_LEVEL_NONE:
            return False
        self._counters.acknowledgements_held += 1
        if before is not None:
            position = max(position, before[0])
            acknowledged = _together(before[2], acknowledged)
        held[key] = (position, origin, acknowledged)
        reign.held = held
        if len(held) > self._settings.publishers_max:
            # Its broker will try again.
            del held[next(iter(held))]
            self._counters.acknowledgements_dropped += 1
        return True

    def release_held(self, reign: Reign) -> None:
        """The topic is in the catalogue: acknowledge what waited for that alone."""
        held, reign.held = reign.held, None
        for position, origin, acknowledged in (held or {}).values():
            self._acknowledge_at(position, reign, origin, acknowledged)

    def successor_changed(self) -> None:
        """Another node holds the copies from now on, or none does."""
        self._unsent.clear()
        self._unconfirmed.clear()
        self._uncopied.clear()
        self._known_complete = False
        for reign in self._reigns.values():
            self.took_up(reign)
            if self._ring.successor is None:
                self._release_waiting(reign, reign.log.position)

    def on_replica_ack(self, sender: Peer, message: ReplicaAck) -> None:
        successor = self._ring.successor
        if successor is None or sender.node_id != successor.node_id:
            return
        self._known_complete |= message.complete
        for topic, term, seq in zip(message.topics, message.terms, message.seqs, strict=True):
            if self._uncopied:
                self._uncopied.pop(topic, None)
            reign = self._reigns.get(topic)
            if reign is None:
                continue
            log = reign.log
            if seq > (log.seq if term == log.term else log.ends().get(term, -1)):
                continue
            reign.confirmed = max(reign.confirmed, (term, seq))
            if reign.confirmed >= log.position:
                self._unconfirmed.pop(topic, None)
            if reign.waiting is not None or reign.adopted is not None:
                self._release_waiting(reign, reign.confirmed)

    def answer_when_copied(self, reign: Reign, origin: Peer, adopted: Adopted) -> None:
        """Tell who handed the topic over that it is adopted: once the successor has it, too. Nobody
        else may, if the other node leaves."""
        position = reign.log.position
        waiting = reign.adopted if reign.adopted is not None else {}
        waiting[origin.node_id, adopted.term, adopted.seq] = position, origin, adopted
        if len(waiting) > _ADOPTED_WAITING_MAX:
            del waiting[next(iter(waiting))]
        reign.adopted = waiting
        self._release_adopted(reign, position if self._ring.successor is None else reign.confirmed)

    def _release_adopted(self, reign: Reign, confirmed: tuple[int, int]) -> None:
        waiting = reign.adopted or {}
        for key, (position, origin, adopted) in list(waiting.items()):
            if position <= confirmed:
                del waiting[key]
                self._outbox.to(origin).messages.add(adopted=adopted)
        reign.adopted = waiting or None

    def _release_waiting(self, reign: Reign, confirmed: tuple[int, int]) -> None:
        if reign.adopted is not None:
            self._release_adopted(reign, confirmed)
        waiting = reign.waiting
        while waiting and waiting[0][0] <= confirmed:
            position, origin, acknowledged = waiting.popleft()
            answer = self._answers.get(origin)
            if answer is None:
                answer = self._answers[origin] = _Answer()
            if isinstance(acknowledged, LoneAck):
                publisher, number = acknowledged
                answer.add(publisher, reign.log.topic, number, *position)
            else:
                answer.acknowledged.append(acknowledged)
        if not waiting:
            reign.waiting = None

    def on_replica_pull(self, sender: Peer, message: ReplicaPull, now_s: float) -> None:
        successor = self._ring.successor
        if successor is None or sender.node_id != successor.node_id:
            return
        for entry in message.positions:
            reign = self._reigns.get(entry.topic)
            if reign is not None:
                self._send_from(successor, reign, (entry.term, entry.seq), now_s)

    def _send_from(
        self, successor: Peer, reign: Reign, position: tuple[int, int], now_s: float
    ) -> int:
        """Send what lies behind this position, or the whole state; how many bytes that was."""
        log = reign.log
        reign.sent_s = now_s
        reign.state_sent = True
        self._unconfirmed[log.topic] = None
        behind = log.after(position) if position != (0, 0) else None
        if behind is None:
            state = log.to_state(self._trees.members(log.topic))
            self._outbox.to(successor).messages.add(replicate=Replicate(states=[state]))
            return log.nbytes
        for run in behind:
            self._outbox.replicate(successor, run)
        return sum(len(run.events) for run in behind)

    @property
    def is_complete(self) -> bool:
        """Whether nobody but the successor is needed for copies of this node's topics."""
        return self._known_complete or self._ring.successor is None or not self._reigns

    def tell_complete(self) -> None:
        """Once all topics of this node's range have been copied, the successor is to know."""
        successor = self._ring.successor
        if successor is not None and not self._known_complete and not self._uncopied:
            self._outbox.to(successor).messages.add(replicate=Replicate(complete=True))

    def tick(self, now_s: float) -> None:
        successor = self._ring.successor
        if successor is None:
            return
        budget = self._settings.sync_bytes_per_tick
        while self._unsent and budget > 0:
            topic = next(iter(self._unsent))
            del self._unsent[topic]
            reign = self._reigns.get(topic)
            if reign is not None and not reign.state_sent:
                budget -= 1_000 + self._send_from(successor, reign, (0, 0), now_s)
        overdue_s = now_s - self._settings.replica_retry_s
        for topic in list(self._unconfirmed):
            reign = self._reigns[topic]
            if budget > 0 and reign.sent_s <= overdue_s:
                self._counters.replica_resends += 1
                budget -= 1_000 + self._send_from(successor, reign, reign.confirmed, now_s)

    # ---- the replica's side ---------------------------------------------------------------------

    def on_replicate(self, sender: Peer, message: Replicate, now_s: float) -> None:
        for state in message.states:
            self._copy_state(sender, state, now_s)
        for run in message.runs:
            self._copy_run(sender, run, now_s)
        for wire in message.bundles:
            self._copy_bundle(sender, Bundle.from_wire(wire), now_s)
        for change in message.members:
            copy = self.copies.get(change.topic)
            if copy is not None and change.joined:
                copy.members[NodeId(change.member)] = None
            elif copy is not None:
                copy.members.pop(NodeId(change.member), None)
        for topic in message.forgotten:
            self.drop(topic)
        for topic in message.announced:
            copy = self.copies.get(topic)
            if copy is not None:
                copy.log.announced = True
        predecessor = self._ring.predecessor
        if message.complete and predecessor is not None and predecessor.node_id == sender.node_id:
            self.complete_of = sender.node_id
            self._outbox.to(sender).messages.add(replica_ack=ReplicaAck(complete=True))

    def _is_refused(self, topic: str) -> bool:
        """Whether there is no room for a copy that is not here. Unconfirmed, it comes again."""
        if topic in self.copies or len(self.copies) < self._settings.topics_held_max:
            return False
        self._counters.topics_refused += 1
        return True

    def _copy_state(self, sender: Peer, state: TopicState, now_s: float) -> None:
        if state.topic in self._reigns or self._is_refused(state.topic):
            return
        log = TopicLog(state.topic, self._settings, self._budget)
        log.load(state)
        former = self.copies.get(state.topic)
        announced = log.announced or (former is not None and former.log.announced)
        if former is not None and former.log.term == log.term and former.log.covers(log):
            log.discard()
            log = former.log
        elif former is not None:
            if not log.covers(former.log):
                self._unknown_history(former.log.to_state(list(former.members)), now_s)
            former.log.discard()
        log.announced = announced
        members = map(NodeId, state.members)
        if former is not None and self._is_adopted(former):
            copy = self.keep(log, (*former.members, *members), former.owner, now_s)
            copy.is_outdated = former.is_outdated
        else:
            copy = self.keep(log, members, sender.node_id, now_s)
        self._confirm(sender, copy)

    def _is_adopted(self, copy: Copy) -> bool:
        """Whether it was handed over to this node, which serves it as soon as it serves at all: a
        former owner's word that came late makes it nobody else's again."""
        return copy.owner == self._ring.me.node_id and self._ring.is_responsible(copy.key)

    def _copy_run(self, sender: Peer, run: Run, now_s: float) -> None:
        if run.topic in self._reigns or self._is_refused(run.topic):
            return
        copy = self.copies.get(run.topic)
        if copy is None:
            log = TopicLog(run.topic, self._settings, self._budget)
            copy = self.keep(log, (), sender.node_id, now_s)
        copy.heard_s, copy.is_outdated, copy.is_handed = now_s, False, False
        self._note_appended(sender, copy, copy.log.append(run), now_s)

    def _copy_bundle(self, sender: Peer, bundle: Bundle, now_s: float) -> None:
        publisher, confirmations = bundle.publisher, self._confirmations.setdefault(sender, {})
        payloads, published_us = bundle.payloads, bundle.published_us
        for place, topic in enumerate(bundle.topics):
            copy = self.copies.get(topic)
            if copy is None or topic in self._reigns:
                self._copy_run(sender, bundle.run_at(place), now_s)
                continue
            copy.heard_s, copy.is_outdated, copy.is_handed = now_s, False, False
            event = LoneEvent(
                bundle.terms[place], bundle.seqs[place], publisher, bundle.numbers[place],
                published_us[place], payloads[place],
            )  # fmt: skip
            outcome = copy.log.append_next(event)
            if outcome is Appending.DONE:
                confirmations[topic] = copy
            else:
                self._note_appended(sender, copy, outcome, now_s)

    def _note_appended(self, sender: Peer, copy: Copy, outcome: Appending, now_s: float) -> None:
        if outcome is not Appending.GAP:
            self._confirm(sender, copy)
        elif now_s >= copy.pulled_s + _PULL_PAUSE_S:
            copy.pulled_s = now_s
            position = _position_of(copy)
            self._outbox.to(sender).messages.add(replica_pull=ReplicaPull(positions=[position]))

    def _confirm(self, sender: Peer, copy: Copy) -> None:
        self._confirmations.setdefault(sender, {})[copy.log.topic] = copy

    def keep(self, log: TopicLog, members: Iterable[NodeId], owner: NodeId, now_s: float) -> Copy:
        copy = Copy(
            log, key_of(log.topic), owner, dict.fromkeys(members), heard_s=now_s, needed_s=now_s
        )
        self.copies[log.topic] = copy
        if self._ring.is_responsible(copy.key):
            self._in_range[log.topic] = None
        return copy

    def range_changed(self) -> None:
        """To be said before `copies_in_range` is asked for the copies in another range."""
        responsible = self._ring.is_responsible
        self._in_range = {t: None for t, copy in self.copies.items() if responsible(copy.key)}

    def copies_in_range(self) -> list[Copy]:
        """Copies of topics that are this node's business by now."""
        copies = [self.copies[topic] for topic in self._in_range if topic in self.copies]
        return [copy for copy in copies if self._ring.is_responsible(copy.key)]

    def take_copy(self, topic: str) -> Copy | None:
        """The copy, which is none any more: its history goes on elsewhere."""
        self._in_range.pop(topic, None)
        return self.copies.pop(topic, None)

    def drop(self, topic: str) -> None:
        copy = self.take_copy(topic)
        if copy is not None:
            copy.log.discard()

    # ---- sending --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the acknowledgements and confirmations of the last input, one message a receiver."""
        if not (self._answers or self._confirmations):
            return
        for origin, answer in self._answers.items():
            if origin.node_id == self._me.node_id:
                # Not by a message to itself.
                self._effects.append(Accepted(self._me, answer.to_wire()))
            else:
                self._outbox.to(origin).messages.add(publish_ack=answer.to_wire())
        self._answers.clear()
        for owner, copies in self._confirmations.items():
            if not copies:
                continue
            logs = [copy.log for copy in copies.values()]
            confirmation = ReplicaAck(
                topics=copies.keys(),
                terms=[log.term for log in logs],
                seqs=[log.seq for log in logs],
            )
            self._outbox.to(owner).messages.add(replica_ack=confirmation)
        self._confirmations.clear()


class _Answer:
    """What the host of a node is told of its publications."""

    __slots__ = ("_columns", "acknowledged", "returned")

    def __init__(self) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.returned: list[Returned] = []
        # By publisher: topics, numbers, terms, and numbers in them.
        self._columns: dict[int, tuple[list[str], list[int], list[int], list[int]]] = {}

    def add(self, publisher: int, topic: str, number: int, term: int, seq: int) -> None:
        columns = self._columns.get(publisher)
        if columns is None:
            columns = self._columns[publisher] = ([], [], [], [])
        columns[0].append(topic)
        columns[1].append(number)
        columns[2].append(term)
        columns[3].append(seq)

    def to_wire(self) -> PublishAck:
        columns = [
            Acknowledgements(
                publisher=publisher, topics=topics, numbers=numbers, terms=terms, seqs=seqs
            )
            for publisher, (topics, numbers, terms, seqs) in self._columns.items()
        ]
        return PublishAck(acknowledged=self.acknowledged, columns=columns, returned=self.returned)


def _together(before: Acknowledged, acknowledged: Acknowledged) -> Acknowledged:
    """One that says what both say."""
    last = before if before.number > acknowledged.number else acknowledged
    both = Acknowledged()
    both.CopyFrom(last)
    both.after_term, both.after_seq = min(
        (each.after_term, each.after_seq) for each in (before, acknowledged)
    )
    return both


def _position_of(copy: Copy) -> TopicPosition:
    return TopicPosition(topic=copy.log.topic, term=copy.log.term, seq=copy.log.seq)
