"""The topics that this node is the rendezvous point of, and what it does for them.

A reign stamps publications in order, keeps the list of members in the tree, answers repairs, and
repeats a topic's position at growing intervals after its last event, so that a reader who lost the
tail learns of it. What a reign survives is `replication` and `succession`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dynatops.kit.bounded import BoundedTable
from dynatops.kit.bundles import EVENT_BYTES, Bundle
from dynatops.v1.overlay_pb2 import (
    AckLevel,
    Acknowledged,
    Fetch,
    JoinTree,
    LeaveTree,
    Outdated,
    PeerFrame,
    Publication,
    Publish,
    ReignState,
    Run,
    TermSeq,
)
from overlay.base.beats import Beats
from overlay.base.catalogue import Entered, is_catalogue, is_system
from overlay.base.context import Context
from overlay.base.identifiers import NUMBER_MAX, TERM_CLAIM_MAX, Key, NodeId, key_of
from overlay.base.node_counts import NodeCounts
from overlay.base.peers import Peer
from overlay.chord.ring import Ring
from overlay.history.copy_search import CopySearch
from overlay.history.listing import Listing
from overlay.history.reign import Reign
from overlay.history.replication import Replication
from overlay.history.topic_log import Stamping, TopicLog
from overlay.tree.trees import Trees

# (key, sender of the message, hops so far) -> the frame to put it in, or None to give it up.
Onward = Callable[[Key, NodeId, int], PeerFrame | None]

# Many topics may be due at once, when many were subscribed to or taken over at once; the rest can
# wait.
_BEATS_PER_TICK = 250


@dataclass(slots=True)
class TopicTally:
    """What happened to a topic: events stamped here, their bytes, and requests for its past by
    sessions here."""

    events: int = 0
    nbytes: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class BundleStamping:
    """What has become of a bundle's events: stamped, and acknowledged with that; stamped, and
    acknowledged once there are copies; or (their places) to come as publications."""

    done: Bundle | None
    waiting: Bundle | None
    rest: Sequence[int]


class Reigns:
    def __init__(
        self,
        context: Context,
        ring: Ring,
        trees: Trees,
        replication: Replication,
        copy_search: CopySearch,
        reigns: dict[str, Reign],
        onward: Onward,
    ) -> None:
        self._ring = ring
        self._trees = trees
        self._replication = replication
        self._copy_search = copy_search
        self._settings = context.settings
        self._outbox = context.outbox
        self._directory = context.directory
        self._budget = context.budget
        self._counters = context.counters
        self._listing = Listing(context)
        self._onward = onward
        # Whether this node has the state of its whole range; `succession` decides.
        self.ready = False
        self.by_topic = reigns
        # Whether somebody takes the tally.
        self.keeps_tally = False
        self._tally = self._no_tally()
        self._beats: list[tuple[float, str]] = []
        self._sweep_due_s = 0.0

    # ---- beginning and ending -------------------------------------------------------------------

    def begin(
        self, log: TopicLog, members: Iterable[NodeId], now_s: float, *, certain: bool = True
    ) -> Reign:
        """Become the topic's rendezvous point, with this history, under a new term.

        `certain` says that the history is all that the former rendezvous point acknowledged.
        """
        topic = log.topic
        known_term = self._trees.known_term(topic)
        log.open_next_term(self._ring.me.term_owner, known_term, certain=certain)
        tree = self._trees.become_root(topic, log.position, log.origin)
        reign = self.by_topic[topic] = Reign(log, key_of(topic), tree, active_s=now_s)
        for member in members:
            self._trees.add_member(topic, member, now_s)
        self._replication.took_up(reign)
        self.announce(reign, now_s)
        self.enter_in_catalogue(reign, now_s)
        return reign

    def end(self, topic: str) -> tuple[TopicLog, list[NodeId]]:
        """Stop being the topic's rendezvous point; its history and its members."""
        reign = self.by_topic.pop(topic)
        members = self._trees.members(topic)
        self._trees.resign_root(topic)
        self._replication.gave_up(topic)
        self._listing.remove(topic)
        return reign.log, members

    def renew(self, reign: Reign, now_s: float, newer_than: int = 0) -> None:
        """Open a new term: the history is another, or somewhere a newer term than ours is used."""
        reign.log.open_next_term(self._ring.me.term_owner, newer_than)
        self.retell(reign, now_s)

    def retell(self, reign: Reign, now_s: float, runs: Iterable[Run] = ()) -> None:
        """The log is another than the one that tree and replica know; these runs are new in it."""
        self._trees.become_root(reign.log.topic, (reign.log.term, 0), reign.log.origin)
        for run in runs:
            self._trees.disseminate(run)
        self._replication.took_up(reign)
        reign.beat_pause_s = 0.0
        self.announce(reign, now_s)

    def states(self) -> Iterator[ReignState]:
        for topic, reign in self.by_topic.items():
            yield ReignState(
                state=reign.log.to_state(self._trees.members(topic)),
                state_sent=reign.state_sent,
                confirmed=TermSeq(term=reign.confirmed[0], seq=reign.confirmed[1]),
                published=reign.published,
            )

    def load(self, states: Iterable[ReignState], now_s: float) -> None:
        """Go on with the reigns of this node's former host, under the same terms: trees and copies
        are as they were. Acknowledgements that were still due are asked for again."""
        for state in states:
            log = TopicLog(state.state.topic, self._settings, self._budget)
            log.load(state.state)
            tree = self._trees.become_root(log.topic, log.position, log.origin)
            key = key_of(log.topic)
            reign = self.by_topic[log.topic] = Reign(log, key, tree, active_s=now_s)
            reign.state_sent = state.state_sent
            reign.confirmed = (state.confirmed.term, state.confirmed.seq)
            reign.published = state.published
            if not reign.state_sent:
                self._replication.took_up(reign)
            elif reign.confirmed < log.position:
                self._replication.must_confirm(reign)
            self._plan_beat(reign, now_s + self._settings.heartbeat_first_s)
            self.enter_in_catalogue(reign, now_s)
        self.ready = True

    def renew_all(self, now_s: float) -> None:
        """Somebody else may stamp under the terms of these reigns: use new ones."""
        for reign in self.by_topic.values():
            self.renew(reign, now_s)

    def take_tally(self) -> dict[str, TopicTally]:
        """What was stamped and asked for since the last call, by topic."""
        tally, self._tally = self._tally, self._no_tally()
        return tally

    def _no_tally(self) -> BoundedTable[str, TopicTally]:
        """Whoever is to take it may never come."""
        return BoundedTable(self._settings.tallied_topics_max, self._counters, "tallies_dropped")

    def count_in_steps(self, counts: NodeCounts, at_once: int) -> Iterator[None]:
        """Add topics, and acknowledgements that wait, to these; a few thousand at a time."""
        for number, (topic, reign) in enumerate(list(self.by_topic.items()), 1):
            counts.topics += not is_system(topic)
            if reign.waiting:
                counts.waiting_acknowledgements += len(reign.waiting)
            if reign.held:
                counts.held_acknowledgements += len(reign.held)
            if not number % at_once:
                yield

    def has_room(self) -> bool:
        """Whether this node may be the rendezvous point of one more topic."""
        if len(self.by_topic) < self._settings.topics_held_max:
            return True
        self._counters.topics_refused += 1
        return False

    def _found(self, topic: str, now_s: float) -> Reign:
        return self.begin(TopicLog(topic, self._settings, self._budget), (), now_s)

    def _reign_over(self, topic: str, now_s: float) -> Reign | None:
        """The reign over a topic that is this node's business; None while that is not certain."""
        reign = self.by_topic.get(topic)
        if reign is None and self.ready and topic not in self._replication.copies:
            if self._copy_search.range is not None and self._copy_search.concerns(key_of(topic)):
                return None
            reign = self._found(topic, now_s) if self.has_room() else None
        return reign

    def is_mine(self, topic: str) -> bool:
        """Whether what concerns this topic ends here, though perhaps not yet served."""
        return topic in self.by_topic or self._ring.is_responsible(key_of(topic))

    # ---- the catalogue --------------------------------------------------------------------------

    def enter_in_catalogue(self, reign: Reign, now_s: float) -> None:
        """Where the topic stands with the catalogue may have changed: ask for its announcement, or
        let go of what waited for that."""
        if reign.log.announced:
            self._replication.release_held(reign)
            self._listing.add(reign.log.topic, now_s)
        elif reign.log.is_unannounced and not reign.announcing:
            reign.announcing = True
            self._listing.announce(reign.log.topic, now_s)

    def began(self, topic: str) -> int:
        """The term that the topic began in, as far as that is remembered; 0 if it is not here."""
        reign = self.by_topic.get(topic)
        return reign.log.began if reign is not None else 0

    def announced(self, entry: Entered, now_s: float) -> None:
        """The catalogue has the topic's name, safely."""
        reign = self.by_topic.get(entry.topic)
        self._listing.entered(entry, now_s, is_mine=reign is not None)
        if reign is not None and not reign.log.announced:
            reign.log.announced = True
            self._replication.announced(reign)
            self._replication.release_held(reign)

    # ---- publications ---------------------------------------------------------------------------

    def on_publish(self, sender: Peer, message: Publish, now_s: float) -> None:
        origin = self._directory.learn(message.origin)
        onward: dict[int, tuple[PeerFrame, list[Publication]]] = {}
        for publication in message.publications:
            if not _is_numbered(publication):
                self._counters.messages_malformed += 1
                continue
            topic = publication.topic
            reign = self.by_topic.get(topic)
            if reign is None:
                key = key_of(topic)
                if not self._ring.is_responsible(key):
                    frame = self._onward(key, sender.node_id, message.hops)
                    if frame is not None:
                        onward.setdefault(id(frame), (frame, []))[1].append(publication)
                    continue
                reign = self._reign_over(topic, now_s)
                if reign is None:
                    self._counters.waiting_events += publication.count
                    continue
            self._stamp(reign, publication, origin, now_s)
        for frame, publications in onward.values():
            relayed = Publish(
                origin=message.origin, publications=publications, hops=message.hops + 1
            )
            frame.messages.add(publish=relayed)
        for wire in message.bundles:
            bundle = Bundle.from_wire(wire)
            stamping = self.stamp_bundle(bundle, origin, now_s)
            if stamping.done is not None:
                self._replication.acknowledge_bundle(stamping.done, origin)
            if stamping.rest:
                topics = [bundle.topics[place] for place in stamping.rest]
                self._replication.returned(origin, bundle.publisher, topics)

    def stamp_bundle(self, bundle: Bundle, origin: Peer, now_s: float) -> BundleStamping:
        """Stamp each event that is plainly the next of its publisher on a topic of this node's."""
        stamped: list[int] = []
        reigns: list[Reign] = []
        terms: list[int] = []
        seqs: list[int] = []
        rest: list[int] = []
        # Topics of which something is left: what comes after it stays behind it.
        behind: set[str] = set()
        publisher, numbers, payloads = bundle.publisher, bundle.numbers, bundle.payloads
        published_us, by_topic = bundle.published_us, self.by_topic
        for place, topic in enumerate(bundle.topics):
            reign = by_topic.get(topic)
            if (
                reign is None
                or not reign.log.announced
                or reign.log.retention.is_catalogue
                or topic in behind
                or not reign.log.stamp_next(
                    publisher, numbers[place], published_us[place], payloads[place]
                )
            ):
                rest.append(place)
                behind.add(topic)
                continue
            reign.published += 1
            self._expect_silence(reign, now_s)
            stamped.append(place)
            reigns.append(reign)
            terms.append(reign.log.term)
            seqs.append(reign.log.seq)
        if not stamped:
            return BundleStamping(None, None, rest)
        done = bundle.pick(stamped)
        done.terms, done.seqs = terms, seqs
        self._send_stamped(done, reigns, now_s)
        if self._replication.waits_for_copies(done, reigns, origin):
            return BundleStamping(None, done, rest)
        return BundleStamping(done, None, rest)

    def _send_stamped(self, bundle: Bundle, reigns: list[Reign], now_s: float) -> None:
        """Pass on and copy what has just been stamped, each event by its reign."""
        self._counters.stamped_events += len(reigns)
        if self.keeps_tally:
            for topic, size in zip(bundle.topics, bundle.sizes, strict=True):
                tally = self._tally_of(topic)
                tally.events += 1
                tally.nbytes += size + EVENT_BYTES
        self._trees.disseminate_bundle(bundle, [reign.tree for reign in reigns])
        self._replication.stamped_bundle(reigns, bundle, now_s)

    def _stamp(self, reign: Reign, publication: Publication, origin: Peer, now_s: float) -> None:
        outcome, run = reign.log.stamp(publication, now_s, self._ring.calm_since_s)
        of_system = is_system(publication.topic)
        if outcome is Stamping.TOO_EARLY:
            self._counters.waiting_events += 0 if of_system else publication.count
            return
        if not publication.void and not of_system:
            fresh = run.count if run is not None else 0
            self._counters.repeated_events += publication.count - fresh
        if run is not None:
            reign.published += run.count
            if of_system:
                self._counters.system_events += run.count
            else:
                self._count_stamped(publication.topic, run)
            self._trees.disseminate(run)
            self._replication.stamped(reign, run, now_s)
            self._expect_silence(reign, now_s)
            if not reign.log.announced:
                self.enter_in_catalogue(reign, now_s)
        last_number = publication.first_number + publication.count - 1
        after = (0, 0)
        if run is not None and run.count == publication.count:
            after = reign.log.term, reign.log.seq - publication.count
        elif publication.ack == AckLevel.ACK_LEVEL_STORED:
            # Repeats lie farther back.
            after = reign.log.place_before(publication.publisher, publication.first_number)
        self._replication.acknowledge(
            reign,
            origin,
            Acknowledged(
                topic=publication.topic,
                publisher=publication.publisher,
                number=last_number,
                term=reign.log.term,
                seq=reign.log.seq,
                lacks_known=_lacks_known(reign.log, publication),
                after_term=after[0],
                after_seq=after[1],
            ),
            publication.ack,
        )

    def _count_stamped(self, topic: str, run: Run) -> None:
        self._counters.stamped_events += run.count
        if self.keeps_tally:
            tally = self._tally_of(topic)
            tally.events += run.count
            tally.nbytes += len(run.events)

    # ---- members and readers (of topics that are this node's business) --------------------------

    def on_join_tree(self, message: JoinTree, now_s: float) -> None:
        reign = self._reign_over(message.topic, now_s)
        if reign is None:
            return
        self._outdo(reign, message.known_term, now_s)
        reign.active_s = now_s
        member = NodeId(message.member)
        if self._trees.add_member(message.topic, member, now_s, refresh=True):
            self._replication.member_changed(reign, member, joined=True)

    def add_members(self, reign: Reign, members: Iterable[NodeId], now_s: float) -> None:
        for member in members:
            if self._trees.add_member(reign.log.topic, member, now_s):
                self._replication.member_changed(reign, member, joined=True)

    def on_leave_tree(self, message: LeaveTree, now_s: float) -> None:
        reign = self.by_topic.get(message.topic)
        member = NodeId(message.member)
        if reign is not None and self._trees.remove_member(message.topic, member):
            reign.active_s = now_s
            self._replication.member_changed(reign, member, joined=False)

    def on_outdated(self, message: Outdated, now_s: float) -> None:
        reign = self.by_topic.get(message.topic)
        if reign is not None:
            self._outdo(reign, message.known_term, now_s)

    def _outdo(self, reign: Reign, known_term: int, now_s: float) -> None:
        """Somebody has seen this term: events of an older one would be ignored there."""
        if reign.log.term < known_term <= TERM_CLAIM_MAX:
            self.renew(reign, now_s, known_term)

    def on_fetch(self, message: Fetch) -> None:
        reign = self.by_topic.get(message.topic)
        if reign is None:
            return
        self._counters.fetches_served += 1
        answer = reign.log.since(
            {entry.term: entry.seq for entry in message.seen}, holes=message.wants_holes
        )
        answer.reader = message.reader
        origin = self._directory.learn(message.origin)
        self._outbox.to(origin).messages.add(fetched=answer)

    # ---- positions, repeated --------------------------------------------------------------------

    def announce(self, reign: Reign, now_s: float) -> None:
        """Tell the tree where the topic stands, though no event says so."""
        reign.beat += 1
        log = reign.log
        beat = Run(
            topic=log.topic,
            term=log.term,
            first_seq=log.seq + 1,
            beat=reign.beat,
            prev_term=log.origin[0],
            prev_seq=log.origin[1],
        )
        self._trees.disseminate(beat)
        self._plan_next_beat(reign, now_s)

    def _announce_together(self, reigns: Sequence[Reign], now_s: float) -> None:
        for reign in reigns:
            reign.beat += 1
        logs = [reign.log for reign in reigns]
        beats = Beats(
            [log.topic for log in logs],
            [log.term for log in logs],
            [log.seq for log in logs],
            [reign.beat for reign in reigns],
            [log.origin for log in logs],
        )
        self._trees.disseminate_beats(beats)
        for reign in reigns:
            self._plan_next_beat(reign, now_s)

    def _plan_next_beat(self, reign: Reign, now_s: float) -> None:
        settings = self._settings
        pause_s = max(2 * reign.beat_pause_s, settings.heartbeat_first_s)
        reign.beat_pause_s = min(pause_s, settings.heartbeat_max_s)
        self._plan_beat(reign, now_s + reign.beat_pause_s)

    def _expect_silence(self, reign: Reign, now_s: float) -> None:
        """An event was sent: its position is worth repeating, soon at first."""
        reign.active_s = now_s
        reign.beat = 0
        reign.beat_pause_s = self._settings.heartbeat_first_s
        due_s = now_s + reign.beat_pause_s
        if not now_s < reign.beat_due_s <= due_s:
            self._plan_beat(reign, due_s)

    def _plan_beat(self, reign: Reign, due_s: float) -> None:
        """This is when, whatever was planned before."""
        reign.beat_due_s = due_s
        heapq.heappush(self._beats, (due_s, reign.log.topic))
        if len(self._beats) > _BEATS_PER_TICK + 4 * len(self.by_topic):
            # Nearly all of them have been planned anew since.
            self._beats = [(r.beat_due_s, topic) for topic, r in self.by_topic.items()]
            heapq.heapify(self._beats)

    def tick(self, now_s: float) -> None:
        due: list[Reign] = []
        for _ in range(_BEATS_PER_TICK):
            if not self._beats or self._beats[0][0] > now_s:
                break
            due_s, topic = heapq.heappop(self._beats)
            reign = self.by_topic.get(topic)
            if reign is None or reign.beat_due_s != due_s:
                continue
            quiet_at_s = reign.active_s + self._settings.heartbeat_first_s
            if reign.beat == 0 and quiet_at_s > now_s:
                self._plan_beat(reign, quiet_at_s)
            elif is_system(topic):
                self.announce(reign, now_s)
            else:
                # Not to be found once more before it has been announced.
                reign.beat_due_s = 0.0
                due.append(reign)
        if len(due) == 1:
            self.announce(due[0], now_s)
        elif due:
            self._announce_together(due, now_s)
        self._listing.tick(now_s)
        if now_s >= self._sweep_due_s:
            self._sweep_due_s = now_s + self._settings.topic_idle_s / 10
            self._sweep(now_s)

    def _tally_of(self, topic: str) -> TopicTally:
        tally = self._tally.get(topic)
        if tally is None:
            tally = self._tally[topic] = TopicTally()
        return tally

    def _sweep(self, now_s: float) -> None:
        idle_since_s = now_s - self._settings.topic_idle_s
        for topic, reign in list(self.by_topic.items()):
            keeps_names = is_catalogue(topic) and not reign.log.is_blank
            is_idle = reign.active_s < idle_since_s and not keeps_names
            if is_idle and not self._trees.members(topic):
                log, _ = self.end(topic)
                log.discard()
                self._replication.forgotten(topic)


def _lacks_known(log: TopicLog, publication: Publication) -> bool:
    """Whether this part of the catalogue has another history than the announcer knew."""
    return log.retention.is_catalogue and not log.knows(
        publication.known_term, publication.known_seq
    )


def _is_numbered(publication: Publication) -> bool:
    last_number = publication.first_number + publication.count - 1
    return 1 <= publication.first_number <= last_number and last_number <= NUMBER_MAX
