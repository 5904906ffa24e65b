"""One broker's part of the forwarding in a tree, as a pure state machine.

    effects = forwarder.start(now_s)
    effects = forwarder.handle(frame, now_s)        # something arrived
    effects = forwarder.tick(now_s)                 # time passed
    effects = forwarder.want(filter, now_s)         # somebody here subscribes
    effects = forwarder.publish(publications, now_s)

It knows no socket, clock, thread or log, and rolls no dice. Parts with one subject each:

    neighbours     links, and how far each neighbour has been served
    tables         who wants what, and what is told to whom
    confirmations  when a subscription is in place
    streams        what is known, and how far it has come
    origin         events of this broker's own publishers
    copies         keepers: what survives the crash of an origin
    fetches        repair

After every input `_settle` brings them in line: tables are told before anything else, then what is
in place is confirmed, repairs go on, neighbours are sent what the log has for them, and frames are
cut. Nothing overtakes anything on a link; all that is promised rests on that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from dynatops.kit.bounded import BoundedTable
from dynatops.kit.bundles import Bundle
from dynatops.kit.filters import Filter, FilterError
from dynatops.v1.overlay_pb2 import (
    CopiesHeld,
    LinkBatch,
    LinkGreeting,
    LinkMessage,
    LinkPositions,
    PeerFrame,
    Publication,
    Run,
    Runs,
    StreamLoss,
    StreamPlace,
    StreamPlaces,
    TableChange,
    TableConfirmed,
    TableHeard,
    TopologyOffer,
    TreeFetch,
    TreeFetched,
    TreeFetchEnd,
    TreeFetchMore,
    WantedFilter,
)
from overlay.base.effects import Deliver, DeliverBundle, Ready, Send
from overlay.base.identifiers import NUMBER_MAX, first_node_id
from overlay.base.peers import Peer
from overlay.forwarding.confirmations import Confirmations
from overlay.forwarding.copies import CopyKeeping, CopySending, Recovery
from overlay.forwarding.fetches import Fetches, FilterSet, OpenFetch, portions_in
from overlay.forwarding.forwarding_counters import ForwardingCounters
from overlay.forwarding.forwarding_effects import (
    FetchedPart,
    FilterInPlace,
    ForwardingEffect,
    LossRange,
    NeighbourDown,
    NeighbourUp,
    StreamLost,
    TopologyConflict,
    TopologyLearned,
)
from overlay.forwarding.forwarding_settings import ForwardingSettings
from overlay.forwarding.known_streams import (
    KnownStream,
    next_stream_id,
    place_message,
    stream_id,
)
from overlay.forwarding.link import Link
from overlay.forwarding.matching import Match, match_portion
from overlay.forwarding.neighbours import OwedConfirmation, ServingState, TreeNeighbour
from overlay.forwarding.origin import StreamOrigin
from overlay.forwarding.portions import (
    Portion,
    events_in,
    last_of,
    newer_part,
    portions_of,
    size_of,
    stream_of,
)
from overlay.forwarding.stream_log import LogEntry
from overlay.forwarding.tables import HERE, SubscriptionTables, TableNews
from overlay.forwarding.topology import Topology, TopologyError
from overlay.forwarding.tree_context import TreeContext

# Filters in one message of a whole table.
_FILTERS_AT_ONCE = 2_000


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
            tables=_tables_of(broker_id, topology),
        )
        self._settings = settings
        self._effects = context.effects
        self._streams = context.streams
        waiting_max, patience_s = settings.waiting_confirmations_max, settings.start_patience_s
        self._confirmations = Confirmations(
            waiting_max, self.counters, patience_s, lambda n: n.confirmed_version
        )
        # Of advertisements: whether what is wanted because of them is known.
        self._hearings = Confirmations(
            waiting_max, self.counters, patience_s, lambda n: n.heard_version
        )
        # Whether this broker's streams may be sent: what is on them is advertised, and wanted.
        self._may_serve = False
        self._fetches = Fetches(context)
        self._keeping = CopyKeeping(context)
        self._sending = CopySending(context)
        self._recovery = Recovery(context)
        self._origin = StreamOrigin(context, self._sending, self._route_own, self._is_advertised)
        # Topics published on here, whether their advertisement is in place.
        self._advertised: BoundedTable[str, bool] = BoundedTable(
            settings.topics_published_max,
            self.counters,
            "topics_unremembered",
            on_drop=lambda topic, _: context.tables.change(HERE, retract=[Filter.parse(topic)]),
        )
        # What is wanted here, and which time: a filter may be given up and wanted again.
        self._wanted: dict[Filter, int] = {}
        self._wants = 0
        self._resuming: dict[str, int] = {}
        # Credits of neighbours' fetches: parts that may be sent.
        self._credits: dict[tuple[str, int], list[int]] = {}
        self._progress_due_s = now_s
        # Neighbours whose past does not concern this life: those that it began with.
        self._first_neighbours = frozenset(topology.neighbours(broker_id))
        self._has_met = False
        self._topology_since_s = now_s
        self._handlers: dict[str, Callable[[TreeNeighbour, Any, float], None]] = {
            "table_change": self._on_table_change,
            "positions": self._on_positions,
            "copies_held": self._on_copies_held,
            "streams": self._on_streams,
            "table_confirmed": self._on_table_confirmed,
            "table_heard": self._on_table_heard,
            "forwarded": self._on_forwarded,
            "progress": self._on_progress,
            "loss": self._on_loss,
            "tree_fetch": self._on_fetch,
            "tree_fetch_more": self._on_fetch_more,
            "tree_fetch_end": self._on_fetch_end,
            "tree_fetched": lambda n, m, now: self._fetches.on_part(n.broker_id, m),
            "keep_copies": lambda n, m, now: self._keeping.on_keep(n, m),
            "copied": self._on_copied,
            "copies_kept": lambda n, m, now: self._sending.on_kept(n, m),
            "copies_wanted": lambda n, m, now: self._keeping.on_wanted(n, m),
            "copies_returned": lambda n, m, now: self._recovery.on_returned(n, m),
        }

    # ---- inputs ---------------------------------------------------------------------------------

    def start(self, now_s: float) -> list[ForwardingEffect]:
        self._meet_neighbours(now_s)
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
                self._take_offer(message.topology_offer, now_s)
            else:
                self.counters.link_frames_strange += 1
        return self._settle(now_s)

    def tick(self, now_s: float) -> list[ForwardingEffect]:
        for neighbour in self._context.neighbours.values():
            neighbour.link.tick(now_s)
        self._note_sessions(now_s)
        for neighbour in self._context.neighbours.values():
            if neighbour.is_outdated and neighbour.broker_id in self._resuming:
                self._resume_again(neighbour, now_s)
        self._fetches.tick(now_s)
        if now_s >= self._progress_due_s:
            self._progress_due_s = now_s + self._settings.progress_s
            self._tell_progress()
            self._review_streams(now_s)
        return self._settle(now_s)

    def want(self, wanted: Filter, now_s: float) -> list[ForwardingEffect]:
        """Somebody here subscribes; `FilterInPlace` says when events are sure to come."""
        self._wants += 1
        self._wanted.setdefault(wanted, self._wants)
        self._context.tables.change(HERE, add=[wanted])
        self._tell_tables()
        self._await_in_place(wanted)
        return self._settle(now_s)

    def unwant(self, wanted: Filter, now_s: float) -> list[ForwardingEffect]:
        self._wanted.pop(wanted, None)
        self._context.tables.change(HERE, remove=[wanted])
        return self._settle(now_s)

    def advertise(self, pattern: Filter, now_s: float) -> list[ForwardingEffect]:
        """Publishers here may publish on these topics."""
        self._context.tables.change(HERE, advertise=[pattern])
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
        self._tell_tables()
        places = {s: (number, self._holder_of(s)) for s, number in positions.items()}
        fetch = OpenFetch(
            HERE,
            filters,
            places,
            partial(self._take_for_session, fetch_id),
            lambda: True,
            unnamed=True,
        )
        if self._fetches.begin(fetch, now_s) is None:
            losses = [LossRange(s, number, None) for s, number in positions.items()]
            self._effects.append(FetchedPart(fetch_id, (), losses, {}, True))
        return self._settle(now_s)

    def set_topology(self, topology: Topology, now_s: float) -> list[ForwardingEffect]:
        """Use it from now on, if it is newer than what there is."""
        if topology.version > self._context.topology.version:
            self._change_topology(topology, now_s)
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

    def positions(self) -> dict[int, int]:
        """V: how far each stream has come here."""
        return self._streams.positions()

    def neighbour_states(self) -> dict[str, ServingState]:
        return {n.broker_id: n.state for n in self._context.neighbours.values()}

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

    def _holder_of(self, stream: int) -> str:
        known = self._streams.get(stream)
        return known.holder if known is not None else ""

    # ---- links ----------------------------------------------------------------------------------

    def _meet_neighbours(self, now_s: float) -> None:
        context = self._context
        wanted = context.topology.neighbours(context.my_id)
        for gone in set(context.neighbours) - set(wanted):
            del context.neighbours[gone]
        for broker_id in wanted:
            if broker_id in context.neighbours:
                continue
            address = context.topology.addresses[broker_id]
            link = Link(
                self.me.ref,
                self._settings,
                self.counters,
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
            offer = PeerFrame(sender=self.me.ref)
            offer.messages.add().topology_offer.topology = topology.to_text()
            self._effects.append(Send(Peer.from_ref(sender), offer))
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
        if neighbour.incarnation != sender.incarnation:
            if not neighbour.first_incarnation:
                neighbour.first_incarnation = sender.incarnation
            neighbour.incarnation = sender.incarnation
        neighbour.link.hear_greeting(greeting, now_s)
        self._note_sessions(now_s)

    def _greet_stranger(self, broker_id: str, frame: PeerFrame) -> None:
        topology = self._context.topology
        answer = PeerFrame(sender=self.me.ref)
        greeting = answer.messages.add().link_greeting
        greeting.version, greeting.digest = topology.version, topology.digest
        self._effects.append(Send(Peer.from_ref(frame.sender), answer))

    def _take_offer(self, offer: TopologyOffer, now_s: float) -> None:
        try:
            topology = Topology.from_text(offer.topology)
        except TopologyError:
            self.counters.link_frames_strange += 1
            return
        if topology.version > self._context.topology.version:
            self._change_topology(topology, now_s)
            self._effects.append(TopologyLearned(topology))

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
        self._resuming.pop(broker_id, None)
        self._fetches.cancel_of(broker_id)
        for key in [key for key in self._credits if key[0] == broker_id]:
            del self._credits[key]
        self._fetches.closed(broker_id, now_s)
        self._confirmations.forget(broker_id)
        self._hearings.forget(broker_id)
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
        self._tell_tables()
        neighbour.state = ServingState.OPENED
        neighbour.session = neighbour.link.session
        neighbour.is_new_here = is_new
        self._tell_whole_table(neighbour)
        self._keeping.say_held(neighbour)
        if not self._context.topology.advertisements:
            self._tell_positions(neighbour, now_s)
        self._effects.append(NeighbourUp(neighbour.broker_id))

    def _tell_positions(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """What it is to send from here on depends on all that it has been told by now."""
        neighbour.has_positions = True
        positions = LinkPositions(is_new=neighbour.is_new_here)
        positions.places.extend(self._context.places_beyond(neighbour.broker_id))
        neighbour.link.message().positions.CopyFrom(positions)
        self._fetches.opened(neighbour.broker_id, now_s)

    # ---- tables ---------------------------------------------------------------------------------

    def _tell_whole_table(self, neighbour: TreeNeighbour) -> None:
        tables = self._context.tables
        told = sorted(tables.told(neighbour.broker_id), key=str)
        ads = sorted(tables.ads_told(neighbour.broker_id), key=str)
        neighbour.told_version = 1
        starts = range(0, max(len(told), len(ads), 1), _FILTERS_AT_ONCE)
        for start in starts:
            end = start + _FILTERS_AT_ONCE
            change = TableChange(version=1, whole=True, more=start != starts[-1])
            change.add.extend(map(_to_wire, told[start:end]))
            change.advertise.extend(map(_to_wire, ads[start:end]))
            neighbour.link.message().table_change.CopyFrom(change)

    def _tell_tables(self) -> None:
        """Nothing may go before this that relies on it."""
        for broker_id, news in self._context.tables.changes().items():
            neighbour = self._context.neighbours.get(broker_id)
            if neighbour is not None and neighbour.is_open:
                neighbour.told_version += 1
                _say_change(neighbour, news)

    def _on_table_change(
        self, neighbour: TreeNeighbour, message: TableChange, now_s: float
    ) -> None:
        try:
            add, remove = _from_wire(message.add), _from_wire(message.remove)
            advertise, retract = _from_wire(message.advertise), _from_wire(message.retract)
        except FilterError:
            self.counters.link_frames_strange += 1
            return
        tables, broker_id = self._context.tables, neighbour.broker_id
        if message.whole:
            neighbour.incoming += add
            neighbour.incoming_ads += advertise
            if message.more:
                return
            if not set(neighbour.incoming) <= tables.wanted_by(broker_id):
                neighbour.is_kept = False
            tables.replace(broker_id, neighbour.incoming, neighbour.incoming_ads)
            neighbour.incoming, neighbour.incoming_ads = [], []
        else:
            is_live = neighbour.state is ServingState.LIVE
            if not is_live and not set(add) <= tables.wanted_by(broker_id):
                neighbour.is_kept, neighbour.is_outdated = False, True
            tables.change(broker_id, add=add, remove=remove, advertise=advertise, retract=retract)
        self._tell_tables()
        self._confirmations.wait(
            broker_id,
            self._context.neighbours.values(),
            partial(self._version_in_place, neighbour, neighbour.session, message.version),
        )
        if self._context.topology.advertisements:
            self._hearings.wait(
                broker_id,
                self._context.neighbours.values(),
                partial(self._version_heard, neighbour, neighbour.session, message.version, now_s),
            )

    def _version_heard(
        self, neighbour: TreeNeighbour, session: int, version: int, now_s: float
    ) -> None:
        if neighbour.session != session or not neighbour.is_open:
            return
        neighbour.link.message().table_heard.version = version
        if not neighbour.has_positions:
            self._tell_positions(neighbour, now_s)

    def _on_table_heard(self, neighbour: TreeNeighbour, message: TableHeard, now_s: float) -> None:
        neighbour.heard_version = max(neighbour.heard_version, message.version)

    def _version_in_place(self, neighbour: TreeNeighbour, session: int, version: int) -> None:
        if neighbour.session == session:
            neighbour.ready_version = max(neighbour.ready_version, version)

    def _on_table_confirmed(
        self, neighbour: TreeNeighbour, message: TableConfirmed, now_s: float
    ) -> None:
        neighbour.confirmed_version = max(neighbour.confirmed_version, message.version)

    def _await_in_place(self, wanted: Filter) -> None:
        done = partial(self._filter_in_place, wanted, self._wanted[wanted])
        self._confirmations.wait(HERE, self._context.neighbours.values(), done)

    def _filter_in_place(self, wanted: Filter, which: int) -> None:
        if self._wanted.get(wanted) == which:
            self._effects.append(FilterInPlace(wanted, self._streams.positions()))

    def _is_advertised(self, topic: str) -> bool:
        """Whether events of the topic may go out: everybody who wants them has said so."""
        if not self._context.topology.advertisements:
            return True
        in_place = self._advertised.get(topic)
        if in_place is None:
            self._advertised[topic] = False
            self._context.tables.change(HERE, advertise=[Filter.parse(topic)])
            self._tell_tables()
            done = partial(self._advertisement_in_place, topic)
            self._confirmations.wait(HERE, self._context.neighbours.values(), done)
        return bool(in_place)

    def _advertisement_in_place(self, topic: str) -> None:
        if topic in self._advertised:
            self._advertised[topic] = True

    # ---- streams --------------------------------------------------------------------------------

    def _on_positions(self, neighbour: TreeNeighbour, message: LinkPositions, now_s: float) -> None:
        neighbour.positions = message

    def _serve_opened(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """Its table and its positions are known: let it have what it misses."""
        message = neighbour.positions
        if message is None or not self._may_serve:
            return
        neighbour.positions = None
        log, sent = self._context.log, neighbour.sent
        named = {place.stream: place.number for place in message.places}
        neighbour.moved.clear()
        sent.clear()
        self._close_unknown(neighbour, message.places)
        if message.is_new:
            sent.update(self._streams.positions())
        sent.update(named)
        if message.is_new and not named:
            neighbour.dropped.clear()
            neighbour.cursor = log.end_place
            self._go_live(neighbour)
            return
        begins = {s.stream: s.begin for s in self._context.streams_for(neighbour.broker_id)}
        is_complete = (
            neighbour.is_kept
            and not message.is_new
            and all(
                neighbour.dropped.get(stream, 0) <= named.get(stream, begin)
                for stream, begin in begins.items()
            )
        )
        if is_complete:
            for stream, begin in begins.items():
                sent.setdefault(stream, begin)
            neighbour.cursor = log.first_place
            self._go_live(neighbour)
            return
        places = {p.stream: (p.number, p.holder) for p in message.places}
        self._resume(neighbour, places, now_s, unnamed=not message.is_new)

    def _close_unknown(self, neighbour: TreeNeighbour, places: Iterable[StreamPlace]) -> None:
        """Streams of this broker's former lives that nobody has given back."""
        for place in places:
            if place.holder != self.me.broker_id or place.stream in self._context.own.highs:
                continue
            if self._recovery.is_doubtful:
                loss = StreamLoss(stream=place.stream, after=place.number)
                neighbour.link.message().loss.CopyFrom(loss)
                continue
            closed = neighbour.link.message().streams.places.add()
            closed.CopyFrom(place)
            closed.closed, closed.end = True, place.number

    def _resume(
        self,
        neighbour: TreeNeighbour,
        places: dict[int, tuple[int, str]],
        now_s: float,
        *,
        unnamed: bool = True,
    ) -> None:
        neighbour.state, neighbour.is_kept = ServingState.RESUMING, False
        neighbour.is_outdated = False
        neighbour.cursor = self._context.log.end_place
        neighbour.dropped.clear()
        self._tell_tables()
        fetch = OpenFetch(
            neighbour.broker_id,
            self._context.tables.wanted_by(neighbour.broker_id),
            places,
            partial(self._take_for_link, neighbour),
            lambda: neighbour.link.has_room and not neighbour.is_outdated,
            unnamed=unnamed,
            also=lambda: self._context.tables.wanted_by(neighbour.broker_id),
            may_end=lambda: not neighbour.is_outdated,
        )
        fetch_id = self._fetches.begin(fetch, now_s)
        if fetch_id is None:
            neighbour.is_kept = False
            neighbour.link.set_topology(
                self._context.topology.version, self._context.topology.digest, now_s
            )
            return
        self._resuming[neighbour.broker_id] = fetch_id

    def _resume_again(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """It wants more than is being fetched for it: from where it is now on, it gets that, too.
        What it wants of before, it fetches itself."""
        fetch = self._fetches.cancel(self._resuming.pop(neighbour.broker_id))
        if fetch is None:
            return
        sent = neighbour.sent
        places = {
            stream: (sent[stream], holder)
            for stream, (_, holder) in fetch.places.items()
            if stream in sent
        }
        self._resume(neighbour, places, now_s, unnamed=fetch.unnamed)

    def _take_for_link(self, neighbour: TreeNeighbour, part: TreeFetched) -> None:
        """What a neighbour that resumes has missed goes to it like what is new."""
        link, sent = neighbour.link, neighbour.sent
        if part.streams:
            link.message().streams.places.extend(part.streams)
            for place in part.streams:
                sent.setdefault(place.stream, place.number)
        for loss in part.losses:
            self._send_loss(neighbour, loss)
        wanted = None
        if self._context.topology.advertisements:
            # Those who were asked know only what was told by all on the way.
            wanted = FilterSet(self._context.tables.wanted_by(neighbour.broker_id))
        for portion in portions_in(part):
            newer = newer_part(portion, sent.get(stream_of(portion), 0))
            if newer is not None and wanted is not None:
                newer = wanted.part_of(newer)
            if newer is not None:
                self._send_portion(neighbour, newer)
        if part.ends:
            link.message().progress.places.extend(part.ends)
            for place in part.ends:
                sent[place.stream] = max(sent.get(place.stream, 0), place.number)
        if part.done:
            self._resuming.pop(neighbour.broker_id, None)
            self._go_live(neighbour)

    def _go_live(self, neighbour: TreeNeighbour) -> None:
        neighbour.state = ServingState.LIVE
        neighbour.resumed_number = neighbour.link.sent_number
        places = [
            place_message(known, neighbour.sent.setdefault(known.stream, known.begin))
            for known in self._context.streams_for(neighbour.broker_id)
        ]
        if places:
            neighbour.link.message().streams.places.extend(places)
        neighbour.moved.update(p.stream for p in places)
        for stream in self._fetches.doubtful_streams:
            # Of former lives there may have been more.
            loss = StreamLoss(stream=stream, after=self._context.own.highs[stream])
            neighbour.link.message().loss.CopyFrom(loss)

    def _on_streams(self, neighbour: TreeNeighbour, message: StreamPlaces, now_s: float) -> None:
        for place in message.places:
            self._learn_stream(neighbour, place)

    def _learn_stream(self, neighbour: TreeNeighbour, place: StreamPlace) -> None:
        context = self._context
        if place.holder == context.my_id or max(place.number, place.end) > NUMBER_MAX:
            return
        if not context.is_beyond(neighbour.broker_id, place.holder):
            return
        known = self._streams.get(place.stream)
        is_news = known is None
        if known is None:
            is_begun = neighbour.is_new_here and not neighbour.is_late
            begin = place.number if is_begun else 0
            known = self._streams.add(place.stream, place.holder, begin)
        if place.number > known.number:
            # What lies between is not to be had from there, and was not told before.
            self._lose(
                neighbour, StreamLoss(stream=place.stream, after=known.number, upto=place.number)
            )
        if known.holder != place.holder and place.holder in context.topology:
            known.holder, known.orphan_since_s, is_news = place.holder, None, True
        if place.closed and known.end is None:
            known.end, is_news = place.end, True
        if is_news:
            self._announce(known, neighbour)

    def _announce(self, known: KnownStream, source: TreeNeighbour | None) -> None:
        for other in self._context.neighbours.values():
            if other is source or other.state is not ServingState.LIVE:
                continue
            if self._context.direction(known.holder) == other.broker_id:
                continue
            number = other.sent.setdefault(known.stream, known.begin)
            other.link.message().streams.places.append(place_message(known, number))

    def _advance(self, known: KnownStream, number: int, source: TreeNeighbour | None) -> None:
        known.number = number
        for other in self._context.neighbours.values():
            if other is not source:
                other.moved.add(known.stream)

    def _on_progress(self, neighbour: TreeNeighbour, message: StreamPlaces, now_s: float) -> None:
        for place in message.places:
            known = self._streams.get(place.stream)
            if known is None or not self._comes_from(neighbour, known):
                continue
            if known.number < place.number <= NUMBER_MAX:
                self._advance(known, place.number, neighbour)

    def _comes_from(self, neighbour: TreeNeighbour, known: KnownStream) -> bool:
        return self._context.is_beyond(neighbour.broker_id, known.holder)

    def _on_loss(self, neighbour: TreeNeighbour, message: StreamLoss, now_s: float) -> None:
        self._lose(neighbour, message)

    def _lose(self, source: TreeNeighbour | None, loss: StreamLoss) -> None:
        known = self._streams.get(loss.stream)
        if known is None or (source is not None and not self._comes_from(source, known)):
            return
        if loss.upto and loss.upto <= known.number:
            return
        if not loss.upto and known.end is not None:
            return
        told = StreamLoss(stream=loss.stream, after=max(known.number, loss.after), upto=loss.upto)
        self.counters.tree_losses += 1
        self._effects.append(StreamLost(LossRange(told.stream, told.after, told.upto or None)))
        entry = self._context.log.append_loss(told)
        entry.targets = frozenset(
            n.broker_id for n in self._context.neighbours.values() if n is not source
        )
        if told.upto:
            self._advance(known, told.upto, source)
        else:
            known.end = known.number

    def _review_streams(self, now_s: float) -> None:
        """What nobody holds any more is lost, and in the end forgotten."""
        context, settings = self._context, self._settings
        for known in self._streams:
            if known.holder == context.my_id:
                continue
            if not context.is_orphan(known.holder):
                known.orphan_since_s = None
            elif known.orphan_since_s is None:
                known.orphan_since_s = now_s
            elif now_s - known.orphan_since_s >= settings.recovery_patience_s:
                self._lose(None, StreamLoss(stream=known.stream, after=known.number))
            since_s = known.orphan_since_s
            if since_s is not None and now_s - since_s >= settings.stream_forget_s:
                # Nobody can send it any more: it need not be known as a repeat.
                self._streams.forget(known.stream)
                for neighbour in context.neighbours.values():
                    neighbour.sent.pop(known.stream, None)
                    neighbour.moved.discard(known.stream)

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
        if known is None or not self._comes_from(neighbour, known):
            self.counters.link_frames_strange += 1
            return
        self._keeping.keep(neighbour.broker_id, portion)
        last, newer = last_of(portion), newer_part(portion, known.number)
        if newer is None:
            self.counters.tree_events_repeated += count
            if last > known.number:
                self._advance(known, last, neighbour)
            return
        newer.hops += 1
        self._advance(known, last, neighbour)
        self._route(newer, neighbour.broker_id)

    def _on_copied(self, neighbour: TreeNeighbour, message: Runs, now_s: float) -> None:
        for portion in portions_of(message):
            self._keeping.keep(neighbour.broker_id, portion)

    def _route_own(self, portion: Portion) -> None:
        known = self._streams.get(self._origin.stream)
        if known is None:
            known = self._streams.add(self._origin.stream, self.me.broker_id, 0)
        own_place = self._context.own.append(portion).place
        self._advance(known, last_of(portion), None)
        self._route(portion, HERE, own_place)

    def _route(self, portion: Portion, source: str, own_place: int = -1) -> None:
        """Matched once, for all; it waits in the log until each neighbour is sent it."""
        found: Match = match_portion(self._context.tables, portion, source)
        counters = self.counters
        counters.tree_events_unreadable += not found.is_readable
        if found.targets:
            entry = self._context.log.append(portion)
            entry.targets, entry.parts, entry.own_place = found.targets, found.parts, own_place
        else:
            counters.tree_events_filtered += events_in(portion)
        if found.is_wanted_here:
            counters.tree_events_local += events_in(portion)
            if isinstance(portion, Bundle):
                local = found.local if isinstance(found.local, Bundle) else portion
                self._effects.append(DeliverBundle(local))
            else:
                self._effects.append(Deliver(portion))

    def _send_portion(self, neighbour: TreeNeighbour, portion: Portion) -> None:
        neighbour.sent[stream_of(portion)] = last_of(portion)
        self.counters.tree_events_forwarded += events_in(portion)
        if isinstance(portion, Bundle):
            portion.fill(neighbour.link.message(size_of(portion)).forwarded.bundles.add())
        else:
            neighbour.link.add_run(portion, size_of(portion))

    def _send_loss(self, neighbour: TreeNeighbour, loss: StreamLoss) -> None:
        if loss.upto and loss.upto <= neighbour.sent.get(loss.stream, 0):
            return
        neighbour.link.message().loss.CopyFrom(loss)
        if loss.upto:
            neighbour.sent[loss.stream] = loss.upto

    def _serve(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """Send what the log has for it, while there is room."""
        if neighbour.link.confirmed_number >= neighbour.resumed_number:
            neighbour.is_kept = True
        log = self._context.log
        if neighbour.cursor < log.first_place:
            if self._has_missed(neighbour):
                self._begin_again(neighbour, now_s)
                return
            neighbour.cursor = log.first_place
        link, broker_id, end = neighbour.link, neighbour.broker_id, log.end_place
        while neighbour.cursor < end and link.has_room:
            entry = log[neighbour.cursor]
            neighbour.cursor += 1
            if broker_id in entry.targets:
                self._send_entry(neighbour, entry)
        self._say_confirmed(neighbour)

    def _send_entry(self, neighbour: TreeNeighbour, entry: LogEntry) -> None:
        sent = neighbour.sent.get(entry.stream, 0)
        if isinstance(entry.item, StreamLoss):
            self._send_loss(neighbour, entry.item)
            return
        if entry.last <= sent:
            return
        sending = self._sending
        if entry.own_place > sending.place and sending.keeper == neighbour.broker_id:
            sending.pump(entry.own_place)
        if (
            entry.own_place >= 0
            and entry.own_place == sending.place
            and (sending.keeper == neighbour.broker_id)
        ):
            # What it wants of it, and the copy, in one.
            sending.place += 1
            portion: Portion | None = newer_part(entry.item, sent)
        else:
            portion = newer_part(entry.parts.get(neighbour.broker_id, entry.item), sent)
        if portion is not None:
            self._send_portion(neighbour, portion)

    def _has_missed(self, neighbour: TreeNeighbour) -> bool:
        """Whether the log has dropped what it was to be sent."""
        sent = neighbour.sent
        return any(last > sent.get(stream, 0) for stream, last in neighbour.dropped.items())

    def _begin_again(self, neighbour: TreeNeighbour, now_s: float) -> None:
        """The log was too small for it: what it has missed is fetched."""
        places = {
            known.stream: (neighbour.sent.get(known.stream, known.begin), known.holder)
            for known in self._context.streams_for(neighbour.broker_id)
        }
        self._resume(neighbour, places, now_s)

    def _say_confirmed(self, neighbour: TreeNeighbour) -> None:
        log = self._context.log
        if neighbour.owed is None and neighbour.ready_version > neighbour.said_version:
            positions = {
                stream: known.number
                for stream in neighbour.moved
                if (known := self._streams.get(stream)) is not None
            }
            neighbour.moved.clear()
            neighbour.owed = OwedConfirmation(neighbour.ready_version, log.end_place, positions)
        owed = neighbour.owed
        if owed is not None and neighbour.cursor >= owed.place:
            neighbour.owed = None
            self._say_progress(neighbour, owed.positions)
            neighbour.said_version = owed.version
            neighbour.link.message().table_confirmed.version = owed.version

    def _say_progress(self, neighbour: TreeNeighbour, positions: Mapping[int, int]) -> None:
        places = []
        for stream, number in positions.items():
            known = self._streams.get(stream)
            if known is None or number <= neighbour.sent.get(stream, 0):
                continue
            if self._context.direction(known.holder) == neighbour.broker_id:
                continue
            neighbour.sent[stream] = number
            places.append(StreamPlace(stream=stream, number=number, holder=known.holder))
        if places:
            neighbour.link.message().progress.places.extend(places)

    def _tell_progress(self) -> None:
        """How far streams are that had nothing for a neighbour."""
        for neighbour in self._context.neighbours.values():
            if neighbour.state is not ServingState.LIVE or neighbour.owed is not None:
                continue
            if neighbour.cursor < self._context.log.end_place:
                continue
            moved = {
                stream: known.number
                for stream in neighbour.moved
                if (known := self._streams.get(stream)) is not None
            }
            neighbour.moved.clear()
            self._say_progress(neighbour, moved)

    # ---- repair ---------------------------------------------------------------------------------

    def _on_fetch(self, neighbour: TreeNeighbour, message: TreeFetch, now_s: float) -> None:
        try:
            filters = _from_wire(message.filters)
        except FilterError:
            self.counters.link_frames_strange += 1
            return
        self._tell_tables()
        # How many parts it may have, and which fetch here it is.
        credit = [1, 0]
        places = {p.stream: (p.number, p.holder) for p in message.places}
        fetch = OpenFetch(
            neighbour.broker_id,
            filters,
            places,
            partial(self._take_for_asker, neighbour, message.id, credit),
            lambda: credit[0] > 0,
            unnamed=message.unnamed,
            also=partial(self._asked_since, neighbour.broker_id),
        )
        fetch_id = self._fetches.begin(fetch, now_s)
        if fetch_id is None:
            answer = neighbour.link.message().tree_fetched
            answer.id, answer.done = message.id, True
            for place in message.places:
                answer.losses.add(stream=place.stream, after=place.number)
            return
        credit[1] = fetch_id
        self._credits[neighbour.broker_id, message.id] = credit

    def _asked_since(self, broker_id: str) -> Iterable[Filter]:
        """With advertisements, filters may have come after the fetch that they concern."""
        if not self._context.topology.advertisements:
            return ()
        return self._context.tables.wanted_by(broker_id)

    def _on_fetch_more(
        self, neighbour: TreeNeighbour, message: TreeFetchMore, now_s: float
    ) -> None:
        credit = self._credits.get((neighbour.broker_id, message.id))
        if credit is not None:
            credit[0] += 1

    def _on_fetch_end(self, neighbour: TreeNeighbour, message: TreeFetchEnd, now_s: float) -> None:
        credit = self._credits.pop((neighbour.broker_id, message.id), None)
        if credit is not None:
            self._fetches.cancel(credit[1])

    def _take_for_asker(
        self, neighbour: TreeNeighbour, fetch_id: int, credit: list[int], part: TreeFetched
    ) -> None:
        credit[0] -= 1
        part.id = fetch_id
        nbytes = sum(size_of(portion) for portion in portions_in(part))
        neighbour.link.message(nbytes).tree_fetched.CopyFrom(part)
        if part.done:
            self._credits.pop((neighbour.broker_id, fetch_id), None)

    def _take_for_session(self, fetch_id: int, part: TreeFetched) -> None:
        self._effects.append(
            FetchedPart(
                fetch_id,
                portions_in(part),
                [LossRange(each.stream, each.after, each.upto or None) for each in part.losses],
                {each.stream: each.number for each in part.ends},
                part.done,
            )
        )

    # ---- copies ---------------------------------------------------------------------------------

    def _on_copies_held(self, neighbour: TreeNeighbour, message: CopiesHeld, now_s: float) -> None:
        self._sending.on_held(neighbour, message)
        self._recovery.on_held(neighbour, message)

    def _recovered(self) -> None:
        """What former lives published is known: from here on this life publishes, and serves."""
        context = self._context
        for stream, high in context.own.highs.items():
            known = self._streams.add(stream, context.my_id, high, begin=0)
            if self._recovery.is_doubtful:
                self._fetches.doubtful_streams |= {stream}
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
        self._may_serve = self._fetches.may_read_own = False
        for entry in context.own.log:
            topics = entry.item.topics if isinstance(entry.item, Bundle) else ()
            if isinstance(entry.item, Run):
                topics = (entry.item.topic,)
            for topic in topics:
                self._advertised.setdefault(topic, False)
        topics = list(self._advertised)
        context.tables.change(HERE, advertise=map(Filter.parse, topics))
        self._tell_tables()
        neighbours = context.neighbours.values()
        self._hearings.wait(HERE, neighbours, self._may_serve_own)
        for topic in topics:
            self._advertised[topic] = False
        in_place = partial(self._advertisements_in_place, topics)
        self._confirmations.wait(HERE, neighbours, in_place)

    def _may_serve_own(self) -> None:
        self._may_serve = self._fetches.may_read_own = True

    def _advertisements_in_place(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._advertisement_in_place(topic)

    def _begin_stream(self, stream: int) -> None:
        self._origin.begin(stream)
        known = self._streams.get(stream)
        if known is not None:
            self._announce(known, None)

    # ---- another topology -----------------------------------------------------------------------

    def _change_topology(self, topology: Topology, now_s: float) -> None:
        """All sessions begin anew; what was under way is fetched."""
        context = self._context
        ads = [Filter.parse(topic) for topic in self._advertised]
        for neighbour in context.neighbours.values():
            if neighbour.is_open:
                self._close(neighbour, now_s)
            neighbour.is_kept = False
            # It is waited for like one that has not been heard of.
            neighbour.session = 0
            neighbour.link.set_topology(topology.version, topology.digest, now_s)
        neighbours = frozenset(topology.neighbours(context.my_id))
        self._first_neighbours &= neighbours
        if not self._has_met:
            self._first_neighbours = neighbours
        context.topology = topology
        self._topology_since_s = now_s
        context.tables = _tables_of(context.my_id, topology)
        self._meet_neighbours(now_s)
        context.tables.change(HERE, add=self._wanted, advertise=ads)
        self._fetches.topology_changed(now_s)
        self._sending.topology_changed()
        self._recovery.topology_changed()
        for holder in self._keeping.holders():
            if holder not in topology and self._recovery.is_done:
                self._adopt(holder)
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
        self._tell_tables()
        if not self._recovery.is_done and self._recovery.proceed(now_s):
            self._recovered()
        age_s = now_s - self._topology_since_s
        self._hearings.settle(context.neighbours, age_s)
        self._confirmations.settle(context.neighbours, age_s)
        neighbours = context.neighbours.values()
        if self._recovery.is_done:
            for neighbour in neighbours:
                if neighbour.state is ServingState.OPENED:
                    self._serve_opened(neighbour, now_s)
            self._sending.choose(now_s)
        self._fetches.pump(now_s)
        for neighbour in neighbours:
            if neighbour.state is ServingState.LIVE:
                self._serve(neighbour, now_s)
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


def _tables_of(broker_id: str, topology: Topology) -> SubscriptionTables:
    return SubscriptionTables(
        topology.neighbours(broker_id),
        mode=topology.mode,
        parent=topology.parent(broker_id),
        advertisements=topology.advertisements,
        covering=topology.covering,
    )


def _to_wire(each: Filter) -> WantedFilter:
    return WantedFilter(pattern=each.pattern, where=each.where)


def _from_wire(filters: Iterable[WantedFilter]) -> list[Filter]:
    return [Filter.parse(each.pattern, each.where) for each in filters]


def _say_change(neighbour: TreeNeighbour, news: TableNews) -> None:
    change = neighbour.link.message().table_change
    change.version = neighbour.told_version
    for column, filters in (
        (change.add, news.add),
        (change.remove, news.remove),
        (change.advertise, news.advertise),
        (change.retract, news.retract),
    ):
        column.extend(_to_wire(each) for each in sorted(filters, key=str))
