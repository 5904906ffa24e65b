"""The broker, as a pure state machine: clients on one side, routing on the other.

    effects = broker.on_peer_frame(frame, now_s)
    effects = broker.on_client_frame(connection, frame, now_s)
    effects = broker.tick(now_s)

It keeps sessions, and serves what clients say; how events travel between brokers is its routing's
(`routing/routing.py`). Its driver performs the effects in order, takes session output when woken,
and ticks it every few tens of milliseconds.

Parts are made with one context, and say what is to be done in one outbox. After every input
`_settle` empties that, in this order, until nothing is left:

    1. what has come from other brokers, and what came of it here: to sessions
    2. unless it is frozen: what clients said while it was
    3. what clients have caused: to other brokers
    4. sessions: too slow, with something new to hear, or to be read from again
    5. its part in a reconfiguration
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from random import Random

from broker_agent.core.base.broker_counts import BrokerCounts
from broker_agent.core.base.clock import SteadyClock
from broker_agent.core.base.context import BrokerContext
from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.counters import BrokerCounters
from broker_agent.core.base.effects import BrokerEffect, ConnectionId, SaveNow
from broker_agent.core.base.identity import Identity
from broker_agent.core.base.outbox import BrokerOutbox
from broker_agent.core.clients.flow import Flow
from broker_agent.core.clients.gate import Gate
from broker_agent.core.clients.history_requests import HistoryRequests
from broker_agent.core.clients.holding import Holding
from broker_agent.core.clients.publication_requests import PublicationRequests
from broker_agent.core.clients.reception import Reception
from broker_agent.core.clients.serving import Serving
from broker_agent.core.clients.subscription_requests import SubscriptionRequests
from broker_agent.core.dispatch import client_handlers, peer_handlers
from broker_agent.core.keeping.journal import Changes, SessionJournal, Stored
from broker_agent.core.keeping.restoring import restore_sessions
from broker_agent.core.options import BrokerOptions
from broker_agent.core.reports.logbook import Logbook, LogbookPage
from broker_agent.core.reports.reporting import Reporting
from broker_agent.core.rights.access import Access, Refusal
from broker_agent.core.routing.confirming import Confirming
from broker_agent.core.routing.routing import RoutingFactory
from broker_agent.core.selection.advice import SelectionAdvice
from broker_agent.core.selection.cluster import cluster_for
from broker_agent.core.selection.other_brokers import OtherBrokers
from broker_agent.core.sessions.content import Content
from broker_agent.core.sessions.local_topics import LocalTopics
from broker_agent.core.sessions.registry import Registry
from broker_agent.core.sessions.timings import Timings
from broker_agent.core.sessions.unsaved import Unsaved
from broker_agent.core.status.broker_status import BrokerStatus
from broker_agent.core.status.session_reports import SessionReports
from broker_agent.core.stores.log.log_requests import AppendToLog, LogOutcome
from broker_agent.core.stores.store_reader import ServedKey, StorePortion
from broker_agent.core.stores.storing import Storing
from dynatops.v1.client_pb2 import ClientFrame
from dynatops.v1.inspection_pb2 import (
    BrokerReport,
    DescribeSessionRequest,
    DescribeTreeRequest,
    ListSessionsRequest,
    ListStoresRequest,
    ListTopicsRequest,
    SessionDetails,
    SessionsReport,
    StoresReport,
    TopicsReport,
    TopologyReport,
    TreeReport,
)
from dynatops.v1.manager_pb2 import STORE_ASSIGN, LoadReport, Registration, Step
from dynatops.v1.overlay_pb2 import PeerFrame, Run
from overlay.forwarding.tables.table_reports import TableEntries
from overlay.forwarding.tree.topology import Topology

_LAKE = "lake"


class Broker:
    def __init__(
        self,
        identity: Identity,
        make_routing: RoutingFactory,
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
            LocalTopics(),
            Confirming(),
            Timings(),
        )
        self.confirming = context.confirming
        routing = self.routing = make_routing(context)
        self._plans = routing.plans
        if options.logged_rows_max:
            routing.measures.begin_tally(_LAKE)
        self.cluster = cluster_for(
            context, options.selection, options.labels, options.doors, routing
        )
        self.registry = Registry(context)
        if options.selection.enabled:
            routing.subscriptions.read_system_topic(
                self.cluster.topic, self.cluster.learn_summaries
            )
        self.journal: SessionJournal | None = None
        if options.saving:
            self.journal = SessionJournal(context, self.registry, routing.subscriptions)
        gate = self.gate = Gate(context, options.access or Access(settings))
        self.reception = Reception(
            context,
            self.registry,
            gate,
            routing.subscriptions,
            OtherBrokers(context, routing.brokers, self.cluster.selection.neighbours),
            self.journal,
        )
        flow = self._flow = Flow(context, self.registry, gate, routing.publishing)
        self._subscribing = SubscriptionRequests(
            context, gate, self.cluster, routing.subscriptions, flow
        )
        publications = PublicationRequests(context, self.reception, gate, routing.publishing, flow)
        self._holding = Holding(context, routing.plans)
        self.storing = Storing(context, routing, options.store, options.past)
        self.reporting = Reporting(context, options.labels, routing, self.registry, self.storing)
        self._histories = HistoryRequests(
            context, self.storing.past.requests, flow, routing.measures
        )
        self._serving = Serving(
            self.registry,
            self.reception,
            self.cluster,
            self._holding,
            client_handlers(flow, publications, self._subscribing, self._histories),
        )
        self._session_reports = SessionReports(self.registry, routing.subscriptions)
        routing.heed_also(peer_handlers(self.reception, self.storing))

    @property
    def now_s(self) -> float:
        """As of the last input."""
        return self._clock.now_s

    # ---- inputs ---------------------------------------------------------------------------------

    def start(
        self, seeds: Sequence[str], reading_s: float, *, founding: bool = False
    ) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        self.logbook.begin(now_s)
        self.routing.start(seeds, now_s, founding=founding)
        self.storing.start(now_s)
        return self._settle(now_s)

    def tick(self, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        self.routing.tick(now_s)
        if self.routing.is_member and not self._plans.is_frozen:
            self.cluster.tick(len(self.registry), now_s)
        self.reception.tick(now_s)
        self._subscribing.tick(now_s)
        self._flow.tick(now_s)
        self.storing.tick(now_s)
        self._histories.tick(now_s)
        self._plans.tick(now_s)
        return self._settle(now_s)

    def on_peer_frame(self, frame: PeerFrame, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        self.routing.on_frame(frame, now_s)
        return self._settle(now_s)

    def unreachable(self, address: str, reading_s: float) -> list[BrokerEffect]:
        """Connections to this address are refused."""
        now_s = self._clock.at(reading_s)
        self.cluster.selection.lose((address,))
        self.routing.unreachable(address, now_s)
        return self._settle(now_s)

    def change_topology(self, topology: Topology, reading_s: float) -> list[BrokerEffect]:
        """An operator says so; `topology_problem` says whether that can be done."""
        now_s = self._clock.at(reading_s)
        self.routing.change_topology(topology, now_s)
        return self._settle(now_s)

    def leave(self, reading_s: float) -> list[BrokerEffect]:
        """Leave other brokers, and say goodbye to clients; done when `Stopped` comes out. Sessions
        end with it here, not on disk: take what is unsaved first."""
        now_s = self._clock.at(reading_s)
        self.cluster.farewell(now_s)
        self.routing.leave(now_s)
        if self.journal is not None:
            self.journal.end()
        self.reception.leave()
        return self._settle(now_s)

    # ---- the reconfiguration manager ------------------------------------------------------------

    def on_step(self, step: Step, reading_s: float) -> list[BrokerEffect]:
        """A step of a reconfiguration, or what the store here is to keep; it is answered by
        `ReplyToManager`, now or later."""
        now_s = self._clock.at(reading_s)
        if step.kind == STORE_ASSIGN:
            self.storing.assigning.on_step(step, self._plans.fence, now_s)
        else:
            self._plans.on_step(step, now_s)
        return self._settle(now_s)

    def assignment_remembered(
        self, epoch: int, problem: str, reading_s: float
    ) -> list[BrokerEffect]:
        """What `RememberAssignment` came to; why it is not on disk, if it is not."""
        now_s = self._clock.at(reading_s)
        self.storing.assigning.remembered(epoch, problem, now_s)
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
        subscriptions = self.routing.subscriptions
        sessions = restore_sessions(stored, self.registry, subscriptions, self.settings, now_s)
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

    # ---- the log of the store here --------------------------------------------------------------

    def take_unstored(self, bytes_max: int, now_us: int, reading_s: float) -> AppendToLog | None:
        """What the log is to have next, about so much of it; None if that is nothing at present.
        Say `log_answered` in the end. `now_us`: the time of day."""
        store = self.storing.store
        now_s = self._clock.at(reading_s)
        return store.take(bytes_max, now_us, now_s) if store is not None else None

    def log_answered(self, outcome: LogOutcome, reading_s: float) -> list[BrokerEffect]:
        now_s = self._clock.at(reading_s)
        self.storing.on_log_outcome(outcome, now_s)
        return self._settle(now_s)

    def past_read(
        self, key: ServedKey, portion: StorePortion, reading_s: float
    ) -> list[BrokerEffect]:
        """What `ReadPast` came to."""
        now_s = self._clock.at(reading_s)
        self.storing.past.on_read(key, portion, now_s)
        return self._settle(now_s)

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
        return self._context.timings.taken(session, bytes_max, self._clock.now_s)

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

    def take_logbook_page(self, reading_s: float) -> LogbookPage:
        """What has happened here since the last call."""
        return self._with_tally(self.logbook.take_page(reading_s))

    def end_logbook(self, reading_s: float) -> LogbookPage:
        """The broker is gone, and with it whoever was left: the last page."""
        return self._with_tally(self.logbook.end(self.registry.clients.values(), reading_s))

    def _with_tally(self, page: LogbookPage) -> LogbookPage:
        page.publications = self.routing.measures.take_tally(_LAKE)
        return page

    def left_over(self) -> Iterator[str]:
        """What was to be done because of the last input, and was not: nothing."""
        yield from self._outbox.left_over()
        yield from self.routing.left_over()

    # ---- what others may know -------------------------------------------------------------------

    @property
    def is_joining(self) -> bool:
        """It has not found other brokers yet."""
        return self.routing.is_joining

    @property
    def is_member(self) -> bool:
        """It is one of the network's, and not on its way out."""
        return self.routing.is_member

    @property
    def is_leaving(self) -> bool:
        """It has been told to leave, and lets nobody in any more."""
        return self.reception.is_leaving

    def status(self) -> BrokerStatus:
        """What it is and has now, but for what there may be too much of to look at."""
        selection, plans = self.cluster.selection, self._plans
        local, timings = self._context.local, self._context.timings
        past = self.storing.past
        return BrokerStatus(
            identity=self.identity,
            node=self.routing.node_status(),
            unready=self.routing.unready or self.storing.unready,
            is_leaving=self.is_leaving,
            sessions=len(self.registry),
            absent_sessions=self.registry.absent,
            unnamed_connections=self.reception.unnamed,
            subscriptions=local.subscriptions,
            subscribed_patterns=len(local.counts),
            subscription_changes=local.changes,
            open_publication_streams=self.routing.publishing.open_streams,
            is_frozen=plans.is_frozen,
            epoch=plans.epoch,
            fence=plans.fence,
            neighbours=len(selection.neighbours),
            is_advised=selection.is_advised(self.now_s),
            counters=self.counters,
            tree=self.routing.tree_status(),
            selection_counters=selection.counters,
            known_units=len(past.table),
            past_asks=len(past.requests),
            past_serves=past.open_serves,
            past_counters=past.counters,
            acknowledged_s=timings.acknowledged_s,
            queued_s=timings.queued_s,
        )

    def count_in_steps(self, at_once: int) -> Generator[None, None, BrokerCounts]:
        """Count all that it has; after so many things it waits until it is to go on."""
        counts = BrokerCounts()
        yield from self.routing.count_in_steps(counts, at_once)
        yield from self.registry.count_in_steps(counts, at_once)
        return counts

    def take_run_sample(self) -> tuple[Run, float] | None:
        """The first run for clients here since the last call, and how many seconds ago it came. The
        driver knows the time of day, and how old its events were."""
        taken = self._context.timings.take_run()
        return (taken[0], self.now_s - taken[1]) if taken is not None else None

    def namesakes(self, broker_id: str) -> list[str]:
        """Addresses where a broker of this name was seen."""
        return self.routing.brokers.namesakes(broker_id)

    # ---- what operators ask ---------------------------------------------------------------------

    def admit_inspector(self, token: str) -> Refusal | None:
        """Why whoever shows this token may ask nothing; None if anything."""
        refusal = self.gate.access.inspector(token)
        if refusal is not None:
            self.counters.inspect_refused += 1
        return refusal

    def admit_administrator(self, token: str) -> Refusal | None:
        """Why whoever shows this token may change nothing; None if anything."""
        refusal = self.gate.access.administrator(token)
        if refusal is not None:
            self.counters.administration_refused += 1
        return refusal

    def token_name(self, token: str) -> str:
        """What the tokens file calls it; empty where brokers ask for none."""
        return self.gate.access.name_of(token)

    def describe(self) -> BrokerReport:
        """The core; its driver knows more."""
        report = BrokerReport(
            broker_id=self.identity.broker_id,
            address=self.identity.address,
            sessions=len(self.registry),
        )
        self.routing.describe(report)
        return report

    def list_topics(self, request: ListTopicsRequest) -> TopicsReport:
        return self.routing.list_topics(request.after, request.limit)

    def describe_topology(self) -> TopologyReport:
        return self.routing.describe_topology()

    def table_entries(self) -> TableEntries | None:
        """Subscription tables, as they are now; nothing changes what was given. None on a ring."""
        return self.routing.table_entries()

    def list_stores(self, request: ListStoresRequest) -> StoresReport:
        """What is known of stores here. Raises FilterError."""
        return self.storing.past.list_stores(request)

    def topology_problem(self, topology: Topology) -> str:
        """Why this broker cannot use it in place of what it has; empty if it can."""
        return self.routing.topology_problem(topology)

    def describe_tree(self, request: DescribeTreeRequest) -> TreeReport:
        return self.routing.describe_tree(request.topic)

    def list_sessions(self, request: ListSessionsRequest) -> SessionsReport:
        return self._session_reports.page(request, self.now_s)

    def describe_session(self, request: DescribeSessionRequest) -> SessionDetails:
        return self._session_reports.describe(request, self.now_s)

    # ---- after each input -----------------------------------------------------------------------

    def _settle(self, now_s: float) -> list[BrokerEffect]:
        outbox, routing = self._outbox, self.routing
        while True:
            routing.take_in(now_s)
            if self._holding.held and not self._plans.is_frozen:
                self._flow.read_again(self._serving.serve_held(now_s))
            self.storing.settle(now_s)
            if self.storing.past.has_news:
                self._settle_histories(now_s)
            if not routing.send_out(now_s):
                break
        if outbox.too_slow:
            for session in outbox.take_too_slow():
                self.reception.end_slow(session)
        self._flow.settle()
        if self.confirming.held:
            outbox.do(SaveNow())
        if self._plans.is_frozen:
            self._plans.progress(now_s)
        return outbox.take_effects()

    def _settle_histories(self, now_s: float) -> None:
        """What stores answered goes to those who asked, who may let more come because of it."""
        past = self.storing.past
        for news in past.take_news(now_s):
            self._histories.on_news(news, now_s)
        past.settle(now_s)
