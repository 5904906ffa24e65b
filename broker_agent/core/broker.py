"""The broker, as a pure state machine: clients on one side, an overlay node on the other.

    effects = broker.on_peer_frame(frame, now_s)
    effects = broker.on_client_frame(connection, frame, now_s)
    effects = broker.tick(now_s)

It keeps sessions, local subscriptions and open publications, which stay with the broker, and hosts
a node, which is the part that a reconfiguration moves. Its driver performs the effects in order,
takes session output when woken, and ticks it every few tens of milliseconds.

Parts are made with one context, and say what is to be done in one outbox. After every input
`_settle` empties that, in this order, until nothing is left:

    1. what the node wants done: frames sent, runs delivered, acknowledgements taken in
    2. topics that are to be announced
    3. unless it is frozen: what clients said while it was; topics the node is to join or leave
    4. publications, to their rendezvous points
    5. sessions: too slow, with something new to hear, or to be read from again
    6. its part in a reconfiguration

A publication comes here twice: when its client's frame does, and when it goes out to the node.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from random import Random

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.base.clock import SteadyClock
from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.base.effects import BrokerEffect, ConnectionId, NodeReady, SaveNow, Stopped
from broker_agent.core.base.identity import Identity
from broker_agent.core.base.outbox import BrokerOutbox
from broker_agent.core.clients.flow import Flow
from broker_agent.core.clients.gate import Gate
from broker_agent.core.clients.holding import Holding
from broker_agent.core.clients.publication_requests import PublicationRequests
from broker_agent.core.clients.reception import Reception
from broker_agent.core.clients.serving import Serving
from broker_agent.core.clients.subscription_requests import SubscriptionRequests
from broker_agent.core.dispatch import broker_handlers, client_handlers, node_effect_handlers
from broker_agent.core.hosting.node_hosting import NodeHosting
from broker_agent.core.hosting.reconfiguration import Reconfiguration
from broker_agent.core.keeping.journal import Changes, SessionJournal, Stored
from broker_agent.core.keeping.restoring import restore_sessions
from broker_agent.core.options import BrokerOptions
from broker_agent.core.publishing.announcing import Announcing
from broker_agent.core.publishing.publishing import Publishing
from broker_agent.core.reading.subscriptions import Subscriptions
from broker_agent.core.reports.logbook import Logbook, LogbookPage
from broker_agent.core.reports.reporting import Reporting
from broker_agent.core.rights.access import Access, Refusal
from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.cluster import cluster_for
from broker_agent.core.selection.other_brokers import OtherBrokers
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.unsaved import Unsaved
from broker_agent.core.status.broker_status import BrokerStatus
from broker_agent.core.status.session_reports import SessionReports
from dynatops.v1.client_pb2 import ClientFrame
from dynatops.v1.inspection_pb2 import (
    BrokerReport,
    DescribeSessionRequest,
    DescribeTreeRequest,
    ListSessionsRequest,
    ListTopicsRequest,
    SessionDetails,
    SessionsReport,
    TopicsReport,
    TreeReport,
)
from dynatops.v1.manager_pb2 import LoadReport, Registration, Step
from dynatops.v1.overlay_pb2 import NotHere, PeerFrame, PeerMessage, Run
from overlay.base.catalogue import CATALOGUE_SHARDS
from overlay.base.effects import (
    Accepted,
    Announce,
    Deliver,
    DeliverBeats,
    DeliverBundle,
    InTree,
    Notice,
    Repaired,
    Send,
    Superseded,
)
from overlay.base.membership import Status
from overlay.base.overlay_settings import OverlaySettings
from overlay.node import Node

_LAKE = "lake"


class Broker:
    def __init__(
        self,
        identity: Identity,
        overlay: OverlaySettings,
        settings: CoreSettings,
        rng: Random,
        options: BrokerOptions | None = None,
    ) -> None:
        options = options or BrokerOptions()
        self.identity = identity
        self.settings = settings
        self.counters = options.counters if options.counters is not None else BrokerCounters()
        self._clock = SteadyClock(settings.clock_step_max_s, self.counters)
        self.logbook = Logbook(self._clock, options.logged_rows_max)
        self._outbox = BrokerOutbox()
        context = self._context = BrokerContext(
            identity,
            settings,
            rng,
            self.counters,
            self._outbox,
            Unsaved(noting=options.saving),
            self.logbook,
        )
        self.hosting = NodeHosting(context, overlay)
        if options.logged_rows_max:
            self.hosting.begin_tally(_LAKE)
        self.reconfiguration = Reconfiguration(context, self.hosting)
        self.cluster = cluster_for(
            context, options.selection, options.labels, options.doors, self.hosting
        )
        self.registry = Registry(context)
        self.publishing = Publishing(context, self.hosting)
        self.announcing = Announcing(settings, self.counters)
        names_max = overlay.catalogue_names_max // CATALOGUE_SHARDS
        local_topics = self.cluster.selection.local
        self.subscriptions = Subscriptions(context, self.hosting, names_max, local_topics)
        if options.selection.enabled:
            self.subscriptions.read_system_topic(self.cluster.topic, self.cluster.learn_summaries)
        self.journal: SessionJournal | None = None
        if options.saving:
            self.journal = SessionJournal(context, self.registry, self.subscriptions)
        self.reporting = Reporting(
            context, options.labels, self.hosting, self.reconfiguration, self.registry
        )
        gate = self.gate = Gate(context, options.access or Access(settings))
        self.reception = Reception(
            context,
            self.registry,
            gate,
            self.subscriptions,
            OtherBrokers(context, self.hosting, self.cluster.selection.neighbours),
            self.journal,
        )
        flow = self._flow = Flow(context, self.registry, gate, self.publishing)
        self._subscribing = SubscriptionRequests(
            context, gate, self.cluster, self.subscriptions, flow
        )
        publishing = PublicationRequests(context, self.reception, gate, self.publishing, flow)
        self._holding = Holding(context, self.reconfiguration)
        self._serving = Serving(
            self.registry,
            self.reception,
            self.cluster,
            self._holding,
            client_handlers(flow, publishing, self._subscribing),
        )
        self._session_reports = SessionReports(self.registry, self.subscriptions)
        self._broker_handlers = broker_handlers(self)
        self._node_effect_handlers = node_effect_handlers(self)

    @property
    def node(self) -> Node:
        """The node that is hosted here now."""
        return self.hosting.node

    @property
    def now_s(self) -> float:
        """As of the last input."""
        return self._clock.now_s

    # ---- inputs ---------------------------------------------------------------------------------

    def start(
        self, seeds: Sequence[str], reading_s: float, *, founding: bool = False
    ) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        self.hosting.start(seeds, now_s, founding=founding)
        return self._settle(now_s)

    def tick(self, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        self.hosting.tick(now_s)
        if not self.reconfiguration.is_frozen:
            self.subscriptions.readers.tick(now_s)
            self.publishing.tick(now_s)
            if self.is_member:
                self.cluster.tick(len(self.registry), now_s)
        for announcement in self.announcing.due(now_s):
            self.hosting.rendezvous.forget_topic(announcement.topic)
            self._outbox.publish([announcement])
        self.reception.tick(now_s)
        self._subscribing.tick(now_s)
        self._flow.tick(now_s)
        self.reconfiguration.tick(now_s)
        return self._settle(now_s)

    def on_peer_frame(self, frame: PeerFrame, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        if frame.HasField("to") and frame.to != self.node.me.node_id:
            self._pass_on(frame)
            return self._settle(now_s)
        handlers = self._broker_handlers
        for message in frame.messages:
            if message.WhichOneof("body") in handlers:
                frame = self._heed(frame, now_s)
                break
        self.hosting.handle(frame, now_s)
        return self._settle(now_s)

    def _heed(self, frame: PeerFrame, now_s: float) -> PeerFrame:
        """What is said to the broker, in whichever place; what is left is for its node."""
        left = PeerFrame()
        left.CopyFrom(frame)
        del left.messages[:]
        for message in frame.messages:
            kind = message.WhichOneof("body")
            handler = self._broker_handlers.get(kind) if kind is not None else None
            if handler is not None:
                handler(frame.sender, getattr(message, kind or ""), now_s)
            else:
                left.messages.append(message)
        return left

    def _pass_on(self, frame: PeerFrame) -> None:
        """The node that this is meant for is not here: it went to another broker, will come, or is
        gone, which its sender should know, once."""
        host = self.hosting.forward_to(frame)
        if host is not None:
            self._outbox.send(host, frame)
            return
        if self.reconfiguration.awaits(frame.to):
            return
        self.counters.frames_not_here += 1
        if frame.sender.address and not any(m.HasField("not_here") for m in frame.messages):
            not_here = PeerMessage(not_here=NotHere(node_id=frame.to))
            refusal = PeerFrame(
                sender=self.node.me.ref, to=frame.sender.node_id, messages=[not_here]
            )
            self._outbox.send(frame.sender.address, refusal)

    def unreachable(self, address: str, reading_s: float) -> list[BrokerEffect]:
        """Connections to this address are refused."""
        now_s = self._clock.at(reading_s)
        self.cluster.selection.lose((address,))
        self.hosting.unreachable(address, now_s)
        return self._settle(now_s)

    def leave(self, reading_s: float) -> list[BrokerEffect]:
        """Leave the ring and say goodbye to clients; done when `Stopped` comes out. Sessions end
        with it here, not on disk: take what is unsaved first."""
        now_s = self._clock.at(reading_s)
        self.cluster.farewell(now_s)
        self.reconfiguration.leave(now_s)
        if self.journal is not None:
            self.journal.end()
        self.reception.leave()
        self.hosting.leave(now_s)
        return self._settle(now_s)

    # ---- the reconfiguration manager ------------------------------------------------------------

    def on_step(self, step: Step, reading_s: float) -> list[BrokerEffect]:
        """A step of a reconfiguration; it is answered by `ReplyToManager`, now or later."""
        now_s = self._clock.at(reading_s)
        self.reconfiguration.on_step(step, now_s)
        return self._settle(now_s)

    @property
    def registration_version(self) -> int:
        """Whenever it has changed, the manager is to be told the registration again."""
        return self.reporting.version

    def registration(self) -> Registration:
        return self.reporting.registration()

    def begin_reporting(self, reading_s: float) -> None:
        """There is, or may come, a manager: count and measure from now on, for whichever it is."""
        self.reporting.begin(reading_s)

    def load_report(self, reading_s: float, *, full: bool) -> LoadReport:
        """What happened since the last report; a full one says all that is subscribed to."""
        return self.reporting.report(reading_s, full=full)

    # ---- sessions on disk -----------------------------------------------------------------------

    def restore(self, stored: Stored, reading_s: float) -> None:
        """Go on with the sessions that were on disk. To be said before `start`."""
        assert self.journal is not None
        now_s = self._clock.at(reading_s)
        sessions = restore_sessions(stored, self.registry, self.subscriptions, self.settings, now_s)
        self.journal.restored(sessions, stored)
        self.counters.sessions_restored += len(sessions)

    def unsaved(self, *, everything: bool = False) -> Changes | None:
        """What is to be written to disk now; say `saved` or `not_saved` before asking again."""
        return (
            self.journal.take_changes(everything=everything) if self.journal is not None else None
        )

    def saved(self, reading_s: float) -> list[BrokerEffect]:
        assert self.journal is not None
        self._subscribing.confirm(self.journal.written())
        return self._settle(self._clock.at(reading_s))

    def not_saved(self, reading_s: float) -> list[BrokerEffect]:
        assert self.journal is not None
        self._subscribing.confirm(self.journal.failed())
        return self._settle(self._clock.at(reading_s))

    # ---- connections and sessions ---------------------------------------------------------------

    def open_connection(
        self, connection: ConnectionId, reading_s: float, host: str = "", door: str = ""
    ) -> list[BrokerEffect]:
        """A client has connected, from this host, by this further door, if it is one; it must say
        hello before anything else."""
        now_s = self._clock.at(reading_s)
        self.reception.open(connection, host, door, now_s)
        return self._settle(now_s)

    def close_connection(self, connection: ConnectionId, reading_s: float) -> list[BrokerEffect]:
        """The connection is gone. Its open publications are still seen through."""
        now_s = self._clock.at(reading_s)
        self.reception.close(connection, now_s)
        return self._settle(now_s)

    def replace_access(self, access: Access, reading_s: float) -> list[BrokerEffect]:
        """Other rules hold from now on, for the sessions that are here too."""
        self.reception.replace_access(access)
        return self._settle(self._clock.at(reading_s))

    def advise(self, advice: SelectionAdvice | None, reading_s: float) -> None:
        """What analytics say about where users should be."""
        self.cluster.selection.advise(advice, self._clock.at(reading_s))

    def take_output(self, connection: ConnectionId, bytes_max: int) -> list[Content]:
        """What is to be said to this client now, about so much of it; its door encodes it."""
        session = self.registry.connections.get(connection)
        if session is None or session.connection != connection or not session.has_output:
            return []
        # What was dropped may be told now.
        self._context.unsaved.queue(session)
        return self.publishing.timings.taken(session, bytes_max, self._clock.now_s)

    def is_named(self, connection: ConnectionId) -> bool:
        """Whether it has said hello."""
        return not self.reception.is_unnamed(connection)

    def on_refused_frame(
        self, connection: ConnectionId, why: str, reading_s: float
    ) -> list[BrokerEffect]:
        """What came from a client was no frame of its door's, or too much of one."""
        self.counters.frames_refused += 1
        self.reception.fail(connection, why)
        return self._settle(self._clock.at(reading_s))

    def on_client_frame(
        self, connection: ConnectionId, frame: ClientFrame, reading_s: float
    ) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        self._serving.on_frame(connection, frame, now_s)
        return self._settle(now_s)

    # ---- the lake -------------------------------------------------------------------------------

    def begin_logbook(self, reading_s: float) -> None:
        """The first page begins now."""
        self.logbook.begin(reading_s)

    def take_logbook_page(self, reading_s: float) -> LogbookPage:
        """What has happened here since the last call."""
        return self._with_tally(self.logbook.take_page(reading_s))

    def end_logbook(self, reading_s: float) -> LogbookPage:
        """The broker is gone, and with it whoever was left: the last page."""
        return self._with_tally(self.logbook.end(self.registry.clients.values(), reading_s))

    def _with_tally(self, page: LogbookPage) -> LogbookPage:
        page.publications = self.hosting.take_tally(_LAKE)
        return page

    def left_over(self) -> Iterator[str]:
        """What was to be done because of the last input, and was not: nothing."""
        return self._outbox.left_over(is_frozen=self.reconfiguration.is_frozen)

    # ---- what others may know -------------------------------------------------------------------

    @property
    def is_joining(self) -> bool:
        """It is not in the ring yet."""
        return self.node.ring.status is Status.JOINING

    @property
    def is_member(self) -> bool:
        """It is in the ring, and not on its way out."""
        return self.node.ring.status is Status.MEMBER

    @property
    def is_leaving(self) -> bool:
        """It has been told to leave, and lets nobody in any more."""
        return self.reception.is_leaving

    def status(self) -> BrokerStatus:
        """What it is and has now, but for what there may be too much of to look at."""
        selection, part = self.cluster.selection, self.reconfiguration
        local, timings = selection.local, self.publishing.timings
        return BrokerStatus(
            identity=self.identity,
            node=self.node.status(),
            is_leaving=self.is_leaving,
            sessions=len(self.registry),
            absent_sessions=self.registry.absent,
            unnamed_connections=self.reception.unnamed,
            subscriptions=local.subscriptions,
            subscribed_patterns=len(local.counts),
            subscription_changes=local.changes,
            open_publication_streams=self.publishing.open_streams,
            is_frozen=part.is_frozen,
            epoch=part.epoch,
            fence=part.fence,
            neighbours=len(selection.neighbours),
            is_advised=selection.is_advised(self.now_s),
            counters=self.counters,
            selection_counters=selection.counters,
            acknowledged_s=timings.acknowledged_s,
            queued_s=timings.queued_s,
        )

    def count_in_steps(self, at_once: int) -> Generator[None, None, BrokerCounts]:
        """Count all that it has; after so many things it waits until it is to go on."""
        counts = BrokerCounts()
        counts.node = yield from self.node.count_in_steps(at_once)
        yield from self.subscriptions.readers.count_in_steps(counts, at_once)
        yield from self.registry.count_in_steps(counts, at_once)
        return counts

    def take_run_sample(self) -> tuple[Run, float] | None:
        """The first run for clients here since the last call, and how many seconds ago it came. The
        driver knows the time of day, and how old its events were."""
        taken = self.publishing.timings.take_run()
        return (taken[0], self.now_s - taken[1]) if taken is not None else None

    def namesakes(self, broker_id: str) -> list[str]:
        """Addresses where a broker of this name was seen."""
        return self.hosting.namesakes(broker_id)

    # ---- what operators ask ---------------------------------------------------------------------

    def admit_inspector(self, token: str) -> Refusal | None:
        """Why whoever shows this token may ask nothing; None if anything."""
        refusal = self.gate.access.inspector(token)
        if refusal is not None:
            self.counters.inspect_refused += 1
        return refusal

    def describe(self) -> BrokerReport:
        """The core, and the node that it hosts; its driver knows more."""
        return BrokerReport(
            broker_id=self.identity.broker_id,
            address=self.identity.address,
            nodes=[self.node.describe()],
            sessions=len(self.registry),
            subscribed_topics=len(self.subscriptions),
        )

    def list_topics(self, request: ListTopicsRequest) -> TopicsReport:
        return self.node.list_topics(request.after, request.limit)

    def describe_tree(self, request: DescribeTreeRequest) -> TreeReport:
        report = self.node.describe_tree(request.topic)
        report.subscribes = request.topic in self.subscriptions
        return report

    def list_sessions(self, request: ListSessionsRequest) -> SessionsReport:
        return self._session_reports.page(request, self.now_s)

    def describe_session(self, request: DescribeSessionRequest) -> SessionDetails:
        return self._session_reports.describe(request, self.now_s)

    # ---- after each input -----------------------------------------------------------------------

    def _settle(self, now_s: float) -> list[BrokerEffect]:
        outbox, handlers = self._outbox, self._node_effect_handlers
        while True:
            while outbox.node_effects:
                effect = outbox.node_effects.popleft()
                handlers[type(effect)](effect, now_s)
            if self.announcing.has_fresh:
                outbox.publish(self.announcing.fresh(now_s))
            if (outbox.wishes or self._holding) and not self.reconfiguration.is_frozen:
                self._let_go(now_s)
            if outbox.publications:
                self.hosting.publish(outbox.take_publications(), now_s)
            if not outbox.node_effects:
                break
        if outbox.too_slow:
            for session in outbox.take_too_slow():
                self.reception.end_slow(session)
        self._flow.settle()
        if self.subscriptions.confirming.held:
            outbox.do(SaveNow())
        if self.reconfiguration.is_frozen:
            self.reconfiguration.progress(now_s, is_quiet=not self.publishing.open_streams)
        return outbox.take_effects()

    def _let_go(self, now_s: float) -> None:
        """What clients have caused may leave the broker: it is not frozen."""
        self._flow.read_again(self._serving.serve_held(now_s))
        for topic, wanted in self._outbox.take_wishes():
            self.hosting.wish(topic, now_s, wanted=wanted)

    # ---- what the node wants done ---------------------------------------------------------------

    def on_send(self, effect: Send, now_s: float) -> None:
        self._outbox.send(effect.to.address, effect.frame)

    def on_deliver(self, effect: Deliver, now_s: float) -> None:
        self.publishing.timings.note_run(effect.run, now_s)
        self.subscriptions.on_run(effect.run, now_s)

    def on_deliver_bundle(self, effect: DeliverBundle, now_s: float) -> None:
        self.publishing.timings.note_bundle(effect.bundle, now_s)
        self.subscriptions.readers.on_bundle(effect.bundle, now_s)

    def on_deliver_beats(self, effect: DeliverBeats, now_s: float) -> None:
        self.subscriptions.on_beats(effect.beats, now_s)

    def on_in_tree(self, effect: InTree, now_s: float) -> None:
        self.subscriptions.observe(effect.topic, effect.position, now_s)

    def on_accepted(self, effect: Accepted, now_s: float) -> None:
        acks = effect.ack.acknowledged
        for acknowledged in acks:
            self.hosting.rendezvous.found(acknowledged.topic, effect.by)
            self.publishing.acknowledged(acknowledged, now_s)
        for columns in effect.ack.columns:
            self.publishing.acknowledged_columns(columns, effect.by, now_s)
        for returned in effect.ack.returned:
            self.publishing.returned(returned, now_s)
        if announced := self.announcing.acknowledged(acks):
            self.hosting.announced(announced, now_s)

    def on_announce(self, effect: Announce, now_s: float) -> None:
        self.announcing.announce(effect, self.node.reigns.began(effect.topic))

    def on_repaired(self, effect: Repaired, now_s: float) -> None:
        self.hosting.rendezvous.found(effect.answer.topic, effect.by)
        self.subscriptions.on_repair(effect.answer, now_s)

    def on_ready(self, effect: object, now_s: float) -> None:
        self._outbox.do(NodeReady())

    def on_departed(self, effect: object, now_s: float) -> None:
        self._outbox.do(Stopped())

    def on_superseded(self, effect: Superseded, now_s: float) -> None:
        self.reconfiguration.superseded(effect.by, now_s)

    def on_notice(self, notice: Notice, now_s: float) -> None:
        self._outbox.do(notice)
