"""One broker's part of the forwarding in a tree, as a pure state machine.

    effects = forwarder.start(now_s)
    effects = forwarder.handle(frame, now_s)        # something arrived
    effects = forwarder.tick(now_s)                 # time passed
    effects = forwarder.want(filter, now_s)         # somebody here subscribes
    effects = forwarder.publish(publications, now_s)

It knows no socket, clock, thread or log, and rolls no dice. Parts with one subject each:

    exchange   what is told of tables, and when a subscription is in place
    news       what is told of streams: how far they are, and what is lost
    serving    giving neighbours what they want
    origin     events of this broker's own publishers
    copies     keepers: what survives the crash of an origin
    fetches    repair
    requests   who asks for that

After every input `_settle` brings them in line: tables are told before anything else, then what is
in place is confirmed, repairs go on, neighbours are sent what the log has for them, and frames are
cut. Nothing overtakes anything on a link; all that is promised rests on that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter
from dynatops.v1.overlay_pb2 import (
    CopiesHeld,
    LinkBatch,
    LinkGreeting,
    LinkMessage,
    PeerFrame,
    Publication,
    Run,
    Runs,
    StreamLoss,
    TopologyOffer,
)
from overlay.base.effects import Deliver, DeliverBundle, Ready, Send
from overlay.base.identifiers import first_node_id
from overlay.base.peers import Peer
from overlay.forwarding.base.forwarding_counters import ForwardingCounters
from overlay.forwarding.base.forwarding_settings import ForwardingSettings
from overlay.forwarding.exchange.fetch_requests import FetchRequests
from overlay.forwarding.exchange.serving import NeighbourServing
from overlay.forwarding.exchange.stream_news import StreamNews
from overlay.forwarding.exchange.table_exchange import TableExchange
from overlay.forwarding.forwarding_effects import (
    ForwardingEffect,
    NeighbourDown,
    NeighbourUp,
    TakenOut,
    TopologyConflict,
    TopologyLearned,
)
from overlay.forwarding.keeping.copies import CopyKeeping, CopySending, Recovery
from overlay.forwarding.keeping.fetches import Fetches
from overlay.forwarding.keeping.origin import StreamOrigin
from overlay.forwarding.keeping.stretches import Stretches
from overlay.forwarding.links.link import Link, session_numbers
from overlay.forwarding.links.neighbours import ServingState, TreeNeighbour
from overlay.forwarding.streams.known_streams import (
    is_stream_of,
    next_stream_id,
    stream_id,
)
from overlay.forwarding.streams.portions import (
    Portion,
    events_in,
    last_of,
    newer_part,
    portions_of,
    stream_of,
)
from overlay.forwarding.streams.stream_log import LogEntry
from overlay.forwarding.tables.held_filters import HERE
from overlay.forwarding.tables.matching import Match, match_portion
from overlay.forwarding.tables.standing import StandingFilters
from overlay.forwarding.tables.subscription_tables import SubscriptionTables, TableRules
from overlay.forwarding.tables.table_reports import TableEntries
from overlay.forwarding.tree.topology import Topology, TopologyError
from overlay.forwarding.tree_context import TreeContext
from overlay.forwarding.tree_status import TreeStatus


class Forwarder:
    def __init__(
        self,
        broker_id: str,
        address: str,
        incarnation: int,
        topology: Topology,
        settings: ForwardingSettings,
        now_s: float,
        counters: ForwardingCounters | None = None,
    ) -> None:
        self.me = Peer(first_node_id(broker_id), broker_id, address, 0, incarnation)
        self.counters = counters if counters is not None else ForwardingCounters()
        self._context = context = TreeContext(
            me=self.me,
            settings=settings,
            counters=self.counters,
            topology=topology,
            started_s=now_s,
            tables=_tables_of(broker_id, topology, self.counters),
        )
        self._settings = settings
        self._effects = context.effects
        self._streams = context.streams
        self._keeping = CopyKeeping(context)
        self._fetches = Fetches(context, Stretches(context, self._keeping))
        self._sending = CopySending(context)
        self._recovery = Recovery(context)
        # Before it is, nobody has been asked for what its former lives published.
        self._is_started = False
        self._exchange = TableExchange(context, self._fetches)
        self._serving = NeighbourServing(
            context, self._exchange, self._fetches, self._sending, self._recovery
        )
        self._news = StreamNews(context)
        self._origin = StreamOrigin(
            context, self._sending, self._route_own, self._exchange.is_advertised
        )
        self._requests = FetchRequests(context, self._exchange, self._fetches)
        self._sessions = session_numbers(incarnation)
        self._progress_due_s = now_s
        # Neighbours whose past does not concern this life: those that it began with.
        self._first_neighbours = frozenset(topology.neighbours(broker_id))
        self._has_met = False
        # The newest topology that has no place for this broker.
        self._passed_on_version = 0
        self._topology_since_s = now_s
        self._handlers: dict[str, Callable[[TreeNeighbour, Any, float], None]] = {
            "table_change": self._exchange.on_table_change,
            "positions": self._serving.on_positions,
            "copies_held": self._on_copies_held,
            "streams": self._news.on_streams,
            "table_confirmed": self._exchange.on_table_confirmed,
            "table_heard": self._exchange.on_table_heard,
            "forwarded": self._on_forwarded,
            "progress": self._news.on_progress,
            "loss": self._news.on_loss,
            "tree_fetch": self._requests.on_fetch,
            "tree_fetch_more": self._requests.on_more,
            "tree_fetch_end": self._requests.on_end,
            "tree_fetched": lambda n, m, now: self._fetches.on_part(n.broker_id, m),
            "keep_copies": lambda n, m, now: self._keeping.on_keep(n, m),
            "copied": self._on_copied,
            "copies_kept": lambda n, m, now: self._sending.on_kept(n, m),
            "copies_wanted": lambda n, m, now: self._keeping.on_wanted(n, m),
            "copies_returned": lambda n, m, now: self._recovery.on_returned(n, m),
        }

    # ---- inputs ---------------------------------------------------------------------------------

    def start(self, now_s: float) -> list[ForwardingEffect]:
        self._context.started_s = now_s
        self._is_started = True
        self._meet_neighbours(now_s)
        # Those begun before, for sessions from disk, go to all of them.
        self._fetches.topology_changed(now_s)
        return self._settle(now_s)

    def handle(self, frame: PeerFrame, now_s: float) -> list[ForwardingEffect]:
        self.counters.link_frames += 1
        neighbour = self._context.neighbours.get(frame.sender.broker_id)
        for message in frame.messages:
            kind = message.WhichOneof("body")
            if kind == "link_batch" and neighbour is not None:
                self._take_batch(neighbour, message.link_batch, now_s)
            elif kind == "link_greeting":
                self._take_greeting(frame, message.link_greeting, now_s)
            elif kind == "topology_offer":
                self._take_offer(message.topology_offer, frame.sender.broker_id, now_s)
            else:
                self.counters.link_frames_strange += 1
        return self._settle(now_s)

    def tick(self, now_s: float) -> list[ForwardingEffect]:
        for neighbour in self._context.neighbours.values():
            neighbour.link.tick(now_s)
        self._note_sessions(now_s)
        self._serving.tick(now_s)
        self._fetches.tick(now_s)
        if now_s >= self._progress_due_s:
            self._progress_due_s = now_s + self._settings.progress_s
            self._serving.tell_progress()
            self._news.review_streams(now_s)
        return self._settle(now_s)

    def want(self, wanted: Filter, now_s: float) -> list[ForwardingEffect]:
        """Somebody here subscribes; `FilterInPlace` says when events are sure to come."""
        self._exchange.want(wanted)
        return self._settle(now_s)

    def unwant(self, wanted: Filter, now_s: float) -> list[ForwardingEffect]:
        self._exchange.unwant(wanted)
        return self._settle(now_s)

    def advertise(self, pattern: Filter, now_s: float) -> list[ForwardingEffect]:
        """Publishers here may publish on these topics."""
        self._context.tables.advertise(HERE, pattern)
        return self._settle(now_s)

    def publish(self, publications: Iterable[Publication], now_s: float) -> list[ForwardingEffect]:
        """Those that cannot be taken yet are not answered: give them again after a while."""
        for publication in publications:
            self._origin.publish(publication, now_s)
        return self._settle(now_s)

    def publish_bundle(self, bundle: Bundle, now_s: float) -> list[ForwardingEffect]:
        self._origin.publish_bundle(bundle)
        return self._settle(now_s)

    def fetch(
        self, fetch_id: int, filters: Sequence[Filter], positions: Mapping[int, int], now_s: float
    ) -> list[ForwardingEffect]:
        """What meets these filters after these positions; of streams that are not named, all that
        is retained. It comes in `FetchedPart`s, in the order of each stream; the last is `done`."""
        self._requests.begin(fetch_id, filters, positions, now_s)
        return self._settle(now_s)

    def give_up_fetch(self, fetch_id: int, now_s: float) -> list[ForwardingEffect]:
        """Nobody waits for its answer any more."""
        self._requests.give_up(fetch_id)
        return self._settle(now_s)

    def set_topology(self, topology: Topology, now_s: float) -> list[ForwardingEffect]:
        """Use it from now on, if it is newer than what there is."""
        self._take_topology(topology, "", now_s)
        return self._settle(now_s)

    # ---- what others may know -------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        return self._context.topology

    @property
    def tables(self) -> SubscriptionTables:
        return self._context.tables

    @property
    def is_ready(self) -> bool:
        return self._recovery.is_done

    @property
    def keeper(self) -> str | None:
        return self._sending.keeper

    @property
    def own_stream(self) -> int:
        """What its publishers' events are numbered in; 0 before it is ready."""
        return self._origin.stream

    def has_ended(self, stream: int) -> bool:
        """Whether whatever is missing of it will not come any more."""
        origins = (b for b in self.topology.addresses if is_stream_of(stream, b))
        return self._streams.has_ended(stream) or not any(origins)

    def positions(self) -> dict[int, int]:
        """V: how far each stream has come here."""
        return self._streams.positions()

    def neighbour_states(self) -> dict[str, ServingState]:
        return {n.broker_id: n.state for n in self._context.neighbours.values()}

    def status(self) -> TreeStatus:
        neighbours = self._context.neighbours.values()
        return TreeStatus(
            topology_version=self.topology.version,
            is_ready=self.is_ready,
            links=len(neighbours),
            links_up=sum(neighbour.is_open for neighbour in neighbours),
            tables=self.tables.status(),
            counters=self.counters,
        )

    def table_entries(self) -> TableEntries:
        """The tables as they are now."""
        topology, tables, names = self.topology, self.tables, list(self._context.neighbours)
        return TableEntries(
            mode=topology.mode,
            parent=topology.parent(self.me.broker_id),
            covering=topology.covering,
            advertisements=topology.advertisements,
            own=tables.wanted_by(HERE),
            wanted={name: tables.sent_to(name) for name in names},
            told={name: tables.told(name) for name in names},
            advertisements_told={name: len(tables.advertised_to(name)) for name in names},
        )

    def wanted_by_neighbours(self, topic: str) -> list[Peer]:
        """Those that get events of the topic, or some of them."""
        wanting = self._context.tables.may_take(topic)
        return [n.peer for n in self._context.neighbours.values() if n.broker_id in wanting]

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way: no repair, and nothing that waits for anybody."""
        neighbours = self._context.neighbours.values()
        served = all(
            n.state is ServingState.LIVE
            and n.cursor == self._context.log.end_place
            and n.link.is_idle
            for n in neighbours
        )
        return served and not len(self._fetches) and not self._sending.waits

    # ---- links ----------------------------------------------------------------------------------

    def _meet_neighbours(self, now_s: float) -> None:
        context = self._context
        wanted = context.topology.neighbours(context.my_id)
        for gone in sorted(set(context.neighbours) - set(wanted)):
            self._offer_topology(context.neighbours.pop(gone).peer)
        for broker_id in wanted:
            address = context.topology.addresses[broker_id]
            known = context.neighbours.get(broker_id)
            if known is not None and known.peer.address != address:
                # Whoever is left there is to know that it is looked for elsewhere.
                self._offer_topology(known.peer)
                known.peer = Peer(first_node_id(broker_id), broker_id, address)
            if known is not None:
                continue
            link = Link(
                self.me.ref,
                self._settings,
                self.counters,
                self._sessions,
                context.topology.version,
                context.topology.digest,
                now_s,
            )
            peer = Peer(first_node_id(broker_id), broker_id, address)
            context.neighbours[broker_id] = TreeNeighbour(peer, link)

    def _take_greeting(self, frame: PeerFrame, greeting: LinkGreeting, now_s: float) -> None:
        topology = self._context.topology
        sender = frame.sender
        if greeting.version < topology.version:
            self._offer_topology(Peer.from_ref(sender))
            return
        neighbour = self._context.neighbours.get(sender.broker_id)
        if greeting.version > topology.version:
            # It hears this broker's greeting, and offers what it has.
            self._greet_stranger(sender.broker_id, frame)
            return
        if neighbour is None:
            self.counters.link_frames_strange += 1
            return
        if greeting.digest != topology.digest:
            self._effects.append(TopologyConflict(sender.broker_id, topology.version))
            return
        neighbour.link.hear_greeting(greeting, now_s)
        self._note_sessions(now_s)

    def _pass_on(self, topology: Topology) -> None:
        """It is not used here. Those who were behind this broker may have no place in it, too, and
        hear of it from nobody else."""
        if topology.version > self._passed_on_version:
            self._passed_on_version = topology.version
            for neighbour in self._context.neighbours.values():
                self._offer_topology(neighbour.peer, topology)

    def _offer_topology(self, to: Peer, topology: Topology | None = None) -> None:
        offer = PeerFrame(sender=self.me.ref)
        text = (topology or self._context.topology).to_text()
        offer.messages.add().topology_offer.topology = text
        self._effects.append(Send(to, offer))

    def _greet_stranger(self, broker_id: str, frame: PeerFrame) -> None:
        topology = self._context.topology
        answer = PeerFrame(sender=self.me.ref)
        greeting = answer.messages.add().link_greeting
        greeting.version, greeting.digest = topology.version, topology.digest
        self._effects.append(Send(Peer.from_ref(frame.sender), answer))

    def _take_offer(self, offer: TopologyOffer, source: str, now_s: float) -> None:
        try:
            topology = Topology.from_text(offer.topology)
        except TopologyError:
            self.counters.link_frames_strange += 1
            return
        self._take_topology(topology, source, now_s)

    def _take_topology(self, topology: Topology, source: str, now_s: float) -> None:
        if topology.version <= self._context.topology.version:
            return
        if topology.addresses.get(self.me.broker_id) != self.me.address:
            self._pass_on(topology)
            self._effects.append(TakenOut(topology))
            return
        self._change_topology(topology, now_s)
        self._effects.append(TopologyLearned(topology, source))

    def _take_batch(self, neighbour: TreeNeighbour, batch: LinkBatch, now_s: float) -> None:
        for ready in neighbour.link.hear_batch(batch, now_s):
            self._note_sessions(now_s)
            for message in ready.messages:
                self._dispatch(neighbour, message, now_s)

    def _dispatch(self, neighbour: TreeNeighbour, message: LinkMessage, now_s: float) -> None:
        kind = message.WhichOneof("body")
        handler = self._handlers.get(kind) if kind is not None else None
        if handler is None:
            self.counters.link_frames_strange += 1
            return
        handler(neighbour, getattr(message, kind or ""), now_s)

    def _note_sessions(self, now_s: float) -> None:
        for neighbour in self._context.neighbours.values():
            link = neighbour.link
            if neighbour.is_open and (not link.is_up or link.session != neighbour.session):
                self._close(neighbour, now_s)
            if link.is_up and not neighbour.is_open:
                self._open(neighbour, now_s)

    def _close(self, neighbour: TreeNeighbour, now_s: float) -> None:
        broker_id = neighbour.broker_id
        neighbour.close()
        self._pass_copies_on(neighbour)
        self._serving.forget(broker_id)
        self._requests.closed(broker_id)
        self._fetches.closed(broker_id, now_s)
        self._exchange.forget(broker_id)
        self._sending.closed(broker_id, now_s)
        self._recovery.closed(broker_id)
        self._effects.append(NeighbourDown(broker_id))

    def _open(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """A session begins: the whole table, positions, copies; then what is asked again."""
        is_new = neighbour.broker_id in self._first_neighbours
        self._first_neighbours -= {neighbour.broker_id}
        self._has_met = True
        if is_new:
            age_s = now_s - self._context.started_s
            neighbour.is_late = age_s >= self._settings.start_patience_s
        self._exchange.tell_tables()
        neighbour.state = ServingState.OPENED
        neighbour.session = neighbour.link.session
        neighbour.is_new_here = is_new
        self._exchange.tell_whole_table(neighbour)
        self._keeping.say_held(neighbour)
        if not self._context.topology.advertisements:
            self._exchange.tell_positions(neighbour, now_s)
        self._effects.append(NeighbourUp(neighbour.broker_id))

    # ---- events ---------------------------------------------------------------------------------

    def _on_forwarded(self, neighbour: TreeNeighbour, message: Runs, now_s: float) -> None:
        portions = portions_of(message)
        strange = len(message.runs) + len(message.bundles) - len(portions)
        self.counters.link_frames_strange += strange
        for portion in portions:
            self._take_portion(neighbour, portion)

    def _take_portion(self, neighbour: TreeNeighbour, portion: Portion) -> None:
        count = events_in(portion)
        self.counters.tree_events_received += count
        known = self._streams.get(stream_of(portion))
        if known is None or not self._news.comes_from(neighbour, known):
            self.counters.link_frames_strange += 1
            return
        self._keeping.keep(neighbour.broker_id, portion)
        last, newer = last_of(portion), newer_part(portion, known.number)
        if newer is None:
            self.counters.tree_events_repeated += count
            if last > known.number:
                self._news.advance(known, last, neighbour)
            return
        newer.hops += 1
        self._news.advance(known, last, neighbour)
        self._route(newer, neighbour.broker_id)

    def _pass_copies_on(self, neighbour: TreeNeighbour) -> None:
        """Copies may have come before it was the turn of their events: now these come no more."""
        holder = neighbour.broker_id
        for known in self._streams:
            if known.holder != holder:
                continue
            for portion in self._keeping.continuing(holder, known.stream, known.number):
                self._news.advance(known, last_of(portion), neighbour)
                self._route(portion, holder)

    def _on_copied(self, neighbour: TreeNeighbour, message: Runs, now_s: float) -> None:
        for portion in portions_of(message):
            self._keeping.keep(neighbour.broker_id, portion, in_turn=True)

    def _route_own(self, portion: Portion) -> None:
        known = self._streams.get(self._origin.stream)
        if known is None:
            known = self._streams.add(self._origin.stream, self.me.broker_id, 0)
        own_place = self._context.own.append(portion).place
        self._news.advance(known, last_of(portion), None)
        self._route(portion, HERE, own_place)

    def _route(self, portion: Portion, source: str, own_place: int = -1) -> None:
        """Matched once, for all; it waits in the log until each neighbour is sent it. Whoever is
        between others may be asked for what only its own clients wanted."""
        found: Match = match_portion(self._context.tables, portion, source)
        counters = self.counters
        counters.tree_events_unreadable += not found.is_readable
        is_asked_for = source != HERE and len(self._context.neighbours) > 1
        if found.targets or (found.is_wanted_here and is_asked_for):
            entry = self._context.log.append(portion)
            entry.targets, entry.parts, entry.own_place = found.targets, found.parts, own_place
        else:
            counters.tree_events_filtered += events_in(portion)
            known = self._streams.get(stream_of(portion))
            if known is not None:
                known.log_floor = last_of(portion)
        if found.is_wanted_here:
            counters.tree_events_local += events_in(portion)
            if isinstance(portion, Bundle):
                local = found.local if isinstance(found.local, Bundle) else portion
                self._effects.append(DeliverBundle(local))
            else:
                self._effects.append(Deliver(portion))

    # ---- copies ---------------------------------------------------------------------------------

    def _on_copies_held(self, neighbour: TreeNeighbour, message: CopiesHeld, now_s: float) -> None:
        self._sending.on_held(neighbour, message)
        self._recovery.on_held(neighbour, message)

    def _recovered(self) -> None:
        """What former lives published is known: from here on this life publishes, and serves."""
        context = self._context
        for stream, high in context.own.highs.items():
            known = self._streams.add(stream, context.my_id, high, begin=0)
            if self._recovery.is_doubtful or stream in self._recovery.doubtful:
                context.own.doubtful.add(stream)
            else:
                known.end = high
        self._origin.remember()
        newest = max(context.own.highs, default=0)
        mine = stream_id(context.my_id, self.me.incarnation)
        self._begin_stream(mine if mine > newest else next_stream_id(newest))
        self._fetches.is_doubtful = self._recovery.is_doubtful
        self._advertise_own()
        self._effects.append(Ready())

    def _advertise_own(self) -> None:
        """Before the log of own streams is served: others must say what they want of it."""
        context = self._context
        if not context.topology.advertisements:
            self._may_serve_own()
            return
        self._serving.may_serve = self._fetches.may_read_own = False
        topics: dict[str, None] = {}
        for entry in context.own.log:
            if isinstance(entry.item, Bundle):
                topics.update(dict.fromkeys(entry.item.topics))
            elif isinstance(entry.item, Run):
                topics[entry.item.topic] = None
        self._exchange.advertise_again(topics)
        neighbours = context.neighbours.values()
        self._exchange.hearings.wait(HERE, neighbours, self._may_serve_own)

    def _may_serve_own(self) -> None:
        self._serving.may_serve = self._fetches.may_read_own = True

    def _begin_stream(self, stream: int) -> None:
        self._origin.begin(stream)
        known = self._streams.get(stream)
        if known is not None:
            self._news.announce(known, None)

    # ---- another topology -----------------------------------------------------------------------

    def _change_topology(self, topology: Topology, now_s: float) -> None:
        """All sessions begin anew; what was under way is fetched."""
        context = self._context
        former = set(context.neighbours)
        for neighbour in context.neighbours.values():
            if neighbour.is_open:
                self._close(neighbour, now_s)
            neighbour.is_kept = False
            # It is waited for like one that has not been heard of.
            neighbour.session = 0
            neighbour.standing = StandingFilters()
            neighbour.link.set_topology(topology.version, topology.digest, now_s)
        neighbours = frozenset(topology.neighbours(context.my_id))
        self._first_neighbours &= neighbours
        if not self._has_met:
            self._first_neighbours = neighbours
        context.topology = topology
        self._topology_since_s = now_s
        context.tables = _tables_of(context.my_id, topology, self.counters)
        self._meet_neighbours(now_s)
        self._exchange.refill_tables()
        self._fetches.topology_changed(now_s)
        self._sending.topology_changed()
        self._recovery.topology_changed()
        for holder in self._keeping.holders():
            if holder in topology:
                continue
            if holder not in former:
                # It has had another keeper since.
                self._keeping.take_over(holder)
            elif self._recovery.is_done:
                self._adopt(holder)
        self._keeping.topology_changed()
        if self._recovery.is_done:
            self._advertise_own()

    def _adopt(self, holder: str) -> None:
        """The broker is gone for good: its keeper holds its streams from now on."""
        context = self._context
        store = self._keeping.take_over(holder)
        ending = self._streams.get(self._origin.stream)
        if ending is not None:
            ending.end = ending.number
        for stream, high in store.highs.items():
            if stream in context.own.highs:
                continue
            context.own.begin(stream, store.floors[stream])
            if stream in store.doubtful:
                context.own.doubtful.add(stream)
            known = self._streams.get(stream)
            if known is None:
                known = self._streams.add(stream, context.my_id, high, begin=0)
            known.holder, known.end, known.orphan_since_s = context.my_id, high, None
        for entry in store.log:
            if not isinstance(entry.item, StreamLoss):
                context.own.append(entry.item)
                self._catch_up(entry)
        for stream, high in store.highs.items():
            if (known := self._streams.get(stream)) is not None:
                known.number = max(known.number, high)
        self._begin_stream(next_stream_id(self._origin.stream))

    def _catch_up(self, entry: LogEntry) -> None:
        """What was a copy only may be wanted here."""
        known = self._streams.get(entry.stream)
        if known is None or isinstance(entry.item, StreamLoss):
            return
        newer = newer_part(entry.item, known.number)
        if newer is None:
            return
        found = match_portion(self._context.tables, newer, HERE)
        known.number = last_of(newer)
        if found.is_wanted_here:
            effect = DeliverBundle(newer) if isinstance(newer, Bundle) else Deliver(newer)
            self._effects.append(effect)

    # ---- after each input -----------------------------------------------------------------------

    def _settle(self, now_s: float) -> list[ForwardingEffect]:
        context = self._context
        self._exchange.tell_tables()
        if self._is_started and not self._recovery.is_done and self._recovery.proceed(now_s):
            self._recovered()
        age_s = now_s - self._topology_since_s
        self._exchange.settle(age_s)
        neighbours = context.neighbours.values()
        if self._recovery.is_done:
            for neighbour in neighbours:
                if neighbour.state is ServingState.OPENED:
                    self._serving.serve_opened(neighbour, now_s)
            self._sending.choose(now_s)
        self._fetches.pump(now_s)
        for neighbour in neighbours:
            if neighbour.state is ServingState.LIVE:
                self._serving.serve(neighbour, now_s)
        self._sending.pump()
        self._sending.release()
        self._keeping.flush()
        for neighbour in neighbours:
            for frame in neighbour.link.frames(now_s):
                self._effects.append(Send(neighbour.peer, frame))
        self._note_sessions(now_s)
        effects = self._effects[:]
        self._effects.clear()
        return effects


def _tables_of(
    broker_id: str, topology: Topology, counters: ForwardingCounters
) -> SubscriptionTables:
    rules = TableRules(
        topology.mode, advertisements=topology.advertisements, covering=topology.covering
    )
    tables = SubscriptionTables(rules, counters)
    parent = topology.parent(broker_id)
    for neighbour in topology.neighbours(broker_id):
        tables.add_neighbour(neighbour, is_parent=neighbour == parent)
    return tables
